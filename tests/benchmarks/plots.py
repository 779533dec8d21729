"""Pictures of a run, for README.md: plain bars and lines, readable on white and when printed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

from tests.benchmarks.figures import Spread

mpl.use("Agg")

COLOURS: Final = ("#9a9a9a", "#0b6e99", "#5fb0cf", "#c97b2a", "#8b3a3a", "#c48a8a")
DPI: Final = 120


def draw(raw: Mapping[str, Any], batching: Mapping[str, Any] | None, folder: Path) -> list[Path]:
    """Draw what there is into a folder; return the files."""
    files = [_contenders(raw, folder / "contenders.png")]
    if batching:
        files.append(_batching(batching, folder / "batching.png"))
    return files


def _contenders(raw: Mapping[str, Any], file: Path) -> Path:
    canvas = Canvas(figsize=(10, 4.2), dpi=DPI)
    left, right = canvas.subplots(1, 2)
    _bars(left, raw, "cpu_us", "gateway CPU per token, µs")
    _bars(right, raw, "rate", "tokens per second")
    handles, labels = left.get_legend_handles_labels()
    canvas.legend(handles, labels, loc="lower center", ncols=3, frameon=False, fontsize=9)
    canvas.tight_layout(rect=(0, 0.14, 1, 1))
    canvas.savefig(file)
    return file


def _bars(axes: Axes, raw: Mapping[str, Any], value: str, title: str) -> None:
    """One group of bars for each number of streams: medians, with the lowest and highest run as a whisker."""
    levels = list(next(iter(raw.values())))
    width = 0.8 / len(raw)
    for place, (contender, runs) in enumerate(raw.items()):
        spreads = [Spread.of(run[value]) for run in runs.values()]
        axes.bar(
            [levels.index(level) + (place - (len(raw) - 1) / 2) * width for level in runs],
            [spread.median for spread in spreads],
            width,
            label=contender,
            color=COLOURS[place % len(COLOURS)],
            yerr=(
                [spread.median - spread.low for spread in spreads],
                [spread.high - spread.median for spread in spreads],
            ),
            error_kw={"elinewidth": 0.8},
        )
    axes.set_xticks(range(len(levels)), [f"{level} streams" for level in levels])
    _plain(axes, title)


def _batching(batching: Mapping[str, Any], file: Path) -> Path:
    canvas = Canvas(figsize=(10, 3.8), dpi=DPI)
    left, right = canvas.subplots(1, 2)
    for axes, value, title in (
        (left, "tokens_per_s", "tokens per second, all users together"),
        (right, "first_median_s", "median time to first token, s"),
    ):
        for place, (way, runs) in enumerate(batching.items()):
            users: Sequence[int] = list(runs)
            axes.plot(users, [runs[n][value] for n in users], marker="o", label=way, color=COLOURS[(0, 3, 1)[place]])
        axes.set_xscale("log", base=2)
        axes.set_xticks(users, [str(n) for n in users])
        axes.set_xlabel("users who ask at the same moment")
        _plain(axes, title)
    left.legend(frameon=False, fontsize=9)
    canvas.tight_layout()
    canvas.savefig(file)
    return file


def _plain(axes: Axes, title: str) -> None:
    axes.set_title(title, fontsize=11)
    axes.set_ylim(bottom=0)
    axes.grid(axis="y", alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
