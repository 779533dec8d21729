"""Who goes first: classes, users, and nobody for ever last."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from server.access import fair_queue
from server.access.fair_queue import USER_SHARE, Demand, Entry, FairQueue, ServiceClass

INTERACTIVE, STANDARD, BATCH = ServiceClass
NEVER = 1e9  # nothing ages


def names(queue: FairQueue, count: int, now: float = 0) -> list[str]:
    """Users in the order in which their turns are taken out."""
    return [entry.demand.user for _ in range(count) if (entry := queue.pop(now)) is not None]


def test_one_user_is_served_in_order():
    """First come, first served among the turns of one user, whatever they cost."""
    queue = FairQueue(NEVER)
    entries = [queue.push(Demand("ann", tokens=tokens), 0) for tokens in (500, 1, 30)]
    assert [queue.pop(0) for _ in range(4)] == [*entries, None]


def test_urgent_classes_go_first():
    """Whenever they came."""
    queue = FairQueue(NEVER)
    for name in (BATCH, STANDARD, INTERACTIVE):
        queue.push(Demand(name, name), 0)
    assert names(queue, 3) == ["interactive", "standard", "batch"]


def test_a_class_that_got_nothing_for_long_gets_a_place():
    """Two steps up after two ages, and down again once served: the urgent do not wait behind all of it."""
    queue = FairQueue(10)
    for number in range(3):
        queue.push(Demand(f"doc {number}", BATCH), 0)
    for number in range(9):
        queue.push(Demand(f"chat {number}"), 0)
    assert names(queue, 2, now=9) == ["chat 0", "chat 1"]
    assert names(queue, 1, now=15) == ["chat 2"]
    assert names(queue, 2, now=20) == ["doc 0", "chat 3"]
    assert names(queue, 2, now=39) == ["chat 4", "chat 5"]
    assert names(queue, 2, now=40) == ["doc 1", "chat 6"]


def test_a_flood_does_not_age_past_others():
    """Fifty turns that have waited for an hour are still one user's: who comes now goes before all but one of them."""
    queue = FairQueue(1)
    for _ in range(50):
        queue.push(Demand("flood", tokens=100), 0)
    queue.pop(3600)
    queue.push(Demand("quiet", tokens=100), 3600)
    assert names(queue, 2, now=3600) == ["quiet", "flood"]


def test_users_take_turns_by_what_they_were_served():
    """Not by how often: one long turn counts as much as many short ones."""
    queue = FairQueue(NEVER)
    for _ in range(3):
        queue.push(Demand("long", tokens=1000), 0)
    for _ in range(30):
        queue.push(Demand("short", tokens=100), 0)
    served = Counter(names(queue, 22))
    assert served == {"long": 2, "short": 20}


def test_what_an_answer_costs_counts():
    """The user whose answers turned out long waits longer."""
    queue = FairQueue(NEVER)
    for user in ("ann", "ben"):
        for _ in range(2):
            queue.push(Demand(user, tokens=10), 0)
    assert names(queue, 2) == ["ann", "ben"]
    queue.charge(Demand("ann"), 500)
    assert names(queue, 2) == ["ben", "ann"]


def test_idle_time_earns_nothing():
    """Who comes back after a pause goes first, and then shares."""
    queue = FairQueue(NEVER)
    for _ in range(20):
        queue.push(Demand("steady", tokens=100), 0)
    names(queue, 10)
    for _ in range(5):
        queue.push(Demand("late", tokens=100), 0)
    assert names(queue, 7) == ["late", *["late", "steady"] * 3]


def test_what_was_used_while_there_was_room_is_no_debt():
    """Who had the engine alone for an hour shares with who comes then, and does not wait for an hour."""
    queue = FairQueue(NEVER)
    queue.run(Demand("other"))  # somebody is always there
    for _ in range(100):
        queue.run(Demand("early"))
        queue.charge(Demand("early"), 1000)
        queue.done(Demand("early"))
    for user in ("late", "early"):
        for _ in range(4):
            queue.push(Demand(user, tokens=1000), 0)
    assert names(queue, 6) == ["late", "early"] * 3


def test_users_who_have_left_are_forgotten(monkeypatch: pytest.MonkeyPatch):
    """However many come, and nobody ever waits: a thousand counters at most, and none when nobody is left."""
    monkeypatch.setattr(fair_queue, "MAX_AHEAD", 10)
    queue = FairQueue(NEVER)
    stayer = Demand("stayer")
    queue.run(stayer)
    for number in range(100):
        demand = Demand(f"user {number}", tokens=number)
        queue.run(demand)
        queue.done(demand)
    lane = queue._lanes[INTERACTIVE]
    assert len(lane.served) <= 12
    assert {"stayer", "user 99"} <= lane.served.keys()
    queue.done(stayer)
    assert (lane.served, lane.picked) == ({}, 0)


def test_who_is_served_last_is_not_served_anew():
    """With one place the queue is empty in between: who had it then does not begin at nothing again."""
    queue = FairQueue(NEVER)
    for user in ("ann", "ben"):
        queue.push(Demand(user, tokens=100), 0)
    assert names(queue, 1) == ["ann"]
    queue.charge(Demand("ann"), 1000)
    queue.done(Demand("ann"))
    assert names(queue, 1) == ["ben"]
    for user in ("ann", "ben"):
        queue.push(Demand(user, tokens=100), 0)
    queue.done(Demand("ben"))
    assert names(queue, 2) == ["ben", "ann"]


def test_only_the_classes_asked_for():
    """Others stay where they are."""
    queue = FairQueue(NEVER)
    queue.push(Demand("doc", BATCH), 0)
    assert queue.pop(0, (INTERACTIVE,)) is None
    assert queue.pop(0, ()) is None
    assert (len(queue), queue.waiting(BATCH)) == (1, 1)


def test_room_in_turns_and_in_tokens():
    """One that would be too much is refused; one alone never is."""
    queue = FairQueue(NEVER)
    demand = Demand("ann", tokens=600)
    assert queue.has_room(demand, max_length=2, max_tokens=500)
    queue.push(demand, 0)
    assert not queue.has_room(demand, max_length=2, max_tokens=1000)
    assert queue.has_room(demand, max_length=2, max_tokens=1200)
    queue.push(demand, 0)
    assert not queue.has_room(Demand("ben"), max_length=2, max_tokens=9999)
    assert not queue.has_room(Demand("ben"), max_length=0, max_tokens=9999)


def test_a_flood_leaves_room_for_others():
    """One user gets four fifths of the queue and no more; another one still finds a place."""
    queue = FairQueue(NEVER)
    flood, quiet = Demand("flood"), Demand("quiet")
    while queue.has_room(flood, max_length=100, max_tokens=10**9):
        queue.push(flood, 0)
    assert len(queue) == 100 * USER_SHARE // (USER_SHARE + 1)
    assert queue.has_room(quiet, max_length=100, max_tokens=10**9)


def test_removing_what_is_not_there():
    """Is a fault, and changes nothing."""
    queue = FairQueue(NEVER)
    entry = queue.push(Demand("ann"), 0)
    queue.remove(entry)
    with pytest.raises(ValueError, match="does not wait"):
        queue.remove(entry)
    assert (len(queue), queue.tokens) == (0, 0)


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(list(ServiceClass)), st.integers(1, 50)), max_size=20)
)
@settings(max_examples=60, deadline=None)
def test_the_order_shown_is_the_order_served(turns):
    """Where nothing ages and answers cost nothing."""
    queue = FairQueue(NEVER)
    for user, name, tokens in turns:
        queue.push(Demand(user, name, tokens), 0)
    shown = list(queue.order())
    assert [queue.pop(0) for _ in turns] == shown


class FairQueueMachine(RuleBasedStateMachine):
    """Any order of coming, going, ending and time passing: nobody is lost, and counts are what they count."""

    @initialize()
    def begin(self) -> None:
        self.queue = FairQueue(5)
        self.now = 0.0
        self.waiting: list[Entry] = []
        self.running: list[Demand] = []

    @rule(user=st.sampled_from("abcd"), name=st.sampled_from(list(ServiceClass)), tokens=st.integers(0, 99))
    def push(self, user: str, name: ServiceClass, tokens: int) -> None:
        self.waiting.append(self.queue.push(Demand(user, name, tokens), self.now))

    @rule(seconds=st.floats(0, 20))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        entry = data.draw(st.sampled_from(self.waiting))
        self.waiting.remove(entry)
        self.queue.remove(entry)

    @rule()
    def pop(self) -> None:
        entry = self.queue.pop(self.now)
        assert (entry is None) == (not self.waiting)
        if entry is not None:
            own = [
                other.number
                for other in self.waiting
                if other.demand.user == entry.demand.user and other.demand.service_class is entry.demand.service_class
            ]
            assert entry.number == min(own)
            self.waiting.remove(entry)
            self.running.append(entry.demand)

    @precondition(lambda self: self.running)
    @rule(tokens=st.integers(0, 500))
    def end(self, tokens: int) -> None:
        demand = self.running.pop(0)
        self.queue.charge(demand, tokens)
        self.queue.done(demand)

    @invariant()
    def agrees(self) -> None:
        assert len(self.queue) == len(self.waiting)
        assert self.queue.tokens == sum(entry.demand.tokens for entry in self.waiting)
        order = list(self.queue.order())
        assert set(order) == set(self.waiting)
        assert [self.queue.position(entry) for entry in order] == list(range(1, len(order) + 1))
        for name in ServiceClass:
            assert self.queue.waiting(name) == sum(entry.demand.service_class is name for entry in self.waiting)
        for user in "abcd":
            assert self.queue.waiting_of(user) == sum(entry.demand.user == user for entry in self.waiting)

    def teardown(self) -> None:
        """Everybody is served in the end, and users who have left are forgotten."""
        for _ in range(len(self.waiting)):
            self.pop()
        assert not self.waiting
        while self.running:
            self.end(0)


TestFairQueueMachine = FairQueueMachine.TestCase
TestFairQueueMachine.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
