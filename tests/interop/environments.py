"""An environment for each client, with exactly the versions that the suite names: .tools/interop/NAME."""

from __future__ import annotations

import importlib.metadata
import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.e2e.programs import program
from tests.support.server import ROOT

ENVIRONMENTS = ROOT / ".tools" / "interop"
INSTALL_S = 600


class InstallError(Exception):
    """A client could not be installed; the message has the last lines of its installer."""


@dataclass(frozen=True)
class PythonPackages:
    """Packages from PyPI in a virtual environment of their own.

    requirements: `name[extra]==version`; the first one's version is the client's.
    """

    name: str
    requirements: tuple[str, ...]

    @property
    def folder(self) -> Path:
        return ENVIRONMENTS / self.name

    @property
    def python(self) -> str:
        return str(self.folder / "bin" / "python")

    def program(self, name: str) -> str:
        return str(self.folder / "bin" / name)

    def install(self) -> None:
        """Make the environment, unless it is there. Raises InstallError."""
        with _Unfinished(self.folder, self.requirements) as missing:
            if missing:
                _run([sys.executable, "-m", "venv", str(self.folder)])
                pip = [self.python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
                _run([*pip, *self.requirements])

    def versions(self) -> str:
        """Return what is installed, client first."""
        script = "import importlib.metadata as m, sys; print(', '.join(f'{n} {m.version(n)}' for n in sys.argv[1:]))"
        return subprocess.check_output([self.python, "-c", script, *map(_bare, self.requirements)], text=True).strip()


class OwnPython(PythonPackages):
    """The tests' own environment, where the client is installed anyway."""

    @property
    def python(self) -> str:
        return sys.executable

    def program(self, name: str) -> str:
        return str(Path(sys.executable).with_name(name))

    def install(self) -> None:
        """Nothing to do: `make setup-dev` did it."""

    def versions(self) -> str:
        return ", ".join(f"{name} {importlib.metadata.version(name)}" for name in map(_bare, self.requirements))


@dataclass(frozen=True)
class NodePackages:
    """Packages from npm, in a folder of their own. packages: `name@version`; the first one is the client."""

    name: str
    packages: tuple[str, ...]

    @property
    def folder(self) -> Path:
        return ENVIRONMENTS / self.name

    @property
    def node(self) -> str:
        return program("node")

    def program(self, name: str) -> str:
        return str(self.folder / "node_modules" / ".bin" / name)

    def install(self) -> None:
        """Make the folder, unless it is there. Raises InstallError."""
        with _Unfinished(self.folder, self.packages) as missing:
            if missing:
                npm = [program("npm"), "install", "--silent", "--no-audit", "--no-fund", "--prefix", str(self.folder)]
                _run([*npm, *self.packages])

    def versions(self) -> str:
        """Return what is installed, client first."""
        return ", ".join(f"{name} {self._version(name)}" for name in (p.rpartition("@")[0] for p in self.packages))

    def _version(self, name: str) -> str:
        manifest = self.folder / "node_modules" / name / "package.json"
        return str(json.loads(manifest.read_text("utf-8"))["version"])


class SharedTools(NodePackages):
    """What `make setup-dev` installs into .tools itself."""

    @property
    def folder(self) -> Path:
        return ROOT / ".tools"

    def install(self) -> None:
        """Nothing to do: `make setup-dev` did it."""


Environment = PythonPackages | NodePackages


class _Unfinished:
    """Tells whether a folder must be made; afterwards it is known to be whole. What was begun is made anew."""

    def __init__(self, folder: Path, wanted: tuple[str, ...]) -> None:
        self._folder = folder
        self._stamp = folder / ".ready"
        self._wanted = "\n".join([sys.version, *wanted])

    def __enter__(self) -> bool:
        missing = not self._stamp.exists() or self._stamp.read_text("utf-8") != self._wanted
        if missing:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder.mkdir(parents=True)
        return missing

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._stamp.write_text(self._wanted, "utf-8")


def _bare(requirement: str) -> str:
    return requirement.partition("==")[0].partition("[")[0]


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_S, check=False)
    if done.returncode:
        tail = (done.stdout + done.stderr).strip().splitlines()[-5:]
        raise InstallError(f"{' '.join(command[:4])} … ended with status {done.returncode}:\n" + "\n".join(tail))
