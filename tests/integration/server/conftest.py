"""Real servers, one a module where tests can share it."""

from collections.abc import Iterator

import pytest

from tests.support.server import ServerProcess


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Answers as fast as it can; its log must be clean at the end."""
    with ServerProcess(tmp_path_factory.mktemp("data")) as server:
        yield server
        server.until_metric("connections", 0)
        server.until_metric("responses_running", 0)
    assert server.faults() == [], server.tail()
    assert server.wait() == 0


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """30 tokens a second: slow enough to act while an answer streams."""
    with ServerProcess(tmp_path_factory.mktemp("slow"), "--echo-rate", "30") as server:
        yield server
        server.until_metric("connections", 0)
        server.until_metric("responses_running", 0)
    assert server.faults() == [], server.tail()
    assert server.wait() == 0
