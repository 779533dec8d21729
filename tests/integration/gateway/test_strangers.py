"""What scanners, health checks and foreign pages do to a port: nothing."""

from __future__ import annotations

import asyncio
import json
import logging
import struct

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosedError, ConnectionClosedOK, InvalidStatus
from websockets.typing import Origin

from tests.support.credentials import MemoryKeys

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


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("Sec-WebSocket-Protocol", "openai-insecure-api-key.secret@@"),
        ("Sec-WebSocket-Key", "secret"),
        ("Sec-WebSocket-Version", "secret"),
        ("Connection", "Upgrade, secret@@"),
    ],
)
async def test_what_a_bad_handshake_said_is_not_repeated(gateway, silent, name, value):
    """A subprotocol may be a key; the answer names the header, in the shape of our errors."""
    headers = {
        "Host": "localhost",
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
        "Sec-WebSocket-Version": "13",
        name: value + "x" * 1000,
    }
    head = "".join(f"{key}: {text}\r\n" for key, text in headers.items())
    reply = await gateway.raw(f"GET /v1/responses HTTP/1.1\r\n{head}\r\n".encode())
    assert reply.startswith(b"HTTP/1.1 400")
    assert b"secret" not in reply
    assert name in json.loads(reply.partition(b"\r\n\r\n")[2])["error"]["message"]


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


async def test_with_sign_in_a_page_of_any_name_gets_nowhere(gateway_with):
    """Behind a proxy the server has names that it does not know; a page that rebinds one has no key."""
    async with gateway_with(auth={"methods": ["keys"]}, keys=MemoryKeys()) as gateway:
        host = f"chat.example:{gateway.port}"
        own = {"Host": host, "Origin": f"http://{host}"}
        assert (await gateway.get("/", own)).status == 200
        reply = await gateway.get("/v1/models", own)
        assert (reply.status, reply.json["error"]["code"]) == (401, "unauthorized")
        assert reply.headers["www-authenticate"] == "Bearer"
        assert (await gateway.get("/", own | {"Origin": "https://evil.example"})).status == 403


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


VIA_PROXY = {"trusted_proxies": ["127.0.0.1"]}


def of(address: str) -> dict[str, str]:
    """What a proxy says of a client."""
    return {"X-Forwarded-For": address}


async def test_connections_of_one_address(gateway_with):
    """Over its limit an address gets 429 with a hint; another one is served."""
    async with gateway_with(**VIA_PROXY, limits={"max_connections_per_address": 1}) as gateway:
        url = f"{gateway.socket_url}/chat"
        async with connect(url, additional_headers=of("203.0.113.7")):
            with pytest.raises(InvalidStatus) as refused:
                await connect(url, additional_headers=of("203.0.113.7"))
            assert refused.value.response.status_code == 429
            assert refused.value.response.headers["Retry-After"] == "5"
            async with connect(url, additional_headers=of("203.0.113.8")):
                pass
        async with connect(url, additional_headers=of("203.0.113.7")):
            pass


async def test_requests_of_one_address(gateway_with):
    """So many a minute, of any kind; who sits at the machine itself is not counted."""
    async with gateway_with(**VIA_PROXY, limits={"max_requests_per_minute_per_address": 3}) as gateway:
        statuses = [(await gateway.get("/healthz", of("203.0.113.7"))).status for _ in range(5)]
        assert statuses == [200, 200, 200, 429, 429]
        with pytest.raises(InvalidStatus):
            await connect(f"{gateway.socket_url}/chat", additional_headers=of("203.0.113.7"))
        assert [(await gateway.get("/healthz")).status for _ in range(5)] == [200] * 5


async def test_a_stranger_cannot_name_its_own_address(gateway_with):
    """Without a trusted proxy the header counts for nothing."""
    async with gateway_with(limits={"max_connections_per_address": 1}) as gateway:
        url, headers = f"{gateway.socket_url}/chat", of("203.0.113.7")
        async with connect(url, additional_headers=headers), connect(url, additional_headers=headers):
            pass


async def test_unfinished_handshakes(gateway_with, silent):
    """More than may wait are cut at once; those that wait have their time; then all is as before."""
    async with gateway_with(limits={"max_handshakes": 5, "open_timeout_s": 0.2}) as gateway:
        waiting = [await asyncio.open_connection("127.0.0.1", gateway.port) for _ in range(5)]
        assert await gateway.raw(b"") == b""
        assert "too many handshakes" in silent.messages
        for reader, writer in waiting:
            assert await reader.read() == b""
            writer.close()
        await assert_serves(gateway)


async def test_an_idle_client(gateway_with):
    """Is closed with 1001, pings or not; one that says something now and then, or waits for an answer, is not."""

    async def handler(connection, _user):
        with connection.busy_when(lambda: busy):
            async for message in connection:
                await connection.send(message)

    async with gateway_with(handler, limits={"idle_timeout_s": 0.2, "ping_interval_s": 0.02}) as gateway:
        busy = True
        async with connect(f"{gateway.socket_url}/chat") as client:
            await asyncio.sleep(0.5)
            await client.send("still here")
            assert await client.recv() == "still here"
            busy = False
            with pytest.raises(ConnectionClosedOK) as closed:
                await client.recv()
    assert closed.value.rcvd is not None
    assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (1001, "idle")


async def test_a_message_of_endless_pieces(gateway):
    """Thousands of fragments are no message; the client is told so."""
    async with connect(f"{gateway.socket_url}/chat") as client:
        with pytest.raises(ConnectionClosedError) as closed:
            await asyncio.gather(client.send("x" for _ in range(20_000)), client.recv())
    assert closed.value.rcvd is not None
    assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (1009, "too many fragments")
    await assert_serves(gateway)


async def test_a_client_that_answers_no_pings(gateway_with, silent):
    """Is gone: a phone without a network says no good-bye."""
    handshake = (
        b"GET /chat HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
    )
    async with gateway_with(limits={"ping_interval_s": 0.02, "ping_timeout_s": 0.05}) as gateway:
        reply = await gateway.raw(handshake)
        assert reply.startswith(b"HTTP/1.1 101")
        assert b"\x03\xf3keepalive ping timeout" in reply  # 1011
