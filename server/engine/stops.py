"""Stop strings in streamed text: they end it, and no part of one is ever let out."""

from __future__ import annotations

from collections.abc import Sequence


class StopFilter:
    """Takes text in pieces and gives it back once it can no longer be the beginning of a stop string.

    stop: the stop strings; empty ones are ignored.
    """

    def __init__(self, stop: Sequence[str]) -> None:
        self._stop = tuple(text for text in stop if text)
        self._held = ""
        self.hit = False

    def feed(self, text: str) -> str:
        """Return what may be shown now; sets `hit` when a stop string is complete, and drops what follows."""
        if not self._stop:
            return text
        held = self._held + text
        found = [start for start in map(held.find, self._stop) if start >= 0]
        if found:
            self.hit = True
            self._held = ""
            return held[: min(found)]
        keep = max((_overlap(held, stop) for stop in self._stop), default=0)
        self._held = held[len(held) - keep :]
        return held[: len(held) - keep]

    def pass_by(self, text: str) -> str:
        """Return all text so far, looking for nothing in it."""
        held, self._held = self._held + text, ""
        return held

    def flush(self) -> str:
        """Return what was held back: the text is at its end, so it was no stop string."""
        return self.pass_by("")


def _overlap(text: str, stop: str) -> int:
    """Return the length of the longest end of `text` that begins `stop`."""
    for size in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:size]):
            return size
    return 0
