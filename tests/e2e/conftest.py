"""A real server and a real browser for the page's tests."""

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, expect

from server.store.embedded import valkey_arguments
from tests.e2e.browser import ChatPage, chromium
from tests.e2e.standin import StandIn
from tests.support.server import ROOT, ServerProcess

# What a page shows is asked for until it is there. Five seconds, Playwright's default, are sometimes too few on a
# machine that runs other tests beside it; only a failing test waits so long.
expect.set_options(timeout=20_000)

_FIND_VALKEY = "import asyncio; from server.store.embedded import find_binary; print(asyncio.run(find_binary()))"


@contextmanager
def valkey() -> Iterator[str]:
    """A Valkey for several gateways; yields its URL. Its folder's name is short, as a socket's path must be."""
    with tempfile.TemporaryDirectory(prefix="tw-") as folder:
        # In a process of its own: Playwright's event loop runs in this thread.
        binary = subprocess.check_output([sys.executable, "-c", _FIND_VALKEY], cwd=ROOT, text=True).strip()
        socket = Path(folder) / "socket"
        arguments = [binary, *valkey_arguments(Path(folder), socket)]
        process = subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            deadline = time.monotonic() + 30
            while not socket.exists():
                assert process.poll() is None, f"Valkey ended with status {process.returncode}"
                assert time.monotonic() < deadline, "Valkey does not start"
                time.sleep(0.02)
            yield f"unix://{socket}"
        finally:
            process.terminate()
            process.wait(20)


# By module, not by session: Playwright's event loop must be gone when other modules run their async tests.
@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


# For all modules: they are processes of their own.
@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """40 tokens/s: slow enough to act while an answer streams."""
    server = ServerProcess(tmp_path_factory.mktemp("data"), "--echo-rate", "40", "--echo-ttft", "20").start()
    yield server
    assert server.stop() == 0, server.tail()


@pytest.fixture(scope="session")
def fast_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """For tests that look at whole answers."""
    server = ServerProcess(tmp_path_factory.mktemp("data"), "--echo-rate", "500", "--echo-ttft", "5").start()
    yield server
    assert server.stop() == 0, server.tail()


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
