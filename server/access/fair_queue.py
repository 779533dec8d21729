"""Who goes first: classes by urgency, users of one class by what they were served. Pure: no clock, no I/O, no tasks.

1. Classes: `interactive` before `standard` before `batch`. A class that has waited for `ageing_s` without a place moves
   up by one step, and by one more after each further `ageing_s`; it falls back when it gets a place. The class ages and
   not the turn: the fifty turns of one flooding user must not grow old enough to pass everybody else's newest.
2. Inside a class: the user who was served the fewest tokens (Sheng et al., "Fairness in Serving Large Language
   Models", OSDI 2024: the virtual token counter). A user who comes, or comes back after a pause, starts at the counter
   of the one who was picked last, as start-time fair queueing has it: idle time earns nothing, and what somebody used
   while there was room for all is no debt. When nobody is left, all begin anew.
3. Inside a user: first come, first served.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from operator import itemgetter
from typing import Final

OUTPUT_WEIGHT: Final = 2  # what a token of an answer counts against one of a prompt; the paper's value
MAX_AHEAD: Final = 1000  # users of a class that neither wait nor run whose counters are remembered
USER_SHARE: Final = 4  # one user may wait with this many times the places that are left: four fifths of all, alone


class ServiceClass(StrEnum):
    """How urgent a turn is; the most urgent first."""

    INTERACTIVE = "interactive"  # somebody sits and waits
    STANDARD = "standard"  # long to read, somebody waits all the same
    BATCH = "batch"  # work in the background

    __hash__ = str.__hash__  # Enum's own runs Python code, with every token

    @property
    def rank(self) -> int:
        """0 is the most urgent."""
        return _RANKS[self]


_RANKS: Final = {name: rank for rank, name in enumerate(ServiceClass)}


@dataclass(frozen=True, slots=True)
class Demand:
    """What a turn asks for. user: whom it counts for. tokens: of its prompt, as far as they are known."""

    user: str = ""
    service_class: ServiceClass = ServiceClass.INTERACTIVE
    tokens: int = 0


@dataclass(eq=False, slots=True)
class Entry:
    """A turn that waits. number: counts up with each that comes."""

    demand: Demand
    number: int


_Place = tuple[float, int, int]
_PLACE: Final = itemgetter(0)


@dataclass(slots=True)
class _Lane:
    """One class. served: tokens by user. picked: the counter of the user picked last, before that was charged."""

    waiting: dict[str, deque[Entry]] = field(default_factory=dict)
    length: int = 0
    served: dict[str, float] = field(default_factory=dict)
    running: dict[str, int] = field(default_factory=dict)
    picked: float = 0.0
    unserved_since: float = 0.0  # when it last got a place, or began to wait

    def key(self, user: str) -> _Place:
        """The smallest goes first: least served, then least running, then first come."""
        return self.served[user], self.running.get(user, 0), self.waiting[user][0].number

    def places(self) -> Iterator[tuple[_Place, Entry]]:
        """Yield those that wait with what `key` will be when each is the first of its user."""
        for user, entries in self.waiting.items():
            served, running = self.served[user], self.running.get(user, 0)
            for entry in entries:
                yield (served, running, entry.number), entry
                served += max(1, entry.demand.tokens)
                running += 1

    def pick(self, user: str) -> None:
        """A user gets a place now: nobody who comes later starts below."""
        self.picked = self.served[user] = max(self.served.get(user, 0), self.picked)

    def forget_idle(self, user: str) -> None:
        """Drop a user who neither waits nor runs and has no more than a newcomer would get.

        Where nobody waits or runs, that is everybody. Of very many, those go that are the least ahead.
        """
        if not self.waiting and not self.running:
            self.served.clear()
            self.picked = 0.0
            return
        if self._is_idle(user) and self.served.get(user, 0) <= self.picked:
            self.served.pop(user, None)
        if len(self.served) - len(self.waiting) - len(self.running) > MAX_AHEAD:
            idle = sorted(filter(self._is_idle, self.served), key=self.served.__getitem__)
            for other in idle[: -(MAX_AHEAD // 2)]:  # half of them: not to sort at each end
                del self.served[other]

    def _is_idle(self, user: str) -> bool:
        return user not in self.waiting and user not in self.running


class FairQueue:
    """Turns that wait, and what was served to whom. See the module's text.

    ageing_s: a class without a place moves up one step after this long. Times are the caller's, in seconds.
    """

    def __init__(self, ageing_s: float) -> None:
        self._ageing_s = ageing_s
        self._lanes = {name: _Lane() for name in ServiceClass}
        self._next_number = 0
        self._length = 0
        self._by_user: dict[str, int] = {}
        self.tokens = 0  # of the prompts that wait

    def __len__(self) -> int:
        return self._length

    def waiting(self, service_class: ServiceClass) -> int:
        """Turns of one class that wait."""
        return self._lanes[service_class].length

    def waiting_of(self, user: str) -> int:
        """Turns of one user that wait, in any class."""
        return self._by_user.get(user, 0)

    def has_room(self, demand: Demand, others: Collection[Demand] = (), *, max_length: int, max_tokens: int) -> bool:
        """Whether one more may wait beside those that do and others that are about to.

        1. No places are left.
        2. Its prompt would be too much beside those that wait. One alone is never too long: it fits the window.
        3. This user holds too many of the places, so that others would find none.
        """
        length = self._length + len(others)
        free = max_length - length
        if free <= 0:
            return False
        if length and self.tokens + sum(other.tokens for other in others) + demand.tokens > max_tokens:
            return False
        own = self.waiting_of(demand.user) + sum(other.user == demand.user for other in others)
        return own < USER_SHARE * free

    def push(self, demand: Demand, now: float) -> Entry:
        """Put a turn at the end of its user's."""
        lane = self._lanes[demand.service_class]
        if not lane.waiting:
            lane.unserved_since = now
        if demand.user not in lane.waiting:
            lane.served[demand.user] = max(lane.served.get(demand.user, 0), lane.picked)
        entry = Entry(demand, self._next_number)
        lane.waiting.setdefault(demand.user, deque()).append(entry)
        self._next_number += 1
        self._count(demand, 1)
        return entry

    def remove(self, entry: Entry) -> None:
        """Take a turn out that does not want to wait any more. Raises ValueError when it is not in here."""
        demand = entry.demand
        lane = self._lanes[demand.service_class]
        entries = lane.waiting.get(demand.user)
        if entries is None:
            raise ValueError(f"{entry} does not wait")
        entries.remove(entry)
        if not entries:
            del lane.waiting[demand.user]
            lane.forget_idle(demand.user)
        self._count(demand, -1)

    def pop(self, now: float, classes: Collection[ServiceClass] = tuple(ServiceClass)) -> Entry | None:
        """Take out who goes next among these classes, and count it as running; None when nobody waits."""
        waiting = [name for name in classes if self._lanes[name].waiting]
        if not waiting:
            return None
        name = min(waiting, key=lambda name: self._urgency(name, now))
        lane = self._lanes[name]
        user = min(lane.waiting, key=lane.key)
        entry = lane.waiting[user][0]
        lane.unserved_since = now
        self.run(entry.demand)  # before it leaves the queue: where it is the last one, all would begin anew
        self.remove(entry)
        return entry

    def run(self, demand: Demand) -> None:
        """Count a turn that runs, also one that never had to wait. `done` must follow."""
        lane = self._lanes[demand.service_class]
        lane.running[demand.user] = lane.running.get(demand.user, 0) + 1
        lane.pick(demand.user)
        self.charge(demand, demand.tokens)

    def charge(self, demand: Demand, tokens: float) -> None:
        """Count tokens as served to the turn's user."""
        self._lanes[demand.service_class].served[demand.user] += tokens

    def done(self, demand: Demand) -> None:
        """A turn that ran has ended."""
        lane = self._lanes[demand.service_class]
        lane.running[demand.user] -= 1
        if not lane.running[demand.user]:
            del lane.running[demand.user]
        lane.forget_idle(demand.user)

    def order(self) -> Iterator[Entry]:
        """Yield those that wait in the order in which they would be picked, if nothing else happened.

        What answers will cost is not known, so it is about right. Ageing is left out.
        """
        for lane in self._lanes.values():
            for _, entry in sorted(lane.places(), key=_PLACE):
                yield entry

    def position(self, entry: Entry) -> int:
        """Return where one stands in that order, from 1; quicker than the whole order."""
        name = entry.demand.service_class
        places = list(self._lanes[name].places())
        own = next(place for place, other in places if other is entry)
        before = sum(lane.length for other, lane in self._lanes.items() if other.rank < name.rank)
        return before + sum(place <= own for place, _ in places)

    def _urgency(self, name: ServiceClass, now: float) -> tuple[float, float]:
        """The smallest goes first; of two that have come to the same step, the one that got nothing for longer."""
        unserved_since = self._lanes[name].unserved_since
        steps = (now - unserved_since) // self._ageing_s
        return name.rank - steps, unserved_since

    def _count(self, demand: Demand, change: int) -> None:
        self._lanes[demand.service_class].length += change
        self._length += change
        self.tokens += change * demand.tokens
        count = self._by_user.get(demand.user, 0) + change
        if count:
            self._by_user[demand.user] = count
        else:
            del self._by_user[demand.user]
