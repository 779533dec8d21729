"""How many replicas a model's traffic asks for: pure, one step at a time, slow to change its mind.

More when turns wait too long, fewer when fewer would do with room to spare for a while. Between the two nothing
happens: else a model at the edge would load and unload a replica again and again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

SPARE: Final = 0.5  # with one replica less, at most this share of the places may be taken
PAUSE_S: Final = 5.0  # after one more: it has to take its share before another one is judged needed


@dataclass(frozen=True, slots=True)
class Policy:
    """up_delay_s: turns that wait longer ask for one more. down_after_s: few turns for this long ask for one less."""

    up_delay_s: float = 2.0
    down_after_s: float = 60.0
    pause_s: float = PAUSE_S


@dataclass(frozen=True, slots=True)
class Traffic:
    """What a model has to do now.

    delay_s: how long the first of the waiting turns has waited; 0 without any.
    capacity: answers that one replica makes at once. ready: replicas that can answer.
    """

    delay_s: float
    running: int
    capacity: int
    ready: int


@dataclass(frozen=True, slots=True)
class Scale:
    """target: replicas wanted. calm_since: since when fewer would do; None while they would not."""

    target: int
    calm_since: float | None = None
    grown_at: float = float("-inf")


def step(scale: Scale, traffic: Traffic, *, now: float, least: int, most: int, policy: Policy) -> Scale:
    """Return what is wanted from now on.

    1. Within its bounds, whatever happens.
    2. A replica that was asked for and is not ready yet is waited for.
    3. Turns wait too long, and the last growth has had its time: one more.
    4. One less would have room to spare, for long enough: one less.
    """
    target = min(max(scale.target, least), most)
    scale = replace(scale, target=target)  # 1
    if traffic.delay_s > policy.up_delay_s:
        scale = replace(scale, calm_since=None)
        if traffic.ready < target or target >= most or now - scale.grown_at < policy.pause_s:
            return scale  # 2
        return replace(scale, target=target + 1, grown_at=now)  # 3
    is_calm = traffic.delay_s == 0 and traffic.running <= SPARE * traffic.capacity * (target - 1)
    if target <= least or not is_calm:
        return replace(scale, calm_since=None)
    if scale.calm_since is None:
        return replace(scale, calm_since=now)
    if now - scale.calm_since < policy.down_after_s:
        return scale
    return replace(scale, target=target - 1, calm_since=now)  # 4
