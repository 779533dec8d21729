"""What one connection keeps of the responses that it listened to."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from protocol.events import Event
from server.access.auth import LOCAL_USER
from server.access.sign_in import SignOut
from server.chat.hub import Channel
from server.config import Config
from server.gateway import outbox as outboxes
from server.gateway.connection import Connection
from server.observe.metrics import Metrics


class Socket:
    """A websocket whose client keeps up."""

    id = "socket"
    transport: Any
    close: Any

    def __init__(self) -> None:
        self.transport = self
        self.sent: list[bytes] = []

    def get_write_buffer_size(self) -> int:
        return 0

    def __aiter__(self) -> Socket:
        return self

    async def __anext__(self) -> str:
        raise StopAsyncIteration


@pytest.fixture
def socket(monkeypatch: pytest.MonkeyPatch) -> Socket:
    made = Socket()
    monkeypatch.setattr(outboxes, "push", lambda _socket, frames: made.sent.extend(frames))
    return made


@pytest.fixture
def no_collections() -> Iterator[None]:
    """Only what nobody refers to is freed."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collections")
async def test_an_idle_connection_keeps_nothing_of_an_ended_response(socket):
    """Its events are sent, and freed with the response: thousands of connections are idle after an answer."""
    connection = Connection(socket, LOCAL_USER, None, Config(engine="echo"), Metrics())  # type: ignore[arg-type]
    channel = Channel("resp_1", lambda _listeners: None)
    connection.subscribe(channel, cursor=0, stream_id=None)
    channel.publish([Event(0, b"{}")])
    assert connection.is_subscribed("resp_1")
    channel.close()
    kept = weakref.ref(channel)
    del channel
    assert socket.sent == [b"{}"]
    assert kept() is None
    assert not connection.is_subscribed("resp_1")


async def test_frames_behind_a_sign_out_are_ignored(socket):
    """A client that does not answer the close frame has some seconds left: it gets nothing done in them."""
    done: list[object] = []

    class Doing:
        async def handle(self, _client: object, command: object) -> None:
            done.append(command)

    async def close(code: int, reason: str) -> None:
        done.append((code, reason))
        await connection._receive('{"type":"model.list"}')
        await connection._receive('{"input":"hi"}')

    socket.close = close
    connection = Connection(socket, LOCAL_USER, Doing(), Config(engine="echo"), Metrics())  # type: ignore[arg-type]
    await connection.sign_out(SignOut.REVOKED)
    assert done == [(4401, "revoked")]
    assert [b"unauthorized" in frame for frame in socket.sent] == [True]


async def test_who_leaves_is_no_listener_while_redis_is_away(socket):
    """Its answers know at once, whatever its subscriptions to conversations wait for."""
    listening: list[int] = []

    class Waiting:
        async def leave(self, _client: object) -> None:
            listening.append(audience[-1])

    audience: list[int] = []
    channel = Channel("resp_1", audience.append)
    connection = Connection(socket, LOCAL_USER, Waiting(), Config(engine="echo"), Metrics())  # type: ignore[arg-type]
    connection.subscribe(channel, cursor=0, stream_id=None)
    await connection.run()
    assert audience == [1, 0]
    assert listening == [0]
