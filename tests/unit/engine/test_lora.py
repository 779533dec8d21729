"""What an adapter's folder says of it, and whether it fits, before any engine sees it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from server.engine.base import EngineStartError, VllmSettings
from server.engine.lora import WEIGHTS, Adapter, misfit, read_adapter, room_for

SETTINGS = VllmSettings(max_loras=1, max_lora_rank=16)
MODULES = {"layers.0.q_proj": (128, 64)}
SHAPES = {"A": (8, 128), "B": (64, 8)}


def folder(path: Path, config: object, weights: bytes | None) -> str:
    (path / "adapter_config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    if weights is not None:
        (path / WEIGHTS).write_bytes(weights)
    return str(path)


def safetensors(**shapes: list[int]) -> bytes:
    """Return a file with such tensors, all of zeros, as the format has it."""
    header, end = {}, 0
    for name, shape in shapes.items():
        begin, end = end, end + 4 * shape[0] * shape[1]
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    return len(text).to_bytes(8, "little") + text + bytes(end)


PREFIX = "base_model.model.layers.0.q_proj"
GOOD = safetensors(**{f"{PREFIX}.lora_A.weight": [8, 128], f"{PREFIX}.lora_B.weight": [64, 8]})


def test_a_folder_tells_its_rank_and_its_shapes(tmp_path: Path) -> None:
    """Without reading the weights; the rank is the highest of any module's."""
    adapter = read_adapter(folder(tmp_path, {"peft_type": "LORA", "r": 8, "rank_pattern": {"q_proj": 12}}, GOOD))
    assert adapter == Adapter(str(tmp_path), 12, {"layers.0.q_proj": SHAPES})


def test_vllm_has_room_for_some_ranks() -> None:
    """The next one that is at least as high."""
    assert [room_for(rank) for rank in (1, 8, 12, 16, 300, 512)] == [8, 8, 16, 16, 320, 512]


@pytest.mark.parametrize(
    ("config", "weights", "text"),
    [
        ("{", GOOD, "damaged"),
        ([1], GOOD, "damaged"),
        ({"peft_type": "LORA"}, GOOD, "names no rank r above 0"),
        ({"r": 0}, GOOD, "names no rank r above 0"),
        ({"r": "8"}, GOOD, "names no rank r above 0"),
        ({"peft_type": "IA3", "r": 8}, GOOD, "its peft_type is IA3, not LORA"),
        ({"r": 8}, None, "holds no adapter_model.safetensors"),
        ({"r": 8}, b"", "is cut off"),
        ({"r": 8}, GOOD[:-1], "is cut off"),
        ({"r": 8}, b"\xff" * 16, "is cut off"),
        ({"r": 8}, safetensors(x=[1, 1]), "holds no LoRA matrices"),
    ],
)
def test_what_is_no_adapter_is_told(tmp_path: Path, config: object, weights: bytes | None, text: str) -> None:
    """In one line."""
    with pytest.raises(EngineStartError, match=text):
        read_adapter(folder(tmp_path, config, weights))


@pytest.mark.parametrize("name", ["nowhere", "."])
def test_a_folder_without_an_adapter_is_told(tmp_path: Path, name: str) -> None:
    """By what it lacks."""
    with pytest.raises(EngineStartError, match=r"holds no adapter_config\.json: give the folder"):
        read_adapter(str(tmp_path / name))


@pytest.mark.parametrize(
    ("rank", "shapes", "modules", "text"),
    [
        (32, SHAPES, MODULES, "its rank is 32, and the base model takes 16; set the base model's max_lora_rank"),
        (8, SHAPES, {"layers.0.k_proj": (128, 64)}, "it changes layers.0.q_proj, which the model does not have"),
        (8, {"A": (8, 64), "B": (64, 8)}, MODULES, "its layers.0.q_proj is 64 by 64, and the model's 128 by 64"),
        (8, {"A": (8, 128), "B": (128, 8)}, MODULES, "its layers.0.q_proj is 128 by 128, and the model's 128 by 64"),
        (8, {"A": (8, 128)}, MODULES, "its layers.0.q_proj is 128 by missing"),
        (8, {"A": (8, 128), "B": (64, 4)}, MODULES, "q_proj have the ranks 8 and 4, and its settings say 8"),
        (4, SHAPES, MODULES, "q_proj have the ranks 8 and 8, and its settings say 4"),
        (4, SHAPES, None, "q_proj have the ranks 8 and 8, and its settings say 4"),
    ],
)
def test_what_does_not_fit_is_told(rank: int, shapes: Any, modules: Any, text: str) -> None:
    """By its part, with both sizes."""
    assert text in (misfit(Adapter("/a", rank, {"layers.0.q_proj": shapes}), SETTINGS, modules) or "")


def test_what_fits() -> None:
    """Also where the model's parts are not known; an engine without room for adapters takes none."""
    adapter = Adapter("/a", 8, {"layers.0.q_proj": SHAPES})
    assert misfit(adapter, SETTINGS, MODULES) is None
    assert misfit(adapter, SETTINGS, None) is None
    assert "set its max_loras" in (misfit(adapter, VllmSettings(), MODULES) or "")
