"""A real server process: `tokenwire serve` with the echo engine, on a free port and a data directory of its own."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Self

ROOT = Path(__file__).parents[2]
READY_S = 150  # vLLM's parsers take half a minute to load on a machine with much else to do
STOP_S = 40
POLL_S = 0.02  # between looks at what no event tells of: another process, a gauge

_SAMPLE = re.compile(r"^tokenwire_(\w+)(?:\{(.*)\})? (\S+)$", re.MULTILINE)
# A fault of ours, whoever caused it; what clients do wrong must never look like this.
_FAULTS = re.compile(
    r"Traceback|unexpected error|was never retrieved|was destroyed|never awaited| broke\b| hang\b|nanobind: leaked"
)


def clean_environment() -> dict[str, str]:
    """Return the environment without settings of ours: what a developer has exported must not change a test."""
    return {name: value for name, value in os.environ.items() if not name.startswith("TOKENWIRE_")}


class ServerProcess:
    """One server.

    options: more flags. config: the text of a settings file.
    log: everything the process has said, line by line. key: signs in what looks at the server's metrics.
    """

    def __init__(self, data_dir: Path, *options: str, config: str = "", engine: str = "echo") -> None:
        self.data_dir = data_dir
        self.options = ["--engine", engine, "--data-dir", str(data_dir), *options]
        if config:
            data_dir.mkdir(parents=True, exist_ok=True)
            file = data_dir / "settings.toml"
            file.write_text(config, "utf-8")
            self.options += ["--config", str(file)]
        self.log: list[str] = []
        self.url = ""
        self.key = ""

    # Life

    def launch(self, port: int = 0) -> ServerProcess:
        """Start it and return at once."""
        command = [sys.executable, "-m", "server", "serve", "--port", str(port), *self.options]
        self.process = subprocess.Popen(
            command,
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env={**clean_environment(), "PYTHONUNBUFFERED": "1", "PYTHONASYNCIODEBUG": ""},
        )
        self._ready: queue.Queue[str] = queue.Queue()
        self._grown = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        return self

    def start(self, port: int = 0, timeout_s: float = READY_S) -> ServerProcess:
        """Start it and return when it says that it is ready."""
        self.launch(port)
        try:
            self.url = self._ready.get(timeout=timeout_s)
        except queue.Empty:
            pass  # told below
        except BaseException:
            self.kill()
            raise
        if not self.url:
            self.kill()
            raise AssertionError("the server did not get ready:\n" + self.tail())
        return self

    def stop(self) -> int:
        """End it by SIGTERM and return its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.wait()

    def wait(self, timeout_s: float = STOP_S) -> int:
        """Return its exit code when it has ended."""
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError(f"the server did not end within {timeout_s} s:\n" + self.tail()) from None
        finally:
            self._reader.join(STOP_S)
            if self.process.stdout is not None:
                self.process.stdout.close()

    def kill(self) -> None:
        """End it by SIGKILL."""
        self.process.kill()
        self.wait()

    def restart(self) -> None:
        """Stop it and start it again on the same port, as an update does."""
        port = self.port
        code = self.stop()
        assert code == 0, self.tail()
        self.start(port)

    def __enter__(self) -> Self:
        if not self.url:
            self.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.stop()

    # What it says

    @property
    def port(self) -> int:
        return int(self.url.rsplit(":", 1)[1])

    @property
    def ws_url(self) -> str:
        return self.url.replace("http", "ws", 1)

    @property
    def pid(self) -> int:
        return self.process.pid

    def tail(self, lines: int = 40) -> str:
        return "".join(self.log[-lines:])

    def faults(self) -> list[str]:
        """Return lines of the log that only a fault of ours can cause."""
        return [line for line in self.log if _FAULTS.search(line)]

    def wait_for_log(self, text: str, timeout_s: float = 20) -> str:
        """Return the first line with `text` in it, when it has come."""
        deadline = time.monotonic() + timeout_s
        with self._grown:
            while True:
                for line in self.log:
                    if text in line:
                        return line
                if not self._grown.wait(deadline - time.monotonic()):
                    raise AssertionError(f"no {text!r} in the log:\n" + self.tail())

    def get(self, path: str, key: str | None = None) -> tuple[int, Any]:
        """Return status and decoded JSON (or text) of a GET. key: signs in; else `self.key`, where it is set."""
        key = self.key if key is None else key
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        request = urllib.request.Request(self.url + path, headers=headers)  # noqa: S310 our own http URL
        try:
            with urllib.request.urlopen(request, timeout=20) as reply:  # noqa: S310 as above
                status, body = reply.status, reply.read()
        except urllib.error.HTTPError as error:
            with error:
                status, body = error.code, error.read()
        with contextlib.suppress(ValueError):
            return status, json.loads(body)
        return status, body.decode()

    def metric(self, name: str, **labels: str) -> float:
        """Return the sum of a metric's samples that have these labels; name: without `tokenwire_`."""
        wanted = [f'{key}="{value}"' for key, value in labels.items()]
        samples = _SAMPLE.findall(self.get("/metrics")[1])
        return sum(float(v) for n, found, v in samples if n == name and all(label in found for label in wanted))

    def until_metric(self, name: str, value: float, timeout_s: float = 20, **labels: str) -> None:
        """Return when a metric has that value."""
        deadline = time.monotonic() + timeout_s
        while (seen := self.metric(name, **labels)) != value:
            assert time.monotonic() < deadline, f"{name} stays at {seen}, not {value}\n{self.tail()}"
            time.sleep(POLL_S)

    def until_ready(self, status: int = 200, timeout_s: float = 30) -> None:
        """Return when /readyz has that status."""
        deadline = time.monotonic() + timeout_s
        while (seen := self.get("/readyz"))[0] != status:
            assert time.monotonic() < deadline, f"/readyz stays at {seen}\n{self.tail()}"
            time.sleep(POLL_S)

    # Its processes

    def children(self) -> dict[int, str]:
        """Return the processes it started, by pid, with their names."""
        return children(self.pid)

    def valkey_pid(self) -> int:
        """Return the process id of its private Valkey."""
        return next(pid for pid, name in self.children().items() if "valkey" in name or "redis" in name)

    def rss_bytes(self) -> int:
        """Return its resident memory."""
        fields = Path(f"/proc/{self.pid}/statm").read_text().split()
        return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")

    def _read(self) -> None:
        """Read on to the end, so that a full pipe never stops the server."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._grown:
                self.log.append(line)
                self._grown.notify_all()
            with contextlib.suppress(ValueError):
                event = json.loads(line)
                if isinstance(event, dict) and event.get("event") == "ready":
                    self._ready.put(event["url"].rstrip("/"))
        self._ready.put("")


def children(pid: int) -> dict[int, str]:
    """Return a process's children, by pid, with their names."""
    found: dict[int, str] = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):  # a thread may end meanwhile
            for child in (task / "children").read_text().split():
                found[int(child)] = Path(f"/proc/{child}/comm").read_text().strip()
    return found


def is_alive(pid: int) -> bool:
    """Tell whether a process runs (a zombie does not)."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def until_gone(pid: int, timeout_s: float = 15) -> None:
    """Return when a process has ended."""
    deadline = time.monotonic() + timeout_s
    while is_alive(pid):
        assert time.monotonic() < deadline, f"process {pid} is still there"
        time.sleep(POLL_S)
