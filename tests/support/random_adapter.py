"""A LoRA adapter with random weights for the random model (or one that does not fit it), as peft saves it."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.random_model import HIDDEN

KEY_VALUE = HIDDEN // 2  # two of four heads


def make_random_adapter(folder: Path, *, seed: int, rank: int = 8, hidden: int = HIDDEN, layers: int = 2) -> Path:
    """Save the adapter into `folder` and return it. hidden: the model's size that it is for."""
    import numpy as np
    from safetensors.numpy import save_file

    random = np.random.default_rng(seed)
    weights = {}
    for layer in range(layers):
        for name, out in (("q_proj", hidden), ("v_proj", KEY_VALUE), ("o_proj", hidden)):
            prefix = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            weights[f"{prefix}.lora_A.weight"] = random.normal(size=(rank, hidden)).astype(np.float32)
            weights[f"{prefix}.lora_B.weight"] = random.normal(size=(out, rank)).astype(np.float32)
    folder.mkdir(parents=True)
    save_file(weights, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": 4 * rank, "bias": "none"}
    config["target_modules"] = ["q_proj", "v_proj", "o_proj"]
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder
