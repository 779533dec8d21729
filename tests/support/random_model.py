"""A random two-layer Llama with a real tokenizer: real vLLM at load-test speed, answers without meaning.

It makes about 2,500 tokens/s at 128 streams on two CPU cores. Tokenizer and chat template are those of the default
model. Run as `python -m tests.support.random_model DIRECTORY [MAX_POSITION_EMBEDDINGS]`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from server.models.sources import DEFAULT_MODEL, resolve

SEED = 20240501
HIDDEN = 128


def make_random_model(directory: Path, *, max_position_embeddings: int = 2048, seed: int = SEED) -> Path:
    """Save the model into `directory`, in a process of its own (torch stays out of the caller), and return it.

    The same arguments give the same weights. A directory that holds the model already is left as it is.
    """
    if not (directory / "model.safetensors").exists():
        # As a module: beside its file lies a server.py, which is not the package that it imports.
        arguments = [str(directory), str(max_position_embeddings), str(seed)]
        root = str(Path(__file__).resolve().parents[2])
        done = subprocess.run(
            [sys.executable, "-m", "tests.support.random_model", *arguments],
            check=False,
            capture_output=True,
            text=True,
            cwd=root,
            env={**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": root},
        )
        if done.returncode:
            raise RuntimeError(f"making the random model failed:\n{done.stderr[-2000:]}")
    return directory


def _save(directory: Path, max_position_embeddings: int, seed: int) -> None:
    import torch
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    tokenizer = AutoTokenizer.from_pretrained(resolve(DEFAULT_MODEL, progress=print))
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=HIDDEN,
        intermediate_size=4 * HIDDEN,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=max_position_embeddings,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        dtype="float32",
    )
    model = LlamaForCausalLM(config)
    tokenizer.save_pretrained(directory)
    model.save_pretrained(directory)  # last: its file marks the directory as complete


if __name__ == "__main__":
    target, *rest = sys.argv[1:]
    numbers = [int(word) for word in rest]
    _save(Path(target), *(numbers + [2048, SEED][len(numbers) :]))
