"""How many turns a model's engine gets at once, found by measuring. Pure: no clock, no I/O, no tasks.

Additive increase, multiplicative decrease, as congestion control has it (Chiu and Jain 1989). Two numbers are steered
by what people feel, which is the gap between tokens and the wait for the first one in the engine, of interactive turns:

- `background`: how many turns of the other classes. Reading their long prompts is what makes gaps long, so they give
  way first, and come back first.
- `limit`: how many turns in all.

A bound in milliseconds alone would throttle a slow machine for nothing. So what the engine does with few turns is
measured, too, and an engine is slow only when it is slower than the bound and than TOLERANCE times that.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

WINDOW_S: Final = 1.0  # the limits are looked at this often
SETTLE_S: Final = 2.0  # after a cut nothing is changed for so long: what was let in before is still there
MAX_SAMPLES: Final = 1000  # of one window; enough for a percentile
MIN_SAMPLES: Final = 5  # fewer say nothing
PERCENTILE: Final = 0.9
TOLERANCE: Final = 2.0  # times what the engine needs with few turns
BASELINE_WEIGHT: Final = 0.2  # of the newest window in the moving average
DECREASE: Final = 0.8
RESERVE: Final = 4  # a quarter of the places is never given to background turns
FIRST_BACKGROUND: Final = 2  # background turns before anything was measured


@dataclass(slots=True)
class Load:
    """What runs and waits now, in turns; background: not interactive."""

    running: int = 0
    waiting: int = 0
    background_running: int = 0
    background_waiting: int = 0


class Signal:
    """One latency: samples of a window, and what is usual with few turns. bound_s: never slow below that."""

    def __init__(self, bound_s: float) -> None:
        self._bound_s = bound_s
        self._samples: list[float] = []
        self.baseline_s: float | None = None

    @property
    def allowed_s(self) -> float:
        """The engine is slow above this."""
        return max(self._bound_s, TOLERANCE * (self.baseline_s or 0))

    @property
    def is_known(self) -> bool:
        """Whether this window has enough samples to say something."""
        return len(self._samples) >= MIN_SAMPLES

    def add(self, seconds: float) -> None:
        if len(self._samples) < MAX_SAMPLES:
            self._samples.append(seconds)

    def close_window(self, *, is_calm: bool) -> bool:
        """Return whether the window was slow, and begin another. is_calm: few turns ran, and no long ones."""
        is_known, samples = self.is_known, sorted(self._samples)
        self._samples.clear()
        if not is_known:
            return False
        value = samples[int(PERCENTILE * (len(samples) - 1))]
        if is_calm:
            old = value if self.baseline_s is None else self.baseline_s
            self.baseline_s = old + BASELINE_WEIGHT * (value - old)
        return value > self.allowed_s


class Concurrency:
    """The limits of one model. See the module's text.

    capacity: what the engine can take; `limit` begins there. floor: `limit` never falls below it.
    gap_bound_s, first_token_bound_s: see `Signal`. is_fixed: never change `limit`.
    """

    def __init__(
        self, capacity: int, *, floor: int, gap_bound_s: float, first_token_bound_s: float, is_fixed: bool = False
    ) -> None:
        self.gaps = Signal(gap_bound_s)
        self.first_tokens = Signal(first_token_bound_s)
        self._floor = floor
        self._is_fixed = is_fixed
        self.due_at = math.inf if is_fixed else 0.0  # before this, `look` does nothing: callers need not ask
        self._settled_at = 0.0
        self._capacity = self.limit = capacity
        self._background = FIRST_BACKGROUND

    @property
    def capacity(self) -> int:
        return self._capacity

    @capacity.setter
    def capacity(self, capacity: int) -> None:
        """Follow the engine: what was at its full capacity stays there."""
        is_full = self.limit == self._capacity
        self._capacity = capacity
        self.limit = capacity if is_full else min(self.limit, capacity)

    @property
    def background(self) -> int:
        """How many of the turns may be background ones; a place is kept for the others where there is more than one."""
        if self._is_fixed:
            return self.limit
        return max(1, min(self._background, self.limit - max(1, self.limit // RESERVE)))

    def look(self, now: float, load: Load) -> bool:
        """Close a window that is over, and return whether the limits have changed.

        1. The window is not over, or a cut has not shown its effect. It stays open while interactive turns run and too
           little is known of them: an engine whose steps take seconds says little, and is not fast for that.
        2. Slow, and background turns run: halve theirs.
        3. Slow with one of them or none: cut `limit`, from what really ran; the floor is for interactive turns.
        4. Not slow, and background turns wait for more than their limit: one more; twice as many when nobody is there
           whom they could disturb.
        5. Not slow, and turns wait because of a limit: a tenth more in all, at least one.
        """
        if now < self.due_at or self._is_fixed:
            return False  # 1
        is_first = not self.due_at
        self.due_at = now + WINDOW_S
        is_interactive = load.running > load.background_running
        if is_first or (is_interactive and not (self.gaps.is_known or self.first_tokens.is_known)):
            return False  # 1
        is_calm = load.running <= self._floor and not load.background_running
        is_slow = [signal.close_window(is_calm=is_calm) for signal in (self.gaps, self.first_tokens)]
        if now < self._settled_at:
            return False  # 1
        before = self.limit, self._background
        if any(is_slow):
            self._cut(load)
        else:
            self._grow(load)
        if any(is_slow) and before != (self.limit, self._background):
            self._settled_at = now + SETTLE_S
        return before != (self.limit, self._background)

    def _cut(self, load: Load) -> None:
        background = load.background_running
        if background and self.background > 1:
            self._background = max(1, min(self.background, background) // 2)  # 2
        else:
            least = min(self._floor + background, self.limit)
            self.limit = max(least, int(min(self.limit, load.running) * DECREASE))  # 3

    def _grow(self, load: Load) -> None:
        is_bound = load.running >= self.limit
        if load.background_waiting and load.background_running >= self.background:
            is_bound = True
            nobody_else = load.running == load.background_running and load.waiting == load.background_waiting
            self._background = min(self.background * 2 if nobody_else else self.background + 1, self._capacity)  # 4
        if load.waiting and is_bound:
            self.limit = min(self._capacity, self.limit + max(1, self.limit // 10))  # 5
