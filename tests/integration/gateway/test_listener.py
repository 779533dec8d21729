"""Starting, counting and stopping."""

from __future__ import annotations

import asyncio

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, ConnectionClosedError, InvalidStatus

from server.access.access import Access
from server.config import Config
from server.errors import StartError
from server.gateway.listener import Listener
from server.observe.metrics import Metrics

ANY = "0.0.0.0"  # noqa: S104 every address is the point


def listener_on(**settings: object) -> Listener:
    config = Config.model_validate({"engine": "echo", **settings})
    return Listener(config, None, {}, Metrics(), Access.without_store(config))  # type: ignore[arg-type]


async def test_port_in_use(gateway):
    """The error says what to do."""
    with pytest.raises(StartError, match=rf"^port {gateway.port} on 127.0.0.1 is in use; .* --port$"):
        await listener_on(port=gateway.port).start()


@pytest.mark.parametrize("host", ["no-such-host.invalid", "192.0.2.1"])
async def test_bad_host(host):
    """So does the one for a host that is not ours."""
    with pytest.raises(StartError, match=r"change --host$"):
        await listener_on(port=0, host=host, allow_unauthenticated=True).start()


async def test_url_is_one_a_person_can_open():
    """All addresses are shown as the loopback one, IPv6 in brackets."""
    for host, start in ((ANY, "http://127.0.0.1:"), ("::1", "http://[::1]:")):
        listener = listener_on(port=0, host=host, allow_unauthenticated=True)
        assert (await listener.start()).startswith(start)
        await listener.wait_closed()


async def test_closing_before_the_start_is_fine():
    """Both close and wait_closed are idempotent and need no start."""
    listener = listener_on(port=0)
    listener.close()
    await listener.wait_closed()


async def test_close_keeps_open_sockets(gateway):
    """After close nobody new comes in; open sockets go on until wait_closed sends 1012."""
    async with connect(f"{gateway.socket_url}/chat") as client:
        gateway.listener.close()
        gateway.listener.close()
        await client.send("still here")
        assert await client.recv() == "local: still here"
        with pytest.raises(ConnectionRefusedError):
            await connect(f"{gateway.socket_url}/chat")
        closing = asyncio.create_task(gateway.listener.wait_closed())
        with pytest.raises(ConnectionClosedError) as closed:
            await client.recv()
        await closing
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1012


async def test_drain_answers_probes_and_takes_no_sockets(gateway):
    """Open sockets go on, a new one gets 503 with a hint, and /readyz can say why."""
    async with connect(f"{gateway.socket_url}/chat") as client:
        gateway.listener.drain()
        await client.send("still here")
        assert await client.recv() == "local: still here"
        with pytest.raises(InvalidStatus) as refused:
            await connect(f"{gateway.socket_url}/chat")
        assert refused.value.response.status_code == 503
        assert refused.value.response.headers["Retry-After"]
        gateway.reasons.append("draining")
        answer = await gateway.raw(b"GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert b"draining" in answer


async def test_a_hanging_handler_does_not_keep_the_server(gateway_with, monkeypatch, caplog):
    """Handlers that outlive their socket are cancelled, with a warning."""
    monkeypatch.setattr("server.gateway.listener.CLOSE_TIMEOUT_S", 0.05)

    async def hang(connection, user) -> None:
        await asyncio.Event().wait()

    async with gateway_with(hang) as gateway, connect(f"{gateway.socket_url}/chat"):
        await gateway.listener.wait_closed()
    assert "connection handlers hang; cancelled" in caplog.text


async def test_half_open_clients_do_not_delay_the_end(gateway):
    """A client in the middle of its handshake is dropped at once."""
    _, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    writer.write(b"GET / HT")
    await writer.drain()
    await gateway.listener.wait_closed()
    writer.close()


async def test_connections_and_their_count(gateway):
    """`connections` and the gauge follow the sockets."""
    async with connect(f"{gateway.socket_url}/chat") as client:
        await client.send("hi")
        await client.recv()
        assert len(gateway.listener.connections) == 1
        assert b"tokenwire_connections 1.0" in gateway.metrics.render()
    assert not gateway.listener.connections
    assert b"tokenwire_connections_opened_total 1.0" in gateway.metrics.render()


@pytest.mark.parametrize(
    ("offered", "chosen"),
    [
        (None, None),
        (["responses"], "responses"),
        (["chat", "responses"], "responses"),
        (["chat"], "chat"),
        (["openai-insecure-api-key.k", "responses"], "responses"),
        (["openai-insecure-api-key.k", "mine"], "mine"),
    ],
)
async def test_subprotocols(gateway, offered, chosen):
    """A client that offers subprotocols gets one back, never a credential."""
    async with connect(f"{gateway.socket_url}/v1/responses", subprotocols=offered) as client:
        assert client.subprotocol == chosen


async def test_no_compression(gateway):
    """Deflate costs 44 KiB a connection: it is not negotiated."""
    async with connect(f"{gateway.socket_url}/chat", compression="deflate") as client:
        assert client.response is not None
        assert "Sec-WebSocket-Extensions" not in client.response.headers


async def test_vanished_client_ends_its_handler(gateway_with):
    """The handler of a client that drops gets ConnectionClosed and nothing is logged above info."""
    ended: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()

    async def wait(connection, user) -> None:
        try:
            await connection.recv()
        except ConnectionClosed as error:
            ended.set_result(error)
            raise

    async with gateway_with(wait) as gateway:
        client = await connect(f"{gateway.socket_url}/chat")
        client.transport.abort()
        assert isinstance(await asyncio.wait_for(ended, 10), ConnectionClosed)
