"""Frames that are written without websockets' objects are what websockets itself reads."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.protocol import State
from websockets.uri import parse_uri

from server.gateway.sockets import push


class Transport:
    """Keeps what is written. writes: one for each call."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.writes.append(data)


def socket(state: State) -> Any:
    return SimpleNamespace(protocol=SimpleNamespace(state=state), transport=Transport())


def read(data: bytes) -> list[bytes]:
    """Return the text messages that a client finds in these bytes."""
    client = ClientProtocol(parse_uri("ws://localhost/"), state=State.OPEN, max_size=None)
    client.receive_data(data)
    frames = [event for event in client.events_received() if isinstance(event, Frame)]
    assert all(frame.opcode is Opcode.TEXT and frame.fin for frame in frames)
    return [bytes(frame.data) for frame in frames]


@pytest.mark.parametrize("size", [0, 1, 125, 126, 127, 65_535, 65_536, 70_000])
def test_a_message_of_any_length(size):
    made = socket(State.OPEN)
    push(made, (b"x" * size,))
    assert read(b"".join(made.transport.writes)) == [b"x" * size]


def test_several_messages_are_one_write():
    made = socket(State.OPEN)
    push(made, (b"one", b"", b"three"))
    (data,) = made.transport.writes
    assert read(data) == [b"one", b"", b"three"]


@pytest.mark.parametrize("state", [State.CONNECTING, State.CLOSING, State.CLOSED])
def test_nothing_is_written_to_a_socket_that_is_not_open(state):
    """Behind a close frame nothing may follow (RFC 6455 section 5.5.1)."""
    made = socket(state)
    push(made, (b"late",))
    assert made.transport.writes == []
