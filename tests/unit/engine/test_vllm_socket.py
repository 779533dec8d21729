"""vLLM's socket, read leanly: every message whole, once, in order, whoever comes late or gives up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import zmq
import zmq.asyncio

from server.engine.vllm_socket import LeanReading


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[tuple[Any, Any]]:
    """A sending socket, and the asyncio one that is read."""
    address = f"ipc://{tmp_path}/outputs"
    with (
        zmq.asyncio.Context() as context,
        context.socket(zmq.PULL) as receiver,
        zmq.Context(context).socket(zmq.PUSH) as sender,
    ):
        receiver.bind(address)
        sender.connect(address)
        LeanReading(receiver)
        yield sender, receiver


async def received(receiver: Any) -> list[bytes]:
    frames = await receiver.recv_multipart(copy=False)
    return [bytes(frame.buffer) for frame in frames]


async def test_what_waits_already_and_what_comes_later(pair: tuple[Any, Any]) -> None:
    sender, receiver = pair
    messages = [[b"one"], [b"two", b"", b"parts"], [b""]]
    sender.send_multipart(messages[0])
    assert await received(receiver) == messages[0]
    for message in messages[1:]:
        reading = asyncio.create_task(received(receiver))
        await asyncio.sleep(0.01)
        assert not reading.done()
        sender.send_multipart(message)
        assert await asyncio.wait_for(reading, 10) == message


async def test_thousands_come_whole_and_in_order(pair: tuple[Any, Any]) -> None:
    sender, receiver = pair
    count = 5000

    def send() -> None:
        for number in range(count):
            sender.send_multipart([b"%d" % number] * (1 + number % 3))

    sending = asyncio.create_task(asyncio.to_thread(send))
    for number in range(count):
        assert await asyncio.wait_for(received(receiver), 10) == [b"%d" % number] * (1 + number % 3)
    await sending


async def test_a_reader_that_gives_up_loses_nothing(pair: tuple[Any, Any]) -> None:
    sender, receiver = pair
    for number in range(50):
        reading = asyncio.create_task(received(receiver))
        await asyncio.sleep(0)
        sender.send(b"%d" % number)
        reading.cancel()
        await asyncio.wait([reading])
        if reading.cancelled():
            assert await asyncio.wait_for(received(receiver), 10) == [b"%d" % number]
        else:
            assert reading.result() == [b"%d" % number]


async def test_what_nobody_reads_does_not_keep_the_loop_awake(pair: tuple[Any, Any]) -> None:
    """Before somebody asks vLLM something, and when what read has ended: it waits, and the loop sleeps."""
    sender, receiver = pair
    wake, wakes = receiver._handle_events, []

    def noted(*how: int) -> None:
        wakes.append(how)
        wake(*how)

    receiver._handle_events = noted
    sender.send(b"one")
    await asyncio.sleep(0.05)
    assert 1 <= len(wakes) < 10
    assert await received(receiver) == [b"one"]
    reading = asyncio.create_task(received(receiver))
    await asyncio.sleep(0)
    sender.send(b"two")
    assert await asyncio.wait_for(reading, 10) == [b"two"]


async def test_a_closed_socket_says_so(pair: tuple[Any, Any]) -> None:
    _, receiver = pair
    receiver.close(linger=0)
    with pytest.raises(zmq.ZMQError):
        await received(receiver)
