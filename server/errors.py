"""Faults that end the program before it serves, said in one line a person can act on.

StartError
└── ConfigError
"""

from __future__ import annotations

from collections.abc import Sequence


class StartError(Exception):
    """The server cannot start. The text is one line: what was wrong, where, and what to do."""


class ConfigError(StartError):
    """Settings that cannot be used.

    faults: one line per fault, each naming the key and where its value came from.
    """

    def __init__(self, faults: Sequence[str]) -> None:
        # Keys and values come from files and variables: none of their characters may break the line.
        self.faults = tuple("".join(c if c.isprintable() else ascii(c)[1:-1] for c in fault) for fault in faults)
        super().__init__("; ".join(self.faults))
