"""The Node programs that tests run."""

import os
import shutil

from tests.support.server import ROOT

# Where the set-up puts them and, on a machine without Node, Node itself.
PROGRAMS = os.pathsep.join([f"{ROOT}/.tools/node_modules/.bin", f"{ROOT}/.venv/bin", os.environ.get("PATH", "")])


def program(name: str) -> str:
    """Return where a program is that the set-up installs."""
    found = shutil.which(name, path=PROGRAMS)
    assert found, f"{name} is missing: `make setup-dev` installs it (scripts/setup.sh)"
    return found
