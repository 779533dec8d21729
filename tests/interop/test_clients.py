"""Clients of others, case by case: those whose parts the set-up has installed. `make interop` runs all of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.interop.__main__ import EXIT_NOT_INSTALLED, main, table
from tests.interop.clients import ALL, CASES, QUICK, Client
from tests.interop.environments import InstallError, PythonPackages
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


def test_the_table_shows_versions_and_failures():
    client = QUICK[4]
    found = dict.fromkeys(client.cases, "") | {"cancel": "it hangs"}
    head, row = table({client: found}).splitlines()
    assert head.split() == ["client", *CASES, "versions"]
    assert row.startswith("python -m websockets")
    assert row.split()[3:9] == ["ok", "ok", "FAILED", "ok", "ok", "-"]
    assert "websockets 17" in row


def test_a_client_that_cannot_be_installed_passes_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    """Its row says so, with the installer's words before it, and it is no success."""
    monkeypatch.setattr("tests.interop.environments.ENVIRONMENTS", tmp_path)
    nowhere = replace(QUICK[0], name="nobody's", environment=PythonPackages("none", ("no-such-package==0",)))
    monkeypatch.setattr("tests.interop.environments._run", refuse)
    monkeypatch.setattr("tests.interop.__main__.ALL", (nowhere,))
    monkeypatch.setattr("sys.argv", ["interop"])
    assert main() == EXIT_NOT_INSTALLED
    said = capsys.readouterr()
    assert "nobody's cannot be installed: pip ended with status 1" in said.err
    assert said.out.splitlines()[1].split() == ["nobody's", *("-" for _ in CASES), "NOT", "INSTALLED,", "not", "tried"]


def refuse(_: list[str]) -> None:
    raise InstallError("pip ended with status 1")
