"""The processes of a benchmark, driven by lines of JSON, and what the operating system says they used."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Self

from tests.support.server import ROOT, children, clean_environment

STOP_S = 90


def free_port() -> int:
    """Return a port that nobody has right now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def cpu_s(pid: int) -> float:
    """Return the CPU time that a process's threads have used.

    In nanoseconds where the kernel counts them (a thread's end takes its time with it: ours live on), else in its
    clock ticks of mostly 10 ms.
    """
    try:
        return sum(int(file.read_text().split()[0]) for file in Path(f"/proc/{pid}/task").glob("*/schedstat")) / 1e9
    except (OSError, IndexError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def rss_bytes(pid: int) -> int:
    """Return a process's resident memory."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Process:
    """One `python -m tests.benchmarks.…`, its first line of input, and the answer to it."""

    def __init__(self, module: str, settings: dict[str, Any]) -> None:
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 closed in `stop`
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", module],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env={**clean_environment(), "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"},
        )
        self._say(json.dumps(settings))

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, line: str) -> dict[str, Any]:
        """Send a line and return the answer. Raises RuntimeError with the process's last words when it has ended."""
        self._say(line)
        return self.hear()

    def tell(self, line: str) -> None:
        """Send a line; the answer is read with `hear`."""
        self._say(line)

    def do(self, command: str, **arguments: Any) -> dict[str, Any]:
        """Send a command as JSON and return the answer."""
        return self.ask(json.dumps({"do": command, **arguments}))

    def hear(self) -> dict[str, Any]:
        """Return its next answer."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._process.wait(STOP_S)
            self._log.seek(0)
            raise RuntimeError("a process of the benchmark failed:\n" + self._log.read()[-4000:])
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _say(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def children(self) -> dict[int, str]:
        return children(self.pid)

    def kill(self) -> None:
        """End it in the middle of what it does; `stop` must follow."""
        self._process.kill()

    def stop(self) -> None:
        """End its input, which ends it; kill it if that does not help."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.close()
        except BrokenPipeError:
            pass  # it has ended already
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._log.close()

    def __enter__(self) -> Self:
        try:
            self.hear()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def clients(kind: str, port: int, streams: int, **job: Any) -> Process:
    """Return the load generator, not yet connected."""
    return Process("tests.benchmarks.load", {"kind": kind, "port": port, "streams": streams, **job})


def host(settings: dict[str, Any]) -> Process:
    """Return the contenders' process, not yet ready."""
    return Process("tests.benchmarks.host", settings)
