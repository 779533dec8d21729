"""What scanners, health checks and foreign pages do to a port: nothing."""

from __future__ import annotations

import asyncio
import logging
import struct

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosedError, InvalidStatus
from websockets.typing import Origin

TLS_HELLO = bytes.fromhex("16030100c8010000c40303") + bytes(range(190))
GARBAGE = bytes(range(256)) * 8


async def assert_serves(gateway) -> None:
    """The next client is served."""
    async with connect(f"{gateway.socket_url}/chat") as client:
        await client.send("hi")
        assert await client.recv() == "local: hi"


@pytest.fixture
def silent(caplog):
    """Fails a test that logged a warning, or a traceback at any level."""
    caplog.set_level(logging.DEBUG, "server")
    yield caplog
    bad = [r for r in caplog.records if r.levelno >= logging.WARNING or r.exc_info]
    assert not bad


async def test_connect_and_leave(gateway, silent):
    """A load balancer's TCP check leaves one debug line."""
    await gateway.raw(b"", read=False)
    await assert_serves(gateway)
    assert silent.messages.count("closed before a request") == 1


async def test_connect_and_reset(gateway, silent):
    """A check that resets the connection is as harmless."""
    _, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    writer.get_extra_info("socket").setsockopt(1, 13, struct.pack("ii", 1, 0))  # SO_LINGER 0: RST on close
    writer.transport.abort()
    await assert_serves(gateway)


@pytest.mark.parametrize("headers", [b"", b"Host: localhost\r\n", b"Connection: keep-alive\r\n"])
async def test_http_1_0(gateway, silent, headers):
    """HTTP/1.0 health checks are answered, with a Host header or without."""
    reply = await gateway.raw(b"GET /healthz HTTP/1.0\r\n" + headers + b"\r\n")
    assert reply.startswith(b"HTTP/1.1 200 OK\r\n")
    await assert_serves(gateway)


@pytest.mark.parametrize(
    "data", [GARBAGE, b"\r\n\r\n", b"SSH-2.0-x\r\n", b"GET / HTTP/9\r\n\r\n", b"\x00\n", b"A" * 20_000]
)
async def test_garbage(gateway, silent, data):
    """What is no HTTP is hung up on."""
    try:
        await gateway.raw(data)
    except ConnectionResetError:
        pass  # hung up before it had said everything
    await assert_serves(gateway)


@pytest.mark.parametrize("data", [TLS_HELLO, b"GET / HT", b"GET / HTTP/1.1\r\nHost: localhost\r\n", b""])
async def test_silence_until_the_open_timeout(gateway_with, silent, data):
    """A client that never completes its request is dropped."""
    async with gateway_with(limits={"open_timeout_s": 0.05}) as gateway:
        try:
            assert await gateway.raw(data) == b""
        except ConnectionResetError:
            pass  # dropped
        await assert_serves(gateway)


async def test_pipelined_requests(gateway, silent):
    """The first request is answered, the second is not read as frames."""
    reply = await gateway.raw(b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n" * 3)
    assert reply.count(b"HTTP/1.1 200") == 1
    await assert_serves(gateway)


async def test_a_request_and_gone(gateway, silent):
    """A client may leave before its answer."""
    await gateway.raw(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", read=False)
    await assert_serves(gateway)


@pytest.mark.parametrize("name", ["Host", "Origin"])
async def test_repeated_headers(gateway, silent, name):
    """Two Host or Origin headers are refused, not guessed at."""
    head = f"GET / HTTP/1.1\r\n{name}: localhost\r\n{name}: localhost\r\n\r\n"
    assert (await gateway.raw(head.encode())).startswith(b"HTTP/1.1 400")


async def test_dropping_without_a_close_frame(gateway, silent):
    """A client that just vanishes leaves the usual line, no traceback."""
    client = await connect(f"{gateway.socket_url}/chat")
    await client.send("hi")
    await client.recv()
    client.transport.abort()
    await client.wait_closed()
    await assert_serves(gateway)


async def test_bad_handshakes(gateway, silent):
    """A WebSocket handshake with a wrong key or version gets 400."""
    for extra in ("Sec-WebSocket-Key: x\r\nSec-WebSocket-Version: 13\r\n", "Sec-WebSocket-Version: 8\r\n", ""):
        head = f"GET /chat HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n{extra}\r\n"
        assert (await gateway.raw(head.encode())).startswith(b"HTTP/1.1 400")
    await assert_serves(gateway)


async def test_foreign_origin(gateway):
    """A page of another site can neither open a socket nor read the API."""
    with pytest.raises(InvalidStatus) as refused:
        await connect(f"{gateway.socket_url}/v1/responses", origin=Origin("https://evil.example"))
    assert refused.value.response.status_code == 403
    assert (await gateway.get("/v1/models", {"Origin": "https://evil.example"})).status == 403
    assert (await gateway.get("/v1/models", {"Origin": "null"})).status == 403


async def test_dns_rebinding(gateway):
    """A name that resolves to us is not ours, even where Host and Origin agree; probes are exempt."""
    headers = {"Host": f"evil.example:{gateway.port}", "Origin": f"http://evil.example:{gateway.port}"}
    reply = await gateway.get("/v1/models", headers)
    assert (reply.status, reply.json["error"]["code"]) == (403, "forbidden_origin")
    assert (await gateway.get("/", {"Host": "evil.example"})).status == 403
    assert (await gateway.get("/healthz", {"Host": "evil.example"})).status == 200


async def test_own_and_allowed_origins(gateway_with):
    """The server's own page and listed ones may connect."""
    async with gateway_with(allowed_origins=["https://chat.example"]) as gateway:
        for origin in (gateway.url, "https://chat.example"):
            async with connect(f"{gateway.socket_url}/v1/responses", origin=Origin(origin)) as client:
                await client.send("hi")
                assert await client.recv() == "local: hi"
        assert (await gateway.get("/", {"Host": "chat.example"})).status == 200


async def test_upgrade_elsewhere(gateway):
    """Only two paths speak WebSocket."""
    with pytest.raises(InvalidStatus) as refused:
        await connect(f"{gateway.socket_url}/v1/models")
    assert refused.value.response.status_code == 404


async def test_max_connections(gateway_with):
    """Over the limit the handshake gets 503 with a retry hint; a freed place can be taken."""
    async with gateway_with(limits={"max_connections": 1}) as gateway:
        async with connect(f"{gateway.socket_url}/chat"):
            with pytest.raises(InvalidStatus) as refused:
                await connect(f"{gateway.socket_url}/chat")
            assert refused.value.response.status_code == 503
            assert refused.value.response.headers["Retry-After"] == "5"
            assert (await gateway.get("/healthz")).status == 200
        await assert_serves(gateway)


async def test_two_mebibytes_of_brackets(gateway):
    """A frame over the limit closes this socket with 1009."""
    async with connect(f"{gateway.socket_url}/v1/responses") as client:
        with pytest.raises(ConnectionClosedError) as closed:
            await asyncio.gather(client.send("[" * 2 * 1024 * 1024), client.recv())
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1009
    await assert_serves(gateway)


async def test_handler_bug(gateway, caplog):
    """A bug in a handler closes its socket with 1011 and is logged once, with its traceback."""
    async with connect(f"{gateway.socket_url}/chat") as client:
        await client.send("crash")
        with pytest.raises(ConnectionClosedError) as closed:
            await client.recv()
    assert closed.value.rcvd is not None
    assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (1011, "internal error")
    assert [r.name for r in caplog.records if r.exc_info] == ["server.gateway.listener"]
