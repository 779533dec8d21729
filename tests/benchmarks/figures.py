"""What was measured, beside what was wanted: medians with their spread, a verdict, a table."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

PASS, SHORT, STATED = "pass", "SHORT", ""


@dataclass(frozen=True, slots=True)
class Spread:
    """The median of repeated runs, and the lowest and highest of them."""

    median: float
    low: float
    high: float
    runs: int

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        """Summarise; raises ValueError where there is nothing."""
        found = sorted(values)
        if not found:
            raise ValueError("no run to summarise")
        return cls(statistics.median(found), found[0], found[-1], len(found))

    def __str__(self) -> str:
        if self.runs == 1:
            return number(self.median)
        return f"{number(self.median)} ({number(self.low)} to {number(self.high)})"


@dataclass(frozen=True, slots=True)
class Goal:
    """A bound on the median. unit: of the bound where it is not the figure's own."""

    limit: float
    at_most: bool = True
    words: str = ""

    def met(self, value: float) -> bool:
        """Tell whether a value keeps to the bound; the bound itself does."""
        return value <= self.limit if self.at_most else value >= self.limit

    def __str__(self) -> str:
        return self.words or f"{'≤' if self.at_most else '≥'} {number(self.limit)}"


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the table. goal: None where the figure is only stated. is_shown: in README.md all the same."""

    group: str
    name: str
    unit: str
    spread: Spread
    goal: Goal | None = None
    is_shown: bool = False

    @property
    def verdict(self) -> str:
        """Return whether the goal is met: pass, SHORT, or nothing where there is no goal."""
        if self.goal is None:
            return STATED
        return PASS if self.goal.met(self.spread.median) else SHORT

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {"verdict": self.verdict}


def at_most(limit: float) -> Goal:
    """The median shall be this or less."""
    return Goal(limit)


def at_least(limit: float) -> Goal:
    """The median shall be this or more."""
    return Goal(limit, at_most=False)


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """Divide round by round: both of a round ran within the same minute, and a machine's speed drifts."""
    return [a / b for a, b in zip(ours, theirs, strict=True)]


def compared(group: str, name: str, ours: Sequence[float], theirs: Sequence[float], goal: Goal | None = None) -> Figure:
    """Return the figure of a ratio."""
    return Figure(group, name, "", Spread.of(ratios(ours, theirs)), goal)


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value that `share` (0 to 1) of them do not exceed. Raises ValueError where there are none."""
    found = sorted(values)
    if not found:
        raise ValueError("no value to take a percentile of")
    return found[min(len(found) - 1, max(0, -(-len(found) * round(share * 10_000) // 10_000) - 1))]


def number(value: float) -> str:
    """Return a number in as few digits as say something."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    if abs(value) >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}"


def table(figures: Sequence[Figure]) -> str:
    """Return a Markdown table, a group after the other."""
    rows = [("figure", "median (lowest to highest)", "goal", "")]
    group = ""
    for figure in figures:
        if figure.group != group:
            group = figure.group
            rows.append((f"**{group}**", "", "", ""))
        unit = f" {figure.unit}" if figure.unit else ""
        rows.append((figure.name, f"{figure.spread}{unit}", str(figure.goal or ""), figure.verdict))
    return aligned(rows)


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Return rows as a Markdown table, the first of them its head."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in rows
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)
