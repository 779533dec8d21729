"""Real servers, one a module where tests can share it."""

from collections.abc import Iterator

import pytest

from tests.support.server import ServerProcess


def run_checked(server: ServerProcess) -> Iterator[ServerProcess]:
    """Serve; at the end nothing may be left running, and the log must be clean."""
    with server:
        yield server
        server.until_metric("connections", 0)
        server.until_metric("responses_running", 0)
    assert server.faults() == [], "".join(server.log)
    assert server.wait() == 0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Answers within a tick or two."""
    yield from run_checked(ServerProcess(tmp_path_factory.mktemp("data"), "--echo-rate", "50000"))


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """30 tokens a second: slow enough to act while an answer streams."""
    yield from run_checked(ServerProcess(tmp_path_factory.mktemp("slow"), "--echo-rate", "30"))
