"""Who may use a model's engine now: first come, first served, with a place in the queue that can be shown.

We admit; scheduling among the admitted is vLLM's. The queue is ours so that it can be shown and left for free.
"""

from __future__ import annotations

import asyncio
from collections import deque


class QueueFullError(Exception):
    """More turns wait for this model than its bound allows."""


class Ticket:
    """A place in the queue, then a place in the engine. Give it back with `release`, whatever happened.

    changed: set whenever `position` changed or the ticket was admitted; the holder clears it.
    """

    __slots__ = ("_admission", "changed", "is_admitted", "position")

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self.changed = asyncio.Event()
        self.is_admitted = False
        self.position = 0  # tickets before this one, plus one; 0 once admitted

    def release(self) -> None:
        """Leave, waiting or admitted; idempotent."""
        self._admission.release(self)


class Admission:
    """At most `limit` tickets are admitted at once; at most `max_queue` wait."""

    def __init__(self, limit: int, max_queue: int) -> None:
        self.limit = limit
        self._max_queue = max_queue
        self._admitted: set[Ticket] = set()
        self._queue: deque[Ticket] = deque()

    @property
    def waiting(self) -> int:
        return len(self._queue)

    @property
    def running(self) -> int:
        return len(self._admitted)

    @property
    def is_full(self) -> bool:
        """Whether a ticket taken now would wait."""
        return len(self._admitted) >= self.limit

    def enter(self) -> Ticket:
        """Return a ticket, admitted at once if there is room. Raises QueueFullError."""
        ticket = Ticket(self)
        if not self.is_full:
            self._admit(ticket)
            return ticket
        self.check_room()
        self._queue.append(ticket)
        ticket.position = len(self._queue)
        return ticket

    def check_room(self) -> None:
        """Raise QueueFullError where a ticket could not even wait."""
        if self.is_full and len(self._queue) >= self._max_queue:
            raise QueueFullError(f"{len(self._queue)} turns wait for this model already")

    def release(self, ticket: Ticket) -> None:
        """Take the ticket out and let the next ones in."""
        if ticket in self._admitted:
            self._admitted.remove(ticket)
        elif ticket in self._queue:
            self._queue.remove(ticket)
        else:
            return
        self._let_in()

    def resize(self, limit: int) -> None:
        """Admit up to that many from now on; who was admitted stays."""
        self.limit = limit
        self._let_in()

    def _let_in(self) -> None:
        while self._queue and not self.is_full:
            self._admit(self._queue.popleft())
        for position, waiting in enumerate(self._queue, start=1):
            if waiting.position != position:
                waiting.position = position
                waiting.changed.set()

    def _admit(self, ticket: Ticket) -> None:
        self._admitted.add(ticket)
        ticket.is_admitted = True
        ticket.position = 0
        ticket.changed.set()
