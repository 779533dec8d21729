"""What a plan depends on, and what it says: the terms of `placement`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

GIB: Final = 2**30


class Phase(StrEnum):
    """Where a replica is in its life."""

    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"  # what runs may end, nothing new begins
    STOPPING = "stopping"  # being unloaded; its memory is not free yet
    ASLEEP = "asleep"  # its weights are in the host's memory; little of the device's is taken


@dataclass(frozen=True, slots=True)
class Device:
    """A place for replicas. memory: bytes; infinite where nobody has declared any. index: a GPU's number."""

    id: str
    memory: float = math.inf
    index: int | None = None


@dataclass(frozen=True, slots=True)
class Needs:
    """What a model asks of the devices, as configured.

    memory: bytes of each replica on each of its devices. width: devices that one replica is split over.
    minimum: replicas that are always there. maximum: that traffic may bring. idle_unload_s: None keeps idle ones.
    asleep: bytes that a sleeping replica keeps; None for engines that cannot sleep.
    """

    memory: float = 0.0
    width: int = 1
    pinned: bool = False
    minimum: int = 0
    maximum: int = 1
    idle_unload_s: float | None = None
    asleep: float | None = None

    @property
    def floor(self) -> int:
        """Replicas to load without being asked."""
        return max(self.minimum, int(self.pinned))

    def size(self, phase: Phase) -> float:
        """Bytes that a replica takes on each of its devices."""
        return self.asleep or 0.0 if phase is Phase.ASLEEP else self.memory


@dataclass(frozen=True, slots=True)
class ModelView:
    """A model now. target: replicas that its traffic asks for. retry_at: no load before that time."""

    needs: Needs
    target: int = 0
    retry_at: float = 0.0
    given_up: bool = False


@dataclass(frozen=True, slots=True)
class ReplicaView:
    """A replica now.

    in_use: answers that run in it, or wait for it. last_used: when the newest began or ended. for_good: it drains
    because somebody said so, not to make room. cause: the model that it makes room for.
    """

    id: str
    model: str
    phase: Phase
    devices: tuple[str, ...]
    in_use: int = 0
    last_used: float = 0.0
    for_good: bool = False
    cause: str | None = None


@dataclass(frozen=True, slots=True)
class Want:
    """A model that somebody waits for. gentle: only where there is room, or something idle to unload for it."""

    model: str
    since: float
    gentle: bool = False


@dataclass(frozen=True, slots=True)
class Policy:
    """How to decide.

    threshold: share of a device's memory that may be taken. swap_after_s: a want waits this long for busy models
    before they drain. own_devices: pinned models share no device with others (the preset `latency`).
    """

    threshold: float = 0.8
    swap_after_s: float = 10.0
    own_devices: bool = False


@dataclass(frozen=True, slots=True)
class State:
    """All that a plan depends on."""

    now: float
    devices: Sequence[Device]
    models: Mapping[str, ModelView]
    replicas: Sequence[ReplicaView]
    wants: Sequence[Want] = ()
    policy: Policy = Policy()


@dataclass(frozen=True, slots=True)
class Load:
    """Start a new replica there."""

    model: str
    devices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Wake:
    """Bring a sleeping replica back."""

    replica: str


@dataclass(frozen=True, slots=True)
class Unload:
    """Stop a replica that does nothing. to_sleep: keep its weights in the host's memory. cause: for which model."""

    replica: str
    to_sleep: bool = False
    cause: str | None = None


@dataclass(frozen=True, slots=True)
class Drain:
    """Give a busy replica no new work. cause: for which model; for_good: also where nobody needs the room."""

    replica: str
    cause: str
    for_good: bool = False


@dataclass(frozen=True, slots=True)
class Resume:
    """Nobody needs the room any more: a draining replica may work again."""

    replica: str


@dataclass(frozen=True, slots=True)
class Refuse:
    """The model cannot be loaded as things are; who waits for it is told why."""

    model: str
    reason: str


Action = Load | Wake | Unload | Drain | Resume | Refuse


@dataclass(slots=True)
class Plan:
    """What to do now, and when to look again if nothing happens before (infinity: never)."""

    actions: list[Action] = field(default_factory=list)
    look_at: float = math.inf

    def look(self, at: float) -> None:
        self.look_at = min(self.look_at, at)
