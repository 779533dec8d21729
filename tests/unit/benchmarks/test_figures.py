"""What a benchmark says of its numbers: medians, verdicts, the table. Nothing here is timed."""

from __future__ import annotations

import json

import pytest

from tests.benchmarks.figures import (
    PASS,
    SHORT,
    STATED,
    Figure,
    Goal,
    Spread,
    at_least,
    at_most,
    percentile,
    ratios,
    table,
)


def figure(value, goal=None, **changes):
    fields = {"group": "cost", "name": "per token", "unit": "µs", "spread": Spread.of([value]), "goal": goal}
    return Figure(**fields | changes)


def test_a_spread_is_the_median_and_the_ends():
    assert Spread.of([3.0, 1.0, 2.0]) == Spread(2.0, 1.0, 3.0, 3)
    assert Spread.of([1.0, 2.0]).median == 1.5


def test_nothing_has_no_spread():
    with pytest.raises(ValueError, match="no run"):
        Spread.of([])


def test_one_run_shows_no_range():
    assert str(Spread.of([0.5])) == "0.50"
    assert str(Spread.of([1.0, 12.0, 1234.0])) == "12.0 (1.00 to 1,234)"


@pytest.mark.parametrize(
    ("goal", "value", "verdict"),
    [
        (at_most(0.5), 0.5, PASS),
        (at_most(0.5), 0.51, SHORT),
        (at_least(0.95), 0.95, PASS),
        (at_least(0.95), 0.9, SHORT),
        (None, 7.0, STATED),
    ],
)
def test_a_goal_judges_the_median(goal, value, verdict):
    assert figure(value, goal).verdict == verdict


def test_the_median_is_judged_not_the_worst_run():
    assert figure(1.0, at_most(1.5), spread=Spread.of([1.0, 1.2, 9.0])).verdict == PASS


def test_ratios_are_taken_round_by_round():
    assert ratios([2.0, 8.0], [4.0, 4.0]) == [0.5, 2.0]
    with pytest.raises(ValueError, match="shorter"):
        ratios([1.0, 2.0], [1.0])


@pytest.mark.parametrize(("share", "value"), [(0.0, 1), (0.5, 50), (0.99, 99), (1.0, 100)])
def test_a_percentile_is_a_value_that_was_seen(share, value):
    assert percentile(range(100, 0, -1), share) == value


def test_the_p99_of_few_values_is_the_worst():
    assert percentile([5.0, 1.0, 2.0], 0.99) == 5.0


def test_the_table_names_each_group_once_and_shows_goal_and_verdict():
    lines = table([figure(2.0, at_most(3)), figure(4.0, at_most(3)), figure(1.0, group="rate")]).splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert cells[2:] == [
        ["**cost**", "", "", ""],
        ["per token", "2.00 µs", "≤ 3.00", "pass"],
        ["per token", "4.00 µs", "≤ 3.00", "SHORT"],
        ["**rate**", "", "", ""],
        ["per token", "1.00 µs", "", ""],
    ]
    assert len({len(line) for line in lines}) == 1


def test_a_goal_may_have_words_of_its_own():
    assert str(Goal(25, words="≤ 25 (a tick)")) == "≤ 25 (a tick)"


def test_a_figure_is_json_with_its_verdict():
    written = json.loads(json.dumps(figure(2.0, at_most(3)).as_json()))
    assert written["verdict"] == PASS
    assert written["spread"] == {"median": 2.0, "low": 2.0, "high": 2.0, "runs": 1}
