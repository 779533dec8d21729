"""A random two-layer Llama with a real tokenizer: real vLLM at load-test speed, answers without meaning.

It makes about 2,500 tokens/s at 128 streams on two CPU cores. Tokenizer and chat template are those of the default
model. Run as `python -m tests.support.random_model DIRECTORY [MAX_POSITION_EMBEDDINGS]`.

Another one, a LLaVA, takes images: what it says of them means nothing, but it is another thing for each.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from server.models.sources import DEFAULT_MODEL, resolve

SEED = 20240501
HIDDEN = 128
SEEING = "seeing"
IMAGE_SIZE = 56  # pixels each way, in patches of 14: 16 tokens
IMAGE_TOKENS = 16
SEEING_TEMPLATE = """\
{%- for message in messages -%}
<|im_start|>{{ message.role }}
{% if message.content is string %}{{ message.content }}{% else %}{% for part in message.content -%}
{% if part.type == 'image' %}<image>{% else %}{{ part.text }}{% endif %}
{%- endfor %}{% endif %}<|im_end|>
{% endfor -%}
{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


def make_random_model(directory: Path, *, max_position_embeddings: int = 2048, seed: int = SEED) -> Path:
    """Save the model into `directory`, in a process of its own (torch stays out of the caller), and return it.

    The same arguments give the same weights. A directory that holds the model already is left as it is.
    """
    return _made(directory, str(max_position_embeddings), str(seed))


def make_seeing_model(directory: Path) -> Path:
    """As `make_random_model`, a model that takes images."""
    return _made(directory, SEEING)


def _made(directory: Path, *options: str) -> Path:
    if not (directory / "model.safetensors").exists():
        # As a module: beside its file lies a server.py, which is not the package that it imports.
        arguments = [str(directory), *options]
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


def _save_seeing(directory: Path) -> None:
    import torch
    from transformers import (
        AutoTokenizer,
        CLIPImageProcessor,
        CLIPVisionConfig,
        LlamaConfig,
        LlavaConfig,
        LlavaForConditionalGeneration,
        LlavaProcessor,
    )

    tokenizer = AutoTokenizer.from_pretrained(resolve(DEFAULT_MODEL, progress=print))
    tokenizer.add_special_tokens({"additional_special_tokens": ["<image>"]})
    torch.manual_seed(SEED)
    text = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=HIDDEN,
        intermediate_size=2 * HIDDEN,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    sight = CLIPVisionConfig(
        hidden_size=64,
        intermediate_size=HIDDEN,
        num_hidden_layers=2,
        num_attention_heads=2,
        image_size=IMAGE_SIZE,
        patch_size=14,
    )
    config = LlavaConfig(
        vision_config=sight,
        text_config=text,
        image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
        vision_feature_layer=-1,
        image_seq_length=IMAGE_TOKENS,
    )
    size = {"height": IMAGE_SIZE, "width": IMAGE_SIZE}
    images = CLIPImageProcessor(size=size, crop_size=size)
    tokenizer.chat_template = SEEING_TEMPLATE
    LlavaProcessor(
        images, tokenizer, 14, "default", chat_template=SEEING_TEMPLATE, num_additional_image_tokens=1
    ).save_pretrained(directory)
    LlavaForConditionalGeneration(config).to(torch.float32).save_pretrained(directory)  # last, as above


if __name__ == "__main__":
    target, *rest = sys.argv[1:]
    if rest == [SEEING]:
        _save_seeing(Path(target))
        sys.exit()
    numbers = [int(word) for word in rest]
    _save(Path(target), *(numbers + [2048, SEED][len(numbers) :]))
