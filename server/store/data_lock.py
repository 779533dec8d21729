"""One process at a time in a data directory."""

from __future__ import annotations

import asyncio
import fcntl
import os
from pathlib import Path
from typing import Final

from server.store.base import StoreError

DYING_HOLDER_S: Final = 5.0  # a killed server's Valkey holds the lock until it has written its last second
POLL_S: Final = 0.02  # flock cannot be awaited


class DataDirInUseError(StoreError):
    """Another server uses this data directory."""


class DirectoryLock:
    """A lock file, held as long as anybody who inherited its descriptor lives.

    path: of the lock file; its folder is the one that is locked.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None

    async def take(self) -> int:
        """Take the lock, unless it is ours already, and return the descriptor that children are to inherit.

        Raises DataDirInUseError at once when the holder lives, and after a while when only its children do.
        """
        if self._descriptor is not None:
            return self._descriptor
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            await self._wait_for(descriptor)
        except BaseException:
            os.close(descriptor)
            raise
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        self._descriptor = descriptor
        return descriptor

    def release(self) -> None:
        """Let go; idempotent."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    async def _wait_for(self, descriptor: int) -> None:
        now = asyncio.get_running_loop().time
        deadline = now() + DYING_HOLDER_S
        while not _try_lock(descriptor):
            holder = _read_pid(descriptor)
            if _is_alive(holder) or now() > deadline:
                raise DataDirInUseError(
                    f"{self._path.parent} is in use by another server (process {holder});"
                    " stop that one, or give this one another data_dir"
                )
            await asyncio.sleep(POLL_S)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _read_pid(descriptor: int) -> int:
    """Return the process id in a lock file, 0 where there is none."""
    text = os.pread(descriptor, 20, 0)
    return int(text) if text.isdigit() else 0


def _is_alive(pid: int) -> bool:
    if pid == 0:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
