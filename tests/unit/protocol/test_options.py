"""Tools, forms, effort: what is read of them, and that what is wrong is refused by name."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from protocol.commands import ResponseCreate
from protocol.errors import ProtocolError
from protocol.options import MAX_TOOLS, PLAIN, FunctionTool, Options, parse_options

F = {"type": "function", "name": "f"}
G = {"type": "function", "name": "g"}
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


def refused(**fields: Any) -> str:
    with pytest.raises(ProtocolError) as caught:
        parse_options(fields)
    assert caught.value.code == "invalid_request"
    assert len(caught.value.message) < 500
    assert caught.value.param is not None
    return caught.value.param


def test_nothing_changes_nothing():
    """A turn that asks for none of it has the defaults, and so has one with nulls."""
    names = ("tools", "tool_choice", "parallel_tool_calls", "text", "reasoning", "top_logprobs", "include")
    assert parse_options({}) == parse_options(dict.fromkeys(names)) == PLAIN


def test_a_function():
    """All that the model is told of it is kept."""
    tool = {**F, "description": "Says it.", "parameters": SCHEMA, "strict": True, "defer_loading": False}
    options = parse_options({"tools": [tool], "parallel_tool_calls": False})
    assert options.tools == (FunctionTool("f", "Says it.", SCHEMA, strict=True),)
    assert not options.parallel_tool_calls
    assert options.tools[0].as_wire() == {
        key: tool[key] for key in ("type", "name", "description", "parameters", "strict")
    }


def test_tools_of_other_types_are_left_out():
    """Agents send what their vendor's own server does; the model is not shown it."""
    tools = [{"type": "web_search"}, F, {"type": "custom", "name": "apply_patch", "format": {"type": "grammar"}}]
    assert [tool.name for tool in parse_options({"tools": tools}).tools] == ["f"]


@pytest.mark.parametrize(
    ("choice", "names", "kind", "forced"),
    [
        ("auto", "fg", "auto", None),
        ("none", "fg", "none", None),
        ("required", "fg", "required", None),
        (G, "fg", "required", "g"),
        ({"type": "allowed_tools", "mode": "auto", "tools": [F]}, "f", "auto", None),
        ({"type": "allowed_tools", "mode": "required", "tools": [G]}, "g", "required", None),
    ],
)
def test_the_choice(choice, names, kind, forced):
    """Which functions may be called, and whether one must be."""
    options = parse_options({"tools": [F, G], "tool_choice": choice})
    assert "".join(tool.name for tool in options.tools) == names
    assert (options.tool_choice, options.forced) == (kind, forced)
    assert options.must_call == (kind == "required")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": {}}, "tools"),
        ({"tools": [F] * (MAX_TOOLS + 1)}, "tools"),
        ({"tools": [5]}, "tools[0]"),
        ({"tools": [{}]}, "tools[0].type"),
        ({"tools": [F, F]}, "tools[1].name"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools[0].name"),
        ({"tools": [{**F, "description": 5}]}, "tools[0].description"),
        ({"tools": [{**F, "description": "x" * 99_999}]}, "tools[0].description"),
        ({"tools": [{**F, "strict": "yes"}]}, "tools[0].strict"),
        ({"tools": [{**F, "parameters": []}]}, "tools[0].parameters"),
        ({"tools": [{**F, "parameters": {"type": "objekt"}}]}, "tools[0].parameters.type"),
        ({"tools": [F], "tool_choice": "always"}, "tool_choice"),
        ({"tools": [F], "tool_choice": {"type": "web_search"}}, "tool_choice"),
        ({"tools": [F], "tool_choice": G}, "tool_choice.name"),
        ({"tools": [F], "tool_choice": {"type": "function", "name": 5}}, "tool_choice.name"),
        ({"tool_choice": "required"}, "tool_choice"),
        (
            {"tools": [F], "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [G]}},
            "tool_choice.tools[0].name",
        ),
        (
            {"tools": [F], "tool_choice": {"type": "allowed_tools", "mode": "required", "tools": []}},
            "tool_choice.tools",
        ),
        ({"parallel_tool_calls": 1}, "parallel_tool_calls"),
        ({"text": "json"}, "text"),
        ({"text": {"format": "json"}}, "text.format"),
        ({"text": {"format": {"type": None}}}, "text.format.type"),
        ({"text": {"format": {"type": "x" * 9999}}}, "text.format.type"),
        ({"text": {"format": {"type": "json_schema", "schema": {}}}}, "text.format.name"),
        ({"text": {"format": {"type": "json_schema", "name": "n"}}}, "text.format.schema"),
        ({"text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": 5}}}}, "text.format.schema.type"),
        ({"text": {"format": {"type": "json_schema", "name": "n", "schema": {}, "strict": 1}}}, "text.format.strict"),
        ({"text": {"format": {"type": "tokenwire:choice", "choices": []}}}, "text.format.choices"),
        ({"text": {"format": {"type": "tokenwire:choice", "choices": ["a", ""]}}}, "text.format.choices"),
        ({"text": {"format": {"type": "tokenwire:grammar", "grammar": 5}}}, "text.format.grammar"),
        ({"reasoning": "high"}, "reasoning"),
        ({"reasoning": {"effort": "much"}}, "reasoning.effort"),
        ({"reasoning": {"effort": []}}, "reasoning.effort"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"top_logprobs": True}, "top_logprobs"),
    ],
)
def test_what_is_wrong_is_named(fields, param):
    """The innermost field at fault."""
    assert refused(**fields) == param


@pytest.mark.parametrize("name", ["", "a b", "f()", "naïve", "a" * 129, "<|im_end|>", 5, None, ["f"], "f\n"])
def test_names_with_odd_characters(name):
    """A name goes into prompts and grammars: only what OpenAI takes, and a dot."""
    assert refused(tools=[{"type": "function", "name": name}]) == "tools[0].name"


@pytest.mark.parametrize(
    "form",
    [
        {"type": "json_object"},
        {"type": "json_schema", "name": "n", "schema": SCHEMA, "strict": True},
        {"type": "tokenwire:choice", "choices": ["yes", "no"]},
        {"type": "tokenwire:grammar", "grammar": 'root ::= "a" | "b"'},
    ],
)
def test_forms(form):
    """Each is kept whole, guides the answer, and is repeated in the response object."""
    options = parse_options({"text": {"format": form, "verbosity": "low"}})
    assert options.is_guided
    assert options.as_wire()["text"] == {"format": form}


def test_plain_text_is_no_form():
    """It is what there is without."""
    assert parse_options({"text": {"format": {"type": "text"}}}) == PLAIN


def test_logprobs_are_asked_for_in_two_ways():
    """`include` alone means the chosen tokens only."""
    assert parse_options({"include": ["message.output_text.logprobs"]}).top_logprobs == 0
    assert parse_options({"top_logprobs": 3}).top_logprobs == 3
    assert parse_options({"include": ["reasoning.encrypted_content"]}).top_logprobs is None


def test_another_gateway_reads_the_same():
    """Options go into the store with their turn, and come back from it."""
    options = parse_options(
        {
            "tools": [{**F, "parameters": SCHEMA}],
            "tool_choice": F,
            "text": {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA}},
            "reasoning": {"effort": "low"},
        }
    )
    stored = msgspec.json.encode(ResponseCreate(options=options))
    assert msgspec.json.decode(stored, type=ResponseCreate).options == options
    assert msgspec.json.encode(PLAIN) == b"{}"
    assert Options() == PLAIN
