"""A real listener on a free port, with handlers and queries made for these tests."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import uvloop
from websockets.asyncio.server import ServerConnection

from protocol.errors import ProtocolError
from server.access.access import Access
from server.access.auth import User
from server.access.keys import KeyStore
from server.access.limits import Limits
from server.access.sign_in import SignIn
from server.config import Config
from server.gateway.http import HttpRoutes
from server.gateway.listener import Listener
from server.gateway.page import Page
from server.observe.metrics import Metrics

LIMIT_S = 10.0


def pytest_asyncio_loop_factories(config, item):
    """Run every test on uvloop, which the server uses, and on asyncio's own loop, which it falls back to."""
    return {"uvloop": uvloop.new_event_loop, "asyncio": asyncio.new_event_loop}


class FakeQueries:
    """Answers with what it was asked."""

    async def models(self, user: User) -> dict[str, Any]:
        return {"object": "list", "data": [{"id": "m", "owner": user.id}]}

    async def limits(self, user: User) -> dict[str, Any]:
        return {"object": "list", "data": []}

    async def response(self, user: User, id: str) -> bytes:
        if id == "bug":
            raise RuntimeError("a bug with secret details")
        if id != "resp_1":
            raise ProtocolError("response_not_found", f"no response {id}", param="response_id")
        return b'{"id":"resp_1"}'

    async def conversations(self, user: User, after: str | None, limit: int) -> dict[str, Any]:
        return {"after": after, "limit": limit}

    async def conversation(self, user: User, id: str) -> dict[str, Any]:
        raise ProtocolError("store_unavailable", "Redis does not answer", retry_after_ms=1500)

    async def items(self, user: User, conversation: str, after: str | None, limit: int) -> dict[str, Any]:
        return {"conversation": conversation, "after": after, "limit": limit}


@dataclass
class Gateway:
    """What a test can reach."""

    listener: Listener
    metrics: Metrics
    url: str
    web: Path
    reasons: list[str] = field(default_factory=list)

    @property
    def port(self) -> int:
        return urlsplit(self.url).port or 0

    @property
    def socket_url(self) -> str:
        return self.url.replace("http", "ws", 1)

    async def raw(self, data: bytes, *, read: bool = True) -> bytes:
        """Send bytes over TCP and return all that comes until the server closes."""
        async with asyncio.timeout(LIMIT_S):
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
            try:
                writer.write(data)
                await writer.drain()
                return await reader.read() if read else b""
            finally:
                writer.close()
                await writer.wait_closed()

    async def request(
        self, method: str, target: str, headers: dict[str, str] | None = None, body: bytes = b""
    ) -> Reply:
        """One HTTP request, byte for byte as given."""
        lines = {"Host": f"127.0.0.1:{self.port}", **(headers or {})}
        if body:
            lines["Content-Length"] = str(len(body))
        head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        return Reply.parse(await self.raw(f"{method} {target} HTTP/1.1\r\n{head}\r\n".encode() + body))

    async def get(self, target: str, headers: dict[str, str] | None = None) -> Reply:
        return await self.request("GET", target, headers)


@dataclass
class Reply:
    """A parsed HTTP response."""

    status: int
    headers: dict[str, str]
    body: bytes

    @classmethod
    def parse(cls, data: bytes) -> Reply:
        head, _, body = data.partition(b"\r\n\r\n")
        status, *lines = head.decode().split("\r\n")
        pairs = (line.split(": ", 1) for line in lines)
        headers = {name.lower(): value for name, value in pairs}
        assert len(headers) == len(lines), "a header came twice"
        return cls(int(status.split()[1]), headers, body)

    @property
    def json(self) -> Any:
        return json.loads(self.body)


async def echo(connection: ServerConnection, user: User) -> None:
    """Send back every frame; `crash` is a bug of the handler."""
    async for message in connection:
        if message == "crash":
            raise RuntimeError("handler bug")
        await connection.send(f"{user.id}: {message!s}")


Handler = Callable[[ServerConnection, User], Any]
Factory = Callable[..., AbstractAsyncContextManager[Gateway]]


@pytest.fixture
def web(tmp_path: Path) -> Path:
    root = tmp_path / "site" / "web"
    (root / "js").mkdir(parents=True)
    (root / "index.html").write_text("<!doctype html><title>page</title>")
    (root / "js" / "app.js").write_text("export const a = 1;")
    (root / "notes.txt").write_text("not for clients")
    (root / ".hidden.js").write_text("hidden")
    (tmp_path / "site" / "secret.js").write_text("secret")
    return root


@pytest.fixture
def gateway_with(web: Path) -> Factory:
    """Makes gateways with settings of their own, for `async with`."""

    @asynccontextmanager
    async def make(handler: Handler = echo, *, keys: KeyStore | None = None, **settings: Any) -> AsyncIterator[Gateway]:
        config = Config.model_validate({"engine": "echo", "port": 0, **settings})
        metrics = Metrics()
        reasons: list[str] = []

        class Ready:
            def reasons(self) -> list[str]:
                return reasons

        http = HttpRoutes(FakeQueries(), Ready(), metrics, Page(web))
        sockets = {"/v1/responses": handler, "/chat": handler}
        listener = Listener(config, http, sockets, metrics, Access(SignIn(config, keys), Limits(config.quotas)))
        url = await listener.start()
        before = asyncio.all_tasks()
        try:
            yield Gateway(listener, metrics, url, web, reasons)
        finally:
            async with asyncio.timeout(LIMIT_S):
                await listener.wait_closed()
        await no_tasks_but(before)

    return make


async def no_tasks_but(expected: set[asyncio.Task[Any]]) -> None:
    """Wait until every task that the test caused has ended; hangs into a timeout naming them if one does not."""
    for _ in range(1000):
        left = asyncio.all_tasks() - expected - {asyncio.current_task()}
        if not left:
            return
        await asyncio.sleep(0.001)
    raise AssertionError(f"tasks leaked: {left}")


@pytest.fixture
async def gateway(gateway_with: Factory) -> AsyncIterator[Gateway]:
    async with gateway_with() as made:
        yield made
