"""One model as its users see it: a name, a queue, a state; behind it none, one or several replicas."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from server.access.admission import Admission
from server.models import router
from server.models.errors import UnknownModelError
from server.models.replica import Lease, Replica
from server.models.scaling import Scale, Traffic
from server.models.state import Device, Needs, Phase

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from server.config import AdmissionConfig
    from server.engine.base import Engine
    from server.models.errors import ModelsError
    from server.observe.metrics import ModelMetrics


class ModelState(StrEnum):
    """Where a model is in its life."""

    UNLOADED = "unloaded"  # it is loaded when somebody asks for it
    LOADING = "loading"  # or waits for its turn to be
    READY = "ready"
    DRAINING = "draining"
    ASLEEP = "asleep"
    FAILED = "failed"


# The state that several replicas have together is that of the one that is nearest to answering.
_STATES: Final = {
    Phase.READY: ModelState.READY,
    Phase.LOADING: ModelState.LOADING,
    Phase.DRAINING: ModelState.DRAINING,
    Phase.STOPPING: ModelState.DRAINING,
    Phase.ASLEEP: ModelState.ASLEEP,
}
_ORDER: Final = tuple(_STATES)


class Want:
    """Somebody waits for the model: it is loaded for that, and what is loaded stays.

    since: loop time. error: set when it waits in vain. until_ready: it is over when the model is ready.
    """

    __slots__ = ("error", "since", "until_ready")

    def __init__(self, *, until_ready: bool = False) -> None:
        self.since = asyncio.get_running_loop().time()
        self.error: ModelsError | None = None
        self.until_ready = until_ready

    def check(self) -> None:
        """Raise what it waits in vain for."""
        if self.error is not None:
            raise self.error


@dataclass(eq=False)
class Model:
    """One model.

    make_engine: makes an engine that has not started, for these devices.
    requires: the right that a user needs to see and use it; empty: none.
    start_timeout_s: loading may take this long; None sets no bound.
    is_elsewhere: another server or another model's engine runs it: it waits for no turn in loading (the base model of
        an adapter takes that), and is never given up once it has run, since what runs it may come back at any time.
    base: the id of the model whose engine answers for it, for a LoRA adapter.
    sampling: fields of `Sampling` that stand where a request says nothing.
    poke: called when something has to be decided. eased: called when it is less busy, which matters to who waits.
    changed: set, then replaced, at every change of state or progress.
    wanted_since: loop time of its place in the line of models that wait for room; None while nobody waits.
    failures: failed starts and early deaths in a row. given_up: it is not started again unasked.
    """

    name: str
    make_engine: Callable[[tuple[Device, ...]], Engine]
    max_queue: int
    created_at: int
    requires: str = ""
    system_prompt: str | None = None
    start_timeout_s: float | None = None
    is_elsewhere: bool = False
    base: str | None = None
    metrics: ModelMetrics | None = None
    admission_config: AdmissionConfig | None = None
    needs: Needs = field(default_factory=lambda: Needs(minimum=1))
    sampling: Mapping[str, float] = field(default_factory=dict)
    replicas: list[Replica] = field(default_factory=list)
    admission: Admission = field(init=False)
    has_run: bool = False
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    poke: Callable[[], None] = lambda: None
    eased: Callable[[], None] = lambda: None
    wants: dict[Want, None] = field(default_factory=dict)
    wanted_since: float | None = None
    scale: Scale = field(default_factory=lambda: Scale(0))
    failures: int = 0
    retry_at: float = 0.0
    given_up: bool = False
    is_to_restore: bool = False  # it was unloaded for another one, which could not be loaded
    fault: str | None = None
    is_removed: bool = False
    _affinity: router.Affinity = field(default_factory=router.Affinity)

    def __post_init__(self) -> None:
        self.admission = Admission(0, self.max_queue, self.admission_config, self.metrics)

    # What it is like now

    @property
    def state(self) -> ModelState:
        if self.replicas and not self.given_up:
            return _STATES[self._leader.phase]
        if self.given_up:
            return ModelState.FAILED
        return ModelState.LOADING if self.is_due else ModelState.UNLOADED

    @property
    def is_due(self) -> bool:
        """Whether it should be loaded now."""
        return bool(self.wants) or self.needs.floor > 0 or self.is_to_restore

    @property
    def detail(self) -> str:
        """The state in words."""
        if self.replicas and not self.given_up:
            return self._leader.detail
        if self.fault is not None:
            return self.fault
        return "waiting for room" if self.wants else "waiting to start" if self.is_due else "loaded when asked for"

    @property
    def progress(self) -> float | None:
        return self._leader.progress if self.replicas else None

    @property
    def _leader(self) -> Replica:
        return min(self.replicas, key=lambda replica: _ORDER.index(replica.phase))

    @property
    def in_flight(self) -> int:
        """Answers that run."""
        return sum(replica.leases for replica in self.replicas)

    @property
    def ready_engine(self) -> Engine | None:
        """An engine that could answer now."""
        return next((replica.engine for replica in self.replicas if replica.phase is Phase.READY), None)

    def traffic(self, now: float) -> Traffic:
        """What it has to do now."""
        ready = [replica for replica in self.replicas if replica.phase is Phase.READY]
        oldest = next(iter(self.wants), None)  # they stand in the order in which they came
        delay_s = 0.0 if oldest is None else now - oldest.since
        return Traffic(delay_s, self.in_flight, max((r.capacity for r in ready), default=0), len(ready))

    # What its users do

    @contextmanager
    def wanted(self) -> Iterator[Want]:
        """Wait for the model while inside: it is loaded if it is not, and is not unloaded."""
        want = Want()
        self.want(want)
        try:
            yield want
        finally:
            self.unwant(want)

    def want(self, want: Want) -> None:
        """Stand in its line; `unwant` must follow. A turn may come after the removal: in vain."""
        if self.is_removed:
            want.error = UnknownModelError(f"the model '{self.name}' was removed")
            return
        self.wants[want] = None
        if self.ready_engine is None:
            self._join_the_line()
            self.poke()

    def unwant(self, want: Want) -> None:
        """Wait no more; harmless if it did not."""
        self.wants.pop(want, None)
        if not self.wants:
            self.wanted_since = None
            self._less_busy()

    def lease(self, conversation: str | None) -> Lease | None:
        """Return the right to one answer, or None while no replica can take one.

        conversation: prefers the replica that has answered in it before.
        """
        ready = [replica for replica in self.replicas if replica.phase is Phase.READY]
        if not ready:
            return None
        replica = router.choose(ready, self._affinity.get(conversation) if len(ready) > 1 else None)
        assert replica.engine is not None  # it is ready
        self._affinity.put(conversation, replica.id)
        return Lease(replica, replica.engine)

    def report_dead(self, engine: Engine) -> None:
        """Somebody without a lease found this engine dead; one that was unloaded meanwhile is not."""
        for replica in self.replicas:
            if replica.engine is engine:
                replica.report_dead()

    # What the pool does

    def new_replica(self, devices: tuple[Device, ...]) -> Replica:
        """Return a replica that is about to be loaded."""
        number = next(n for n in range(1, len(self.replicas) + 2) if all(r.number != n for r in self.replicas))
        replica = Replica(self.name, number, devices, self.tell, self._less_busy)
        self.replicas.append(replica)
        self.tell()
        return replica

    def fail_wants(self, error: ModelsError) -> None:
        """Tell everybody who waits that it is in vain."""
        if not self.wants:
            return
        for want in self.wants:
            want.error = error
        self.wants.clear()
        self.wanted_since = None
        self.tell()

    def resize(self) -> None:
        """Let in as many as the loaded replicas have places for; without any, keep the places as they were."""
        capacity = sum(replica.capacity for replica in self.replicas if replica.phase is Phase.READY)
        if capacity:
            self.has_run = True
            self.admission.resize(capacity)

    def tell(self) -> None:
        """Something has changed: wake who waits for it."""
        if self.metrics is not None:
            self.metrics.engine_up(up=self.ready_engine is not None)
        self.changed.set()
        self.changed = asyncio.Event()
        if self.ready_engine is not None:
            self.wanted_since = None
        elif self.wants:
            self._join_the_line()  # at its end, where what they waited for was drained: others were before them
        self.poke()

    def _less_busy(self) -> None:
        self.eased()

    def _join_the_line(self) -> None:
        if self.wanted_since is None:
            self.wanted_since = asyncio.get_running_loop().time()
