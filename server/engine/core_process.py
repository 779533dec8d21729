"""The EngineCore process as we want it: in its own process group, tied to our life, its output read by us.

vLLM starts its EngineCore with `multiprocessing` and leaves four things open:

1. Ctrl-C in a terminal goes to the whole foreground process group, and EngineCore takes SIGINT as "stop now":
   answers would break off before we drain. So it moves into a process group of its own.
2. When the parent is killed with SIGKILL, EngineCore waits for ever on its sockets (vLLM watches the parent only
   in the workers below it). `PR_SET_PDEATHSIG` does not do: it fires when the *thread* that forked ends, and the
   engine is started from a worker thread. So a thread watches the parent's end of multiprocessing's own pipe.
3. Why a start failed is only on the output of EngineCore and its workers, as tracebacks. So that output comes to
   us through a pipe; its end also tells that every process of the engine is gone.
4. The files of its seven Unix sockets stay where they are, however it ends. So they are in a folder of ours.
"""

from __future__ import annotations

import atexit
import importlib
import logging
import multiprocessing
import operator
import os
import re
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any, Final

# Environment in which these processes and ours import vLLM; a user's own values win.
ENVIRONMENT: Final = {
    "VLLM_NO_USAGE_STATS": "1",  # vLLM reports usage to its makers otherwise
    # fork would copy our event loop, locks and sockets in mid-use; vLLM's own CPU backend and any process that
    # has touched CUDA spawn anyway.
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    # Seconds until a worker that was asked to end gets SIGTERM. What takes it longer is Python's tear-down only.
    "VLLM_WORKER_SHUTDOWN_TIMEOUT_SECONDS": "1",
    # `tokenizers` starts threads of its own for a batch otherwise, and complains about every fork afterwards.
    "TOKENIZERS_PARALLELISM": "false",
}

SOCKET_FOLDER: Final = "VLLM_RPC_BASE_PATH"  # vLLM's name for it

ORPHAN_GRACE_S: Final = 5.0  # for EngineCore to end by itself when its parent is gone; it needs 1 to 2 s
KEPT_LINES: Final = 400  # of the engine's output, to find a start's failure in; a traceback has about 60
_PID_MARK: Final = "tokenwire-engine-core "
_READ_BYTES: Final = 65536  # a pipe's capacity on Linux

_log = logging.getLogger("tokenwire.vllm")


def prepare_environment() -> bool:
    """Set what vLLM reads at import; return whether the user asked for vLLM's own log."""
    verbose = "VLLM_LOGGING_LEVEL" in os.environ
    if not verbose:
        # Then Python's own last resort prints warnings and errors of the engine's processes to our pipe, and in
        # this process we say ourselves what went wrong.
        os.environ["VLLM_CONFIGURE_LOGGING"] = "0"
        logging.getLogger("vllm").setLevel(logging.CRITICAL)
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    if SOCKET_FOLDER not in os.environ:
        # One for all engines of this process. A short name: a socket's path has at most 107 characters.
        os.environ[SOCKET_FOLDER] = folder = tempfile.mkdtemp(prefix="tokenwire-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return verbose


class CoreEntry:
    """What runs in the new process instead of vLLM's own entry, which it calls. Pickled, so at module level.

    run: vLLM's entry, kept by name: the new process finds the original there, this one holds us in its place.
    output: our pipe's writing end.
    gpus: numbers of the GPUs that it may see; empty: all.
    compiles: whether torch may compile anything there.
    """

    def __init__(
        self, run: Callable[..., None], output: Connection, gpus: Sequence[int] = (), *, compiles: bool = True
    ) -> None:
        self._module, self._name = run.__module__, run.__qualname__
        self._output = output
        self._gpus = ",".join(map(str, gpus))
        self._compiles = compiles

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take measures 1 and 3: here, as unpickling the arguments next imports vLLM and prints already."""
        self.__dict__.update(state)
        os.setpgid(0, 0)  # workers are started later and inherit the group
        for descriptor in (1, 2):
            os.dup2(self._output.fileno(), descriptor)
        self._output.close()
        if self._gpus:
            os.environ["CUDA_VISIBLE_DEVICES"] = self._gpus  # read when CUDA is first used; not in our own process
        if not self._compiles:
            os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")  # read when torch is imported

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        """Take measure 2, then be EngineCore."""
        # Tells our parent whom to kill. Not earlier: until all arguments are read, multiprocessing writes them into
        # a pipe whose other end it holds open itself, and would write for ever to a process that was killed.
        os.write(1, f"{_PID_MARK}{os.getpid()}\n".encode())
        threading.Thread(target=_end_with_parent, name="parent-watch", daemon=True).start()
        run = operator.attrgetter(self._name)(importlib.import_module(self._module))
        code = 1
        try:
            run(*args, **kwargs)
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 0
        except BaseException:  # noqa: BLE001 - the last line of this process: nobody above could take it
            traceback.print_exc()
        finally:
            # vLLM has given back all it held by now. Python's own tear-down of its modules burns another 6 s.
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()  # returns when the parent's end of the pipe closes, however it died
        os.kill(os.getpid(), signal.SIGTERM)  # lets vLLM remove its shared memory, which outlives processes
        time.sleep(ORPHAN_GRACE_S)
        os.killpg(0, signal.SIGKILL)


def kill_group(pid: int) -> None:
    """Kill an EngineCore and its workers; harmless when they are gone."""
    for kill in (os.killpg, os.kill):  # the group does not exist before the process has made it
        try:
            kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


class CoreOutput:
    """Reads what the engine's processes print, in a thread, until the last of them is gone.

    verbose: pass everything on to our own standard error.
    on_process: called with EngineCore's process id, from the reading thread.
    on_loading: called with the share of the checkpoint that is loaded, from the reading thread.
    """

    def __init__(
        self, *, verbose: bool, on_process: Callable[[int], None], on_loading: Callable[[float], None]
    ) -> None:
        self._reader, self.writer = multiprocessing.Pipe(duplex=False)
        self._verbose = verbose
        self._on_process = on_process
        self._on_loading = on_loading
        self._lines: deque[str] = deque(maxlen=KEPT_LINES)
        self.quiet = True  # while it starts and ends: then the caller says what matters
        self._thread = threading.Thread(target=self._read, name="vllm-output", daemon=True)
        self._thread.start()

    def ended(self, timeout: float) -> bool:
        """Wait up to `timeout` seconds for the processes' end; return whether all are gone."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _read(self) -> None:
        pending = b""
        while data := os.read(self._reader.fileno(), _READ_BYTES):
            *lines, pending = re.split(rb"[\r\n]", pending + data)  # progress bars end lines with \r
            for line in lines:
                self._take(line.decode("utf-8", "replace").rstrip())
        self._reader.close()

    def _take(self, line: str) -> None:
        if line.startswith(_PID_MARK):
            self._on_process(int(line.removeprefix(_PID_MARK)))
            return
        if self._verbose:
            print(line, file=sys.stderr, flush=True)  # noqa: T201 - the user asked for vLLM's log as it is
        if not line:
            return
        self._lines.append(line)
        if not self.quiet:
            _log.warning("%s", line)
        elif share := _LOADING.search(line):
            self._on_loading(int(share[1]) / 100)

    def failure(self) -> str | None:
        """Return the root cause of a failed start, as its own exception said it; None if nothing tells."""
        return root_cause(self._lines)


# vLLM's progress bar: "Loading safetensors checkpoint shards:  50% Completed | 1/2 [00:00<00:00]"
_LOADING: Final = re.compile(r"Loading \S+ checkpoint shards:\s+(\d{1,3})% Completed")
_PREFIX: Final = re.compile(r"^\(\w+(?: pid=\d+)?\)\s?|^(?:ERROR|WARNING|INFO) \d\d-\d\d [\d:]+ (?:\[.*?\] )?")
_EXCEPTION: Final = re.compile(r"^(?:\w+\.)*\w*(?:Error|Exception|OutOfMemory)\b: \S")


def root_cause(lines: deque[str]) -> str | None:
    """Return the first exception text in the tracebacks among `lines`: later ones only say that it happened."""
    for line in lines:
        text = line
        while (stripped := _PREFIX.sub("", text, count=1)) != text:
            text = stripped
        if _EXCEPTION.match(text):
            return text
    return None
