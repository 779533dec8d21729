"""Draw the panels of the Grafana dashboard from a Prometheus, without Grafana.

python -m tests.benchmarks.dashboard http://127.0.0.1:9090 docs/images/dashboard.svg --minutes 5
"""

from __future__ import annotations

import argparse
import html
import json
import math
import time
import urllib.parse
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

DASHBOARD: Final = Path(__file__).resolve().parents[2] / "deploy" / "grafana" / "dashboards" / "tokenwire.json"
POINTS: Final = 150
WIDTH, HEIGHT, GAP = 400, 210, 14  # of a panel, and between two, in pixels
COLOURS: Final = ("#3b7dd8", "#e07b39", "#4c9f70", "#b0529e", "#8a8a2b", "#c0392b", "#2aa7a7", "#7a5bd0")
UNITS: Final = {"s": "s", "reqps": "/s"}


@dataclass(frozen=True)
class Series:
    """One line of a panel: its legend, and (time, value) where there is one."""

    legend: str
    points: list[tuple[float, float]]


def read(prometheus: str, panel: dict[str, Any], start: float, end: float) -> list[Series]:
    """Return what Prometheus has for a panel's queries."""
    found = []
    step = max(1, round((end - start) / POINTS))
    for target in panel["targets"]:
        query = target["expr"].replace("$__rate_interval", f"{max(15, 4 * step)}s").replace("$model", ".*")
        asked = urllib.parse.urlencode({"query": query, "start": start, "end": end, "step": step})
        with urllib.request.urlopen(f"{prometheus}/api/v1/query_range?{asked}", timeout=20) as reply:  # noqa: S310
            result = json.load(reply)["data"]["result"]
        for row in result:
            legend = target["legendFormat"]
            for name, value in row["metric"].items():
                legend = legend.replace("{{" + name + "}}", value)
            points = [(when, float(value)) for when, value in row["values"] if math.isfinite(float(value))]
            if points:
                found.append(Series(legend, points))
    return found


def draw(panel: dict[str, Any], series: list[Series], start: float, end: float) -> str:
    """Return a panel as SVG, its upper left corner at the origin."""
    top = nice(max((value for line in series for _, value in line.points), default=1))
    left, right, upper, lower = 44, WIDTH - 8, 30, HEIGHT - 46

    def x(when: float) -> float:
        return left + (when - start) / (end - start) * (right - left)

    def y(value: float) -> float:
        return lower - value / top * (lower - upper)

    unit = UNITS.get(panel["fieldConfig"]["defaults"]["unit"], "")
    parts = [
        f'<rect width="{WIDTH}" height="{HEIGHT}" rx="4" fill="#fff" stroke="#d5d8dd"/>',
        f'<text x="10" y="19" font-weight="bold">{html.escape(panel["title"])}</text>',
    ]
    for share in (0, 0.5, 1):
        height = y(top * share)
        parts.append(f'<path d="M{left} {height:.1f}H{right}" stroke="#e6e8eb"/>')
        parts.append(f'<text x="{left - 5}" y="{height + 4:.1f}" text-anchor="end">{top * share:g}{unit}</text>')
    parts += [
        f'<text x="{x(start + 60 * minutes):.1f}" y="{lower + 14}" fill="#888">{minutes} min</text>'
        for minutes in range(int((end - start) // 60) + 1)
    ]
    for number, line in enumerate(series):
        colour = COLOURS[number % len(COLOURS)]
        path = "".join(
            f"{'L' if n else 'M'}{x(when):.1f} {y(value):.1f}" for n, (when, value) in enumerate(line.points)
        )
        parts.append(f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        across, down = 12 + (number % 3) * 128, HEIGHT - 20 + (number // 3) * 13
        if down < HEIGHT:
            parts.append(f'<rect x="{across}" y="{down - 8}" width="8" height="8" fill="{colour}"/>')
            parts.append(f'<text x="{across + 12}" y="{down}">{html.escape(line.legend[:21])}</text>')
    return "".join(parts)


def nice(value: float) -> float:
    """Return the next 1, 2 or 5 times a power of ten."""
    if value <= 0:
        return 1
    power = 10 ** math.floor(math.log10(value))
    return float(next(f"{step * power:.10g}" for step in (1, 2, 5, 10) if step * power >= value * 0.999))


def render(prometheus: str, start: float, end: float) -> str:
    """Return the whole dashboard as SVG."""
    panels = json.loads(DASHBOARD.read_text("utf-8"))["panels"]
    rows = math.ceil(len(panels) / 3)
    width, height = 3 * (WIDTH + GAP) + GAP, rows * (HEIGHT + GAP) + GAP
    drawn = []
    for number, panel in enumerate(panels):
        across, down = GAP + number % 3 * (WIDTH + GAP), GAP + number // 3 * (HEIGHT + GAP)
        inner = draw(panel, read(prometheus, panel, start, end), start, end)
        drawn.append(f'<g transform="translate({across} {down})">{inner}</g>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}"'
        f' font-family="system-ui, sans-serif" font-size="11" fill="#333">'
        f'<rect width="{width}" height="{height}" fill="#f4f5f6"/>{"".join(drawn)}</svg>\n'
    )


def main() -> None:
    """Read, draw, save."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.dashboard", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("prometheus", help="its address")
    parser.add_argument("output", type=Path, help="an SVG file")
    parser.add_argument("--minutes", type=float, default=5)
    options = parser.parse_args()
    end = time.time()
    options.output.write_text(render(options.prometheus, end - 60 * options.minutes, end), "utf-8")


if __name__ == "__main__":
    main()
