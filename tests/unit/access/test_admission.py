"""A place in a model's engine: first come, first served, with a position that can be shown."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from server.access.admission import Admission, QueueFullError, Ticket
from tests.support.memory import until


def test_places_go_in_the_order_of_coming():
    """Who frees a place lets in the one who came first."""
    admission = Admission(limit=2, max_queue=10)
    first, second, *waiting = [admission.enter() for _ in range(5)]
    assert [first.is_admitted, second.is_admitted] == [True, True]
    assert [ticket.position for ticket in waiting] == [1, 2, 3]
    assert (admission.running, admission.waiting, admission.is_full) == (2, 3, True)
    second.release()
    assert [ticket.is_admitted for ticket in waiting] == [True, False, False]
    assert [ticket.position for ticket in waiting] == [0, 1, 2]


def test_changes_are_told_to_those_whose_place_has_changed():
    """To all behind one who leaves, and to nobody before it."""
    admission = Admission(limit=1, max_queue=10)
    admission.enter()
    waiting = [admission.enter() for _ in range(4)]
    waiting[1].release()
    assert [ticket.changed.is_set() for ticket in waiting] == [False, False, True, True]
    assert [ticket.position for ticket in waiting] == [1, 2, 2, 3]


def test_the_bound():
    """One more than the queue takes is refused, and says how many wait; a place that is freed can be had again."""
    admission = Admission(limit=1, max_queue=2)
    running = admission.enter()
    waiting = [admission.enter() for _ in range(2)]
    for refuse in (admission.enter, admission.check_room):
        with pytest.raises(QueueFullError, match="2 turns wait"):
            refuse()
    assert admission.waiting == 2
    running.release()
    admission.check_room()
    assert admission.enter().position == 2
    assert waiting[0].is_admitted


def test_no_queue_at_all():
    """Whoever finds no place is refused at once."""
    admission = Admission(limit=1, max_queue=0)
    admission.check_room()
    ticket = admission.enter()
    with pytest.raises(QueueFullError):
        admission.check_room()
    ticket.release()
    admission.enter()


def test_releasing_twice():
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
