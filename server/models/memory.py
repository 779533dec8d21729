"""How much memory a model takes, guessed from its files where nobody has said it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from server.models.state import GIB

# vLLM's process with PyTorch, before any weights: 1.3 GiB resident measured on the CPU.
PROCESS_BYTES: Final = int(1.5 * GIB)
_WEIGHTS: Final = ("*.safetensors", "*.bin", "*.gguf")
_HALF: Final = frozenset({"bfloat16", "float16"})


def estimate_cpu(source: str, kvcache_gib: float, dtype: str | None) -> float | None:
    """Return bytes for a model in a folder on the CPU, where weights of 16 bits become 32 unless `dtype` says not.

    None where it cannot be known: the source is no folder.
    """
    folder = Path(source)
    weights = _weights(folder)
    if weights is None:
        return None
    if dtype in (None, "float32") and _stored_dtype(folder) in _HALF:
        weights *= 2
    return weights + kvcache_gib * GIB + PROCESS_BYTES


def _weights(folder: Path) -> int | None:
    for pattern in _WEIGHTS:  # a folder may hold the same weights in several formats: one counts
        if sizes := [file.stat().st_size for file in folder.glob(pattern)]:
            return sum(sizes)
    return None


def _stored_dtype(folder: Path) -> str:
    try:
        config = json.loads((folder / "config.json").read_bytes())
    except (OSError, ValueError):
        return ""
    return str(config.get("dtype") or config.get("torch_dtype") or "")
