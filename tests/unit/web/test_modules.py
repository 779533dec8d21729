"""The page's own checks, run from here so that one command runs everything."""

import os
import subprocess
from pathlib import Path

from tests.e2e.programs import PROGRAMS, program
from tests.support.server import ROOT

HERE = Path(__file__).parent


def run(*command: str) -> None:
    environment = {**os.environ, "PATH": PROGRAMS}
    done = subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True, timeout=120, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr


def test_client_and_state_in_node():
    """Every *.test.mjs beside this file passes."""
    run(program("node"), "--test", *(str(file) for file in sorted(HERE.glob("*.test.mjs"))))


def test_content_enters_the_page_only_as_text():
    """No module of the page has a way to turn a string into markup or code."""
    forbidden = ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function", "alert(")
    for module in sorted((ROOT / "web").glob("*.js")):
        text = module.read_text()
        assert [word for word in forbidden if word in text] == [], module.name
