"""The layers (CONTRIBUTING.md): imports run down only, never up, never sideways."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

TIERS = [
    {"protocol", "server.errors"},
    {"server.config"},
    {"server.observe"},
    {"server.engine", "server.store", "server.access"},
    {"server.models"},
    {"server.chat"},
    {"server.gateway"},
    {"server.app", "server.terminal"},
    {"server.cli"},
    {"server.__main__"},
]
# One package in several files.
SAME_UNIT = {"server.config_loading": "server.config"} | dict.fromkeys(
    ("server.cli_keys", "server.cli_models", "server.cli_chat"), "server.cli"
)
TIER = {unit: number for number, units in enumerate(TIERS) for unit in units}

CONCRETE_ENGINES = {f"server.engine.{name}" for name in ("vllm", "vllm_pooling", "echo", "openai", "triton")}
# The second is the first with another ending.
VLLM = {"server.engine.vllm", "server.engine.vllm_pooling"}
VLLM_PARTS = {f"server.engine.{name}" for name in ("parsing", "vllm_adapters", "vllm_cpu_lora", "vllm_outputs")}
CONCRETE_STORE = {"server.store.redis", "server.store.embedded"}

PROTOCOL_MAY_IMPORT = {"protocol", "orjson", "msgspec"}
NOT_SANS_IO = {"asyncio", "logging", "multiprocessing", "os", "queue", "selectors", "signal", "socket", "ssl"}
NOT_SANS_IO |= {"subprocess", "threading", "time"}

MODULES = sorted(path for folder in ("protocol", "server") for path in (ROOT / folder).rglob("*.py"))


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def unit_of(module: str) -> str:
    """`protocol`, or the package or module directly under `server`."""
    parts = module.split(".")
    unit = parts[0] if parts[0] != "server" else ".".join(parts[:2])
    return SAME_UNIT.get(unit, unit)


def imports(path: Path, source: str) -> set[str]:
    """Every module that `source` imports, wherever the import stands; `from a import b` counts as a and a.b."""
    package = module_name(path).split(".")
    if path.name != "__init__.py":
        package = package[:-1]
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            found |= {module} | {f"{module}.{alias.name}" for alias in node.names}
    return found


def faults(path: Path, source: str) -> list[str]:
    """What is wrong with the imports of the module at `path`, one line each."""
    module, imported = module_name(path), imports(path, source)
    unit = unit_of(module)
    wrong = [f"imports {name}: {why}" for name in imported if (why := crossing(unit, unit_of(name)))]
    if unit == "protocol":
        wrong += [f"imports {name}: not allowed in protocol/" for name in imported if not sans_io(name)]
    if module != "server.app":
        concrete = (CONCRETE_ENGINES - (VLLM if module in VLLM else set())) | (
            CONCRETE_STORE if unit != "server.store" else set()
        )
        wrong += [f"imports {name}: only app.py names it" for name in imported & concrete]
    if module not in VLLM | VLLM_PARTS:
        wrong += [
            f"imports {name}: only engine/vllm*.py and parsing.py may" for name in imported if top(name) == "vllm"
        ]
    return sorted(wrong)


def crossing(unit: str, other: str) -> str | None:
    """Why `unit` must not import `other`; None if it may."""
    if other == unit or other not in TIER:
        return None
    if TIER[other] > TIER[unit]:
        return "upward"
    return "sideways" if TIER[other] == TIER[unit] else None


def sans_io(name: str) -> bool:
    root = top(name)
    return root in PROTOCOL_MAY_IMPORT or (root in sys.stdlib_module_names and root not in NOT_SANS_IO)


def top(name: str) -> str:
    return name.partition(".")[0]


@pytest.mark.parametrize("path", MODULES, ids=module_name)
def test_imports_run_down_only(path):
    module = module_name(path)
    assert module == "server" or unit_of(module) in TIER, f"{module} has no place in the tiers"
    assert faults(path, path.read_text()) == []


@pytest.mark.parametrize(
    ("path", "source", "fault"),
    [
        ("server/store/x.py", "from server.chat import service", "upward"),
        ("server/store/x.py", "from ..engine.base import Chunk", "sideways"),
        ("server/store/x.py", "def f():\n    import server.access.auth", "sideways"),
        ("server/chat/x.py", "from server.engine.echo import EchoEngine", "only app.py"),
        ("server/chat/x.py", "from server.store import redis", "only app.py"),
        ("server/engine/echo.py", "import vllm.sampling_params", "only engine/vllm"),
        ("protocol/x.py", "import asyncio", "not allowed in protocol/"),
        ("protocol/x.py", "import redis", "not allowed in protocol/"),
        ("protocol/x.py", "from server import config", "upward"),
    ],
)
def test_a_wrong_import_is_found(path, source, fault):
    assert any(fault in line for line in faults(ROOT / path, source))


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("server/app.py", "from server.engine.vllm import VllmEngine\nfrom server.store.embedded import start"),
        ("server/engine/vllm.py", "import vllm\nfrom server.engine.base import Chunk"),
        ("server/store/journal.py", "from server.store.redis import Store\nimport protocol.events"),
        ("protocol/x.py", "import re, enum, orjson\nfrom . import errors"),
    ],
)
def test_a_right_import_passes(path, source):
    assert faults(ROOT / path, source) == []


def test_the_server_imports_without_vllm_and_without_the_tests_packages():
    """Two modules need vLLM, and only when an engine starts that uses them; the `dev` extra is never needed."""
    names = [module_name(path) for path in MODULES]
    names = [name for name in names if name not in {*VLLM, "server.engine.vllm_cpu_lora", "server.__main__"}]
    blocked = [
        "vllm",
        "torch",
        "transformers",
        "tokenizers",
        "jinja2",
        "numpy",
        "tritonclient",
        "grpc",
        "pytest",
        "hypothesis",
        "openai",
        "playwright",
        "jsonschema",
        "yaml",
    ]
    code = "import importlib, sys\n"
    code += f"sys.modules.update(dict.fromkeys({blocked!r}))\n"
    code += f"for name in {names!r}: importlib.import_module(name)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
