"""The writes of the last seconds, kept to be written again to a Redis that has lost them.

A Redis that syncs its log once a second may lose what it had acknowledged when it is killed, and so may a failover to
a replica that lags. What is lost is always the newest part of what was written. So every write of this process counts
one key up, in the same script or the same batch; a new connection reads the key first, and whatever is newer than it
is written again, in its order, before anything else is asked. All our writes may be repeated. Where several gateways
have lost something, each brings its own: a server that has just started, or that one of them has found to have lost
something, takes no new turn before they had the time.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

from redis.asyncio.connection import AbstractConnection
from redis.exceptions import ResponseError

from server.store.errors import is_passing

logger = logging.getLogger(__name__)

MAX_BYTES: Final = 64 * 1024 * 1024  # kept at most; the oldest go first
COUNTER_TTL_S: Final = 3600  # the key of a process that has ended goes after that
ALARM_MS: Final = 3000  # as run.lua has it

# Writes once more, on this connection, and returns the new position.
Again = Callable[[AbstractConnection], Awaitable[int]]


@dataclass(slots=True)
class _Write:
    """position: the counter's value after it. at: loop time of its acknowledgement. size: bytes."""

    position: int
    at: float
    size: int
    again: Again


def drop(connection: AbstractConnection) -> None:
    """Close a connection at once, without waiting; its next use connects anew."""
    connection._parser.on_disconnect()  # type: ignore[no-untyped-call]  # noqa: SLF001 `disconnect` waits
    connection._close()  # type: ignore[no-untyped-call]  # noqa: SLF001 as above


class Redo:
    """Keep the acknowledged writes of one store for `keep_s`; write again what a new connection finds missing.

    counter: the key that counts them; no other process writes it. alarm: the key that says to all that something was
    lost a moment ago.
    """

    def __init__(self, counter: str, alarm: str, keep_s: float) -> None:
        self.counter = counter
        self._alarm = alarm
        self._keep_s = keep_s
        self._writes: deque[_Write] = deque()
        self._size = 0
        self._newest = 0  # position
        self.since_us = 0  # when we first asked it, on its clock; 0 before that
        self._clock_ahead_us: int | None = None  # Redis's clock less our loop's
        self._turn = asyncio.Lock()

    def remember(self, position: int, size: int, again: Again) -> None:
        """Redis has acknowledged a write of about `size` bytes."""
        self._writes.append(_Write(position, _now(), size, again))
        self._size += size
        self._newest = max(self._newest, position)
        self.prune()
        while self._size > MAX_BYTES:
            self._forget_oldest()

    def prune(self) -> None:
        """Redis has just answered: what is older than `keep_s` is safe by now."""
        oldest = _now() - self._keep_s
        while self._writes and self._writes[0].at < oldest:
            self._forget_oldest()

    def set_clock(self, time_us: int) -> None:
        """Note what Redis's clock says now, in Unix microseconds."""
        self._clock_ahead_us = time_us - int(_now() * 1e6)

    def deadline(self, timeout_s: float) -> int:
        """Return the time on Redis's clock after which it must not do what we ask now; 0 where that is not known.

        A Redis that hung does everything that was sent to it when it wakes: also what was given up and told so.
        """
        return 0 if self._clock_ahead_us is None else self._clock_ahead_us + int((_now() + timeout_s) * 1e6)

    async def greet(self, connection: AbstractConnection) -> None:
        """Make a new connection ready: sign in, read Redis's clock, and write again what it has lost.

        Whatever interrupts it closes the connection, so that no reply is left for the next command to take.
        """
        try:
            await connection.on_connect()
            seconds, microseconds = await _ask(connection, "TIME")
            self.set_clock(int(seconds) * 1_000_000 + int(microseconds))
            self.since_us = self.since_us or self.deadline(0)
            async with self._turn:
                newest = self._newest  # now: others may write between the question and its answer
                stored = int(await _ask(connection, "GET", self.counter) or 0)
                if stored < newest:
                    await self._write_again(connection, stored, newest)
        except BaseException:
            drop(connection)
            raise

    async def _write_again(self, connection: AbstractConnection, stored: int, newest: int) -> None:
        lost = [write for write in self._writes if stored < write.position <= newest]
        if lost:
            await _ask(connection, "SET", self._alarm, 1, "NX", "PX", ALARM_MS)
        for write in sorted(lost, key=lambda write: write.position):
            write.position = await _once_more(write, connection)
            write.at = _now()
            stored = max(stored, write.position)
        # Not before: where this ends in the middle, the next connection goes on with what is missing then.
        self._newest = stored
        self._writes = deque(sorted(self._writes, key=lambda write: write.at))
        if lost:
            logger.warning("Redis had lost the last %d writes it had acknowledged; they are written again", len(lost))

    def _forget_oldest(self) -> None:
        self._size -= self._writes.popleft().size


async def _once_more(write: _Write, connection: AbstractConnection) -> int:
    """Return the write's new position; 0 where Redis refuses it for a reason that does not pass.

    Else no connection would ever be ready again, for the sake of one write.
    """
    try:
        return await write.again(connection)
    except ResponseError as error:
        if is_passing(error):
            raise
        logger.error("a write that Redis had lost is refused now: %s", error)
        return 0


async def _ask(connection: AbstractConnection, *arguments: str | int) -> Any:
    await connection.send_command(*arguments)
    return await connection.read_response()


def _now() -> float:
    return asyncio.get_running_loop().time()
