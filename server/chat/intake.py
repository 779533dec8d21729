"""The way in: what an engine makes of one request, to a response."""

from __future__ import annotations

from collections.abc import Callable

from server.engine.base import Chunk
from server.models.replica import Lease


class Intake:
    """The sink of one request (engine.base.Sink). Tokens may wait with the engine until the journal wants them.

    receive: takes a chunk. notify: says that the journal may ask for what has come.
    """

    def __init__(self, lease: Lease, receive: Callable[[Chunk], None], notify: Callable[[], None]) -> None:
        self._lease = lease
        self._receive = receive
        self._notify = notify
        self._hand_over: Callable[[], None] | None = None  # while tokens wait
        self._is_asking = False

    @property
    def has_more(self) -> bool:
        """Whether tokens wait with the engine."""
        return self._hand_over is not None

    def receive(self, chunk: Chunk) -> None:
        self._hand_over = None
        self._lease.heard()
        self._receive(chunk)
        if not self._is_asking and chunk.finish_reason is None:
            self._notify()

    def wait(self, hand_over: Callable[[], None]) -> None:
        self._hand_over = hand_over
        self._lease.heard()
        self._notify()

    def heard(self) -> None:
        self._lease.heard()

    def ask(self) -> None:
        """Let the engine hand over what waits: `receive` is called before this returns."""
        if self._hand_over is not None:
            self._is_asking = True
            try:
                self._hand_over()
            finally:
                self._is_asking = False
                self._hand_over = None
