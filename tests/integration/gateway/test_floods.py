"""A client that sends more than is good for others: they hardly notice, and what it costs is bounded."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.asyncio.server import ServerConnection

from server.access.auth import User
from tests.integration.gateway.conftest import LIMIT_S, Factory, Gateway

EMPTY_PING = b"\x89\x80\0\0\0\0"
EMPTY_PONG = b"\x8a\x80\0\0\0\0"
CLOSE = b"\x88\x80\0\0\0\0"
FULL_PING = b"\x89\xfd\0\0\0\0" + b"x" * 125
LETTER = b"\x81\x81\0\0\0\0a"  # a text frame
STALL_SHARE = 0.25  # of the time that a flood takes; 0.4 to 0.9 where others have no turn, else below 0.12


@asynccontextmanager
async def flooder(gateway: Gateway) -> AsyncIterator[socket.socket]:
    """A WebSocket after its handshake, for use by threads: the event loop would send no faster than it reads."""
    with socket.create_connection(("127.0.0.1", gateway.port), timeout=LIMIT_S) as client:
        client.sendall(
            f"GET /v1/responses HTTP/1.1\r\nHost: 127.0.0.1:{gateway.port}\r\nUpgrade: websocket\r\n"
            "Connection: Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
            "\r\n".encode()
        )
        assert b"101 Switching" in await asyncio.to_thread(client.recv, 4096)
        yield client


def read_all(client: socket.socket) -> bytes:
    """Return what comes after the handshake, until the server closes or resets."""
    received = b""
    try:
        while data := client.recv(65536):
            received = (received + data)[-1024:]
    except ConnectionError:
        pass
    return received


async def slowest_answer(client: ClientConnection, until: asyncio.Task[bytes]) -> float:
    """Return the longest time that this client waited for an answer, in seconds."""
    longest = 0.0
    while not until.done():
        began = time.monotonic()
        await client.send("x")
        await client.recv()
        longest = max(longest, time.monotonic() - began)
        await asyncio.sleep(0.001)
    return longest


@pytest.mark.parametrize("frame", [EMPTY_PING, EMPTY_PONG], ids=["pings", "pongs"])
async def test_a_flood_of_tiny_frames_leaves_the_others_their_turn(gateway: Gateway, frame: bytes) -> None:
    """One read may bring 40,000 frames, and uvloop reads 32 times: they are worked on a little at a time."""
    async with connect(gateway.socket_url + "/chat") as other, flooder(gateway) as client:
        flooding = asyncio.create_task(asyncio.to_thread(client.sendall, frame * 200_000 + CLOSE))
        reading = asyncio.create_task(asyncio.to_thread(read_all, client))
        began = time.monotonic()
        longest = await slowest_answer(other, reading)
        await flooding

    assert longest < STALL_SHARE * (time.monotonic() - began)


async def test_a_client_that_pings_and_never_reads_is_cut(gateway: Gateway) -> None:
    """Pongs obey no back-pressure: they would fill the server's memory."""
    async with flooder(gateway) as client:
        with pytest.raises(ConnectionError):
            await asyncio.to_thread(client.sendall, FULL_PING * 400_000)


async def test_all_that_came_before_the_end_is_worked_on(gateway_with: Factory) -> None:
    """Frames that wait for their turn are not lost when the client has closed its side of the connection."""
    received = 0

    async def count(connection: ServerConnection, _user: User) -> None:
        nonlocal received
        async for _ in connection:
            received += 1

    async with gateway_with(count) as gateway, flooder(gateway) as client:
        await asyncio.to_thread(client.sendall, LETTER * 20_000)
        client.shutdown(socket.SHUT_WR)
        await asyncio.to_thread(read_all, client)

    assert received == 20_000
