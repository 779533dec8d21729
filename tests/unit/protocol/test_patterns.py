"""What a pattern costs, told by its text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.patterns import pattern_cost


@pytest.mark.parametrize(
    ("pattern", "cost"),
    [
        ("", (0, 0)),
        ("abc", (0, 0)),
        ("a{5}", (5, 0)),
        ("a{,7}b{2,}", (9, 2)),
        ("(ab){5}", (10, 0)),
        ("(a{3}b){5}", (23, 0)),
        ("((a{1000}){1000}){1000}", (1_001_001_000, 0)),
        ("(.{0,300}){0,300}", (90_300, 90_300)),
        (r"(\w{1,20}-){0,5}", (125, 10)),
        (r"([^-]{1,20}-){0,5}", (125, 100)),
        (r"(\D{1,20}\.?){0,5}", (125, 105)),
        ("(.*.*)*", (0, 3)),
        ("(.*.*){4}", (8, 8)),
        ("(?:[a-z*+?]{1,4}:){1,7}", (39, 13)),
        (r"\(\?\{9\}[)(\]{]+", (0, 1)),
        ("a|b?|(?=c)(?<!d)", (0, 1)),
        ("a{" + "9" * 40 + "}", (999_999_999, 0)),
    ],
)
def test_cost(pattern, cost):
    """Characters that counts repeat, and places where it can go on in two ways."""
    assert pattern_cost(pattern) == cost


@given(st.text(st.sampled_from("a.*+?{}()[]|\\,90:"), max_size=60))
def test_any_text_has_one(pattern):
    """Also what is no pattern."""
    assert all(number >= 0 for number in pattern_cost(pattern))
