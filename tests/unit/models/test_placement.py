"""Placement: who is loaded where, and who goes for it. The numbers are those of `plan`'s text."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from server.models.placement import fits, plan
from server.models.state import (
    GIB,
    Device,
    Drain,
    Load,
    ModelView,
    Needs,
    Phase,
    Policy,
    Refuse,
    ReplicaView,
    Resume,
    State,
    Unload,
    Wake,
    Want,
)

ALL = Policy(threshold=1.0, swap_after_s=10.0)


def model(memory: float = 1.0, *, target: int = 0, retry_at: float = 0.0, given_up: bool = False, **needs: Any) -> Any:
    return ModelView(Needs(memory, **needs), target, retry_at, given_up)


def ready(name: str, device: str = "d", *, busy: int = 0, used: float = 0.0, phase: Phase = Phase.READY) -> ReplicaView:
    return ReplicaView(f"{name}#1", name, phase, (device,), busy, used)


def state(
    models: dict[str, ModelView],
    *replicas: ReplicaView,
    wants: str = "",
    now: float = 100.0,
    policy: Policy = ALL,
    **devices: float,
) -> State:
    """wants: names, the first in the line first, all since a moment ago."""
    line = [Want(name, now - 1 + n / 1000) for n, name in enumerate(wants.split())]
    found = [Device(name, memory) for name, memory in (devices or {"d": 1.0}).items()]
    return State(now, found, models, replicas, line, policy)


def actions(*args: Any, **kwargs: Any) -> list[Any]:
    return plan(state(*args, **kwargs)).actions


AB = {"a": model(), "b": model()}


def test_nothing_to_do():
    """What is loaded and not wanted stays; nothing is loaded for nobody."""
    found = plan(state(AB, ready("a")))
    assert found.actions == []
    assert found.look_at == math.inf


def test_1_a_drained_replica_goes_when_its_last_answer_has_ended():
    assert actions(AB, ready("a", busy=1, phase=Phase.DRAINING), wants="b") == []
    drained = ready("a", phase=Phase.DRAINING)
    assert actions(AB, drained, wants="b") == [Unload("a#1")]
    assert actions(AB, replace(drained, cause="b"), wants="b") == [Unload("a#1", cause="b")]


def test_2_the_line_is_in_order_of_the_first_want():
    """Who came later gets what is left."""
    assert actions(AB, wants="b a") == [Load("b", ("d",))]
    assert actions(AB, wants="b a", d=2.0) == [Load("b", ("d",)), Load("a", ("d",))]


def test_2_what_must_always_be_there_comes_first():
    models = {"a": model(), "kept": model(minimum=1), "pinned": model(pinned=True)}
    assert actions(models, wants="a", d=2.0) == [Load("kept", ("d",)), Load("pinned", ("d",))]


def test_2_as_many_as_must_be_there():
    assert actions({"a": model(minimum=2)}, one=1.0, two=1.0) == [Load("a", ("one",)), Load("a", ("two",))]


def test_2a_a_load_in_flight_is_joined():
    assert actions(AB, ready("a", phase=Phase.LOADING), wants="a") == []


def test_2a_a_replica_that_drains_for_nobody_works_again():
    """Also where its own model is wanted: the one that it made room for is not any more."""
    draining = ready("a", busy=1, phase=Phase.DRAINING)
    assert actions(AB, draining, wants="a") == [Resume("a#1")]
    assert actions(AB, draining, wants="b a") == []


def test_2b_a_failed_load_backs_off():
    found = plan(state({"a": model(retry_at=105.0)}, wants="a"))
    assert (found.actions, found.look_at) == ([], 105.0)
    assert actions({"a": model(retry_at=100.0)}, wants="a") == [Load("a", ("d",))]


def test_2c_what_no_device_can_hold_is_refused():
    models = {"a": model(9 * GIB)}
    (refused,) = actions(models, wants="a", policy=Policy(threshold=0.5), d=10.0 * GIB)
    assert isinstance(refused, Refuse)
    assert "it needs 9 GiB on each of 1 device(s), and of the largest (10 GiB) 50% may be used" in refused.reason


def test_2d_where_there_is_room_it_is_loaded_and_the_fullest_device_that_fits_is_taken():
    models = {"a": model(1.0), "b": model(1.0)}
    assert actions(models, ready("a", "big"), wants="b", big=3.0, small=1.5) == [Load("b", ("small",))]


def test_2d_the_threshold_is_kept():
    models = {"a": model(0.5), "b": model(0.4)}
    assert actions(models, ready("a"), wants="b", policy=Policy(threshold=0.8)) == [Unload("a#1", cause="b")]


@pytest.mark.parametrize(("device", "first", "second"), [(5, 2.2, 1.8), (9, 6.4, 0.8), (20, 11.3, 4.7)])
def test_2d_what_fits_exactly_fits(device, first, second):
    """80 % of the device, whatever fractions of GiB that is made of."""
    models = {"a": model(first * GIB), "b": model(second * GIB)}
    assert actions(models, ready("a"), wants="b", policy=Policy(0.8), d=device * GIB) == [Load("b", ("d",))]
    assert fits(Needs((first + second) * GIB), [Device("d", device * GIB)], Policy(0.8)) is None


def test_2d_a_model_split_over_devices():
    models = {"wide": model(1.0, width=2), "a": model()}
    assert actions(models, wants="wide", one=1.0, two=1.0) == [Load("wide", ("one", "two"))]
    (refused,) = actions(models, wants="wide", one=1.0)
    assert refused.reason == "it is split over 2 devices and there are 1"
    assert actions(models, ready("a", "two"), wants="wide", one=1.0, two=1.0) == [Unload("a#1", cause="wide")]


def test_2e_room_that_is_coming_is_kept_for_the_first_in_line():
    models = {**AB, "c": model(0.5)}
    stopping = ready("a", phase=Phase.STOPPING)
    assert actions(models, stopping, wants="b c") == []
    assert actions(models, stopping, wants="b c", d=1.5) == [Load("c", ("d",))]


def test_2f_the_least_recently_used_goes():
    models = {name: model() for name in "abc"}
    held = [ready("a", used=2.0), ready("b", used=1.0)]
    assert actions(models, *held, wants="c", d=2.0) == [Unload("b#1", cause="c")]


def test_2f_nobody_goes_in_vain():
    """A small one that is older stays where a big one has to go anyway."""
    models = {"small": model(0.2), "big": model(0.8), "c": model(0.8)}
    held = [ready("small", used=1.0), ready("big", used=2.0)]
    assert actions(models, *held, wants="c") == [Unload("big#1", cause="c")]


def test_2f_the_device_where_it_costs_least():
    models = {name: model() for name in "abc"}
    held = [ready("a", "one", used=9.0), ready("b", "two", used=3.0)]
    assert actions(models, *held, wants="c", one=1.0, two=1.0) == [Unload("b#1", cause="c")]


def test_2f_idle_before_busy():
    models = {name: model() for name in "abc"}
    held = [ready("a", "one", used=1.0, busy=1), ready("b", "two", used=9.0)]
    assert actions(models, *held, wants="c", one=1.0, two=1.0) == [Unload("b#1", cause="c")]


def test_2g_a_busy_one_has_time_to_become_idle_then_it_drains():
    found = plan(state(AB, ready("a", busy=1), wants="b"))
    assert (found.actions, found.look_at) == ([], 109.0)
    late = replace(state(AB, ready("a", busy=1), wants="b"), now=109.0)
    assert plan(late).actions == [Drain("a#1", "b")]


def test_2h_pinned_ones_never_go():
    models = {"a": model(pinned=True), "b": model()}
    (refused,) = actions(models, ready("a", busy=1), wants="b")
    assert refused == Refuse("b", "pinned models take all the room; unpin or unload one, or add a device")
    assert actions(models, ready("a"), wants="b") == [refused]


def test_2h_nor_those_that_must_always_be_there():
    models = {"a": model(minimum=1), "b": model()}
    assert isinstance(actions(models, ready("a"), wants="b")[0], Refuse)


def test_3_nobody_needs_the_room_any_more():
    """The one that waited has left: what drained for it goes on."""
    draining = ready("a", busy=1, phase=Phase.DRAINING)
    assert actions(AB, draining) == [Resume("a#1")]
    assert actions(AB, replace(draining, for_good=True)) == []


def test_4_idle_for_long():
    models = {"a": model(idle_unload_s=60.0)}
    assert actions(models, ready("a", used=40.0)) == [Unload("a#1")]
    found = plan(state(models, ready("a", used=50.0)))
    assert (found.actions, found.look_at) == ([], 110.0)
    assert actions(models, ready("a", used=0.0, busy=1)) == []
    assert actions({"a": model(idle_unload_s=60.0, pinned=True)}, ready("a")) == []


def test_replicas_follow_the_target():
    """One more where there is room or something idle, never at the cost of what is busy; too many go."""
    models = {"a": model(target=2, maximum=3), "b": model()}
    one = ready("a", "one", busy=3)
    assert actions(models, one, one=1.0, two=1.0) == [Load("a", ("two",))]
    assert actions(models, one, ready("b", "two"), one=1.0, two=1.0) == [Unload("b#1", cause="a")]
    assert actions(models, one, ready("b", "two", busy=1), one=1.0, two=1.0, now=1e6) == []
    two = replace(one, id="a#2", devices=("two",), last_used=5.0)
    few = {"a": model(target=1, maximum=3)}
    assert actions(few, one, two, one=1.0, two=1.0) == [Drain("a#1", "a", for_good=True)]
    assert actions(few, replace(one, in_use=0), two, one=1.0, two=1.0) == [Unload("a#1")]


def test_sleepers():
    """Where an engine can sleep, it sleeps instead of being unloaded, is woken in its place, and goes when needed."""
    models = {"a": model(1.0, asleep=0.1), "b": model(0.9), "c": model(1.0)}
    assert actions(models, ready("a"), wants="b") == [Unload("a#1", to_sleep=True, cause="b")]
    asleep = ready("a", phase=Phase.ASLEEP)
    assert actions(models, asleep, wants="a") == [Wake("a#1")]
    assert actions(models, asleep, ready("b"), wants="a") == [Unload("b#1", cause="a")]
    assert actions(models, asleep, wants="c") == [Unload("a#1", cause="c")]


LATENCY = replace(ALL, own_devices=True)


def test_latency_pinned_models_share_their_devices_with_no_others():
    models = {"hot": model(0.2, pinned=True), "a": model(0.2)}
    assert actions(models, ready("hot", "one"), wants="a", policy=LATENCY, one=1.0, two=1.0) == [Load("a", ("two",))]
    assert actions(models, ready("a", "one"), policy=LATENCY, one=1.0, two=1.0) == [Load("hot", ("two",))]
    (refused,) = actions(models, ready("hot"), wants="a", policy=LATENCY)
    assert isinstance(refused, Refuse)


def test_latency_the_last_shared_device_is_left_to_the_others():
    models = {"hot": model(0.2, pinned=True), "warm": model(0.2, pinned=True)}
    held = ready("hot", "one")
    assert actions(models, held, policy=LATENCY, one=1.0, two=1.0) == [Load("warm", ("one",))]
    assert actions(models, held, policy=LATENCY, one=1.0, two=1.0, three=1.0) == [Load("warm", ("two",))]


def test_latency_a_pinned_model_gets_its_device_for_itself():
    models = {"hot": model(0.2, pinned=True), "a": model(0.2)}
    assert actions(models, ready("a"), policy=LATENCY) == [Unload("a#1", cause="hot")]


def test_a_device_without_bounds_holds_everything():
    models = {name: model(0.0, minimum=1) for name in "abc"}
    assert len(actions(models, d=math.inf)) == 3


@pytest.mark.parametrize("memory", [0.0, 0.8 * GIB])
def test_fits(memory):
    assert fits(Needs(memory), [Device("d", GIB)], Policy()) is None
    assert fits(Needs(0.81 * GIB), [Device("d", GIB)], Policy()) is not None


@pytest.mark.parametrize(("minimum", "width", "fit"), [(3, 1, True), (4, 1, False), (1, 2, True), (2, 2, False)])
def test_what_must_always_be_there_has_to_fit(minimum, width, fit):
    """All of it, on empty devices: else a replica would be missing without a word. Two on d, one on e."""
    needs = Needs(0.4 * GIB, width=width, minimum=minimum, maximum=minimum)
    told = fits(needs, [Device("d", GIB), Device("e", 0.6 * GIB)], Policy())
    room = 3 // width
    assert told == (None if fit else f"min_replicas is {minimum}, and on empty devices there is room for {room}")
