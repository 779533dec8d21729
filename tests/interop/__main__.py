"""`make interop`: every client of others, in an environment of its own, against a real server; prints a table.

    python -m tests.interop [--only TEXT]

Exits with 1 where a case failed and with 2 where a client could not be installed.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.interop.clients import ALL, CASES, Client
from tests.interop.environments import InstallError
from tests.interop.world import World

EXIT_FAILED = 1
EXIT_NOT_INSTALLED = 2


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.interop", description="Clients of others, case by case.")
    parser.add_argument("--only", default="", metavar="TEXT", help="clients with this in their names")
    only = parser.parse_args().only.lower()
    clients, missing = _installed([client for client in ALL if only in client.name.lower()])
    outcomes, faults = _tried(clients) if clients else ({}, [])
    for client, found in outcomes.items():
        for case, fault in found.items():
            if fault:
                print(f"\n{client.name}, {case}:\n{fault}")
    print(table(outcomes, missing))
    if faults:
        print("\nThe server's log has faults:", *faults, sep="\n")
    if faults or any(fault for found in outcomes.values() for fault in found.values()):
        return EXIT_FAILED
    return EXIT_NOT_INSTALLED if missing else 0


def _installed(clients: Sequence[Client]) -> tuple[list[Client], list[Client]]:
    """Install clients; return those that are there, and those that could not be installed."""
    there: list[Client] = []
    missing: list[Client] = []
    for client in clients:
        print(f"installing {client.name} …", file=sys.stderr, flush=True)
        try:
            client.environment.install()
        except InstallError as error:
            print(f"{client.name} cannot be installed: {error}", file=sys.stderr)
            missing.append(client)
        else:
            there.append(client)
    return there, missing


def _tried(clients: Sequence[Client]) -> tuple[dict[Client, dict[str, str]], list[str]]:
    """Run each client's cases; return what went wrong, and the faults in the server's log."""
    outcomes = {}
    with tempfile.TemporaryDirectory() as folder, World(Path(folder), is_scripted=True) as world:
        for client in clients:
            print(f"running {client.name} …", file=sys.stderr, flush=True)
            outcomes[client] = world.run(client)
        return outcomes, world.server.faults()


def table(outcomes: Mapping[Client, Mapping[str, str]], missing: Sequence[Client] = ()) -> str:
    """Return client by case, with versions. missing: those that were not tried, as they could not be installed."""
    rows: list[tuple[str, ...]] = [("client", *CASES, "versions")]
    for client, found in outcomes.items():
        marks = [("FAILED" if found[case] else "ok") if case in found else "-" for case in CASES]
        rows.append((client.name, *marks, client.versions()))
    rows += [(client.name, *("-" for _ in CASES), "NOT INSTALLED, not tried") for client in missing]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


if __name__ == "__main__":
    sys.exit(main())
