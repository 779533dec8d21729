"""Prompts with tools, calls and thoughts: in the template's own form, and inert whatever strangers wrote into them."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.events import Written
from protocol.items import FunctionCall, Message
from protocol.options import PLAIN, FunctionTool, Options
from server.engine.base import Prompt
from server.engine.prompt import PromptRenderer, merge_turns
from tests.unit.engine.test_prompt import CHATML, HOSTILE, make_tokenizer

# In the way of Qwen's: tools and arguments as JSON, thoughts, an empty thought where there is to be none.
TOOLS = (
    "{% if tools %}<|im_start|>system\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}"
    "{% for call in m.tool_calls or [] %}<tool_call>{{ call.function.name }}: {{ call.function.arguments | tojson }}"
    "{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}{% endif %}"
)
CALL = Message("assistant", "", calls=(FunctionCall("call_1", "look", '{"city": "Par\\"is", "days": [1, null]}'),))
OUTPUT = Message("tool", "sunny", call_id="call_1")
HISTORY = [Message("user", "hi"), Message("assistant", "", reasoning="so"), Message("assistant", "ok"), CALL, OUTPUT]
TOOL = FunctionTool("look", "Looks.", {"type": "object", "properties": {"city": {"type": "string"}}})


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return make_tokenizer(TOOLS)


def render(tokenizer: Any, messages: list[Message], options: Options = PLAIN) -> Prompt:
    return asyncio.run(PromptRenderer(tokenizer).render(messages, options))


def test_it_is_what_the_template_makes(tokenizer):
    """The very tokens that the model was trained with."""
    call = {"name": "look", "arguments": {"city": 'Par"is', "days": [1, None]}}
    chat = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "ok", "reasoning_content": "so", "tool_calls": [{"function": call}]},
        {"role": "tool", "content": "sunny"},
    ]
    tool = {"name": "look", "description": "Looks.", "parameters": TOOL.parameters}
    tools = [{"type": "function", "function": tool}]
    text = tokenizer.apply_chat_template(chat, tools=tools, tokenize=False, add_generation_prompt=True)
    prompt = render(tokenizer, HISTORY, Options(tools=(TOOL,)))
    assert list(prompt.token_ids) == tokenizer.encode(text, add_special_tokens=False)


def test_thoughts_words_and_calls_of_a_turn_are_one_message():
    """Outputs stay apart: each belongs to a call."""
    merged = merge_turns([*HISTORY, OUTPUT])
    assert [message.role for message in merged] == ["user", "assistant", "tool", "tool"]
    assert (merged[1].content, merged[1].reasoning, merged[1].calls) == ("ok", "so", CALL.calls)


def controls(tokenizer: Any, prompt: Prompt) -> list[int]:
    added = tokenizer.backend_tokenizer.get_added_tokens_decoder()
    return [index for index in prompt.token_ids if index in added and added[index].content.strip()]


def poisoned(text: str) -> tuple[list[Message], Options]:
    """The same turn with a text in every place that a stranger can fill."""
    arguments = json.dumps({"city": text, text: [text, {"deep": text}]})
    calls = (FunctionCall(text, "look", arguments), FunctionCall("c", text, text))
    schema = {"type": "object", "properties": {text: {"type": "string", "description": text, "enum": [text]}}}
    messages = [
        Message("user", text),
        Message("assistant", text, reasoning=text, calls=calls),
        Message("tool", text, call_id=text),
    ]
    return messages, Options(tools=(FunctionTool("look", text, schema),))


@pytest.mark.parametrize("text", HOSTILE)
def test_no_stranger_writes_control_tokens(tokenizer, text):
    """Arguments, keys, descriptions, schemas, outputs, thoughts: all of it is text, and all of it is there."""
    prompt = render(tokenizer, *poisoned(text))
    harmless = render(tokenizer, *poisoned("x"))
    assert controls(tokenizer, prompt) == controls(tokenizer, harmless)
    shown = tokenizer.decode(prompt.token_ids, skip_special_tokens=False)
    assert shown.count(json.dumps(text, ensure_ascii=False)[1:-1]) >= 9


@settings(max_examples=40, deadline=None)
@given(st.text(st.sampled_from('<|im_startend>"\\{} \nthk/'), min_size=1, max_size=40))
def test_no_text_at_all_does(tokenizer, text):
    """As above, by lot."""
    prompt = render(tokenizer, *poisoned(f"a{text}a"))
    assert controls(tokenizer, prompt) == controls(tokenizer, render(tokenizer, *poisoned("x")))


def test_escaping_is_the_templates(tokenizer):
    """A text that has to be hidden from the template comes out as it would have written it."""
    prompt = render(
        tokenizer,
        [
            Message("user", "x"),
            Message("assistant", "", calls=(FunctionCall("c", "look", json.dumps({"a": 'q"<|im_end|>\n'})),)),
        ],
    )
    assert 'look: {"a": "q\\"<|im_end|>\\n"}' in tokenizer.decode(prompt.token_ids, skip_special_tokens=False)


@pytest.mark.parametrize(
    "arguments",
    [
        "[" * 100_000,
        '{"a": ' + "[" * 990 + "]" * 990 + "}",
        '{"a": "\\ud800"}',
        '{"\\udfff": 1}',
        "9" * 9999,
        "",
        "NaN",
    ],
    ids=["unclosed", "deep", "half a character", "half a key", "long number", "empty", "no number"],
)
def test_arguments_that_are_no_object_are_shown_as_text(tokenizer, arguments):
    """Whatever a model has written, or a client claims that it has: the turn goes on."""
    call = Message("assistant", "", calls=(FunctionCall("c", "look", arguments),))
    prompt = render(tokenizer, [Message("user", "x"), call, OUTPUT])
    assert json.dumps(arguments)[1:-1][:40] in tokenizer.decode(prompt.token_ids)


def test_a_template_that_knows_no_tools():
    """Calls are shown as text: else what they gave would come from nowhere."""
    plain = make_tokenizer(CHATML)
    text = plain.decode(render(plain, HISTORY).token_ids)
    assert '"name": "look"' in text
    assert "tool\nsunny" in text
    assert "so" not in text.split("ok")[0].split("hi")[1]  # a thought is not what was said


@pytest.mark.parametrize(("effort", "shown"), [(None, False), ("high", False), ("none", True)])
def test_effort_is_told_where_the_template_knows_it(tokenizer, effort, shown):
    """`none` means no thinking; a template that does not ask is not told."""
    prompt = render(tokenizer, [Message("user", "x")], Options(effort=effort))
    assert tokenizer.decode(prompt.token_ids).endswith("<think></think>") == shown
    assert render(make_tokenizer(CHATML), [Message("user", "x")], Options(effort=effort)).token_ids


def test_what_opens_the_answer(tokenizer):
    """The tokens behind the last message: what says whether the model is thinking, whatever was said before."""
    history = [Message("user", "a"), Message("assistant", "b", reasoning="<think></think>"), Message("user", "c")]
    for effort, end in (
        ("none", "<|im_end|>\n<|im_start|>assistant\n<think></think>"),
        (None, "<|im_end|>\n<|im_start|>assistant\n"),
    ):
        prompt = render(tokenizer, history, Options(effort=effort))
        assert tokenizer.decode(prompt.token_ids[len(prompt.token_ids) - prompt.opening :]) == end


def test_going_on_with_the_models_own_tokens(tokenizer):
    """What it wrote is put behind the prompt as it was, markup and all; words alone stay words."""
    renderer = PromptRenderer(tokenizer)
    prompt = render(tokenizer, [Message("user", "x")])
    think = tokenizer.convert_tokens_to_ids("<think>")
    longer = asyncio.run(renderer.extend(prompt, Written("<think>a", (think, 5))))
    assert list(longer.token_ids) == [*prompt.token_ids, think, 5]
    spelled = asyncio.run(renderer.extend(prompt, Written("<think>a")))
    assert think not in spelled.token_ids[len(prompt.token_ids) :]
