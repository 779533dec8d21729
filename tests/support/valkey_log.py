"""Make a Valkey or Redis forget the newest part of what it has acknowledged, as a slow disk and a crash would."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import redis

WRITTEN_S = 10  # a server holds its log back for two seconds at most, while an older part goes to the disk


@dataclass(frozen=True, slots=True)
class LogEnd:
    """Where the append-only log ended at some moment."""

    path: Path
    size: int


def log_end(folder: Path) -> LogEnd:
    """Return where the log of the server that works in `folder` ends now, with all that it has acknowledged in it.

    Its socket is there, too.
    """
    deadline = time.monotonic() + WRITTEN_S
    with redis.Redis(unix_socket_path=str(folder / "socket")) as client:
        while client.info("persistence")["aof_buffer_length"]:
            assert time.monotonic() < deadline, "it does not write its log"
            time.sleep(0.001)
    path = max((folder / "appendonlydir").glob("*.incr.aof"), key=lambda found: found.stat().st_mtime_ns)
    return LogEnd(path, path.stat().st_size)


def forget_since(end: LogEnd) -> None:
    """Cut off what was written after that moment. The server must not run, and must not have begun a new log."""
    assert end.path.stat().st_size >= end.size
    with end.path.open("r+b") as log:
        log.truncate(end.size)
