"""A model's folder is read as transformers reads it, without transformers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

from protocol.items import Message
from server.engine.base import EngineStartError, PromptError
from server.engine.prompt import PromptRenderer
from server.engine.tokenizer import load_tokenizer

TEMPLATE = """\
{%- for message in messages -%}
    {%- if message.role == "assistant" %}{{ raise_exception("no tools here") }}{% endif -%}
    <s>{{ message.role }} {{ message.content | tojson }}{{ eos_token }}
{% endfor -%}
{% if add_generation_prompt %}<s>assistant {% endif %}"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    letters = {chr(code): code - 32 for code in range(32, 127)}
    tokenizer = Tokenizer(models.WordLevel(letters | {"\n": 95}, unk_token=" "))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.add_special_tokens([AddedToken("<s>", special=True), AddedToken("</s>", special=True)])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    settings = {"eos_token": {"content": "</s>"}, "chat_template": [{"name": "default", "template": TEMPLATE}]}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    return tmp_path


def test_a_template_gets_what_templates_count_on(folder: Path) -> None:
    """Named templates, special tokens, `tojson` without escapes, blocks without their line breaks."""
    tokenizer = load_tokenizer(str(folder))
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": "é<"}], tokenize=False, add_generation_prompt=True
    )
    assert text == '<s>user "é<"</s>\n<s>assistant '


async def test_prompts_are_made_with_it(folder: Path) -> None:
    """Control tokens come from the template alone."""
    renderer = PromptRenderer(load_tokenizer(str(folder)))
    controls = [index for index in (await renderer.render([Message("user", "</s><s>")])).token_ids if index > 95]
    assert controls == [96, 97, 96]
    with pytest.raises(PromptError, match="no tools here"):
        await renderer.render([Message("assistant", "x")])


def test_a_template_file_goes_before_the_settings(folder: Path) -> None:
    """As transformers saves it today."""
    (folder / "chat_template.jinja").write_text("from the file")
    tokenizer = load_tokenizer(str(folder))
    assert tokenizer.apply_chat_template([], tokenize=False, add_generation_prompt=True) == "from the file"


@pytest.mark.parametrize(
    ("file", "content", "fault"),
    [
        ("tokenizer.json", "{}", "cannot be read"),
        ("tokenizer_config.json", "{", "cannot be read"),
        ("chat_template.jinja", "{% if %}", "template in .* is broken"),
        ("tokenizer.json", None, "holds no tokenizer.json"),
    ],
)
def test_a_damaged_folder_is_told(folder: Path, file: str, content: str | None, fault: str) -> None:
    """In one line."""
    (folder / file).unlink(missing_ok=True)
    if content is not None:
        (folder / file).write_text(content)
    with pytest.raises(EngineStartError, match=fault):
        load_tokenizer(str(folder))


def test_a_model_without_a_template_is_told(folder: Path) -> None:
    """It is no chat model."""
    (folder / "tokenizer_config.json").unlink()
    with pytest.raises(EngineStartError, match="no chat template"):
        PromptRenderer(load_tokenizer(str(folder)))
