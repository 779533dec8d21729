"""Make a Valkey or Redis forget the newest part of what it has acknowledged, as a slow disk and a crash would."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class LogEnd:
    """Where the append-only log ended at some moment."""

    path: Path
    size: int


def log_end(folder: Path) -> LogEnd:
    """Return where the log of the server that works in `folder` ends now."""
    path = max((folder / "appendonlydir").glob("*.incr.aof"), key=lambda found: found.stat().st_mtime_ns)
    return LogEnd(path, path.stat().st_size)


def forget_since(end: LogEnd) -> None:
    """Cut off what was written after that moment. The server must not run, and must not have begun a new log."""
    assert end.path.stat().st_size >= end.size
    with end.path.open("r+b") as log:
        log.truncate(end.size)
