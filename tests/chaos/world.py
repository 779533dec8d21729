"""Real processes to do harm to: gateways, one Valkey, a proxy before each gateway. All of them end with the runner."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Self

from server.store.embedded import _candidates, valkey_arguments
from tests.chaos.proxy import Proxy
from tests.support.server import POLL_S, ROOT, ServerProcess, children, is_alive
from tests.support.valkey_log import LogEnd, log_end

START_S: Final = 240  # for a process to get ready: two vLLMs load at once, on a busy machine

# Linux kills the child when the thread that forked it ends, also by SIGKILL; the setting survives exec.
_TIED: Final = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG, SIGKILL
if os.getppid() == int(sys.argv[1]):  # else its parent has ended before the setting was made
    os.execv(sys.argv[2], sys.argv[2:])
"""


def tied(command: Sequence[str]) -> list[str]:
    """Return a command that does not outlive us. Start it from a thread that lives as long as it shall."""
    return [sys.executable, "-c", _TIED, str(os.getpid()), *command]


class Gateway(ServerProcess):
    """One gateway. Stopping, continuing and killing it is the nemesis's business; starting keeps its port."""

    def launch(self, port: int = 0) -> Gateway:
        """Start it and return at once."""
        command = [sys.executable, "-m", "server", "serve", "--port", str(port), *self.options]
        self.url = ""
        self.process = subprocess.Popen(
            tied(command),
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env={key: value for key, value in os.environ.items() if not key.startswith("TOKENWIRE_")},
        )
        self._ready: queue.Queue[str] = queue.Queue()
        self._grown = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        return self

    def wait_ready(self) -> None:
        """Return when it says that it is ready."""
        with contextlib.suppress(queue.Empty):
            self.url = self._ready.get(timeout=START_S)
        if not self.url:
            self.kill()
            raise AssertionError("the gateway did not get ready:\n" + self.tail())

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def engine_pids(self) -> list[int]:
        """Return its engine processes and their workers; not Python's resource tracker, a child of its own.

        That one holds the gateway's output: stopped, it would keep the pipe open after its end.
        """
        found = dict(children(self.pid))
        for pid in list(found):
            found.update(children(pid))
        return [pid for pid, name in found.items() if name.startswith("VLLM::") and is_alive(pid)]


class Valkey:
    """The one store. Its folder outlives its processes."""

    options: tuple[str, ...] = ()

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.socket = folder / "socket"
        self.url = f"unix://{self.socket}"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it and return when it answers and has loaded its data."""
        # No new log in the middle: `forget` must find what was written since.
        command = [
            next(_candidates()),
            *valkey_arguments(self.folder, self.socket),
            "--auto-aof-rewrite-percentage",
            "0",
            *self.options,
        ]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(tied(command), stdout=log, stderr=log)
        deadline = time.monotonic() + START_S
        while not self._answers():
            assert time.monotonic() < deadline, (self.folder / "log").read_text()
            time.sleep(POLL_S)

    def _answers(self) -> bool:
        import redis

        try:
            with redis.Redis(unix_socket_path=str(self.socket)) as client:
                return bool(client.ping())
        except (redis.RedisError, OSError):
            return False

    def send(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        """End it by SIGKILL."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def log_end(self) -> LogEnd:
        """Return where its log ends now: what `forget_since` goes back to."""
        return log_end(self.folder)


def settings(toml: dict[str, dict[str, Any]]) -> str:
    """Return tables as a settings file."""
    lines = []
    for table, values in toml.items():
        lines.append(f"[{table}]")
        lines += [f"{key} = {json.dumps(value)}" for key, value in values.items()]
    return "\n".join(lines)


class World:
    """Gateways on one Valkey, each behind a proxy. Clients use `addresses`.

    rate: tokens a second of the echo engine. engine: `echo` or `vllm`, with `options` for its models.
    config: tables of the gateways' settings file. redis_url: of a store that is not this world's.
    """

    def __init__(
        self,
        gateways: int = 2,
        *,
        rate: float = 30,
        engine: str = "echo",
        options: Sequence[str] = (),
        config: dict[str, dict[str, Any]] | None = None,
        redis_url: str | None = None,
    ) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="tokenwire-chaos-", ignore_cleanup_errors=True)
        folder = Path(self._folder.name)
        (folder / "valkey").mkdir()
        self.engine = engine
        self.valkey = Valkey(folder / "valkey")
        self._has_store = redis_url is None
        flags = ["--redis-url", redis_url or self.valkey.url, "--echo-rate", str(rate), *options]
        text = settings(config or {})
        self.gateways = [Gateway(folder / f"g{index}", *flags, config=text, engine=engine) for index in range(gateways)]
        self.proxies: list[Proxy] = []

    @property
    def addresses(self) -> list[str]:
        """Where clients connect: the proxies, in the order of the gateways."""
        return [f"ws://127.0.0.1:{proxy.port}/v1/responses" for proxy in self.proxies]

    async def start(self) -> Self:
        """Start everything and return when it is ready."""
        if self._has_store:
            self.valkey.start()
        for gateway in self.gateways:
            gateway.data_dir.mkdir(exist_ok=True)
            gateway.launch()
        for gateway in self.gateways:
            await asyncio.to_thread(gateway.wait_ready)
            self.proxies.append(await Proxy(gateway.port).start())
        return self

    async def restart(self, index: int) -> None:
        """Start a gateway that has ended, on its old port."""
        gateway = self.gateways[index]
        port = self.proxies[index].target_port
        gateway.launch(port)  # by the main thread, which lives as long as we do
        await asyncio.to_thread(gateway.wait_ready)

    async def close(self) -> None:
        """End everything; whatever was stopped is killed all the same."""
        for proxy in self.proxies:
            await proxy.close()
        for gateway in self.gateways:
            if hasattr(gateway, "process"):
                gateway.process.kill()
                await asyncio.to_thread(gateway.wait)
        self.valkey.kill()
        self._folder.cleanup()

    async def __aenter__(self) -> Self:
        try:
            return await self.start()
        except BaseException:
            await self.close()
            raise

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def faults(self) -> Iterator[str]:
        """Yield lines of the logs that only a fault of ours can cause."""
        for index, gateway in enumerate(self.gateways):
            yield from (f"g{index}: {line}" for line in gateway.faults())
