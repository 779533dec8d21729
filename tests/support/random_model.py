"""A random two-layer Llama with a real tokenizer: real vLLM at load-test speed, answers without meaning.

It makes about 2,500 tokens/s at 128 streams on two CPU cores. Tokenizer and chat template are those of the default
model. Run as `python -m tests.support.random_model DIRECTORY [MAX_POSITION_EMBEDDINGS]`.

Another one, an Idefics 3, takes images: what it says of them means nothing, but it is another thing for each. vLLM's
code for most other such models needs torchvision.
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
IMAGE_SIZE = 56  # pixels each way, in patches of 14, four of which make a token
IMAGE_MARKS = ("<fake_token_around_image>", "<image>", "<end_of_utterance>", "<global-img>")
IMAGE_TOKENS = 4 + 3  # in the prompt, marks around them included
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
        Idefics3Config,
        Idefics3ForConditionalGeneration,
        Idefics3ImageProcessorPil,
        Idefics3Processor,
    )

    tokenizer = AutoTokenizer.from_pretrained(resolve(DEFAULT_MODEL, progress=print))
    tokenizer.add_special_tokens({"additional_special_tokens": list(IMAGE_MARKS)})
    tokenizer.chat_template = SEEING_TEMPLATE
    one = {"longest_edge": IMAGE_SIZE}
    images = Idefics3ImageProcessorPil(size=one, max_image_size=one, do_image_splitting=False)
    processor = Idefics3Processor(images, tokenizer, image_seq_len=4, chat_template=SEEING_TEMPLATE)
    torch.manual_seed(SEED)
    config = Idefics3Config(
        vision_config={
            "hidden_size": 64,
            "intermediate_size": HIDDEN,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "image_size": IMAGE_SIZE,
            "patch_size": 14,
        },
        text_config={
            "model_type": "llama",
            "vocab_size": len(tokenizer),
            "hidden_size": HIDDEN,
            "intermediate_size": 2 * HIDDEN,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 1024,
            "bos_token_id": tokenizer.bos_token_id,
            "eos_token_id": tokenizer.eos_token_id,
            "pad_token_id": tokenizer.pad_token_id,
        },
        image_token_id=processor.image_token_id,
        pad_token_id=tokenizer.pad_token_id,
        scale_factor=2,
    )
    processor.save_pretrained(directory)
    Idefics3ForConditionalGeneration(config).to(torch.float32).save_pretrained(directory)  # last, as above


if __name__ == "__main__":
    target, *rest = sys.argv[1:]
    if rest == [SEEING]:
        _save_seeing(Path(target))
        sys.exit()
    numbers = [int(word) for word in rest]
    _save(Path(target), *(numbers + [2048, SEED][len(numbers) :]))
