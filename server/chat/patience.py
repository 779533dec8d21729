"""What a response says while nothing happens, and how long it goes on when nobody listens."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from protocol.events import Waiting
from protocol.response_stream import ResponseStream, State

PACE_S: Final = 1.0  # a waiting client hears of changes at most this often
FOLLOWED_S: Final = 10.0  # a gateway that follows for its clients says so every 2 s; some of that may be lost


class Patience:
    """Timers of one response.

    notify: called after an event was added to the stream. cancel: called when nobody has listened for too long.
    repeat_s: something is said at least this often, since pings do not reset clients' idle timers.
    grace_s: how long the response goes on without a listener, here or on another gateway.
    """

    def __init__(
        self,
        stream: ResponseStream,
        *,
        notify: Callable[[], None],
        cancel: Callable[[], None],
        repeat_s: float,
        grace_s: float,
    ) -> None:
        self._stream = stream
        self._notify = notify
        self._cancel = cancel
        self._repeat_s = repeat_s
        self._grace_s = grace_s
        self._waiting: Waiting | None = None
        self._said_at = float("-inf")  # when a change was last told
        self._is_due = False  # a change is to be told
        self._silence: asyncio.TimerHandle | None = None
        self._orphan: asyncio.TimerHandle | None = None
        self._listeners = 0
        self._is_closed = False
        self._loop = asyncio.get_running_loop()
        self._heard_at = self._loop.time()  # when clients were last sent something

    def say(self, waiting: Waiting) -> None:
        """Tell the client why it waits: at once, or when the pace allows."""
        if waiting == self._waiting:
            return
        self._waiting = waiting
        self._is_due = True
        rest = self._said_at + PACE_S - self._loop.time()
        if rest <= 0:
            self._look()
        else:
            self._look_in(rest)

    def watch(self) -> None:
        """Begin to break long silences."""
        self._look_in(self._repeat_s)

    def heard(self) -> None:
        """Clients were sent something: a new silence begins."""
        self._heard_at = self._loop.time()

    def followed(self) -> None:
        """Somebody listens on another gateway, which says so again before FOLLOWED_S are over."""
        if self._listeners == 0:
            self._count_down(max(self._grace_s, FOLLOWED_S))

    def audience_changed(self, listeners: int) -> None:
        """Count down to the end when nobody listens any more."""
        self._listeners = listeners
        self._count_down(None if listeners else self._grace_s)

    def close(self) -> None:
        """Stop every timer for good; idempotent."""
        self._is_closed = True
        for timer in (self._silence, self._orphan):
            if timer is not None:
                timer.cancel()
        self._notify = self._cancel = _nothing  # else they and their owner keep each other until a collection

    def _count_down(self, seconds: float | None) -> None:
        if self._orphan is not None:
            self._orphan.cancel()
            self._orphan = None
        if seconds is not None and not self._is_closed:
            self._orphan = self._loop.call_later(seconds, self._cancel)

    def _look_in(self, delay_s: float) -> None:
        if self._silence is not None:
            self._silence.cancel()
        if not self._is_closed:
            self._silence = self._loop.call_later(delay_s, self._look)

    def _look(self) -> None:
        """Tell what has changed, or break a silence that has become too long."""
        silent_s = self._loop.time() - self._heard_at
        if self._is_due or silent_s >= self._repeat_s:
            self._speak()
            silent_s = 0.0
        self._look_in(self._repeat_s - silent_s)

    def _speak(self) -> None:
        self._is_due = False
        self.heard()
        if self._stream.state is State.QUEUED and self._waiting is not None:
            self._said_at = self._loop.time()
            self._stream.queue(self._waiting)
            self._notify()
        elif self._stream.state is State.RUNNING:
            self._stream.keep_alive()
            self._notify()


def _nothing() -> None:
    return None
