"""`tokenwire keys`: what is wrong with its arguments is said before the store is asked."""

from __future__ import annotations

import pytest

from server.cli import main


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["create", "--user", ""], "--user is empty"),
        (["create", "--user", "an n"], "visible ASCII"),
        (["create", "--user", "ann", "--tenant", "ü"], "--tenant"),
        (["create", "--user", "ann", "--rights", "a,b c"], "'b c' is no name of a right"),
        (["create", "--user", "ann", "--expires-days", "0"], "more than 0"),
        (["create", "--user", "ann", "--limit", "turns_per_minute"], "--limit must be NAME=NUMBER"),
        (["create", "--user", "ann", "--limit", "turns=1"], "'turns' is no limit; there are concurrent_responses"),
        (["create", "--user", "ann", "--limit", "connections=0"], "from 1 on"),
        (["revoke", "abc"], "16 digits"),
    ],
)
def test_faults(arguments, what, capsys):
    """One line, and the exit code of a fault."""
    assert main(["keys", *arguments, "--engine", "echo"]) == 2
    out, error = capsys.readouterr()
    assert out == ""
    assert error.startswith("tokenwire: ")
    assert error.count("\n") == 1
    assert what in error
