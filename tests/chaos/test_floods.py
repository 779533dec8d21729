"""What hostile clients do to a real server: nothing falls, others are served meanwhile, and the memory comes back."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from websockets.asyncio.client import connect
from websockets.exceptions import WebSocketException

from protocol.commands import COMMANDS
from tests.support.server import ServerProcess

CONFIG = """
[limits]
open_timeout_s = 1.0
max_handshakes = 40
"""
MIB = 1024 * 1024
HEAD = b"GET /v1/responses HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
HANDSHAKE = HEAD + b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
PING = b"\x89\xfd\0\0\0\0" + b"x" * 125
FRAGMENT = b"\x00\x81\0\0\0\0x"  # one character, and more to come
KEPT_MIB = 40  # what an allocator may keep after a flood; what a leak of these floods would hold is a multiple


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    made = ServerProcess(tmp_path_factory.mktemp("floods"), "--echo-rate", "50000", config=CONFIG)
    with made:
        asyncio.run(serve_one(made))  # what is loaded and allocated once is no leak
        yield made
        assert made.faults() == [], "".join(made.log)
    assert made.wait() == 0


async def serve_one(server: ServerProcess) -> None:
    """A client is served as if nothing were."""
    async with connect(f"{server.ws_url}/chat", open_timeout=30) as chat:
        await chat.send("hi")
        assert await chat.recv() == "hi"


@asynccontextmanager
async def harmless(server: ServerProcess) -> AsyncIterator[None]:
    """Whatever happens inside, a client is served during it and after it, and the memory comes back."""
    before = server.rss_bytes()
    stop = asyncio.Event()

    async def go_on() -> None:
        is_last = False
        while not is_last:
            is_last = stop.is_set()
            try:
                await serve_one(server)
            except (OSError, WebSocketException, EOFError):  # no place for a moment
                is_last = False

    others = asyncio.create_task(go_on())
    yield
    stop.set()
    async with asyncio.timeout(30):
        await others
    await asyncio.to_thread(server.until_metric, "connections", 0)
    assert server.rss_bytes() - before < KEPT_MIB * MIB


def raw(server: ServerProcess) -> socket.socket:
    made = socket.create_connection(("127.0.0.1", server.port), timeout=20)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # RST on close: no ports left waiting
    return made


def opened(server: ServerProcess) -> socket.socket:
    """A WebSocket after its handshake."""
    made = raw(server)
    made.sendall(HANDSHAKE)
    assert b"101 Switching" in made.recv(4096)
    return made


def send_until_cut(client: socket.socket, data: bytes, times: int) -> None:
    with contextlib.suppress(OSError):
        for _ in range(times):
            client.sendall(data)
    client.close()


async def test_a_flood_of_handshakes(server: ServerProcess):
    """Connections that come and leave, with a request, half of one, or none."""

    def flood() -> None:
        for number in range(600):
            with contextlib.suppress(OSError), contextlib.closing(raw(server)) as client:
                client.sendall((b"", HEAD, HANDSHAKE)[number % 3])

    async with harmless(server):
        await asyncio.gather(*(asyncio.to_thread(flood) for _ in range(2)))


async def test_handshakes_that_never_end(server: ServerProcess):
    """Each sends a byte now and then: it has its second, and there are not more of them than may wait."""

    def drip(client: socket.socket) -> None:
        with contextlib.suppress(OSError), contextlib.closing(client):
            for byte in HANDSHAKE[:-1]:
                client.sendall(bytes([byte]))
                client.settimeout(0.1)
                with contextlib.suppress(TimeoutError):
                    if client.recv(1) == b"":
                        return

    def drip_all() -> None:
        waiting = []
        with contextlib.suppress(OSError):
            for _ in range(100):
                waiting.append(raw(server))
                waiting[-1].sendall(HEAD)
        drip(waiting[0])
        for client in waiting[1:]:
            client.close()

    async with harmless(server):
        await asyncio.gather(*(asyncio.to_thread(drip_all) for _ in range(2)))
    assert any("too many handshakes" in line for line in server.log)


async def test_a_flood_of_pings(server: ServerProcess):
    """Whole megabytes of them, answers unread."""
    async with harmless(server):
        clients = await asyncio.gather(*(asyncio.to_thread(opened, server) for _ in range(4)))
        await asyncio.gather(*(asyncio.to_thread(send_until_cut, client, PING * 500, 40) for client in clients))


async def test_a_drip_of_fragments(server: ServerProcess):
    """A message that never ends, a character at a time."""
    begin = b"\x01\x81\0\0\0\0x"
    async with harmless(server):
        clients = await asyncio.gather(*(asyncio.to_thread(opened, server) for _ in range(20)))
        for client in clients:
            client.sendall(begin)
        await asyncio.gather(*(asyncio.to_thread(send_until_cut, client, FRAGMENT * 500, 20) for client in clients))


NAMES = st.sampled_from(
    [
        "id",
        "stream_id",
        "input",
        "model",
        "conversation",
        "previous_response_id",
        "response_id",
        "store",
        "generate",
        "metadata",
        "limit",
        "after",
        "items",
        "token",
        "max_output_tokens",
        "stop",
        "temperature",
        "starting_after",
    ]
)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(["conv_1", "resp_1"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=4,
)
OBJECTS = st.builds(
    lambda kind, fields: json.dumps({"type": kind, **fields}) if kind else json.dumps(fields),
    st.sampled_from([None, *sorted(COMMANDS), "response.creat"]),
    st.dictionaries(NAMES, VALUES, max_size=4),
)
FRAMES = st.binary(max_size=60) | st.text(max_size=60) | OBJECTS


def variants(frame: str | bytes) -> list[str | bytes]:
    """As it is, cut in the middle, with more behind it, and as bytes."""
    data = frame.encode("utf-8", "surrogatepass") if isinstance(frame, str) else frame
    return [frame, data[: len(data) // 2], data + b"}", b"{" + data]


@given(frames=st.lists(FRAMES, min_size=25, max_size=25))
@settings(max_examples=100, suppress_health_check=list(HealthCheck), database=None)
def test_ten_thousand_random_frames(server: ServerProcess, frames: list[Any]):
    """A hundred at a time on one connection: each is answered or ignored, and the connection works on."""

    async def send_all() -> None:
        async with connect(f"{server.ws_url}/v1/responses", max_size=None) as client:
            for frame in frames:
                for variant in variants(frame):
                    await client.send(variant)
            await client.send('{"type":"model.list","stream_id":"the-end"}')
            async with asyncio.timeout(30):
                while '"model.listed","data"' not in (event := await client.recv()) or "the-end" not in str(event):
                    pass

    asyncio.run(send_all())


@given(data=st.binary(min_size=1, max_size=400))
@settings(max_examples=200, suppress_health_check=list(HealthCheck), database=None)
def test_random_bytes_after_the_handshake(server: ServerProcess, data: bytes):
    """What is no WebSocket frame ends this connection and nothing else."""
    with contextlib.closing(opened(server)) as client:
        client.sendall(data)
