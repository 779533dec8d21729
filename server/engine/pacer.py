"""Waiting for a point in time, cheaply for thousands of waiters."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Any, Final, Protocol

from server.engine.base import EngineDeadError

# Waiters are woken together at multiples of this: one timer serves all that are due. 10 ms is below what a reader sees.
TICK_S: Final = 0.01
_ROUNDING: Final = 1e-4  # of a tick: sums of floating-point numbers miss a whole tick by less


class Clock(Protocol):
    """The part of an event loop that tells time; tests bring their own."""

    def time(self) -> float:
        """Return seconds since some fixed point."""
        ...

    def call_at(self, when: float, callback: Callable[..., object], *args: Any) -> object:
        """Call back when `time()` reaches `when`."""
        ...


class Pacer:
    """Lets coroutines wait until a time; closing ends all waits with EngineDeadError.

    farewell: that error's text.
    clock: None means the running event loop.
    """

    def __init__(self, farewell: str, clock: Clock | None = None) -> None:
        self._farewell = farewell
        self._clock = clock
        self._waiting: dict[int, list[asyncio.Future[None]]] = {}
        self._closed = False

    def time(self) -> float:
        """Return the time now, in seconds."""
        return (self._clock or asyncio.get_running_loop()).time()

    async def wait_until(self, when: float) -> None:
        """Return at the first tick that is not before `when`; let others run once if that is past.

        Raises EngineDeadError once closed.
        """
        loop = asyncio.get_running_loop()
        clock = self._clock or loop
        if when <= clock.time():
            await asyncio.sleep(0)
        elif not self._closed:
            tick = math.ceil(when / TICK_S - _ROUNDING)
            if tick not in self._waiting:
                self._waiting[tick] = []
                clock.call_at(tick * TICK_S, self._wake, tick)
            future: asyncio.Future[None] = loop.create_future()
            self._waiting[tick].append(future)
            await future
        self.check_open()

    def check_open(self) -> None:
        """Raise EngineDeadError once closed."""
        if self._closed:
            raise EngineDeadError(self._farewell)

    def close(self) -> None:
        """End all waits, now and later; idempotent."""
        self._closed = True
        for tick in list(self._waiting):
            self._wake(tick)

    def _wake(self, tick: int) -> None:
        for future in self._waiting.pop(tick, ()):
            if not future.done():
                future.set_result(None)
