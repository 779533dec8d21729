"""Which of a model's replicas answers: pure, given how busy each is."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final, Protocol, TypeVar

# A replica with a conversation's prefix in its cache saves reading the prompt again, which is worth some waiting, but
# not a queue: it is left when it has this many answers more than the least busy one, or no place at all.
SLACK: Final = 4
REMEMBERED: Final = 10_000  # conversations whose replica is known, per model; the oldest are forgotten


class Loaded(Protocol):
    """What the choice depends on."""

    @property
    def id(self) -> str: ...

    @property
    def leases(self) -> int:
        """Answers that run in it."""
        ...

    @property
    def capacity(self) -> int:
        """Answers that it runs at once."""
        ...


R = TypeVar("R", bound=Loaded)


def choose(replicas: Sequence[R], preferred: str | None) -> R:
    """Return the replica for the next answer. preferred: the id of the one that has the conversation's prefix.

    1. The preferred one, unless it is full or much busier than another.
    2. The one with the smallest share of its places taken; of equals the first.

    Raises ValueError where there is none.
    """
    best = min(replicas, key=lambda replica: replica.leases / max(1, replica.capacity))
    for replica in replicas:
        if replica.id == preferred and replica.leases < replica.capacity and replica.leases <= best.leases + SLACK:
            return replica  # 1
    return best  # 2


class Affinity:
    """Remembers which replica a conversation was answered by."""

    def __init__(self, limit: int = REMEMBERED) -> None:
        self._limit = limit
        self._replicas: OrderedDict[str, str] = OrderedDict()

    def get(self, conversation: str | None) -> str | None:
        return None if conversation is None else self._replicas.get(conversation)

    def put(self, conversation: str | None, replica: str) -> None:
        if conversation is None:
            return
        self._replicas[conversation] = replica
        self._replicas.move_to_end(conversation)
        if len(self._replicas) > self._limit:
            self._replicas.popitem(last=False)
