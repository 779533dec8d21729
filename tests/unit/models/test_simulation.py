"""Placement over many requests: nothing is overbooked or broken off, everybody is served, and not much worse than by
somebody who knows the future.
"""

from __future__ import annotations

import random

import pytest

from server.models.state import GIB, Needs, Policy
from tests.support.fleet import Fleet, Request, devices, optimum, zipf


def test_the_optimum():
    """Belady's own kind of example: with three places, what is needed last goes."""
    requests = [Request(n, name, 1) for n, name in enumerate("abcdabeabcde")]
    assert optimum(requests, 3) == 7
    assert optimum(requests, 1) == 12
    assert optimum(requests, 5) == 5


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("own_devices", [False, True])
def test_everybody_is_served(seed, own_devices):
    """Models of many sizes, some pinned, some split over devices, under more load than there is room for."""
    chance = random.Random(seed)
    needs = {
        f"m{n}": Needs(chance.choice([5, 10, 20, 40]) * GIB, width=2 if n == 5 else 1, pinned=n in {0, 1})
        for n in range(30)
    }
    needs |= {name: Needs(10 * GIB, pinned=True) for name in ("m0", "m1")}
    policy = Policy(threshold=0.8, swap_after_s=5.0, own_devices=own_devices)
    fleet = Fleet(needs, devices(4, 60), policy, load_s=3.0)
    requests = zipf(30, 400, rate=0.5, exponent=0.9, answer_s=8.0, seed=seed)
    result = fleet.run(requests)  # it checks memory, pins and busy replicas at each step
    assert (result.requests, result.refused, fleet.unserved()) == (400, 0, 0)


def test_two_models_that_do_not_fit_together_take_turns():
    """Ten requests a second for each: no thrashing, one swap in each patience and not one in each request."""
    needs = {"m0": Needs(GIB), "m1": Needs(GIB)}
    fleet = Fleet(needs, devices(1, 1.5), Policy(threshold=1.0, swap_after_s=10.0), load_s=1.0, unload_s=0.1)
    result = fleet.run(zipf(2, 2000, rate=20.0, exponent=0.0, answer_s=0.5, seed=1))
    assert fleet.unserved() == 0
    assert 4 <= result.loads <= 100.0 / 10.0 + 4
    assert max(result.waits) < 3 * 10.0


def test_nothing_is_loaded_twice_where_all_fit():
    needs = {f"m{n}": Needs(GIB) for n in range(20)}
    result = Fleet(needs, devices(2, 12.5), Policy()).run(zipf(20, 500, rate=1.0, exponent=1.0, answer_s=5.0, seed=1))
    assert (result.loads, result.evictions) == (20, 0)


def test_the_distance_to_the_optimum_is_what_the_readme_says():
    """With a Zipf exponent of 1 at least half of the hits of somebody who knows the future."""
    needs = {f"m{n}": Needs(20 * GIB) for n in range(200)}
    requests = zipf(200, 600, rate=0.24, exponent=1.0, answer_s=5.0, seed=1)
    result = Fleet(needs, devices(4, 100), Policy()).run(requests)
    hits, best = 600 - result.loads, 600 - optimum(requests, 16)
    assert hits / best > 0.5
