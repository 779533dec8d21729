"""What an adapter's folder says of it, before any engine sees it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from server.engine.base import EngineStartError, VllmSettings
from server.engine.lora import adapter_rank, check_adapter, room_for


def adapter(folder: Path, config: object, weights: str = "adapter_model.safetensors") -> str:
    (folder / "adapter_config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    if weights:
        (folder / weights).touch()
    return str(folder)


def test_the_rank_is_in_its_configuration(tmp_path: Path) -> None:
    """And vLLM has room for a rank that is at least as high."""
    assert adapter_rank(adapter(tmp_path, {"peft_type": "LORA", "r": 12})) == 12
    assert [room_for(rank) for rank in (1, 8, 12, 16, 300, 512)] == [8, 8, 16, 16, 320, 512]


@pytest.mark.parametrize(
    ("config", "weights", "text"),
    [
        ("{", "adapter_model.safetensors", "damaged or names no rank"),
        ({"peft_type": "LORA"}, "adapter_model.safetensors", "names no rank"),
        ([1], "adapter_model.safetensors", "damaged"),
        ({"peft_type": "IA3", "r": 8}, "adapter_model.safetensors", "holds IA3, not LORA"),
        ({"r": 8}, "", "holds no weights"),
    ],
)
def test_what_is_no_adapter_is_told(tmp_path: Path, config: object, weights: str, text: str) -> None:
    """In one line."""
    with pytest.raises(EngineStartError, match=text):
        adapter_rank(adapter(tmp_path, config, weights))


def test_a_folder_without_an_adapter_is_told(tmp_path: Path) -> None:
    """By its name."""
    with pytest.raises(EngineStartError, match="holds no adapter_config"):
        adapter_rank(str(tmp_path))


def test_a_base_must_have_room(tmp_path: Path) -> None:
    """For adapters at all, and for their rank."""
    folder = adapter(tmp_path, {"r": 64})
    with pytest.raises(EngineStartError, match="set the base model's max_loras"):
        check_adapter(folder, VllmSettings())
    with pytest.raises(EngineStartError, match="rank is 64, its base model takes 16"):
        check_adapter(folder, VllmSettings(max_loras=1))
    check_adapter(folder, VllmSettings(max_loras=1, max_lora_rank=64))
