"""What goes out on one socket: at once while the client keeps up, merged and bounded when it does not."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosedError

from protocol.events import TEXT_DELTA, Part, delta_event
from server.chat.hub import Channel, Subscription
from server.gateway import outbox as outboxes
from server.gateway.outbox import FAST_BUFFER_BYTES, WAITING_HIGH, Outbox
from tests.support.memory import until


class Socket:
    """A websocket whose client reads when it is told to. sent: frames, and how each went."""

    id = "socket"

    def __init__(self) -> None:
        self.transport = self
        self.sent: list[tuple[str, bytes]] = []
        self.buffered = 0
        self.is_aborted = False
        self.reads = asyncio.Event()
        self.reads.set()

    def get_write_buffer_size(self) -> int:
        return self.buffered

    def abort(self) -> None:
        self.is_aborted = True

    async def send(self, frame: bytes, *, text: bool) -> None:
        assert text
        if self.is_aborted:
            raise ConnectionClosedError(None, None)
        self.sent.append(("slow", frame))
        await self.reads.wait()

    def stop_reading(self) -> None:
        self.buffered = FAST_BUFFER_BYTES
        self.reads.clear()

    def read_on(self) -> None:
        self.buffered = 0
        self.reads.set()

    @property
    def frames(self) -> list[Any]:
        return [json.loads(frame) for _, frame in self.sent]


def push(socket: Any, frames: Iterable[bytes]) -> None:
    socket.sent += [("fast", frame) for frame in frames]


@pytest.fixture
def socket(monkeypatch: pytest.MonkeyPatch) -> Socket:
    monkeypatch.setattr(outboxes, "push", push)
    return Socket()


@pytest.fixture
async def outbox(socket: Socket) -> AsyncIterator[Outbox]:
    made = Outbox(socket, 100)  # type: ignore[arg-type]
    yield made
    await made.close()


class Listener:
    """The connection's side of a subscription."""

    def __init__(self, outbox: Outbox) -> None:
        self.channel = Channel("resp_1", lambda _count: None)
        self.subscription = Subscription(self.channel, self, cursor=0, stream_id=None)
        self.channel.add(self.subscription)
        self._outbox = outbox
        self._number = 0

    def send(self, frame: bytes) -> None:
        self._outbox.send(frame)

    def wake(self, subscription: Subscription) -> None:
        self._outbox.wake(subscription)

    def say(self, *texts: str) -> None:
        for text in texts:
            self.channel.publish([delta_event(Part(TEXT_DELTA, "msg_1"), self._number, text)])
            self._number += 1


def answer(number: int) -> bytes:
    return b'{"answer":%d}' % number


async def test_the_fast_path(socket, outbox):
    """A client that keeps up costs no task and no wait: events go out as they come, answers between them."""
    listener = Listener(outbox)
    listener.say("a")
    outbox.send(answer(1))
    listener.say("b")
    assert [how for how, _ in socket.sent] == ["fast"] * 3
    assert [frame.get("delta", frame.get("answer")) for frame in socket.frames] == ["a", 1, "b"]
    assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("writer")]


async def test_a_client_that_is_behind(socket, outbox):
    """Gets what it missed in few frames, and nothing twice; then it is on the fast path again."""
    listener = Listener(outbox)
    listener.say("a")
    socket.stop_reading()
    listener.say("b")
    await until(lambda: len(socket.sent) == 2)
    listener.say(*"cdefgh")
    socket.read_on()
    await until(lambda: len(socket.sent) == 3)
    assert [frame["delta"] for frame in socket.frames] == ["a", "b", "cdefgh"]
    assert [frame["sequence_number"] for frame in socket.frames] == [0, 1, 7]
    await until(lambda: not outbox._is_writing)
    listener.say("i")
    assert socket.sent[-1][0] == "fast"


async def test_order_while_behind(socket, outbox):
    """Answers keep their order, and do not overtake the frame that is being sent."""
    socket.stop_reading()
    for number in range(5):
        outbox.send(answer(number))
    socket.read_on()
    outbox.send(answer(5))
    await until(lambda: len(socket.sent) == 6)
    assert [frame["answer"] for frame in socket.frames] == list(range(6))


async def test_a_client_that_does_not_read_is_not_listened_to(socket, outbox):
    """So many answers wait at most before its next command is read."""
    await outbox.wait_for_room()
    socket.stop_reading()
    outbox.send(answer(0))
    await until(lambda: socket.sent)
    for number in range(WAITING_HIGH):
        outbox.send(answer(number))
    waiting = asyncio.create_task(outbox.wait_for_room())
    for _ in range(5):
        await asyncio.sleep(0)
    assert not waiting.done()
    socket.read_on()
    await waiting


async def test_responses_that_wait_count_as_well(socket, outbox):
    """Each holds a whole answer."""
    socket.stop_reading()
    outbox.send(answer(0))
    await until(lambda: socket.sent)
    for _ in range(WAITING_HIGH):
        Listener(outbox).say("a")
    waiting = asyncio.create_task(outbox.wait_for_room())
    for _ in range(5):
        await asyncio.sleep(0)
    assert not waiting.done()
    socket.read_on()
    await waiting


async def test_a_send_that_is_stuck(socket):
    """The connection is cut, and who waits for room is let go: nothing of it stays."""
    outbox = Outbox(socket, 0.01)
    listener = Listener(outbox)
    socket.stop_reading()
    for number in range(WAITING_HIGH + 1):
        outbox.send(answer(number))
    listener.say("a")
    await outbox.wait_for_room()
    await until(lambda: outbox._is_closed)
    assert socket.is_aborted
    sent = len(socket.sent)
    outbox.send(answer(0))
    listener.say("b")
    assert len(socket.sent) == sent
    assert not outbox._answers
    await outbox.close()


async def test_a_replay(socket, outbox):
    """`write` waits for the client; it tells its caller when the connection is gone."""
    socket.stop_reading()
    writing = asyncio.create_task(outbox.write(answer(1)))
    await until(lambda: socket.sent)
    assert not writing.done()
    socket.read_on()
    await writing
    socket.abort()
    with pytest.raises(ConnectionClosedError):
        await outbox.write(answer(2))


async def test_a_connection_that_breaks_while_writing(socket, outbox):
    """The writer ends; later frames are dropped, at no cost."""
    socket.stop_reading()
    outbox.send(answer(0))
    await until(lambda: socket.sent)
    outbox.send(answer(1))
    socket.is_aborted = True
    socket.read_on()
    await until(lambda: outbox._is_closed)
    outbox.send(answer(2))
    assert len(socket.sent) == 1


async def test_closing(socket, outbox):
    """Twice is once; what waits is dropped; the writer is gone."""
    socket.stop_reading()
    outbox.send(answer(0))
    outbox.send(answer(1))
    await until(lambda: socket.sent)
    await outbox.close()
    await outbox.close()
    assert len(socket.sent) == 1
    assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("writer")]


async def test_one_stuck_reader_changes_nothing_for_the_others(socket, outbox):
    """Of one response, one listener is stuck: the other one is served in the same sweep."""
    other_socket = Socket()
    other_outbox = Outbox(other_socket, 100)  # type: ignore[arg-type]
    stuck = Listener(outbox)
    other = Subscription(stuck.channel, OtherListener(other_outbox), cursor=0, stream_id=None)
    stuck.channel.add(other)
    socket.stop_reading()
    stuck.say(*(str(number) for number in range(100)))
    assert len(other_socket.sent) == 100
    assert len(outbox._answers) == 0
    assert list(outbox._ready) == [stuck.subscription]
    await other_outbox.close()


class OtherListener:
    """A listener of somebody else's channel."""

    def __init__(self, outbox: Outbox) -> None:
        self.send = outbox.send
        self.wake = outbox.wake
