"""One server for the clients that people really use."""

from collections.abc import Iterator

import pytest

from tests.support.server import ServerProcess


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """40 tokens a second: slow enough to act while an answer streams."""
    with ServerProcess(tmp_path_factory.mktemp("data"), "--echo-rate", "40") as server:
        yield server
        server.until_metric("connections", 0)
    assert server.faults() == [], server.tail()
    assert server.wait() == 0
