"""Clients of others, case by case: those whose parts the set-up has installed. `make interop` runs all of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.interop.__main__ import table
from tests.interop.clients import ALL, CASES, QUICK, Client
from tests.interop.world import World


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with World(tmp_path_factory.mktemp("world")) as world:
        yield world
        world.server.until_metric("connections", 0)
    assert world.server.faults() == [], world.server.tail()


@pytest.mark.parametrize("client", QUICK, ids=lambda client: client.name)
def test_a_client_that_we_did_not_write(world: World, client: Client, subtests: pytest.Subtests):
    for case, fault in world.run(client).items():
        with subtests.test(case):
            assert fault == ""


def test_make_interop_tries_what_is_tried_here():
    assert {client.name for client in QUICK} < {client.name for client in ALL}


def test_the_table_shows_versions_and_failures(monkeypatch: pytest.MonkeyPatch):
    client = QUICK[4]
    found = dict.fromkeys(client.cases, "") | {"cancel": "it hangs"}
    head, row = table({client: found}).splitlines()
    assert head.split() == ["client", *CASES, "versions"]
    assert row.startswith("python -m websockets")
    assert row.split()[3:9] == ["ok", "ok", "FAILED", "ok", "ok", "-"]
    assert "websockets 17" in row
