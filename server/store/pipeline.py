"""One connection for all scripts: commands go out as they come, replies come back in their order.

A turn needs few scripts, and redis-py takes longer over each than Redis does. Microseconds of our CPU per script (a
small one, uvloop, unix socket, two busy cores, so only ratios count): through redis-py and its pool 290 alone and 250
of 64 at once, here 72 and 28.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

from redis import exceptions

from server.store.connection import READ_BYTES, BulkConnection

Note = Callable[[Any], None]


class _Command:
    """A command on its way. asked_at: loop time."""

    __slots__ = ("asked_at", "note", "packed", "reply")

    def __init__(self, packed: bytes, note: Note | None, loop: asyncio.AbstractEventLoop) -> None:
        self.packed = packed
        self.note = note
        self.reply: asyncio.Future[Any] = loop.create_future()
        self.asked_at = loop.time()


class Pipeline:
    """Sends packed commands on one connection, which is made when it is first needed.

    A command that its caller gave up keeps its place: its reply is read, and noted, all the same. Redis counts as
    silent when it has answered nothing for `timeout_s` although something was asked; as long as it answers, it is not.
    """

    def __init__(self, connection: BulkConnection, timeout_s: float) -> None:
        self._connection = connection
        self._timeout_s = timeout_s
        self._waiting: deque[_Command] = deque()  # oldest first; the first `_sent` of them have been sent
        self._sent = 0
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        self._watch: asyncio.TimerHandle | None = None
        self._heard_at = 0.0  # loop time of the newest reply

    def send(self, packed: bytes, note: Note | None = None) -> asyncio.Future[Any]:
        """Send a command; the future's result is its reply, an exception where Redis refused it.

        note: called with the reply before the future's waiter, and also where there is none any more. The future raises
        TimeoutError, redis.exceptions.RedisError, OSError where no reply came: it is not known whether it was done.
        """
        loop = asyncio.get_running_loop()
        command = _Command(packed, note, loop)
        self._waiting.append(command)
        if self._writer is not None:
            self._writer.write(packed)
            self._sent += 1
        elif self._reading is None:
            self._reading = loop.create_task(self._serve(), name="scripts")
        if self._watch is None:
            self._watch = loop.call_later(self._timeout_s, self._look)
        return command.reply

    def drop(self) -> None:
        """Leave this server: what waits fails, the next command connects anew."""
        self._fail(exceptions.ConnectionError("the connection was closed"))

    async def close(self) -> None:
        """Let go of who waits, and close; idempotent."""
        self.drop()
        await self._connection.close()

    async def _serve(self) -> None:
        """Connect, send what has gathered, and hand out replies for as long as the connection lives."""
        try:
            reader, self._writer = await self._connection.streams()
            self._writer.write(b"".join(command.packed for command in self._waiting))
            self._sent = len(self._waiting)
            parser = self._connection.parser()
            while received := await reader.read(READ_BYTES):
                parser.feed(received)
                while (reply := parser.gets()) is not False:
                    self._answer(reply)
            raise exceptions.ConnectionError("Redis closed the connection")
        except (exceptions.RedisError, OSError) as error:
            self._fail(error)

    def _answer(self, reply: Any) -> None:
        if not self._sent:
            raise exceptions.InvalidResponse("Redis answered what nobody asked")
        command = self._waiting.popleft()
        self._sent -= 1
        self._heard_at = asyncio.get_running_loop().time()
        if command.note is not None:
            command.note(reply)
        if not command.reply.done():
            command.reply.set_result(reply)

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
        waiting, self._waiting, self._sent = self._waiting, deque(), 0
        if self._writer is not None:  # else it connects still, for whoever comes next
            self._connection.drop()
        reading, self._reading, self._writer = self._reading, None, None
        if reading is not None:
            reading.cancel()  # where it has called us, it ends here anyway
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        for command in waiting:
            if not command.reply.done():
                command.reply.set_exception(error)
