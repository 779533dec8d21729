"""LoRA adapters as peft saves them: a folder with adapter_config.json and weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from server.engine.base import EngineStartError, VllmSettings

RANKS: Final = (8, 16, 32, 64, 128, 256, 320, 512)  # that vLLM makes room for
WEIGHTS: Final = ("adapter_model.safetensors", "adapter_model.bin", "adapter_model.pt")
DEFAULT_RANK: Final = 16  # vLLM's own, where nobody says another


def adapter_rank(folder: str) -> int:
    """Return an adapter's rank. Raises EngineStartError where the folder holds no LoRA adapter."""
    path = Path(folder).expanduser()
    try:
        config: Any = json.loads((path / "adapter_config.json").read_text("utf-8"))
        rank = config["r"]
    except FileNotFoundError:
        raise EngineStartError(
            f"adapter folder {folder!r} holds no adapter_config.json: it is no LoRA adapter"
        ) from None
    except (OSError, ValueError, TypeError, KeyError):
        raise EngineStartError(
            f"adapter folder {folder!r}: adapter_config.json is damaged or names no rank r"
        ) from None
    if config.get("peft_type", "LORA") != "LORA" or not isinstance(rank, int):
        raise EngineStartError(f"adapter folder {folder!r} holds {config.get('peft_type')}, not LORA")
    if not any((path / name).is_file() for name in WEIGHTS):
        raise EngineStartError(f"adapter folder {folder!r} holds no weights ({WEIGHTS[0]})")
    return rank


def room_for(rank: int) -> int:
    """Return the smallest rank of vLLM's that an adapter of this rank fits in."""
    return next((room for room in RANKS if room >= rank), RANKS[-1])


def check_adapter(folder: str, settings: VllmSettings) -> None:
    """Raise EngineStartError where an engine with these settings cannot take the adapter."""
    if settings.max_loras is None:
        raise EngineStartError("its base model was started without adapters: set the base model's max_loras")
    rank, most = adapter_rank(folder), settings.max_lora_rank or DEFAULT_RANK
    if rank > most:
        raise EngineStartError(f"the adapter's rank is {rank}, its base model takes {most}: set its max_lora_rank")
