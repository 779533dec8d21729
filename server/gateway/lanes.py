"""Lanes of one connection: first in first out within a lane, lanes side by side."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field

from protocol.commands import ResponseCreate
from protocol.errors import ProtocolError
from server.chat.client import ClientGoneError
from server.chat.generation import Generation
from server.config import LimitsConfig


@dataclass(eq=False)
class Lane:
    """Turns of one `stream_id` (None: those sent without one). last: the newest response's id."""

    stream_id: str | None
    waiting: deque[ResponseCreate] = field(default_factory=deque)
    task: asyncio.Task[None] | None = None
    running: Generation | None = None
    last: str | None = None
    is_cancelled: bool = False  # the turn now taken in or being acknowledged is not wanted any more

    @property
    def is_busy(self) -> bool:
        return self.task is not None


class Lanes:
    """Run turns lane by lane.

    create: begins one turn; returns its response, or None where there is nothing to wait for. Raises ProtocolError.
    fail: tells the client of a turn that was refused.
    """

    def __init__(
        self,
        limits: LimitsConfig,
        create: Callable[[ResponseCreate], Awaitable[Generation | None]],
        fail: Callable[[ProtocolError, ResponseCreate], None],
    ) -> None:
        self._limits = limits
        self._create = create
        self._fail = fail
        self._lanes: dict[str | None, Lane] = {}
        self._waiting_chars = 0  # of all turns that wait
        self._is_stopped = False
        self.was_left = False  # an answer was let go before its end: the client is in the middle of a turn

    def __iter__(self) -> Iterator[Lane]:
        return iter(self._lanes.values())

    @property
    def in_flight(self) -> int:
        return sum(lane.is_busy for lane in self)

    def get(self, stream_id: str | None) -> Lane | None:
        return self._lanes.get(stream_id)

    def put(self, command: ResponseCreate) -> None:
        """Take a turn in. Raises ProtocolError where a limit is reached."""
        lane = self._lane(command.stream_id)
        if not lane.is_busy and self.in_flight >= self._limits.max_in_flight:
            raise _too_many(f"{self._limits.max_in_flight} responses are in flight on this connection")
        if lane.is_busy and len(lane.waiting) >= self._limits.max_waiting_per_lane:
            raise _too_many(f"{len(lane.waiting)} turns wait on this lane")
        chars = _chars(command)
        if lane.is_busy and self._waiting_chars + chars > self._limits.max_waiting_chars:
            raise _too_many(f"turns of {self._waiting_chars} characters wait on this connection")
        lane.waiting.append(command)
        self._waiting_chars += chars
        if not lane.is_busy:
            lane.task = asyncio.create_task(self._run(lane), name=f"lane {command.stream_id}")

    async def idle(self) -> None:
        """Return when no lane has anything to do."""
        while tasks := [lane.task for lane in self if lane.task is not None]:
            await asyncio.wait(tasks)

    def stop(self, *, cancel: bool) -> None:
        """Begin no more turns: those that wait are dropped. cancel: what runs or is being begun ends, too."""
        self._is_stopped = True
        for lane in self if cancel else ():
            lane.is_cancelled = lane.is_busy
            if lane.running is not None:
                lane.running.cancel()

    async def close(self) -> None:
        """Drop what waits; running answers are not touched."""
        tasks = [lane.task for lane in self if lane.task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        self._lanes.clear()  # turns may be large, and the connection refers to us as we to it

    def _lane(self, stream_id: str | None) -> Lane:
        lane = self._lanes.get(stream_id)
        if lane is None:
            named = len(self._lanes) - (None in self._lanes)
            if stream_id is not None and named >= self._limits.max_lanes:
                raise ProtocolError(
                    "invalid_request",
                    f"a connection may use {self._limits.max_lanes} values of stream_id; use one of those again",
                    param="stream_id",
                )
            lane = self._lanes[stream_id] = Lane(stream_id)
        return lane

    async def _run(self, lane: Lane) -> None:
        try:
            while lane.waiting and not self._is_stopped:
                command = lane.waiting.popleft()
                self._waiting_chars -= _chars(command)
                await self._run_turn(lane, command)
        finally:
            lane.task = None

    async def _run_turn(self, lane: Lane, command: ResponseCreate) -> None:
        try:
            generation = await self._create(command)
        except ProtocolError as error:
            self._fail(error, command)
            return
        except ClientGoneError:
            return
        finally:
            # Not reset before: a cancel may come in one packet with its turn, before this has begun to run.
            is_cancelled, lane.is_cancelled = lane.is_cancelled, False
        if generation is None:
            return
        lane.running, lane.last = generation, generation.response_id
        if is_cancelled:
            generation.cancel()
        try:
            await generation.ended.wait()
            self.was_left = self.was_left or generation.was_left
        finally:
            lane.running = None


def _chars(command: ResponseCreate) -> int:
    return len(command.instructions or "") + sum(message.size for message in command.messages)


def _too_many(what: str) -> ProtocolError:
    return ProtocolError("rate_limit_exceeded", f"{what}; wait for one to end", retry_after_ms=1000)
