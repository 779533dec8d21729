"""One connection for many commands: they go out as they come, and replies come back in their order.

A turn needs few scripts, and redis-py takes longer over each than Redis does. Microseconds of our CPU per script (a
small one, uvloop, unix socket, two busy cores, so only ratios count): through redis-py and its pool 290 alone and 250
of 64 at once, here 72 and 52.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from redis import exceptions

from server.store.connection import BulkConnection

Note = Callable[[Any], None]


class Usual(NamedTuple):
    """The first `number` replies, not all, as RESP where all goes well: what comes so is not parsed, nor handed on."""

    replies: bytes
    number: int


NOTHING_USUAL = Usual(b"", 0)


class _Commands:
    """Commands on their way, in one write. count: of the replies to hand on. asked_at: loop time."""

    __slots__ = ("asked_at", "came", "count", "future", "note", "packed", "replies", "usual")

    def __init__(
        self, packed: bytes, count: int, note: Note | None, usual: Usual, loop: asyncio.AbstractEventLoop
    ) -> None:
        self.packed = packed
        self.count = count
        self.note = note
        self.usual = usual
        self.came = 0  # bytes of the usual replies
        self.replies: list[Any] = []
        self.future: asyncio.Future[list[Any]] = loop.create_future()
        self.asked_at = loop.time()

    def pass_over(self, data: bytes) -> bytes:
        """Return what is to be parsed when `data` comes: nothing of the usual replies, unless one is another."""
        expected, before = self.usual.replies, self.came
        if not expected or self.replies:
            return data
        stop = min(len(expected), before + len(data))
        if not data.startswith(expected[before:stop]):
            self.usual = NOTHING_USUAL
            return expected[:before] + data
        self.came = stop
        if stop < len(expected):
            return b""
        self.count -= self.usual.number
        self.usual = NOTHING_USUAL
        return data[stop - before :]

    def end(self) -> None:
        """All replies are there."""
        if self.note is not None:
            self.note(self.replies[0])
        if not self.future.done():
            self.future.set_result(self.replies)


class _Line(asyncio.Protocol):
    """What comes back on one connection."""

    def __init__(self, pipeline: Pipeline, parser: Any) -> None:
        self._pipeline = pipeline
        self._parser = parser

    def data_received(self, data: bytes) -> None:
        """Take the whole replies; the parser keeps the rest."""
        if not (data := self._pipeline.pass_over(self, data)):
            return
        self._parser.feed(data)
        try:
            self._pipeline.take(self, self._parser.gets)
        except exceptions.RedisError as error:
            self._pipeline.lost(self, error)

    def connection_lost(self, exc: Exception | None) -> None:
        """Redis has closed it, or we have."""
        self._pipeline.lost(self, exc or exceptions.ConnectionError("Redis closed the connection"))


class Pipeline:
    """Sends packed commands on one connection, which is made when it is first needed.

    Commands that their caller gave up keep their place: the replies are read, and noted, all the same. Redis counts as
    silent when it has answered nothing for `timeout_s` although something was asked; as long as it answers, it is not.
    """

    def __init__(self, connection: BulkConnection, timeout_s: float) -> None:
        self._connection = connection
        self._timeout_s = timeout_s
        self._waiting: deque[_Commands] = deque()  # for replies, oldest first
        self._connecting: asyncio.Task[None] | None = None
        self._line: _Line | None = None  # while connected
        self._transport: Any = None
        self._watch: asyncio.TimerHandle | None = None
        self._heard_at = 0.0  # loop time of the newest reply

    def send(
        self, packed: bytes, count: int = 1, note: Note | None = None, usual: Usual = NOTHING_USUAL
    ) -> asyncio.Future[list[Any]]:
        """Send commands that get `count` replies: the future's result; where Redis refuses, one is an exception.

        usual: of a result without these, they came as they are here.

        note: called with the first reply before the future's waiter, and also where there is none any more. The future
        raises TimeoutError, redis.exceptions.RedisError, OSError where not all came: it is not known what was done.
        """
        loop = asyncio.get_running_loop()
        commands = _Commands(packed, count, note, usual, loop)
        self._waiting.append(commands)
        if self._line is not None:
            self._transport.write(packed)
        elif self._connecting is None:
            self._connecting = loop.create_task(self._connect(), name="a pipeline connects")
        if self._watch is None:
            self._watch = loop.call_later(self._timeout_s, self._look)
        return commands.future

    def drop(self) -> None:
        """Leave this server: what waits fails, the next command connects anew."""
        self._fail(exceptions.ConnectionError("the connection was closed"))

    async def close(self) -> None:
        """Let go of who waits, and close; idempotent."""
        self.drop()
        await self._connection.close()

    async def _connect(self) -> None:
        try:
            line = _Line(self, self._connection.parser())
            self._transport = await self._connection.hand_over(line)
        except (exceptions.RedisError, OSError) as error:
            self._fail(error)
            return
        self._connecting, self._line = None, line
        self._transport.write(b"".join(commands.packed for commands in self._waiting))

    def pass_over(self, line: _Line, data: bytes) -> bytes:
        """Something has come; return what of it is to be parsed."""
        self._heard_at = asyncio.get_running_loop().time()
        return self._waiting[0].pass_over(data) if self._waiting and line is self._line else data

    def take(self, line: _Line, next_reply: Callable[[], Any]) -> None:
        """Replies have come; `next_reply` returns one at a time, then False. Raises RedisError; InvalidResponse, too,
        where nobody has asked.
        """
        waiting = self._waiting
        while line is self._line and (reply := next_reply()) is not False:
            if not waiting:
                raise exceptions.InvalidResponse("Redis answered what nobody asked")
            commands = waiting[0]
            replies, count = commands.replies, commands.count
            replies.append(reply)
            while len(replies) < count and (reply := next_reply()) is not False:
                replies.append(reply)
            if len(replies) == count:
                waiting.popleft()
                commands.end()

    def lost(self, line: _Line, error: Exception) -> None:
        """A connection is gone, or cannot be understood any more."""
        if line is self._line:
            self._fail(error)

    def _look(self) -> None:
        """Give up a Redis that is silent; look again when it might be."""
        self._watch = None
        if not self._waiting:
            return
        loop = asyncio.get_running_loop()
        silent_s = loop.time() - max(self._heard_at, self._waiting[0].asked_at)
        if silent_s >= self._timeout_s:
            self._fail(TimeoutError())
        else:
            self._watch = loop.call_later(self._timeout_s - silent_s, self._look)

    def _fail(self, error: Exception) -> None:
        waiting, self._waiting = self._waiting, deque()
        if self._line is not None:
            self._line = self._transport = None
            self._connection.drop()
        connecting, self._connecting = self._connecting, None
        if connecting is not None:
            connecting.cancel()  # the attempt goes on, for whoever comes next; where it has called us, it ends here
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        for commands in waiting:
            if not commands.future.done():
                commands.future.set_exception(error)
