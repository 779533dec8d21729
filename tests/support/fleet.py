"""Models, devices and traffic without engines: `placement.plan` decides, a simulated clock does the rest."""

from __future__ import annotations

import heapq
import itertools
import math
import random
from bisect import bisect
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from server.models import placement, state
from server.models.state import GIB, Device, ModelView, Needs, Phase, Policy, ReplicaView, State, Want


@dataclass(frozen=True, slots=True)
class Request:
    """Somebody asks a model at a time; the answer takes that long. Seconds."""

    at: float
    model: str
    takes: float


def zipf(models: int, requests: int, *, rate: float, exponent: float, answer_s: float, seed: int) -> list[Request]:
    """Return requests as they come independently of each other, `rate` a second; few models get most of them."""
    chance = random.Random(seed)
    weights = list(itertools.accumulate(1 / (n + 1) ** exponent for n in range(models)))
    now, found = 0.0, []
    for _ in range(requests):
        now += chance.expovariate(rate)
        number = bisect(weights, chance.random() * weights[-1])
        found.append(Request(now, f"m{number}", chance.expovariate(1 / answer_s)))
    return found


def optimum(requests: Sequence[Request], places: int) -> int:
    """Return the fewest loads for these requests with that many places of one size (Belady, IBM Systems Journal 1966).

    It knows the future: what is needed last goes first. It takes no time to load and nothing is ever busy.
    """
    uses: dict[str, list[int]] = defaultdict(list)
    for number, request in reversed(list(enumerate(requests))):
        uses[request.model].append(number)
    loads = 0
    held: set[str] = set()
    line: list[tuple[int, str]] = []  # by next use, the last first; outdated entries are skipped
    for request in requests:
        uses[request.model].pop()
        if request.model not in held:
            loads += 1
            while len(held) >= places:
                due, name = heapq.heappop(line)
                if name in held and -due == (uses[name][-1] if uses[name] else len(requests)):
                    held.discard(name)
            held.add(request.model)
        next_use = uses[request.model][-1] if uses[request.model] else len(requests)
        heapq.heappush(line, (-next_use, request.model))
    return loads


@dataclass(slots=True)
class Held:
    """A simulated replica."""

    id: str
    model: str
    devices: tuple[str, ...]
    phase: Phase = Phase.LOADING
    leases: int = 0
    last_used: float = 0.0
    for_good: bool = False


@dataclass(slots=True)
class Result:
    """What a run showed. waits: of the requests that found their model not ready, in seconds."""

    requests: int = 0
    ready: int = 0
    loads: int = 0
    evictions: int = 0
    refused: int = 0
    waits: list[float] = field(default_factory=list)

    def wait(self, share: float) -> float:
        """Return a percentile of the waits."""
        found = sorted(self.waits)
        return found[min(len(found) - 1, int(share * len(found)))] if found else 0.0


class Fleet:
    """load_s, unload_s: what these take. Loads on one device come one after the other, as the pool does it."""

    def __init__(
        self,
        needs: dict[str, Needs],
        devices: Sequence[Device],
        policy: Policy,
        *,
        load_s: float = 15.0,
        unload_s: float = 1.0,
    ) -> None:
        self.needs = needs
        self._kept = {name: each for name, each in needs.items() if each.floor}
        self.devices = devices
        self.policy = policy
        self.result = Result()
        self.held: dict[str, Held] = {}
        self.now = 0.0
        self._load_s = load_s
        self._unload_s = unload_s
        self._events: list[tuple[float, int, str, Any]] = []
        self._order = itertools.count()
        self._waiting: dict[str, list[Request]] = defaultdict(list)
        self._since: dict[str, float] = {}
        self._free_at: dict[str, float] = defaultdict(float)
        self._look_at = math.inf

    def run(self, requests: Sequence[Request]) -> Result:
        """Serve them all."""
        for request in requests:
            self._at(request.at, "request", request)
        while self._events:
            self.now, _, kind, what = heapq.heappop(self._events)
            self._happens(kind, what)
            self._plan()
            self.check()
        return self.result

    def _happens(self, kind: str, what: Any) -> None:
        match kind:
            case "request":
                self._request(what)
            case "ended":
                self._ended(what)
            case "loaded":
                self._loaded(what)
            case "unloaded":
                del self.held[what.id]
            case "look":
                self._look_at = math.inf

    def check(self) -> None:
        """Assert what must hold at every moment."""
        for device in self.devices:
            sizes = [self.needs[h.model].memory for h in self.held.values() if device.id in h.devices]
            assert sum(sizes) <= device.memory * self.policy.threshold + 1e-6, (self.now, device)
        for held in self.held.values():
            assert not held.leases or held.phase in (Phase.READY, Phase.DRAINING), held

    def unserved(self) -> int:
        return sum(map(len, self._waiting.values()))

    def _at(self, when: float, kind: str, what: Any) -> None:
        heapq.heappush(self._events, (when, next(self._order), kind, what))

    def _request(self, request: Request) -> None:
        self.result.requests += 1
        self._waiting[request.model].append(request)
        if self._serve(request.model):
            self.result.ready += 1
        else:
            self._since.setdefault(request.model, self.now)

    def _serve(self, model: str) -> bool:
        ready = [h for h in self.held.values() if h.model == model and h.phase is Phase.READY]
        if not ready:
            return False
        held = min(ready, key=lambda h: h.leases)
        for request in self._waiting.pop(model, []):
            held.leases += 1
            held.last_used = self.now
            if request.at < self.now:
                self.result.waits.append(self.now - request.at)
            self._at(self.now + request.takes, "ended", held)
        self._since.pop(model, None)
        return True

    def _ended(self, held: Held) -> None:
        held.leases -= 1
        held.last_used = self.now

    def _loaded(self, held: Held) -> None:
        held.phase = Phase.READY
        held.last_used = self.now
        self.result.loads += 1
        self._serve(held.model)

    def _plan(self) -> None:
        if not self._since and all(h.phase in (Phase.READY, Phase.LOADING) for h in self.held.values()) and self.held:
            return  # nothing waits or drains: the pool does not look then, either
        models = {name: ModelView(self.needs[name]) for name in self._since}
        models |= {held.model: ModelView(self.needs[held.model]) for held in self.held.values()}
        models |= {name: ModelView(needs) for name, needs in self._kept.items()}
        replicas = [
            ReplicaView(h.id, h.model, h.phase, h.devices, h.leases, h.last_used, h.for_good)
            for h in self.held.values()
        ]
        wants = [Want(name, since) for name, since in self._since.items()]
        decided = placement.plan(State(self.now, self.devices, models, replicas, wants, self.policy))
        for action in decided.actions:
            self._do(action)
        if decided.look_at < self._look_at:
            self._look_at = decided.look_at
            self._at(decided.look_at, "look", None)
        if decided.actions:
            self._plan()

    def _do(self, action: state.Action) -> None:
        match action:
            case state.Load():
                held = Held(f"{action.model}#{next(self._order)}", action.model, action.devices, last_used=self.now)
                self.held[held.id] = held
                begin = max(self.now, *(self._free_at[device] for device in action.devices))
                self._free_at.update(dict.fromkeys(action.devices, begin + self._load_s))
                self._at(begin + self._load_s, "loaded", held)
            case state.Unload():
                held = self.held[action.replica]
                assert not held.leases, "busy ones are never unloaded"
                assert not self.needs[held.model].pinned, "nor pinned ones"
                self.result.evictions += action.cause is not None
                held.phase = Phase.STOPPING
                self._at(self.now + self._unload_s, "unloaded", held)
            case state.Drain():
                held = self.held[action.replica]
                assert not self.needs[held.model].pinned
                held.phase, held.for_good = Phase.DRAINING, action.for_good
            case state.Resume():
                self.held[action.replica].phase = Phase.READY
                self._serve(self.held[action.replica].model)
            case state.Refuse():
                self.result.refused += len(self._waiting.pop(action.model, []))
                self._since.pop(action.model, None)
            case state.Wake():
                raise AssertionError("nothing sleeps here")


def devices(count: int, gib: float) -> list[Device]:
    return [Device(f"gpu{number}", gib * GIB, number) for number in range(count)]
