"""What a response says while nothing happens, and how long it goes on when nobody listens."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from protocol.events import Waiting
from protocol.response_stream import ResponseStream, State

PACE_S: Final = 1.0  # a waiting client hears of changes at most this often


class Patience:
    """Timers of one response.

    notify: called after an event was added to the stream. cancel: called when nobody has listened for too long.
    repeat_s: something is said at least this often, since pings do not reset clients' idle timers.
    grace_s: how long the response goes on without a listener.
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
        self._said_at = float("-inf")
        self._last_number = -1  # of the newest event when we last looked
        self._silence: asyncio.TimerHandle | None = None
        self._orphan: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()

    def say(self, waiting: Waiting) -> None:
        """Tell the client why it waits: at once, or when the pace allows."""
        if waiting == self._waiting:
            return
        self._waiting = waiting
        rest = self._said_at + PACE_S - self._loop.time()
        if rest <= 0:
            self._break_silence()
        else:
            self._watch_silence(rest)

    def watch(self) -> None:
        """Begin to break long silences."""
        self._watch_silence(self._repeat_s)

    def audience_changed(self, listeners: int) -> None:
        """Count down to the end when nobody listens any more."""
        if self._orphan is not None:
            self._orphan.cancel()
            self._orphan = None
        if listeners == 0:
            self._orphan = self._loop.call_later(self._grace_s, self._cancel)

    def close(self) -> None:
        """Stop every timer; idempotent."""
        for timer in (self._silence, self._orphan):
            if timer is not None:
                timer.cancel()

    def _watch_silence(self, delay_s: float) -> None:
        if self._silence is not None:
            self._silence.cancel()
        self._silence = self._loop.call_later(delay_s, self._break_silence)

    def _break_silence(self) -> None:
        stream = self._stream
        if stream.state is State.QUEUED and self._waiting is not None:
            self._said_at = self._loop.time()
            stream.queue(self._waiting)
            self._notify()
        elif stream.state is State.RUNNING and stream.last_sequence_number == self._last_number:
            stream.keep_alive()
            self._notify()
        self._last_number = stream.last_sequence_number
        self._watch_silence(self._repeat_s)
