"""LoRA adapters as peft saves them: what a folder holds, and whether it fits a model, before any engine sees it.

vLLM takes an adapter of smaller matrices than the model's, or for layers that the model does not have, without a word,
and answers as if nothing was wrong.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from server.engine.base import EngineStartError, VllmSettings

RANKS: Final = (8, 16, 32, 64, 128, 256, 320, 512)  # that vLLM makes room for
WEIGHTS: Final = "adapter_model.safetensors"
DEFAULT_RANK: Final = 16  # vLLM's own, where nobody says another
_MAX_HEADER_BYTES: Final = 100 * 2**20  # the safetensors library's own limit
_MATRIX: Final = re.compile(r"base_model\.model\.(?P<module>.+)\.lora_(embedding_)?(?P<side>[AB])(\.weight)?")

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Adapter:
    """folder: absolute. rank: the highest in it. matrices: shapes of A and B by the name of the module they change."""

    folder: str
    rank: int
    matrices: Mapping[str, Mapping[str, Shape]]


def read_adapter(folder: str) -> Adapter:
    """Read what a folder says of itself; the weights stay where they are.

    Raises EngineStartError where it holds no LoRA adapter, or a damaged one.
    """
    path = Path(folder).expanduser().absolute()
    try:
        rank = _rank(path)
        shapes = _shapes(path / WEIGHTS)
    except FileNotFoundError as error:
        name = Path(error.filename).name
        text = f"adapter folder {folder!r} holds no {name}: give the folder of a LoRA adapter as peft saves it"
        raise EngineStartError(text) from None
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise EngineStartError(f"adapter folder {folder!r} holds a damaged adapter: {error}") from None
    matrices: dict[str, dict[str, Shape]] = {}
    for name, shape in shapes.items():
        if match := _MATRIX.fullmatch(name):
            matrices.setdefault(match["module"], {})[match["side"]] = shape
    if not matrices:
        raise EngineStartError(f"adapter folder {folder!r}: {WEIGHTS} holds no LoRA matrices")
    return Adapter(str(path), rank, matrices)


def _rank(path: Path) -> int:
    config: Any = json.loads((path / "adapter_config.json").read_text("utf-8"))
    kind = config.get("peft_type", "LORA")
    if kind != "LORA":
        raise ValueError(f"its peft_type is {kind}, not LORA")
    ranks: list[Any] = [config.get("r"), *(config.get("rank_pattern") or {}).values()]
    if not all(isinstance(rank, int) and rank > 0 for rank in ranks):
        raise ValueError("adapter_config.json names no rank r above 0")
    return int(max(ranks))


def _shapes(file: Path) -> dict[str, Shape]:
    """Return the shapes in a safetensors file, from its header: 8 bytes of length, then JSON."""
    with file.open("rb") as opened:
        size = int.from_bytes(opened.read(8), "little")
        if not 0 < size <= min(_MAX_HEADER_BYTES, file.stat().st_size - 8):
            raise ValueError(f"{file.name} is cut off")
        header: dict[str, Any] = json.loads(opened.read(size))
    header.pop("__metadata__", None)
    ends = [entry["data_offsets"][1] for entry in header.values()]
    if 8 + size + max(ends, default=0) != file.stat().st_size:
        raise ValueError(f"{file.name} is cut off")
    return {name: tuple(entry["shape"]) for name, entry in header.items()}


def room_for(rank: int) -> int:
    """Return the smallest rank of vLLM's that an adapter of this rank fits in."""
    return next((room for room in RANKS if room >= rank), RANKS[-1])


def misfit(adapter: Adapter, settings: VllmSettings, modules: Mapping[str, tuple[int, int]] | None) -> str | None:
    """Return why an engine cannot take the adapter, or None where it can.

    The reasons are that (1) it takes none, (2) the rank is too high, (3) a part of the model is not there, (4) or has
    other sizes, (5) A and B do not fit each other.

    modules: how many numbers go into and come out of each part of the model, by its name in transformers; None where
    that is not known.
    """
    if settings.max_loras is None:  # 1
        return "the base model was started without room for adapters; set its max_loras"
    if adapter.rank > (most := settings.max_lora_rank or DEFAULT_RANK):  # 2
        return f"its rank is {adapter.rank}, and the base model takes {most}; set the base model's max_lora_rank"
    for name, sides in adapter.matrices.items():
        if modules is not None and name not in modules:  # 3
            return f"it changes {name}, which the model does not have"
        a, b = sides.get("A", ()), sides.get("B", ())
        if modules is not None and (a[1:], b[:1]) != ((modules[name][0],), (modules[name][1],)):  # 4
            takes, gives = modules[name]
            return f"its {name} is {_size(a[1:])} by {_size(b[:1])}, and the model's {takes} by {gives}"
        if a[:1] != b[1:2] or a[:1] > (adapter.rank,):  # 5
            ranks = f"{_size(a[:1])} and {_size(b[1:2])}"
            return f"the matrices of its {name} have the ranks {ranks}, and its settings say {adapter.rank}"
    return None


def _size(sizes: Shape) -> str:
    return " by ".join(map(str, sizes)) or "missing"
