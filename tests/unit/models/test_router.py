"""Which replica answers."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from server.models.router import SLACK, Affinity, choose


@dataclass
class Busy:
    id: str
    leases: int
    capacity: int = 10


def test_the_least_busy_one():
    """By the share of its places; of equals the first."""
    assert choose([Busy("a", 3), Busy("b", 2)], None).id == "b"
    assert choose([Busy("a", 3, 40), Busy("b", 2)], None).id == "a"
    assert choose([Busy("a", 1), Busy("b", 1)], None).id == "a"
    with pytest.raises(ValueError, match="empty"):
        choose([], None)


@pytest.mark.parametrize(("leases", "chosen"), [(SLACK, "b"), (SLACK + 1, "a"), (10, "a")])
def test_the_one_that_knows_the_conversation_while_it_is_not_overloaded(leases, chosen):
    assert choose([Busy("a", 0), Busy("b", leases)], "b").id == chosen


def test_one_that_is_gone_is_not_missed():
    assert choose([Busy("a", 0)], "b").id == "a"


def test_what_is_remembered_is_bounded():
    affinity = Affinity(limit=2)
    for number in range(3):
        affinity.put(f"c{number}", "a")
    affinity.put(None, "a")
    assert [affinity.get(name) for name in ("c0", "c1", "c2", None)] == [None, "a", "a", None]
