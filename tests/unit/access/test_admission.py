"""A place in a model's engine: fair between users and classes, with a position and a wait that can be shown."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from server.access import admission as module
from server.access.admission import Admission, QueueFullError, Ticket
from server.access.fair_queue import Demand, ServiceClass
from server.config import AdmissionConfig
from server.observe.metrics import Metrics
from tests.support.memory import until

BATCH = ServiceClass.BATCH


@pytest.fixture(autouse=True)
def scaled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who waits is told of a new position at once."""
    monkeypatch.setattr(module, "TELL_S", 0.0)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


async def test_places_go_in_the_order_of_coming():
    """Of one user's turns: who frees a place lets in the one who came first."""
    admission = Admission(limit=2, max_queue=10)
    first, second, *waiting = [admission.enter() for _ in range(5)]
    assert [first.is_admitted, second.is_admitted] == [True, True]
    assert [ticket.position for ticket in waiting] == [1, 2, 3]
    assert (admission.running, admission.waiting, admission.is_full()) == (2, 3, True)
    second.release()
    await until(waiting[1].changed.is_set)
    assert [ticket.is_admitted for ticket in waiting] == [True, False, False]
    assert [ticket.position for ticket in waiting] == [0, 1, 2]


async def test_changes_are_told_to_those_whose_place_has_changed():
    """To all behind one who leaves, and to nobody before it; also to those whom another user overtakes."""
    admission = Admission(limit=1, max_queue=20)
    admission.enter(Demand("flood", tokens=10))
    waiting = [admission.enter(Demand("flood", tokens=10)) for _ in range(4)]
    waiting[1].release()
    await until(waiting[3].changed.is_set)
    assert [ticket.changed.is_set() for ticket in waiting] == [False, False, True, True]
    assert [ticket.position for ticket in waiting] == [1, 2, 2, 3]
    for ticket in waiting:
        ticket.changed.clear()
    quiet = admission.enter(Demand("quiet"))
    assert quiet.position == 1
    await until(waiting[3].changed.is_set)
    assert [ticket.position for ticket in waiting] == [2, 2, 3, 4]
    assert not quiet.changed.is_set()


async def test_the_bound():
    """One more than the queue takes is refused, and says how many wait; a place that is freed can be had again."""
    admission = Admission(limit=1, max_queue=2)
    running = admission.enter()
    waiting = [admission.enter() for _ in range(2)]
    for refuse in (admission.enter, admission.check_room):
        with pytest.raises(QueueFullError, match="2 turns wait") as refused:
            refuse()
        assert refused.value.retry_after_ms == module.RETRY_FIRST_MS
    assert admission.waiting == 2
    running.release()
    admission.check_room()
    assert admission.enter().position == 2
    assert waiting[0].is_admitted


async def test_the_bound_when_many_come_at_once():
    """Turns that are being begun count as if they had entered; those that have may wait in any case."""
    admission = Admission(limit=1, max_queue=2)
    expected = [admission.expect(Demand(f"user {n}")) for n in range(3)]
    with pytest.raises(QueueFullError, match="2 turns wait"):
        admission.expect(Demand("late"))
    expected[0].drop()
    expected[0].drop()
    expected.append(admission.expect(Demand("late")))
    for place in expected[1:]:
        place.drop()
        admission.enter(place.demand, is_expected=True)
    assert (admission.running, admission.waiting) == (1, 2)
    with pytest.raises(QueueFullError):
        admission.expect(Demand("later"))
    admission.enter(Demand("taken over"), is_expected=True)
    assert admission.waiting == 3


async def test_the_bound_before_there_is_an_engine():
    """So many may wait for a model to load; then they are let in."""
    admission = Admission(limit=0, max_queue=3)
    expected = [admission.expect(Demand(f"user {n}")) for n in range(3)]
    with pytest.raises(QueueFullError):
        admission.expect(Demand("late"))
    admission.resize(2)
    for place in expected:
        place.drop()
        admission.enter(place.demand, is_expected=True)
    assert (admission.limit, admission.running, admission.waiting) == (2, 2, 1)


async def test_the_bound_in_tokens():
    """Long prompts fill the queue sooner."""
    admission = Admission(1, 100, AdmissionConfig(max_queue_tokens=1000))
    admission.enter(Demand(tokens=5000))
    admission.enter(Demand(tokens=900))
    with pytest.raises(QueueFullError):
        admission.enter(Demand(tokens=200))
    admission.enter(Demand(tokens=100))


async def test_the_wait_is_estimated_once_turns_have_ended():
    """From how long they took; the refused are told the same."""
    clock = Clock()
    admission = Admission(2, 3, clock=clock)
    first, _second = admission.enter(), admission.enter()
    waiting = [admission.enter() for _ in range(3)]
    assert waiting[0].estimated_wait_ms is None
    clock.now += 8
    first.release()
    assert waiting[1].is_admitted is False
    await until(lambda: waiting[1].position == 1)
    assert [ticket.estimated_wait_ms for ticket in waiting[1:]] == [4000, 8000]
    admission.enter()
    with pytest.raises(QueueFullError) as refused:
        admission.enter()
    assert refused.value.retry_after_ms == 12_000


async def test_documents_leave_places_for_chats():
    """A chat is let in at once while documents wait."""
    admission = Admission(8, 100)
    documents = [admission.enter(Demand("library", BATCH, 5000)) for _ in range(6)]
    assert [ticket.is_admitted for ticket in documents] == [True, True] + [False] * 4
    assert admission.is_full(Demand("library", BATCH))
    assert not admission.is_full(Demand("ann"))
    assert admission.enter(Demand("ann")).is_admitted
    assert documents[2].position == 1


async def test_long_gaps_between_tokens_keep_turns_waiting():
    """What the holders of places hear of the engine decides how many more get one."""
    clock = Clock()
    admission = Admission(20, 100, clock=clock)
    running = [admission.enter(Demand("ann")) for _ in range(20)]
    for _ in range(12):
        clock.now += 0.5
        for ticket in running:
            ticket.tokens(1, 0.5)
    waiting = admission.enter(Demand("ben"))
    running[0].release()
    assert not waiting.is_admitted
    for ticket in running[1:]:
        ticket.release()
    assert waiting.is_admitted


async def test_what_was_served_decides_who_is_next():
    """Tokens of answers count: the one who got fewer goes first, though it came last."""
    admission = Admission(2, 100)
    ann, ben = (admission.enter(Demand(user, tokens=10)) for user in ("ann", "ben"))
    ann.first_token(1, 0.1)
    ann.tokens(400, 0.1)
    waiting = [admission.enter(Demand(user, tokens=10)) for user in ("ann", "ben")]
    ben.release()
    assert [ticket.is_admitted for ticket in waiting] == [False, True]
    ann.release()
    ann.tokens(5, 0.1)  # one that comes late counts for nobody and harms nobody


async def test_more_places():
    """An engine that is added lets in those who wait."""
    admission = Admission(1, 10)
    tickets = [admission.enter() for _ in range(3)]
    admission.resize(3)
    assert all(ticket.is_admitted for ticket in tickets)
    assert admission.limit == 3


async def test_what_the_metrics_say():
    """Who waits, who was refused, how long it took, what the limits are: by class."""
    metrics, clock = Metrics(), Clock()
    admission = Admission(1, 1, metrics=metrics.for_model("m"), clock=clock)
    running = admission.enter()
    admission.enter(Demand("library", BATCH))
    with pytest.raises(QueueFullError):
        admission.enter()
    text = metrics.render().decode()
    assert 'tokenwire_admission_waiting{class="batch",model="m"} 1.0' in text
    assert 'tokenwire_admission_refused_total{class="interactive",model="m"} 1.0' in text
    assert 'tokenwire_admission_limit{model="m"} 1.0' in text
    clock.now += 3
    running.release()
    text = metrics.render().decode()
    assert 'tokenwire_admission_waiting{class="batch",model="m"} 0.0' in text
    assert 'tokenwire_admission_wait_seconds_sum{class="batch",model="m"} 3.0' in text


async def test_no_queue_at_all():
    """Whoever finds no place is refused at once."""
    admission = Admission(limit=1, max_queue=0)
    admission.check_room()
    ticket = admission.enter()
    with pytest.raises(QueueFullError):
        admission.check_room()
    ticket.release()
    admission.enter()


async def test_releasing_twice():
    """Frees one place, once."""
    admission = Admission(limit=1, max_queue=10)
    first, second, third = (admission.enter() for _ in range(3))
    first.release()
    first.release()
    assert (second.is_admitted, third.is_admitted) == (True, False)
    assert (admission.running, admission.waiting) == (1, 1)


async def test_a_waiter_that_is_cancelled():
    """Its place in the queue is given back in its `finally`, and the next one comes in."""
    admission = Admission(limit=1, max_queue=10)
    running = admission.enter()

    async def wait() -> None:
        ticket = admission.enter()
        try:
            while not ticket.is_admitted:
                ticket.changed.clear()
                await ticket.changed.wait()
        finally:
            ticket.release()

    leaver, stayer = asyncio.create_task(wait()), asyncio.create_task(wait())
    await until(lambda: admission.waiting == 2)
    leaver.cancel()
    await asyncio.wait([leaver])
    assert (admission.running, admission.waiting) == (1, 1)
    running.release()
    await stayer
    assert (admission.running, admission.waiting) == (0, 0)


class AdmissionMachine(RuleBasedStateMachine):
    """Any order of coming and going, against two lists."""

    @initialize(limit=st.integers(1, 3), max_queue=st.integers(0, 4))
    def begin(self, limit: int, max_queue: int) -> None:
        self.admission = Admission(limit, max_queue)
        self.admission._tell_soon = self.admission._tell  # type: ignore[method-assign]  # no event loop here
        self.limit, self.max_queue = limit, max_queue
        self.running: list[Ticket] = []
        self.waiting: list[Ticket] = []
        self.gone: list[Ticket] = []

    @rule()
    def enter(self) -> None:
        if len(self.running) < self.limit:
            self.running.append(self.admission.enter())
        elif len(self.waiting) < self.max_queue:
            self.waiting.append(self.admission.enter())
        else:
            with pytest.raises(QueueFullError):
                self.admission.enter()

    @precondition(lambda self: self.running or self.waiting)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        ticket = data.draw(st.sampled_from([*self.running, *self.waiting]))
        ticket.release()
        self.gone.append(ticket)
        if ticket in self.waiting:
            self.waiting.remove(ticket)
            return
        self.running.remove(ticket)
        if self.waiting:
            self.running.append(self.waiting.pop(0))

    @precondition(lambda self: self.gone)
    @rule()
    def leave_again(self) -> None:
        self.gone[-1].release()

    @invariant()
    def agrees(self) -> None:
        assert (self.admission.running, self.admission.waiting) == (len(self.running), len(self.waiting))
        assert all(ticket.is_admitted and ticket.position == 0 for ticket in self.running)
        assert [ticket.position for ticket in self.waiting] == list(range(1, len(self.waiting) + 1))
        assert not any(ticket.is_admitted for ticket in self.waiting)


TestAdmissionMachine = AdmissionMachine.TestCase
TestAdmissionMachine.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
