"""Lanes of one connection: first in first out within a lane, lanes side by side, bounds on both."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from protocol.commands import ResponseCreate
from protocol.errors import ProtocolError
from protocol.items import Message
from server.config import LimitsConfig
from server.gateway.lanes import Lanes
from tests.support.memory import until


class Answer:
    """A response, as far as lanes look at it."""

    def __init__(self, name: str) -> None:
        self.response_id = name
        self.ended = asyncio.Event()
        self.was_left = False
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True
        self.ended.set()


class Scene:
    """Lanes whose turns begin when `may_begin` is set, and end when the test says so."""

    def __init__(self, **limits: int) -> None:
        self.begun: list[Answer] = []
        self.failed: list[tuple[str, str]] = []
        self.may_begin = asyncio.Event()
        self.may_begin.set()
        self.refused: set[str] = set()
        self.repeated: set[str] = set()
        self.lanes = Lanes(LimitsConfig(**limits), self.create, self.fail)

    async def create(self, command: ResponseCreate) -> Any:
        await self.may_begin.wait()
        name = command.messages[0].content
        if name in self.refused:
            raise ProtocolError("server_is_overloaded", "no")
        if name in self.repeated:
            return None
        self.begun.append(Answer(name))
        return self.begun[-1]

    def fail(self, error: ProtocolError, command: ResponseCreate) -> None:
        self.failed.append((command.messages[0].content, error.code))

    def put(self, name: str, stream_id: str | None = None) -> None:
        self.lanes.put(ResponseCreate(messages=(Message("user", name),), stream_id=stream_id))

    @property
    def names(self) -> list[str]:
        return [answer.response_id for answer in self.begun]


@pytest.fixture
async def scenes() -> AsyncIterator[Any]:
    made: list[Scene] = []

    def make(**limits: int) -> Scene:
        made.append(Scene(**limits))
        return made[-1]

    yield make
    for scene in made:
        await scene.lanes.close()


async def test_within_a_lane(scenes):
    """One after the other, in the order they came."""
    scene = scenes()
    for name in "abc":
        scene.put(name, "one")
    for count in (1, 2, 3):
        await until(lambda count=count: len(scene.begun) == count)  # type: ignore[misc]
        scene.begun[-1].ended.set()
    await scene.lanes.idle()
    assert scene.names == ["a", "b", "c"]
    assert scene.lanes.get("one").last == "c"


async def test_side_by_side(scenes):
    """A lane does not wait for another; turns without a name have a lane of their own."""
    scene = scenes()
    scene.put("a", "one")
    scene.put("b", "two")
    scene.put("c")
    await until(lambda: len(scene.begun) == 3)
    assert scene.lanes.in_flight == 3


async def test_refused_and_repeated_turns_do_not_hold_a_lane(scenes):
    """The client is told of the one, the other was told of before; the next turn begins."""
    scene = scenes()
    scene.refused.add("a")
    scene.repeated.add("b")
    for name in "abc":
        scene.put(name)
    await until(lambda: scene.begun)
    assert scene.names == ["c"]
    assert scene.failed == [("a", "server_is_overloaded")]


async def test_lanes_in_flight_are_bounded(scenes):
    """A busy lane may take more; another one is refused, with a hint, until one is free."""
    scene = scenes(max_in_flight=2)
    scene.put("a", "one")
    scene.put("b", "two")
    with pytest.raises(ProtocolError) as caught:
        scene.put("c", "three")
    assert caught.value.code == "rate_limit_exceeded"
    assert caught.value.retry_after_ms
    scene.put("d", "two")
    await until(lambda: len(scene.begun) == 2)
    scene.begun[0].ended.set()
    await until(lambda: scene.lanes.in_flight == 1)
    scene.put("c", "three")


@pytest.mark.parametrize("cancel", [False, True])
async def test_stopped_lanes_begin_nothing_more(scenes, cancel):
    """What runs, or is being begun, goes on or is cancelled; what waits never begins."""
    scene = scenes()
    scene.put("running", "one")
    scene.put("waiting", "one")
    await until(lambda: scene.begun)
    scene.may_begin.clear()
    scene.put("beginning", "two")
    await asyncio.sleep(0)
    scene.lanes.stop(cancel=cancel)
    scene.may_begin.set()
    await until(lambda: len(scene.begun) == 2 and all(answer.is_cancelled == cancel for answer in scene.begun))
    for answer in scene.begun:
        answer.ended.set()
    await until(lambda: not scene.lanes.in_flight or len(scene.begun) > 2)
    assert scene.names == ["running", "beginning"]


async def test_turns_that_wait_are_bounded(scenes):
    """So many behind the one that runs."""
    scene = scenes(max_waiting_per_lane=2)
    scene.put("a")
    await until(lambda: scene.begun)
    scene.put("b")
    scene.put("c")
    with pytest.raises(ProtocolError, match="2 turns wait"):
        scene.put("d")


async def test_the_size_of_turns_that_wait_is_bounded(scenes):
    """On all lanes together; a turn that begins at once may be of any size, and one that has begun waits no more."""
    scene = scenes(max_waiting_chars=5)
    scene.put("a" * 9, "one")
    scene.put("b" * 9, "two")
    await until(lambda: len(scene.begun) == 2)
    scene.put("cc", "one")
    scene.put("dd", "two")
    with pytest.raises(ProtocolError, match="4 characters wait") as caught:
        scene.put("ee", "one")
    assert caught.value.code == "rate_limit_exceeded"
    scene.begun[0].ended.set()
    await until(lambda: len(scene.begun) == 3)
    scene.put("ee", "one")


async def test_names_are_bounded(scenes):
    """The nameless lane does not count; a name that was used may be used again."""
    scene = scenes(max_lanes=2)
    for name in ("one", "two", None, "one"):
        scene.put("x", name)
    with pytest.raises(ProtocolError) as caught:
        scene.put("x", "three")
    assert (caught.value.code, caught.value.param) == ("invalid_request", "stream_id")


async def test_a_cancel_while_the_turn_is_taken_in(scenes):
    """It counts as soon as there is something to cancel, and for that turn only."""
    scene = scenes()
    scene.may_begin.clear()
    scene.put("a")
    scene.lanes.get(None).is_cancelled = True
    scene.may_begin.set()
    scene.put("b")
    await until(lambda: len(scene.begun) == 2)
    assert [answer.is_cancelled for answer in scene.begun] == [True, False]


async def test_a_cancel_of_a_turn_that_is_refused(scenes):
    """Does not meet the next one."""
    scene = scenes()
    scene.refused.add("a")
    scene.put("a")
    scene.put("b")
    scene.lanes.get(None).is_cancelled = True
    await until(lambda: scene.begun)
    assert scene.names == ["b"]
    assert not scene.begun[0].is_cancelled


async def test_closing(scenes):
    """What waits is dropped; what runs goes on without the connection."""
    scene = scenes()
    scene.put("a")
    scene.put("b")
    await until(lambda: scene.begun)
    await scene.lanes.close()
    assert scene.names == ["a"]
    assert not scene.begun[0].is_cancelled
    assert scene.lanes.in_flight == 0
    await scene.lanes.close()


async def test_idle(scenes):
    """Waits for every turn, also those that wait; remembers whether one was left to another gateway."""
    scene = scenes()
    scene.put("a", "one")
    scene.put("b", "one")
    waiting = asyncio.create_task(scene.lanes.idle())
    await until(lambda: scene.begun)
    scene.begun[0].ended.set()
    await until(lambda: len(scene.begun) == 2)
    assert not waiting.done()
    scene.begun[1].was_left = True
    scene.begun[1].ended.set()
    await waiting
    assert scene.lanes.was_left
