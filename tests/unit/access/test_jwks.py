"""A provider's keys: cached, fetched again when they rotate, kept while the provider is away."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import jwt
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

    async def __call__(self, _url: str) -> Any:
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
    """Its keys are good for a day; without any, clients hear that they may try again, as with a key that may be new."""
    keys = Jwks("https://id.example/keys", 300, fetch=published)
    await keys.find("old")
    published.is_away = True
    clock["s"] = 20
    with pytest.raises(ProtocolError, match="try again"):
        await keys.find("new")
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


Answer = Callable[[asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def provider(answer: Answer) -> AsyncIterator[str]:
    """A server that sends what a test wants, whatever it is asked; its address."""
    serving: set[asyncio.Task[None] | None] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.add(asyncio.current_task())
        with contextlib.suppress(ConnectionError):
            await reader.readuntil(b"\r\n\r\n")
            await answer(writer)
        with contextlib.suppress(ConnectionError):
            writer.close()
            await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/keys"
    await asyncio.gather(*filter(None, serving))


def saying(data: bytes) -> Answer:
    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(data)
        await writer.drain()

    return answer


OK = b"HTTP/1.1 200 OK\r\n"


async def test_fetching():
    """Over real HTTP."""
    async with provider(saying(b'HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\n{"keys":[]}')) as url:
        assert await fetch_json(url) == {"keys": []}
    with pytest.raises(OSError, match="connect"):
        await fetch_json(url)


async def test_keys_over_http(clock):
    """Fetched as a server does; when the provider talks nonsense later, they are good all the same."""
    document = json.dumps({"keys": [OLD.jwk()]}).encode()
    said = [OK + b"\r\n" + document, b"SSH-2.0-x\r\n\r\n"]

    async def answer(writer: asyncio.StreamWriter) -> None:
        await saying(said.pop(0))(writer)

    async with provider(answer) as url:
        keys = Jwks(url, 300)
        found = await keys.find("old")
        assert found is not None
        assert jwt.decode(OLD.sign(), found.key, list(found.algorithms))["sub"] == "ann"
        clock["s"] = 1000
        assert await keys.find("old") is not None
    assert said == []


@pytest.mark.parametrize(
    "data",
    [
        OK + b"\r\n" + b" " * (module.MAX_BYTES + 1),
        OK + b"Content-Length: 1000\r\n\r\n{",
        OK + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        OK + b"\r\n" + b"[" * 200_000,
        OK + b"a: " + b"b" * 100_000 + b"\r\n\r\n{}",
        b"HTTP/1.1 500 Sorry\r\nContent-Length: 0\r\n\r\n",
        b"SSH-2.0-x\r\n\r\n",
        b"",
    ],
)
async def test_what_is_no_document(data):
    """An endless one, half of one, garbage: the keys that were there before are good all the same."""
    async with provider(saying(data)) as url:
        with pytest.raises((OSError, ValueError)):  # what `Jwks` takes for a provider that is away
            await fetch_json(url)


async def test_a_document_that_drips(monkeypatch: pytest.MonkeyPatch):
    """Is given up after a time, however much of it still comes; who signs in meanwhile waits no longer than that."""
    monkeypatch.setattr(module, "FETCH_TIMEOUT_S", 0.05)

    async def drip(writer: asyncio.StreamWriter) -> None:
        writer.write(OK + b"\r\n")
        while True:
            writer.write(b" ")
            await writer.drain()
            await asyncio.sleep(0.01)

    async with provider(drip) as url:
        with pytest.raises(OSError, match="longer than"):
            await fetch_json(url)
