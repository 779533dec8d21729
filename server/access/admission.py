"""Who may use a model's engine now: a fair queue and limits that follow measurement, with places that can be shown.

We admit; scheduling among the admitted is vLLM's. The queue is ours so that it can be fair, shown, and left for free.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from typing import Final

from server.access.concurrency import Concurrency, Load
from server.access.fair_queue import OUTPUT_WEIGHT, Demand, Entry, FairQueue, ServiceClass
from server.config import AdmissionConfig
from server.observe.metrics import ModelMetrics

TELL_S: Final = 0.25  # places move with every turn that ends: those who wait are told at most this often
SERVICE_WEIGHT: Final = 0.1  # of the newest turn in the average time that one takes
RETRY_FIRST_MS: Final = 5000  # hint for the refused before any turn has ended
RETRY_MIN_MS: Final = 1000

_NOBODY: Final = Demand()


class QueueFullError(Exception):
    """More turns wait for this model than its bounds allow. retry_after_ms: when there may be room again."""

    def __init__(self, message: str, retry_after_ms: int) -> None:
        super().__init__(message)
        self.retry_after_ms = retry_after_ms


class Ticket:
    """A place in the queue, then a place in the engine. Give it back with `release`, whatever happened.

    changed: set whenever `position` may have changed or the ticket was admitted; the holder clears it.
    """

    __slots__ = ("_admission", "admitted_at", "changed", "demand", "entered_at", "entry", "position")

    def __init__(self, admission: Admission, demand: Demand, now: float) -> None:
        self._admission = admission
        self.demand = demand
        self.entered_at = now
        self.admitted_at: float | None = None
        self.entry: Entry | None = None
        self.changed = asyncio.Event()
        self.position = 0  # tickets before this one, plus one; 0 once admitted

    @property
    def is_admitted(self) -> bool:
        return self.admitted_at is not None

    @property
    def estimated_wait_ms(self) -> int | None:
        """How long until it is admitted, about; None while nothing is known."""
        return self._admission.estimated_wait_ms(self.position, self.demand.service_class)

    def first_token(self, tokens: int, wait_s: float) -> None:
        """The engine has made the first tokens, so long after it got the prompt."""
        self._admission.heard_first(self, tokens, wait_s)

    def tokens(self, count: int, gap_s: float) -> None:
        """The engine has made more tokens, so long after those before."""
        self._admission.heard(self, count, gap_s)

    def release(self) -> None:
        """Leave, waiting or admitted; idempotent."""
        self._admission.release(self)


class Expected:
    """A turn that is being begun and will enter: counted, so that of many at once no more are begun than may wait.

    `drop` it when it has entered, or will not.
    """

    __slots__ = ("_among", "demand")

    def __init__(self, among: dict[Expected, None], demand: Demand) -> None:
        self._among = among
        self.demand = demand
        among[self] = None

    def drop(self) -> None:
        """Count it no more; idempotent."""
        self._among.pop(self, None)


class Admission:
    """One model's door.

    limit: what the engines can take at once; 0 before there are any.
    max_queue: turns that may wait.
    clock: seconds, monotonic.
    """

    def __init__(
        self,
        limit: int,
        max_queue: int,
        config: AdmissionConfig | None = None,
        metrics: ModelMetrics | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        config = config or AdmissionConfig()
        self._concurrency = Concurrency(
            limit,
            floor=config.min_concurrency,
            gap_bound_s=config.max_token_gap_ms / 1000,
            first_token_bound_s=config.max_first_token_ms / 1000,
            is_fixed=not config.adaptive,
        )
        self._queue = FairQueue(config.ageing_s)
        self._max_queue = max_queue
        self._max_tokens = config.max_queue_tokens
        self._metrics = metrics
        self._clock = clock
        self._admitted: set[Ticket] = set()
        self._waiting: dict[Entry, Ticket] = {}
        self._expected: dict[Expected, None] = {}
        self._background = 0  # admitted tickets that are not interactive
        self._service_s: float | None = None  # how long a turn holds its place, on average
        self._telling: asyncio.TimerHandle | None = None
        self._shown: tuple[int, int] | None = None  # limits in the metrics
        self._shows_waiting = True  # whether the metrics say that somebody waits, or may

    @property
    def limit(self) -> int:
        return self._concurrency.capacity

    @property
    def waiting(self) -> int:
        return len(self._queue)

    @property
    def running(self) -> int:
        return len(self._admitted)

    def is_full(self, demand: Demand = _NOBODY) -> bool:
        """Whether a ticket taken now would wait."""
        return demand.service_class not in self._open_classes() or self._queue.waiting(demand.service_class) > 0

    def expect(self, demand: Demand = _NOBODY) -> Expected:
        """Keep a place for a turn that is about to be acknowledged. Raises QueueFullError."""
        self.check_room(demand)
        return Expected(self._expected, demand)

    def enter(self, demand: Demand = _NOBODY, *, is_expected: bool = False) -> Ticket:
        """Return a ticket, admitted at once if there is room. Raises QueueFullError.

        is_expected: it may wait in any case, since its client was told that it has begun.
        """
        now = self._clock()
        ticket = Ticket(self, demand, now)
        if not self.is_full(demand):
            self._queue.run(demand)
            self._admit(ticket, now)
            return ticket
        if not is_expected:
            self.check_room(demand)
        ticket.entry = self._queue.push(demand, now)
        self._waiting[ticket.entry] = ticket
        ticket.position = self._queue.position(ticket.entry)
        self._show()
        self._tell_soon()
        return ticket

    def check_room(self, demand: Demand = _NOBODY) -> None:
        """Raise QueueFullError where a ticket could not even wait."""
        free = max(0, self._concurrency.limit - len(self._admitted))
        if len(self._expected) < free and not self.is_full(demand):
            return
        will_wait = [other.demand for other in self._expected][free:]
        if self._queue.has_room(demand, will_wait, max_length=self._max_queue, max_tokens=self._max_tokens):
            return
        own = self._queue.waiting_of(demand.user) + sum(other.user == demand.user for other in will_wait)
        count = len(self._queue) + len(will_wait)
        text = f"{count} turns wait for this model already ({own} of them yours)"
        hint = self.estimated_wait_ms(count, demand.service_class) or RETRY_FIRST_MS
        if self._metrics is not None:
            self._metrics.refused(demand.service_class)
        raise QueueFullError(text, max(RETRY_MIN_MS, hint))

    def release(self, ticket: Ticket) -> None:
        """Take the ticket out and let the next ones in."""
        if ticket in self._admitted:
            self._admitted.remove(ticket)
            self._background -= ticket.demand.service_class is not ServiceClass.INTERACTIVE
            self._queue.done(ticket.demand)
            self._note_service(self._clock() - (ticket.admitted_at or 0))
        elif ticket.entry in self._waiting:
            del self._waiting[ticket.entry]
            self._queue.remove(ticket.entry)
        else:
            return
        self._show()
        self._let_in()
        self._tell_soon()

    def resize(self, limit: int) -> None:
        """Follow the engines, which take that many from now on; who was admitted stays."""
        self._concurrency.capacity = limit
        self._show()
        self._let_in()

    def heard_first(self, ticket: Ticket, tokens: int, wait_s: float) -> None:
        """See `Ticket.first_token`."""
        if ticket.demand.service_class is ServiceClass.INTERACTIVE:
            self._concurrency.first_tokens.add(wait_s)
        self._charge(ticket, tokens)

    def heard(self, ticket: Ticket, count: int, gap_s: float) -> None:
        """See `Ticket.tokens`."""
        if ticket.demand.service_class is ServiceClass.INTERACTIVE:
            self._concurrency.gaps.add(gap_s / max(1, count))
        self._charge(ticket, count)

    def estimated_wait_ms(self, position: int, service_class: ServiceClass) -> int | None:
        """Return how long a place in the queue takes, about; None while nothing is known."""
        if self._service_s is None:
            return None
        is_interactive = service_class is ServiceClass.INTERACTIVE
        at_once = self._concurrency.limit if is_interactive else self._concurrency.background
        return math.ceil(position * self._service_s / max(1, at_once) * 10) * 100  # tenths of a second: it is a guess

    def _charge(self, ticket: Ticket, tokens: int) -> None:
        if ticket in self._admitted:
            self._queue.charge(ticket.demand, OUTPUT_WEIGHT * tokens)
        now = self._clock()
        if now >= self._concurrency.due_at and self._concurrency.look(now, self._load()):
            self._show()
            self._let_in()

    def _load(self) -> Load:
        waiting = len(self._queue)
        background = waiting - self._queue.waiting(ServiceClass.INTERACTIVE)
        return Load(len(self._admitted), waiting, self._background, background)

    def _open_classes(self) -> tuple[ServiceClass, ...]:
        """Return the classes of which one more may run now."""
        if len(self._admitted) >= self._concurrency.limit:
            return ()
        if self._background >= self._concurrency.background:
            return (ServiceClass.INTERACTIVE,)
        return tuple(ServiceClass)

    def _let_in(self) -> None:
        now = self._clock()
        while (entry := self._queue.pop(now, self._open_classes())) is not None:
            self._admit(self._waiting.pop(entry), now)
            self._tell_soon()

    def _admit(self, ticket: Ticket, now: float) -> None:
        self._admitted.add(ticket)
        self._background += ticket.demand.service_class is not ServiceClass.INTERACTIVE
        ticket.admitted_at = now
        ticket.position = 0
        ticket.changed.set()
        if self._metrics is not None:
            self._metrics.admitted(ticket.demand.service_class, now - ticket.entered_at)
        self._show()

    def _note_service(self, seconds: float) -> None:
        old = seconds if self._service_s is None else self._service_s
        self._service_s = old + SERVICE_WEIGHT * (seconds - old)

    def _tell_soon(self) -> None:
        if self._telling is None and self._waiting:
            self._telling = asyncio.get_running_loop().call_later(TELL_S, self._tell)

    def _tell(self) -> None:
        """Give those who wait their positions."""
        self._telling = None
        for position, entry in enumerate(self._queue.order(), start=1):
            ticket = self._waiting[entry]
            if ticket.position != position:
                ticket.position = position
                ticket.changed.set()

    def _show(self) -> None:
        """Show what has changed: most turns are admitted at once, and leave all of this as it was."""
        if self._metrics is None:
            return
        limits = self._concurrency.limit, self._concurrency.background
        if limits != self._shown:
            self._shown = limits
            self._metrics.admission_limits(*limits)
        if len(self._queue) or self._shows_waiting:
            self._shows_waiting = len(self._queue) > 0
            for name in ServiceClass:
                self._metrics.waiting(name, self._queue.waiting(name))
