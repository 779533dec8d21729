"""The number of replicas follows traffic: on a simulated day, and rule by rule."""

from __future__ import annotations

from collections import deque
from itertools import pairwise

import pytest

from server.models.scaling import Policy, Scale, Traffic, step

POLICY = Policy(up_delay_s=2.0, down_after_s=60.0, pause_s=5.0)


def after(scale: Scale, now: float, *, delay_s: float = 0.0, running: int = 0, ready: int = 1) -> Scale:
    return step(scale, Traffic(delay_s, running, 10, ready), now=now, least=1, most=3, policy=POLICY)


def test_1_within_its_bounds():
    assert after(Scale(0), 0.0).target == 1
    assert after(Scale(9), 0.0, running=30, ready=3).target == 3


def test_2_what_was_asked_for_is_waited_for():
    assert after(Scale(2), 100.0, delay_s=50.0, running=10, ready=1).target == 2


def test_3_turns_that_wait_ask_for_one_more_and_then_there_is_a_pause():
    grown = after(Scale(1), 100.0, delay_s=2.1, running=10)
    assert grown.target == 2
    assert after(grown, 104.0, delay_s=6.0, running=20, ready=2).target == 2
    assert after(grown, 106.0, delay_s=8.0, running=20, ready=2).target == 3
    assert after(Scale(1), 100.0, delay_s=1.9, running=10).target == 1


def test_4_one_less_after_a_long_calm():
    calm = after(Scale(2), 100.0, running=5, ready=2)
    assert after(calm, 159.0, running=5, ready=2).target == 2
    assert after(calm, 160.0, running=5, ready=2).target == 1


@pytest.mark.parametrize("stir", [{"running": 6}, {"delay_s": 0.1}])
def test_4_any_stir_begins_a_new_calm(stir):
    calm = after(Scale(2), 100.0, ready=2)
    stirred = after(calm, 130.0, ready=2, **stir)
    assert stirred.calm_since is None
    assert after(after(stirred, 131.0, ready=2), 161.0, ready=2).target == 2


def simulated(arrivals: list[float], *, answer_s: float = 10.0, load_s: float = 20.0, most: int = 4) -> list[int]:
    """Return the number of wanted replicas, second by second. arrivals: turns a second. A replica makes 10 at once."""
    scale, history = Scale(1), []
    waiting: deque[int] = deque()
    running: list[float] = []
    ready_at = [0.0]
    due = 0.0
    for now, rate in enumerate(arrivals):
        due += rate
        while due >= 1:
            waiting.append(now)
            due -= 1
        running = [end for end in running if end > now]
        ready = sum(at <= now for at in ready_at)
        while waiting and len(running) < 10 * ready:
            waiting.popleft()
            running.append(now + answer_s)
        delay = now - waiting[0] if waiting else 0.0
        traffic = Traffic(delay, len(running), 10, ready)
        scale = step(scale, traffic, now=now, least=1, most=most, policy=POLICY)
        while len(ready_at) < scale.target:
            ready_at.append(now + load_s)
        del ready_at[scale.target :]
        history.append(scale.target)
    return history


def changes(history: list[int]) -> int:
    return sum(a != b for a, b in pairwise(history))


def test_a_day():
    """Quiet, a rush of three replicas' worth, quiet: up as far as needed, back to one, each step once."""
    history = simulated([0.3] * 120 + [2.7] * 600 + [0.3] * 600)
    assert history[119] == 1
    assert max(history) in {3, 4}
    assert history[-1] == 1
    assert changes(history) == 2 * (max(history) - 1)


@pytest.mark.parametrize("rate", [0.5, 0.95, 1.5, 1.9, 2.5])
def test_steady_traffic_comes_to_rest(rate):
    """At no load does the number go up and down for ever."""
    history = simulated([rate] * 3600)
    assert changes(history[1800:]) == 0


@pytest.mark.parametrize("half_s", [5, 30, 60, 300])
def test_a_square_wave(half_s):
    """Within a wave it goes up once and down once at most; waves shorter than the calm it waits for move nothing."""
    waves = 3600 // (2 * half_s)
    history = simulated(([2.5] * half_s + [0.0] * half_s) * waves)
    tail = history[len(history) // 2 :]
    assert changes(tail) == 0 if half_s < POLICY.down_after_s else changes(tail) <= waves // 2 * 2 * (max(tail) - 1)
