"""Which replica is loaded on which device, and what has to go for it. Pure: `plan(state)` returns what to do now.

Every model that is wanted has one place in the line, from the moment of its first want; loads in flight are joined.
What runs is never broken off: a busy replica in the way gets `swap_after_s` to become idle, then it takes no new work
and goes when its last answer has ended. Whoever asked for it meanwhile stands at the end of the line, so that two
models that do not fit together take turns and do not push each other out at every request.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from server.models.state import (
    GIB,
    Device,
    Drain,
    Load,
    Needs,
    Phase,
    Plan,
    Policy,
    Refuse,
    ReplicaView,
    Resume,
    State,
    Unload,
    Wake,
    Want,
)

ROUNDING: Final = 1e-9  # of a device: some bytes


class _Rank(IntEnum):
    """How soon a device has room, best first."""

    FREE = 0
    COMING = 1  # something is being unloaded already
    IDLE = 2  # something idle has to go
    BUSY = 3  # something busy has to drain


@dataclass(slots=True)
class _Option:
    device: Device
    rank: _Rank
    victims: list[ReplicaView]
    cost: tuple[float, ...]


def plan(state: State) -> Plan:
    """Decide.

    1. A draining replica that has become idle is unloaded.
    2. Needs are met in the order of the line: what must always be there, what is wanted, what traffic asks for.
       For each of them:
       a. a load in flight, or a replica that can take work, is joined; one that drains for nobody works again;
       b. after a failed load nothing happens before its back-off is over;
       c. what no device could hold even when empty is refused;
       d. where there is room, it is loaded (a sleeping replica is woken);
       e. where room is coming, it is kept for this need;
       f. idle replicas go, least recently used first, on the device where that costs least;
       g. busy ones drain when the need has waited long enough;
       h. where only pinned ones are in the way, it is refused.
    3. A replica that drained for a need that is gone works again.
    4. Replicas more than traffic asks for go when idle; so does what nobody has used for `idle_unload_s`.
    """
    return _Planner(state).run()


def fits(needs: Needs, devices: Sequence[Device], policy: Policy) -> str | None:
    """Return why a model could never be loaded on these devices; None where it could."""
    held = [_places(needs, device, policy) for device in devices]
    if sum(map(bool, held)) >= needs.width:
        places = sum(held) // needs.width
        if places >= needs.floor:
            return None
        return f"min_replicas is {needs.floor}, and on empty devices there is room for {places}"
    largest = max((device.memory for device in devices), default=0.0)
    if needs.width > len(devices):
        return f"it is split over {needs.width} devices and there are {len(devices)}"
    return (
        f"it needs {_gib(needs.memory)} on each of {needs.width} device(s), and of the largest "
        f"({_gib(largest)}) {policy.threshold:.0%} may be used; declare less memory, or a larger device or threshold"
    )


def _places(needs: Needs, device: Device, policy: Policy) -> int:
    """Return how many replicas, or parts of split ones, the device could hold when empty, but no more than needed."""
    budget = _budget(device, policy)
    if needs.memory * max(1, needs.floor) <= budget:
        return max(1, needs.floor)
    return int(budget // needs.memory)


def _budget(device: Device, policy: Policy) -> float:
    """Bytes that may be taken, and as much more as sums of fractions err: what fits exactly must fit every time."""
    return device.memory * policy.threshold * (1 + ROUNDING)


def _gib(size: float) -> str:
    return f"{size / GIB:.3g} GiB"


class _Planner:
    """One run of `plan`: what was decided so far, and what it leaves."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.plan = Plan()
        self.on: dict[str, list[ReplicaView]] = {device.id: [] for device in state.devices}
        self.free: dict[str, float] = {}  # now
        self.coming: dict[str, float] = {}  # when what stops and drains is gone
        self.kept: set[str] = set()  # devices on which room was kept for a need
        self.going: set[str] = set()  # replicas that this plan sends away
        for replica in state.replicas:
            for name in replica.devices:
                self.on.setdefault(name, []).append(replica)
        for device in state.devices:
            taken = sum(self._size(replica) for replica in self.on[device.id])
            leaving = sum(self._size(r) for r in self.on[device.id] if r.phase in (Phase.STOPPING, Phase.DRAINING))
            self.free[device.id] = _budget(device, state.policy) - taken
            self.coming[device.id] = self.free[device.id] + leaving
        self.shared = [d.id for d in state.devices if not any(self._is_pinned(r) for r in self.on[d.id])]
        self.live: dict[str, int] = {}
        for replica in state.replicas:
            if replica.phase in (Phase.LOADING, Phase.READY):
                self.live[replica.model] = self.live.get(replica.model, 0) + 1

    def run(self) -> Plan:
        for replica in self.state.replicas:
            if replica.phase is Phase.DRAINING and not replica.in_use:
                self._send_away(replica, replica.cause)  # 1
        for need in self._needs():
            self._meet(need)  # 2
        for replica in self.state.replicas:
            is_needed = replica.for_good or not self.kept.isdisjoint(replica.devices)
            if replica.phase is Phase.DRAINING and replica.id not in self.going and not is_needed:
                self._resume(replica)  # 3
        self._tidy()  # 4
        return self.plan

    def _needs(self) -> Iterator[Want]:
        """The line: every missing replica once."""
        state = self.state
        found = [
            Want(name, -math.inf)
            for name, model in state.models.items()
            if not model.given_up
            for _ in range(model.needs.floor - self.live.get(name, 0))
        ]
        found += [want for want in state.wants if not self.live.get(want.model)]  # 2a
        found += [
            Want(name, state.now, gentle=True)
            for name, model in state.models.items()
            if 0 < self.live.get(name, 0) < model.target
        ]
        return iter(sorted(found, key=lambda want: want.since))

    def _meet(self, want: Want) -> None:
        state, model = self.state, self.state.models[want.model]
        if self.live.get(want.model, 0) >= max(1, model.needs.floor, model.target):
            return  # an earlier place in the line has brought it
        draining = self._draining(want.model)
        if draining is not None:
            self._resume(draining)  # 2a
            return
        if model.retry_at > state.now:
            self.plan.look(model.retry_at)  # 2b
            return
        reason = fits(model.needs, state.devices, state.policy)
        if reason is not None:
            self._refuse(want, reason)  # 2c
            return
        sleeper = self._sleeper(want.model)
        options = self._options(model.needs, sleeper)
        if sleeper is not None and len(options) < model.needs.width:
            sleeper = None  # its place is taken for good: start another
            options = self._options(model.needs, None)
        if len(options) < model.needs.width:
            if sum(self._may_hold(device, model.needs) for device in state.devices) < model.needs.width:
                self._refuse(want, "pinned models take all the room; unpin or unload one, or add a device")  # 2h
            return  # others are before it
        self._take(want, model.needs, options[: model.needs.width], sleeper)

    def _refuse(self, want: Want, reason: str) -> None:
        if not want.gentle:
            self.plan.actions.append(Refuse(want.model, reason))

    def _take(self, want: Want, needs: Needs, options: list[_Option], sleeper: ReplicaView | None) -> None:
        """Use these devices, as soon as can be."""
        worst = max(option.rank for option in options)
        if worst is _Rank.BUSY:
            patience_ends = want.since + self.state.policy.swap_after_s
            if want.gentle or patience_ends > self.state.now:
                if not want.gentle:
                    self.plan.look(patience_ends)
                return
        memory = needs.memory - (self._size(sleeper) if sleeper else 0)
        for option in options:
            for victim in option.victims:
                self._send_away(victim, want.model)  # 2f, 2g
            name = option.device.id
            self.coming[name] -= memory
            if worst is _Rank.FREE:
                self.free[name] -= memory
            else:
                self.free[name] = min(self.free[name], self.coming[name])  # 2e
                self.kept.add(name)
        if worst is _Rank.FREE:
            devices = tuple(option.device.id for option in options)
            self.plan.actions.append(Wake(sleeper.id) if sleeper else Load(want.model, devices))  # 2d
            self.live[want.model] = self.live.get(want.model, 0) + 1
            if needs.pinned:
                self.shared = [device for device in self.shared if device not in devices]

    def _options(self, needs: Needs, sleeper: ReplicaView | None) -> list[_Option]:
        """Return the devices that could hold a replica, the best first."""
        devices = [d for d in self.state.devices if sleeper is None or d.id in sleeper.devices]
        memory = needs.memory - (self._size(sleeper) if sleeper else 0)
        found = [o for device in devices if (o := self._option(device, memory, needs, sleeper)) is not None]
        return sorted(found, key=lambda option: option.cost)

    def _option(self, device: Device, memory: float, needs: Needs, sleeper: ReplicaView | None) -> _Option | None:
        own = self.state.policy.own_devices
        on_it = [r for r in self.on[device.id] if r.id not in self.going and r is not sleeper]
        pinned = sum(self._is_pinned(replica) for replica in on_it) if own else 0
        if pinned and not needs.pinned:
            return None
        movable = [r for r in on_it if r.phase in (Phase.READY, Phase.ASLEEP) and not self._is_kept(r)]
        must_go = movable if own and needs.pinned else []
        others = own and needs.pinned and any(self._is_loading_stranger(r) for r in on_it)
        # A pinned model leaves the last shared device to the others where it can.
        last = float(own and needs.pinned and self.shared == [device.id])
        spare = device.memory if device.memory < math.inf else 0.0
        if not must_go and not others and self.free[device.id] >= memory:
            return _Option(device, _Rank.FREE, [], (last, _Rank.FREE, pinned, self.free[device.id] if spare else 0.0))
        if not must_go and not others and self.coming[device.id] >= memory:
            return _Option(device, _Rank.COMING, [], (last, _Rank.COMING, pinned, 0.0))
        victims = self._victims(movable, memory - self.coming[device.id])
        if victims is None or others:
            # What loads now will be movable once it is ready: wait for that.
            waits = any(r.phase is Phase.LOADING and not self._is_kept(r) for r in on_it)
            return _Option(device, _Rank.BUSY, [], (last, _Rank.BUSY + 1, pinned, 0.0)) if waits else None
        if must_go:
            victims = must_go
        rank = _Rank.BUSY if any(victim.in_use for victim in victims) else _Rank.IDLE
        newest = max(victim.last_used for victim in victims)
        return _Option(device, rank, victims, (last, rank, newest, float(len(victims))))

    def _may_hold(self, device: Device, needs: Needs) -> bool:
        """Whether the device has room beside what stays on it for good."""
        kept = [replica for replica in self.on[device.id] if self._is_kept(replica)]
        if self.state.policy.own_devices and not needs.pinned and any(self._is_pinned(replica) for replica in kept):
            return False
        return sum(map(self._size, kept)) + needs.memory <= _budget(device, self.state.policy)

    def _victims(self, movable: list[ReplicaView], shortfall: float) -> list[ReplicaView] | None:
        """Return what has to go to free that much: idle before busy, least recently used first, none in vain."""
        chosen: list[ReplicaView] = []
        freed = 0.0
        for replica in sorted(movable, key=lambda r: (bool(r.in_use), r.last_used)):
            if freed >= shortfall:
                break
            chosen.append(replica)
            freed += self._size(replica)
        if freed < shortfall:
            return None
        for replica in tuple(reversed(chosen)):
            if len(chosen) > 1 and freed - self._size(replica) >= shortfall:
                chosen.remove(replica)
                freed -= self._size(replica)
        return chosen

    def _send_away(self, replica: ReplicaView, cause: str | None) -> None:
        if replica.id in self.going:
            return
        self.going.add(replica.id)
        if replica.phase is not Phase.DRAINING:
            for device in replica.devices:
                self.coming[device] += self._size(replica)
            if replica.phase is Phase.READY:
                self.live[replica.model] -= 1
        if replica.in_use:
            self.plan.actions.append(Drain(replica.id, cause or replica.model, for_good=cause is None))
            return
        can_sleep = self.state.models[replica.model].needs.asleep is not None
        to_sleep = can_sleep and replica.phase is Phase.READY and cause is not None
        self.plan.actions.append(Unload(replica.id, to_sleep, cause))

    def _tidy(self) -> None:
        state = self.state
        for replica in sorted(state.replicas, key=lambda r: r.last_used):
            model = state.models.get(replica.model)
            if replica.id in self.going or model is None:
                continue
            if replica.phase is Phase.READY and self.live[replica.model] > max(1, model.needs.floor, model.target):
                self._send_away(replica, None)
            elif replica.in_use:
                self.plan.look(state.now + (model.needs.idle_unload_s or math.inf))  # not before
            elif replica.phase is Phase.ASLEEP or (
                replica.phase is Phase.READY and self.live[replica.model] > model.needs.floor
            ):
                self._unload_idle(replica, model.needs.idle_unload_s)

    def _unload_idle(self, replica: ReplicaView, after_s: float | None) -> None:
        if after_s is None:
            return
        if replica.last_used + after_s <= self.state.now:
            self._send_away(replica, None)
        else:
            self.plan.look(replica.last_used + after_s)

    def _draining(self, model: str) -> ReplicaView | None:
        """Return a replica of the model that drains for a need that is gone."""
        for replica in self.state.replicas:
            is_free = not replica.for_good and replica.id not in self.going and self.kept.isdisjoint(replica.devices)
            if replica.model == model and replica.phase is Phase.DRAINING and is_free:
                return replica
        return None

    def _resume(self, replica: ReplicaView) -> None:
        self.going.add(replica.id)  # decided upon
        self.live[replica.model] = self.live.get(replica.model, 0) + 1
        for device in replica.devices:
            self.coming[device] -= self._size(replica)
        self.plan.actions.append(Resume(replica.id))

    def _sleeper(self, model: str) -> ReplicaView | None:
        asleep = (r for r in self.state.replicas if r.model == model and r.phase is Phase.ASLEEP)
        return next((replica for replica in asleep if replica.id not in self.going), None)

    def _size(self, replica: ReplicaView) -> float:
        return self.state.models[replica.model].needs.size(replica.phase)

    def _is_pinned(self, replica: ReplicaView) -> bool:
        return self.state.models[replica.model].needs.pinned

    def _is_kept(self, replica: ReplicaView) -> bool:
        """Whether nothing may push it out: pinned, or one of those that must always be there."""
        needs = self.state.models[replica.model].needs
        if replica.phase is Phase.ASLEEP:
            return False
        return needs.pinned or (self.live.get(replica.model, 0) <= needs.floor and needs.floor > 0)

    def _is_loading_stranger(self, replica: ReplicaView) -> bool:
        return replica.phase is Phase.LOADING and not self._is_pinned(replica)
