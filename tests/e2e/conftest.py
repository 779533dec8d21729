"""A real server and a real browser for the page's tests."""

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext

from tests.e2e.browser import ChatPage, chromium
from tests.e2e.standin import StandIn

ROOT = Path(__file__).parents[2]
READY_SECONDS = 60
STOP_SECONDS = 20


def _environment() -> dict[str, str]:
    """Ours without settings for the server: a developer's own must not reach the tests."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TOKENWIRE_")}
    return {**kept, "PYTHONUNBUFFERED": "1"}


class ServerProcess:
    """`tokenwire serve` with the echo engine, on a port and a data directory of its own."""

    def __init__(self, data_dir: Path, *options: str) -> None:
        self.data_dir = data_dir
        self.options = options
        self.url = ""
        self.log: list[str] = []

    def start(self, port: int = 0) -> "ServerProcess":
        """Returns when the server says that it is ready."""
        command = [sys.executable, "-m", "server", "serve", "--engine", "echo", "--port", str(port)]
        command += ["--data-dir", str(self.data_dir), *self.options]
        self.process = subprocess.Popen(
            command,
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=_environment(),
        )
        ready: queue.Queue[str] = queue.Queue()
        self.reader = threading.Thread(target=self._read, args=(ready,), daemon=True)
        self.reader.start()
        try:
            self.url = ready.get(timeout=READY_SECONDS)
        except queue.Empty:
            self.stop()
        assert self.url, "the server did not get ready:\n" + "".join(self.log)
        return self

    def _read(self, ready: queue.Queue[str]) -> None:
        """Reads on to the end, so that a full pipe never stops the server."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.log.append(line)
            with contextlib.suppress(ValueError):
                event = json.loads(line)
                if isinstance(event, dict) and event.get("event") == "ready":
                    ready.put(event["url"].rstrip("/") + "/")
        ready.put("")

    def stop(self) -> int:
        """Ends it by SIGTERM and returns its exit code."""
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            pytest.fail("the server did not end within 20 s of SIGTERM:\n" + "".join(self.log[-30:]))
        finally:
            self.reader.join(STOP_SECONDS)
            if self.process.stdout is not None:
                self.process.stdout.close()

    def restart(self) -> None:
        """Stops it and starts it again on the same port, as an update does."""
        port = int(self.url.rstrip("/").rsplit(":", 1)[1])
        assert self.stop() == 0, "".join(self.log[-30:])
        self.start(port)


# By module, not by session: Playwright's event loop must be gone when other modules run their async tests.
@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """40 tokens/s: slow enough to act while an answer streams."""
    server = ServerProcess(tmp_path_factory.mktemp("data"), "--echo-rate", "40", "--echo-ttft", "20").start()
    yield server
    assert server.stop() == 0, "".join(server.log[-30:])


@pytest.fixture
def stand_in() -> Iterator[StandIn]:
    stand_in = StandIn().start()
    yield stand_in
    stand_in.stop()


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    yield context
    context.close()


@pytest.fixture
def open_page(context: BrowserContext) -> Iterator[Callable[[str], ChatPage]]:
    """Opens tabs; at the end none of them may have had an error or have asked another host for anything."""
    tabs: list[ChatPage] = []

    def open_tab(url: str) -> ChatPage:
        tabs.append(ChatPage(context, url))
        return tabs[-1]

    yield open_tab
    assert [tab.problems for tab in tabs if tab.problems] == []
