"""Reads settings: flags win over TOKENWIRE_… variables, those over the TOML file, that over the defaults.

pydantic-settings reads and merges. Ours is what it does not do: it ignores variables that it does not know, and cannot
say where a value came from. So each flag and each variable is a source of its own here, with a name to put into faults.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
    TomlConfigSettingsSource,
)

from protocol.errors import excerpt
from server.config import FILE_VARIABLE, Config, CrossFaultsError, DeviceConfig, ModelConfig
from server.errors import ConfigError

VARIABLE_PREFIX: Final = "TOKENWIRE_"
NESTING: Final = "__"

# Flags whose name is not the key's.
FLAGS: Final = {
    "models": "--model",
    "echo.rate": "--echo-rate",
    "echo.ttft_ms": "--echo-ttft",
    "drain_timeout_s": "--drain-timeout",
    "auth.methods": "--auth",
    "engine_stall_timeout_s": "--engine-stall-timeout",
}
# Tables whose keys are names that people give.
TABLES: Final[Mapping[str, type[BaseModel]]] = {"models": ModelConfig, "devices": DeviceConfig}
# Values that an error text must not repeat: a Redis URL may hold a password.
SECRET_KEYS: Final = frozenset({"redis_url", "auth.jwt.secret"})

_TABLE: Final = re.compile(r"must be a valid dictionary( or instance of \w+)?")

Named = tuple[str, PydanticBaseSettingsSource]  # a flag, a variable or a file's path, and what it sets


class _Settings(BaseSettings, Config):
    """Config as pydantic-settings fills it: from the sources alone, highest first."""

    # Case counts in files; _variable_path takes it out of variables.
    model_config = SettingsConfigDict(case_sensitive=True, env_prefix=VARIABLE_PREFIX, env_nested_delimiter=NESTING)


class _VariableSource(EnvSettingsSource):
    """One variable, instead of all that the process has."""

    def __init__(self, path: Sequence[str], text: str) -> None:
        super().__init__(_Settings)
        self.env_vars = {VARIABLE_PREFIX + NESTING.join(path): text}

    def decode_complex_value(self, field_name: str, field: FieldInfo, value: Any) -> Any:
        """Tables are JSON objects, lists may be JSON; everything else is read by the schema."""
        return super().decode_complex_value(field_name, field, value) if value.startswith(("{", "[")) else value


class _FileSource(TomlConfigSettingsSource):
    """A file that must be there. The library takes one that is not, or is a pipe, for an empty one."""

    def _read_files(self, files: Any, *_: Any, **__: Any) -> dict[str, Any]:
        return self._read_file(files)


def load_config(flags: Mapping[str, Any], env: Mapping[str, str], file: Path | None) -> Config:
    """Merge the three sources and check the result.

    flags: values by dotted key; None means not given. `models` replaces the models of file and variables.
    env: the process environment; only TOKENWIRE_… is read. An empty variable counts as not set.
    file: a TOML file; None for no file.

    Raises ConfigError with one line per fault.
    """
    faults: list[str] = []
    sources = [*_flag_sources(flags), *_variable_sources(env, faults)]
    if file is not None:
        sources.append((str(file), _file_source(file)))
    try:
        config = _merge([source for _, source in sources])
    except ValidationError as error:
        origins = {key: origin for origin, source in reversed(sources) for key in _keys(source())}
        faults += [line for detail in error.errors() for line in _explain(detail, origins)]
        raise ConfigError(faults) from None
    if faults:
        raise ConfigError(faults)
    return config


def setting_keys(model: type[BaseModel] = Config, prefix: str = "") -> Iterator[str]:
    """Every dotted key of the schema; a model's settings are under `models.NAME`, a device's under `devices.NAME`."""
    for name, field in model.model_fields.items():
        key = prefix + name
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from setting_keys(field.annotation, f"{key}.")
        else:
            yield key
            if key in TABLES:
                yield from setting_keys(TABLES[key], f"{key}.NAME.")


def _merge(sources: Sequence[PydanticBaseSettingsSource]) -> Config:
    class Settings(_Settings):
        @classmethod
        def settings_customise_sources(cls, *_: Any, **__: Any) -> tuple[PydanticBaseSettingsSource, ...]:
            return tuple(sources)

    settings = Settings()
    # Checked already; what the rest of the program gets is a Config and nothing more.
    return Config.model_construct(settings.model_fields_set, **dict(settings))


def _flag_sources(flags: Mapping[str, Any]) -> Iterator[Named]:
    given = {key: value for key, value in flags.items() if value is not None}
    if "models" in given:
        # A proxy is no dict: it replaces the models below instead of joining them, and with them the default.
        given = {"default_model": "", **given, "models": MappingProxyType(given["models"])}
    for key, value in given.items():
        tree = value
        for part in reversed(key.split(".")):
            tree = {part: tree}
        yield FLAGS.get(key) or "--" + key.replace("_", "-"), InitSettingsSource(_Settings, tree)


def _variable_sources(env: Mapping[str, str], faults: list[str]) -> Iterator[Named]:
    """Yield a source for each variable; unknown names and broken JSON go to `faults`."""
    # TOKENWIRE_MODELS__a__SOURCE comes before TOKENWIRE_MODELS, and wins.
    for name in sorted(env, reverse=True):
        if not name.startswith(VARIABLE_PREFIX) or name == FILE_VARIABLE or not env[name]:
            continue
        path = _variable_path(name)
        if not _is_known(path):
            faults.append(f"{name}: no such setting{_suggest(name, map(_variable_name, setting_keys()))}")
            continue
        source = _VariableSource(path, env[name])
        try:
            source()
        except SettingsError as error:
            faults.append(f"{name}: is not JSON: {error.__cause__}")
        else:
            yield name, source


def _variable_path(name: str) -> list[str]:
    """The key of a variable: lower case, except for a model's or a device's name, which is kept as written."""
    parts = name.removeprefix(VARIABLE_PREFIX).split(NESTING)
    lowered = [part.lower() for part in parts]
    return [lowered[0], parts[1], *lowered[2:]] if lowered[0] in TABLES and len(parts) > 1 else lowered


def _is_known(path: Sequence[str]) -> bool:
    """Whether there is such a setting or such a table."""
    key = ".".join([path[0], "NAME", *path[2:]] if path[0] in TABLES and len(path) > 1 else path)
    return any(f"{known}.".startswith(f"{key}.") for known in setting_keys())


def _variable_name(key: str) -> str:
    return VARIABLE_PREFIX + key.replace(".", NESTING).upper()


def _file_source(file: Path) -> PydanticBaseSettingsSource:
    try:
        return _FileSource(_Settings, file)
    except FileNotFoundError:
        raise ConfigError([f"{file}: no such file; check --config (or {FILE_VARIABLE})"]) from None
    except OSError as error:
        raise ConfigError([f"{file}: cannot be read: {error.strerror}"]) from None
    except ValueError as error:  # TOML or UTF-8
        raise ConfigError([f"{file}: is not TOML: {error}"]) from None


def _keys(table: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Every dotted key of a table, and of the tables in it."""
    for key, value in table.items():
        yield prefix + key
        if isinstance(value, Mapping):
            yield from _keys(value, f"{prefix}{key}.")


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
        message = _TABLE.sub("must be a table", message.replace("String should", "must"))
        given = "" if key in SECRET_KEYS else f", not {excerpt(repr(detail['input']), 60)}"
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
    if parts[0] not in TABLES or len(parts) == 1:
        return _suggest(".".join(parts), setting_keys())
    return _suggest(".".join(parts), setting_keys(TABLES[parts[0]], f"{parts[0]}.{parts[1]}."))


def _suggest(name: str, known: Iterable[str]) -> str:
    nearest = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"; did you mean {nearest[0]}?" if nearest else "; tokenwire.example.toml lists them all"
