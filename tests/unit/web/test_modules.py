"""The page's own checks, run from here so that one command runs everything."""

import os
import shutil
import subprocess
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
# Where the set-up puts Node programs and, on a machine without Node, Node itself.
SEARCH = os.pathsep.join([str(ROOT / ".tools/node_modules/.bin"), str(ROOT / ".venv/bin"), os.environ.get("PATH", "")])


def program(name: str) -> str:
    found = shutil.which(name, path=SEARCH)
    assert found, f"{name} is missing: `make setup-dev` installs it (scripts/setup.sh)"
    return found


def run(*command: str) -> None:
    environment = {**os.environ, "PATH": SEARCH}
    done = subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True, timeout=120, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr


def test_client_and_state_in_node():
    """Every *.test.mjs beside this file passes."""
    run(program("node"), "--test", *(str(file) for file in sorted(HERE.glob("*.test.mjs"))))


def test_types_hold():
    """The JSDoc types of the page's modules agree with each other."""
    run(program("tsc"), "--project", str(HERE / "tsconfig.json"))


def test_content_enters_the_page_only_as_text():
    """No module of the page has a way to turn a string into markup or code (cases, row 24)."""
    forbidden = ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function", "alert(")
    for module in sorted((ROOT / "web").glob("*.js")):
        text = module.read_text()
        assert [word for word in forbidden if word in text] == [], module.name
