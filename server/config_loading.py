"""Reads settings: flags win over TOKENWIRE_… variables, those over the TOML file, that over the defaults."""

from __future__ import annotations

import difflib
import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, ValidationError

from protocol.errors import excerpt
from server.config import Config, CrossFaultsError, ModelConfig
from server.errors import ConfigError

VARIABLE_PREFIX: Final = "TOKENWIRE_"
FILE_VARIABLE: Final = "TOKENWIRE_CONFIG"  # the file's path: read by the command line, not a setting itself
NESTING: Final = "__"

# Flags whose name is not the key's.
FLAGS: Final = {
    "models": "--model",
    "echo.rate": "--echo-rate",
    "echo.ttft_ms": "--echo-ttft",
    "drain_timeout_s": "--drain-timeout",
}
# Values that an error text must not repeat: a Redis URL may hold a password.
SECRET_KEYS: Final = frozenset({"redis_url"})

Tree = dict[str, Any]


def load_config(flags: Mapping[str, Any], env: Mapping[str, str], file: Path | None) -> Config:
    """Merge the three sources and check the result.

    flags: values by dotted key; None means not given. `models` replaces the models of file and variables.
    env: the process environment; only TOKENWIRE_… is read. An empty variable counts as not set.
    file: a TOML file; None for no file.

    Raises ConfigError with one line per fault.
    """
    tree: Tree = {}
    origins: dict[str, str] = {}
    faults: list[str] = []
    if file is not None:
        _merge(tree, _read_file(file), origins, str(file))
    for name, path, value in _read_variables(env, faults):
        _merge(tree, _nest(path, value), origins, name)
    for key, value in flags.items():
        if value is not None:
            _apply_flag(tree, key, value, flags)
            origins[key] = _flag_name(key)
    try:
        config = Config.model_validate(tree)
    except ValidationError as error:
        faults += [line for detail in error.errors() for line in _explain(detail, origins)]
        raise ConfigError(faults) from None
    if faults:
        raise ConfigError(faults)
    return config


def setting_keys(model: type[BaseModel] = Config, prefix: str = "") -> Iterator[str]:
    """Every dotted key of the schema; a model's settings are under `models.NAME`."""
    for name, field in model.model_fields.items():
        key = prefix + name
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from setting_keys(field.annotation, f"{key}.")
        else:
            yield key
            if key == "models":
                yield from setting_keys(ModelConfig, "models.NAME.")


def _read_file(file: Path) -> Tree:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError([f"{file}: no such file; check --config (or {FILE_VARIABLE})"]) from None
    except OSError as error:
        raise ConfigError([f"{file}: cannot be read: {error.strerror}"]) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError([f"{file}: is not TOML: {error}"]) from None


def _read_variables(env: Mapping[str, str], faults: list[str]) -> Iterator[tuple[str, list[str], Any]]:
    """Yield (variable, key parts, value); unknown names and broken JSON go to `faults`."""
    known = set(setting_keys())
    sections = {key.rpartition(".")[0] for key in known} - {""}
    for name in sorted(env):
        if not name.startswith(VARIABLE_PREFIX) or name == FILE_VARIABLE or not env[name]:
            continue
        path = _variable_path(name)
        key = ".".join([path[0], "NAME", *path[2:]] if path[0] == "models" and len(path) > 1 else path)
        if key not in known and key not in sections:
            faults.append(f"{name}: no such setting{_suggest(name, map(_variable_name, known))}")
            continue
        try:
            yield name, path, _variable_value(key, env[name])
        except ValueError as error:
            faults.append(f"{name}: is not JSON: {error}")


def _variable_path(name: str) -> list[str]:
    """The key of a variable: lower case, except for a model's name, which is kept as written."""
    parts = name.removeprefix(VARIABLE_PREFIX).split(NESTING)
    lowered = [part.lower() for part in parts]
    return [lowered[0], parts[1], *lowered[2:]] if lowered[0] == "models" and len(parts) > 1 else lowered


def _variable_name(key: str) -> str:
    return VARIABLE_PREFIX + key.replace(".", NESTING).upper()


def _variable_value(key: str, text: str) -> Any:
    """Tables are JSON objects in a variable, lists may be JSON; everything else is read by the schema."""
    return json.loads(text) if text.startswith(("{", "[")) and key != "models.NAME.system_prompt" else text


def _nest(path: list[str], value: Any) -> Tree:
    for part in reversed(path):
        value = {part: value}
    return value  # type: ignore[no-any-return]  # a path has at least one part


def _merge(tree: Tree, layer: Tree, origins: dict[str, str], origin: str, prefix: str = "") -> None:
    """Put `layer` over `tree`, table by table, and note where each value came from."""
    for key, value in layer.items():
        dotted = prefix + key
        origins[dotted] = origin
        if isinstance(value, dict):
            below = tree.get(key)
            tree[key] = dict(below) if isinstance(below, dict) else {}
            _merge(tree[key], value, origins, origin, f"{dotted}.")
        else:
            tree[key] = value


def _apply_flag(tree: Tree, key: str, value: Any, flags: Mapping[str, Any]) -> None:
    table, _, name = key.rpartition(".")
    target = tree.setdefault(table, {}) if table else tree
    if isinstance(target, dict):
        target[name] = value
    if key == "models" and flags.get("default_model") is None:
        tree.pop("default_model", None)  # it named one of the models that were just replaced


def _flag_name(key: str) -> str:
    return FLAGS.get(key) or "--" + key.replace("_", "-")


def _explain(detail: Any, origins: Mapping[str, str]) -> Iterator[str]:
    """One line for each fault that pydantic found."""
    key = ".".join(str(part) for part in detail["loc"])
    together = detail.get("ctx", {}).get("error")
    if isinstance(together, CrossFaultsError):
        yield from (f"{_where(key, origins)}: {text}" for key, text in together.faults)
    elif detail["type"] == "extra_forbidden":
        yield f"{_where(key, origins)}: no such key{_suggest_key(detail['loc'])}"
    elif detail["type"] == "missing":
        yield f"{_where(key, origins)}: is missing and has no default; set it"
    else:
        message = str(detail["msg"]).removeprefix("Value error, ").replace("Input should be", "must be")
        given = "" if key.split(".")[0] in SECRET_KEYS else f", not {excerpt(repr(detail['input']), 60)}"
        yield f"{_where(key, origins)}: {message}{given}"


def _where(key: str, origins: Mapping[str, str]) -> str:
    """The key and the file, variable or flag that set it (or the table around it)."""
    parts = key.split(".")
    for length in range(len(parts), 0, -1):
        origin = origins.get(".".join(parts[:length]))
        if origin is not None:
            return f"{key} ({origin})"
    return key


def _suggest_key(path: Sequence[str | int]) -> str:
    parts = [str(part) for part in path]
    if parts[0] != "models" or len(parts) == 1:
        return _suggest(".".join(parts), setting_keys())
    return _suggest(".".join(parts), setting_keys(ModelConfig, f"models.{parts[1]}."))


def _suggest(name: str, known: Iterator[str] | map[str]) -> str:
    nearest = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"; did you mean {nearest[0]}?" if nearest else "; tokenwire.example.toml lists them all"
