"""A provider's keys: cached, fetched again when they rotate, kept while the provider is away."""

from __future__ import annotations

import asyncio
import http.server
import json
import threading
from typing import Any

import pytest

from protocol.errors import ProtocolError
from server.access import jwks as module
from server.access.jwks import Jwks, fetch_json, verifying_keys
from tests.support.credentials import Provider

OLD, NEW = Provider("ES256", "old"), Provider("ES256", "new")


class Published:
    """A provider's document. fetches: how often it was asked for. is_away: it cannot be had."""

    def __init__(self, *providers: Provider) -> None:
        self.providers = list(providers)
        self.fetches = 0
        self.is_away = False

    def __call__(self, _url: str) -> Any:
        self.fetches += 1
        if self.is_away:
            raise OSError("no route")
        return {"keys": [provider.jwk() for provider in self.providers]}


@pytest.fixture
def published() -> Published:
    return Published(OLD)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """Seconds that have passed."""
    passed = {"s": 0.0}

    monkeypatch.setattr(module, "_now", lambda: passed["s"])
    return passed


async def test_one_fetch_serves_all(published, clock):
    """However many ask, at once and later."""
    keys = Jwks("https://id.example/keys", 300, fetch=published)
    found = await asyncio.gather(*(keys.find("old") for _ in range(50)))
    clock["s"] = 299
    assert await keys.find("old") is not None
    assert None not in found
    assert published.fetches == 1


async def test_rotation(published, clock):
    """A key id that nobody has seen is looked up at once, but not again and again; old keys go with their document."""
    keys = Jwks("https://id.example/keys", 300, fetch=published)
    await keys.find("old")
    clock["s"] = 20
    published.providers.append(NEW)
    assert await keys.find("new") is not None
    assert published.fetches == 2
    for _ in range(100):
        assert await keys.find("made up") is None
    assert published.fetches == 2
    published.providers.remove(OLD)
    clock["s"] = 400
    assert await keys.find("old") is None
    assert published.fetches == 3


async def test_a_provider_that_is_away(published, clock):
    """Its keys are good for a day; without any, clients hear that they may try again."""
    keys = Jwks("https://id.example/keys", 300, fetch=published)
    await keys.find("old")
    published.is_away = True
    clock["s"] = 80_000
    assert await keys.find("old") is not None
    clock["s"] = 90_000
    with pytest.raises(ProtocolError) as caught:
        await keys.find("old")
    assert (caught.value.code, bool(caught.value.retry_after_ms)) == ("server_is_overloaded", True)
    published.is_away = False
    clock["s"] = 90_011
    assert await keys.find("old") is not None


@pytest.mark.parametrize(
    "document", [None, [], {}, {"keys": 1}, {"keys": []}, {"keys": [1, {}, {"kty": "oct", "k": "YQ"}, {"kty": "EC"}]}]
)
def test_documents_without_keys(document):
    """A secret has no place in them."""
    with pytest.raises(ValueError, match="no key"):
        verifying_keys(document)


def test_fetching():
    """Over real HTTP; a document without end is not read to it."""
    body = json.dumps({"keys": []}).encode()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body if self.path == "/keys" else b" " * (module.MAX_BYTES + 1))

        def log_message(self, *_: Any) -> None: ...

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        assert fetch_json(f"http://127.0.0.1:{server.server_port}/keys") == {"keys": []}
        with pytest.raises(ValueError, match="more than"):
            fetch_json(f"http://127.0.0.1:{server.server_port}/endless")
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    with pytest.raises(OSError, match="refused"):
        fetch_json(f"http://127.0.0.1:{server.server_port}/keys")
