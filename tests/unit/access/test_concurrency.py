"""How many at once: more while the engine is quick, fewer while it is slow, documents before chats."""

from __future__ import annotations

import pytest

from server.access.concurrency import SETTLE_S, WINDOW_S, Concurrency, Load

QUICK, SLOW = 0.05, 0.5


class Clock:
    """A model's limits under a load that the test describes, window by window."""

    def __init__(self, capacity: int = 64, floor: int = 8, **options: bool) -> None:
        self.limits = Concurrency(capacity, floor=floor, gap_bound_s=0.2, first_token_bound_s=2, **options)
        self.now = 0.0
        self.limits.look(self.now, Load())

    def window(self, gap_s: float, load: Load, count: int = 20) -> tuple[int, int]:
        for _ in range(count):
            self.limits.gaps.add(gap_s)
        self.now += WINDOW_S
        self.limits.look(self.now, load)
        return self.limits.limit, self.limits.background

    def settle(self, load: Load) -> None:
        self.now += SETTLE_S
        self.limits.look(self.now, load)


def test_begins_with_all_that_the_engine_takes():
    """And few documents, until it is known what they do."""
    limits = Clock().limits
    assert (limits.limit, limits.background) == (64, 2)


def test_slow_tokens_make_the_engine_get_fewer():
    """A fifth less than what ran, then nothing until the effect can be seen, and never below the floor."""
    clock = Clock()
    assert clock.window(SLOW, Load(running=40, waiting=5))[0] == 32
    assert clock.window(SLOW, Load(running=40, waiting=5))[0] == 32
    seen = []
    for _ in range(6):
        clock.settle(Load())
        seen.append(clock.window(SLOW, Load(running=clock.limits.limit, waiting=9))[0])
    assert seen == [25, 20, 16, 12, 9, 8]


def test_more_again_while_tokens_are_quick_and_turns_wait():
    """One by one, later by a tenth, up to what the engine takes."""
    clock = Clock()
    clock.window(SLOW, Load(running=10))
    clock.settle(Load())
    assert clock.limits.limit == 8
    seen = [clock.window(QUICK, Load(running=clock.limits.limit, waiting=1))[0] for _ in range(40)]
    assert seen[:3] == [9, 10, 11]
    assert seen[-1] == 64


def test_nothing_changes_where_nobody_waits():
    """Growing without a need would make the next burst a long one."""
    clock = Clock()
    clock.window(SLOW, Load(running=20))
    clock.settle(Load())
    assert {clock.window(QUICK, Load(running=10))[0] for _ in range(5)} == {16}


def test_an_engine_that_says_little_is_not_quick_for_that():
    """Its steps take seconds, as it reads documents beside a chat: a window has too few tokens, several have enough."""
    clock = Clock()
    reading = {"background_running": 2, "background_waiting": 9}
    assert {clock.window(3.0, Load(running=3, waiting=9, **reading), count=1)[1] for _ in range(4)} == {2}
    assert clock.window(3.0, Load(running=3, waiting=9, **reading), count=1)[1] == 1
    clock.settle(Load(running=2, background_running=2))
    # Where nobody chats nobody can be disturbed.
    assert clock.window(3.0, Load(running=1, waiting=9, background_running=1, background_waiting=9), count=0)[1] == 2


def test_documents_give_way_before_chats():
    """Half of them, again and again down to one; chats keep their places."""
    clock = Clock()
    for _ in range(4):
        clock.window(
            QUICK, Load(running=10, waiting=9, background_running=clock.limits.background, background_waiting=9)
        )
    assert clock.limits.background == 6
    seen = []
    for _ in range(4):
        load = Load(running=12, waiting=9, background_running=clock.limits.background, background_waiting=9)
        seen.append(clock.window(SLOW, load))
        clock.settle(Load())
    assert seen == [(64, 3), (64, 1), (9, 1), (9, 1)]


def test_documents_alone_take_what_there_is():
    """Twice as many each time while nobody is there whom they could disturb; a quarter stays free for who may come."""
    clock = Clock()
    seen = []
    for _ in range(6):
        background = clock.limits.background
        load = Load(running=background, waiting=50, background_running=background, background_waiting=50)
        seen.append(clock.window(QUICK, load, count=0)[1])
    assert seen == [4, 8, 16, 32, 48, 48]


def test_a_slow_machine_is_not_throttled_for_being_slow():
    """What it does with few turns is its measure: at twice that it is slow, not at the bound in milliseconds."""
    clock = Clock()
    for _ in range(5):
        clock.window(0.5, Load(running=4))
        clock.settle(Load())
    assert clock.window(0.9, Load(running=40))[0] == 64
    assert clock.window(1.1, Load(running=40))[0] == 32


def test_what_documents_do_is_no_measure():
    """Else a library that is always read would make slow chats look usual."""
    clock = Clock()
    for _ in range(5):
        clock.window(0.5, Load(running=4, background_running=1))
    assert clock.limits.gaps.baseline_s is None


def test_late_first_tokens_count_as_well():
    """Gaps alone do not show prompts that wait inside the engine."""
    clock = Clock()
    for _ in range(5):
        clock.limits.first_tokens.add(3)
    assert clock.window(QUICK, Load(running=40))[0] == 32


def test_few_samples_say_nothing():
    """One token after a pause of the machine is no reason."""
    assert Clock().window(SLOW, Load(running=40), count=2)[0] == 64


@pytest.mark.parametrize("capacity", [1, 2, 4])
def test_a_narrow_engine(capacity):
    """Never fewer than it takes, where that is less than the floor; one place at least for each kind."""
    clock = Clock(capacity)
    for _ in range(5):
        assert clock.window(SLOW, Load(running=capacity))[0] == capacity
        clock.settle(Load())
    assert clock.limits.background == max(1, min(2, capacity - 1))


def test_switched_off():
    """As many as the engine takes, of any kind, whatever is measured."""
    clock = Clock(is_fixed=True)
    assert clock.window(SLOW, Load(running=40)) == (64, 64)


def test_an_engine_more_or_less():
    """The limit follows: from full to full, from less to no more than there is."""
    clock = Clock()
    clock.limits.capacity = 128
    assert clock.limits.limit == 128
    clock.window(SLOW, Load(running=100))
    clock.limits.capacity = 64
    assert clock.limits.limit == 64
    clock.limits.capacity = 0
    assert (clock.limits.limit, clock.limits.background) == (0, 1)
