"""README.md: its Python runs, its commands exist, its links lead somewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from server.config_loading import load_config
from server.models.sources import DEFAULT_MODEL
from tests.support.server import ROOT, ServerProcess

README = (ROOT / "README.md").read_text(encoding="utf-8")
PYTHON = re.findall(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
TOML = re.findall(r"^```toml\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
SETTINGS = [text for text in TOML if "\n[models." in text]  # the others are other programs'
COMMANDS = re.findall(r"^\$ (.+?)(?:  +#.*)?$", README, re.MULTILINE)


@pytest.mark.parametrize("code", PYTHON)
def test_the_python_runs_unchanged_but_for_the_port(code: str, tmp_path: Path):
    """With the echo engine under the default model's name: what comes back is what was asked, turn by turn."""
    with ServerProcess(tmp_path, "--model", DEFAULT_MODEL) as server:
        code = code.replace("localhost:8000", f"localhost:{server.port}")
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
        assert done.stderr == ""
        assert done.stdout == "What is the capital of France?\nAnd of Italy?\n"


@pytest.mark.parametrize("settings", SETTINGS)
def test_the_settings_are_valid(settings: str, tmp_path: Path):
    file = tmp_path / "tokenwire.toml"
    file.write_text(settings)
    assert load_config({}, {}, file).models


def test_there_is_python_and_there_are_commands():
    assert len(PYTHON) == 1
    assert len(SETTINGS) == 2
    assert len(COMMANDS) > 8


def test_the_screenshot_and_every_other_file_that_is_linked_exists():
    links = re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", README)
    assert "docs/images/page.png" in links
    missing = [link for link in links if not link.startswith("http") and not (ROOT / link).exists()]
    assert missing == []


def test_every_flag_that_is_named_is_one(subtests: pytest.Subtests):
    """Of `tokenwire serve`, `keys create`, `models add` or the benchmark; lines with other programs are theirs."""
    known: set[bytes] = set()
    for words in (
        ["server", "serve"],
        ["server", "keys", "create"],
        ["server", "models", "add"],
        ["tests.benchmarks.run"],
    ):
        done = subprocess.run([sys.executable, "-m", *words, "--help"], cwd=ROOT, capture_output=True, check=True)
        known |= set(re.findall(rb"--[a-z-]+", done.stdout))
    ours = re.sub(r"^\$ (vllm|serve) .*$", "", README, flags=re.MULTILINE)
    for flag in set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", ours)):
        with subtests.test(flag):
            assert flag.encode() in known


@pytest.mark.parametrize("command", [line for line in COMMANDS if line.startswith("make ")])
def test_make_serve_hands_on_what_it_is_given(command: str):
    done = subprocess.run(["bash", "-c", f"{command} --dry-run"], cwd=ROOT, capture_output=True, text=True, check=True)
    given = re.findall(r'(MODEL|PORT|ARGS)=("[^"]*"|\S+)', command)
    flags = {"MODEL": "--model ", "PORT": "--port ", "ARGS": ""}
    shown = done.stdout.replace('"', "")
    assert "scripts/setup.sh serve" in shown
    assert "exec .venv/bin/tokenwire serve" in shown
    for name, value in given:
        assert flags[name] + value.strip('"') in shown
