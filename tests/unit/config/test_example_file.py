"""tokenwire.example.toml is the documentation of every setting: it must be complete and true."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from server.config import Config
from server.config_loading import TABLES, load_config, setting_keys

EXAMPLE = Path(__file__).resolve().parents[3] / "tokenwire.example.toml"
TEXT = EXAMPLE.read_text(encoding="utf-8")
UNCOMMENTED = re.sub(r"^#(?=[\[a-z])", "", TEXT, flags=re.MULTILINE)
SHOWN: dict[str, Any] = tomllib.loads(UNCOMMENTED)
REQUIRED = {"models.NAME.source", "devices.NAME.memory_gib"}


def shown(key: str) -> Any:
    """The value that the file shows for a dotted key."""
    value: Any = SHOWN
    for part in key.replace("models.NAME", "models.my-model").replace("devices.NAME", "devices.gpu0").split("."):
        value = value[part]
    return value


def default(key: str) -> Any:
    """The schema's default."""
    table, is_named, rest = key.partition(".NAME.")
    model: type[BaseModel] = TABLES[table] if is_named else Config
    *tables, name = (rest if is_named else key).split(".")
    for table in tables:
        annotation = model.model_fields[table].annotation
        assert isinstance(annotation, type)
        model = annotation
    return model.model_fields[name].get_default(call_default_factory=True)


def test_it_loads_as_it_is():
    """Unchanged, the file means the defaults."""
    assert load_config({}, {}, EXAMPLE) == Config()


def test_it_loads_with_everything_switched_on(tmp_path):
    """Every line is a valid setting, also all together."""
    file = tmp_path / "all.toml"
    file.write_text(UNCOMMENTED.replace('base = "my-base-model"\n', ""))  # which this file does not have
    assert list(load_config({}, {}, file).models) == ["my-model"]


def test_it_shows_nothing_else():
    """No key is shown that the schema does not have."""

    def flat(table: dict[str, Any], prefix: str = "") -> set[str]:
        found = set()
        for key, value in table.items():
            found |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key}
        return found

    assert {key.replace("my-model", "NAME").replace("gpu0", "NAME") for key in flat(SHOWN)} == set(
        setting_keys()
    ) - set(TABLES)


@pytest.mark.parametrize("key", sorted(set(setting_keys()) - set(TABLES) - REQUIRED))
def test_it_shows_the_default(key):
    """The value shown is the schema's default; where that is None, a comment above says what unset means."""
    expected = default(key)
    if expected is not None:
        assert shown(key) == (list(expected) if isinstance(expected, tuple) else type(shown(key))(expected))
    elif key != "redis_url":
        line = next(n for n, text in enumerate(lines()) if text.startswith(f"#{key.rpartition('.')[2]} ="))
        above = "".join(lines()[max(0, line - 10) : line])
        assert "Unset:" in above


def lines() -> list[str]:
    return TEXT.splitlines()


@pytest.mark.parametrize("key", sorted(key for key in setting_keys() if key.partition(".")[0] not in TABLES))
def test_it_shows_the_lower_bound(key):
    """The comment above a number names its lowest value."""
    model: type[BaseModel] = Config
    *tables, name = key.split(".")
    for table in tables:
        model = model.model_fields[table].annotation  # type: ignore[assignment]  # tables are models
    section = TEXT.split(f"\n[{tables[0]}]")[1] if tables else TEXT
    comment = section.split(f"\n#{name} =")[0].rpartition("\n#")[2]
    schema = model.model_json_schema()["properties"][name]
    for part in (schema, *schema.get("anyOf", [])):
        if "minimum" in part:
            low = part["minimum"]
            assert f"minimum {low:g}" in comment or f"{low:g} to " in comment
        if "exclusiveMinimum" in part:
            assert f"more than {part['exclusiveMinimum']:g}" in comment
