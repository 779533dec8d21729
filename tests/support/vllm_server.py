"""vLLM's own OpenAI server as somebody else runs it: a process of its own, on a free port."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Final

START_S: Final = 150
STOP_S: Final = 20
POLL_S: Final = 0.1
MODEL: Final = "remote-model"
KEY: Final = "key-of-the-tests"

_RUNNING = re.compile(r"^vllm:num_requests_running\{[^}]*\} (\S+)$", re.MULTILINE)


class VllmServer:
    """One server. url: its base, with /v1."""

    def __init__(self, folder: Path, log: Path) -> None:
        self._log = log
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            port = sock.getsockname()[1]
        self.root = f"http://127.0.0.1:{port}"
        self.url = f"{self.root}/v1"
        arguments = ["--model", str(folder), "--served-model-name", MODEL, "--host", "127.0.0.1", "--port", str(port)]
        arguments += ["--dtype", "float32", "--enforce-eager", "--max-num-seqs", "16", "--block-size", "32"]
        arguments += ["--enable-prompt-tokens-details", "--api-key", KEY, "--kv-cache-memory-bytes", str(2**29)]
        environment = {
            **os.environ,
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "TOKENIZERS_PARALLELISM": "false",
        }
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "vllm.entrypoints.openai.api_server", *arguments],
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # so that its engine process can be ended with it
                env=environment,
            )

    def wait_ready(self) -> None:
        """Return when it answers."""
        deadline = time.monotonic() + START_S
        while not self._answers():
            dead = self._process.poll() is not None
            if dead or time.monotonic() > deadline:
                self.stop()
                raise AssertionError("vLLM's server did not start:\n" + self._log.read_text(errors="replace")[-3000:])
            time.sleep(POLL_S)

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.root}/health", timeout=5) as reply:  # noqa: S310 our own http URL
                return reply.status == 200
        except OSError:
            return False

    def running(self) -> float:
        """Return how many answers it makes now, as it says itself."""
        with urllib.request.urlopen(f"{self.root}/metrics", timeout=5) as reply:  # noqa: S310 as above
            return sum(float(value) for value in _RUNNING.findall(reply.read().decode()))

    def until_running(self, count: float, timeout_s: float = 20) -> None:
        """Return when it makes that many answers."""
        deadline = time.monotonic() + timeout_s
        while (seen := self.running()) != count:
            assert time.monotonic() < deadline, f"vLLM's server still runs {seen} answers, not {count}"
            time.sleep(POLL_S)

    def stop(self) -> None:
        """End it and everything it has started."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
