"""Whatever comes in: a command or a ProtocolError, nothing else."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from protocol.commands import Command, parse_command
from protocol.errors import MAX_REFLECTED_CHARS, ProtocolError
from protocol.events import error_event

# Valid commands with every field set, to be broken in one place.
VALID: list[dict[str, Any]] = [
    {
        "type": "response.create",
        "id": "k",
        "stream_id": "main",
        "model": "m",
        "input": [
            {"type": "message", "role": "user", "content": "a"},
            {"role": "assistant", "content": [{"type": "output_text", "text": "b"}]},
            {"type": "reasoning", "summary": []},
        ],
        "instructions": "be short",
        "previous_response_id": "resp_1",
        "conversation": {"id": "conv_1"},
        "store": True,
        "generate": True,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 40,
        "min_p": 0.1,
        "seed": 7,
        "presence_penalty": 0.1,
        "frequency_penalty": 0.1,
        "repetition_penalty": 1.1,
        "max_output_tokens": 10,
        "min_tokens": 1,
        "ignore_eos": False,
        "stop": ["a", "b"],
        "truncation": "auto",
        "metadata": {"a": "b"},
        "text": {"format": {"type": "text"}},
        "tools": [],
        "tool_choice": "auto",
    },
    {"type": "response.create", "input": "x", "conversation": "conv_1", "stop": "x"},
    {"type": "response.cancel", "response_id": "resp_1"},
    {"type": "response.retrieve", "response_id": "resp_1", "starting_after": 3},
    {"type": "conversation.create", "metadata": {"a": "b"}, "items": [{"role": "user", "content": "a"}]},
    {"type": "conversation.retrieve", "conversation": "conv_1"},
    {"type": "conversation.update", "conversation": "conv_1", "metadata": {"a": "b"}},
    {"type": "conversation.delete", "conversation": "conv_1"},
    {"type": "conversation.list", "after": "conv_1", "limit": 10},
    {"type": "conversation.search", "query": "a b", "after": "conv_1", "limit": 10},
    {"type": "conversation.items.list", "conversation": "conv_1", "after": "msg_1", "limit": 10},
    {"type": "session.update", "token": "secret"},
]

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]))
    | st.sampled_from(["", " ", "x" * 2000, 2**63, 2**64, -(2**63) - 1, 10**30, -1, 0, 1.5, "\x00", "resp_1\n"])
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(max_size=5) | st.sampled_from(["id", "type", "role", "content", "text"]), inner)
    ),
    max_leaves=8,
)


def check(frame: str | bytes) -> Command | ProtocolError:
    """Parse, and see to it that an error is fit for the wire."""
    try:
        result: Command | ProtocolError = parse_command(frame)
    except ProtocolError as error:
        result = error
    if isinstance(result, ProtocolError):
        event = orjson.loads(error_event(result))
        assert event["error"]["message"]
        assert len(result.message) <= MAX_REFLECTED_CHARS + 500
        assert len(result.param or "") <= MAX_REFLECTED_CHARS + 100
    else:
        assert isinstance(result, Command)
    return result


@given(st.binary())
@example(b"")
@example(b"\xef\xbb\xbf")
@example(b"\xef\xbb\xbf{")
def test_any_bytes(frame):
    """Any byte string."""
    check(frame)


@given(st.binary())
def test_any_bytes_after_a_brace(frame):
    """Any byte string that begins as JSON does."""
    check(b"{" + frame)


@given(st.text(st.characters()))
def test_any_text(frame):
    """Any text, lone surrogates included; with a brace before it, too."""
    check(frame)
    check("{" + frame)


@given(VALUES)
def test_any_json_value(value):
    """Any JSON value, alone and in every field's place."""
    check(json.dumps(value))
    check(json.dumps({"input": value}))
    check(json.dumps({"type": value}))


@given(st.dictionaries(st.sampled_from(sorted({key for fields in VALID for key in fields})) | st.text(), VALUES))
def test_any_json_object_of_known_fields(fields):
    """Objects of our own field names with any values."""
    check(json.dumps(fields))


@pytest.mark.parametrize("fields", VALID, ids=lambda fields: fields["type"])
def test_the_valid_ones_are_valid(fields):
    """What is broken below was whole before."""
    assert isinstance(check(json.dumps(fields)), Command)


def paths(value: Any, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """Every place in a JSON value but the whole."""
    pairs: list[tuple[str | int, Any]] = []
    if isinstance(value, dict):
        pairs = list(value.items())
    elif isinstance(value, list):
        pairs = list(enumerate(value))
    return [found for key, inner in pairs for found in [(*path, key), *paths(inner, (*path, key))]]


@settings(max_examples=400)
@given(st.data())
def test_valid_commands_with_one_thing_changed(data):
    """Near misses: one value replaced or taken away, anywhere; the error names a field of the command."""
    fields = json.loads(json.dumps(data.draw(st.sampled_from(VALID))))
    path = data.draw(st.sampled_from(paths(fields)))
    holder = fields
    for key in path[:-1]:
        holder = holder[key]
    if data.draw(st.booleans()):
        holder[path[-1]] = data.draw(VALUES)
    else:
        del holder[path[-1]]
    result = check(json.dumps(fields))
    if isinstance(result, ProtocolError):
        assert result.code == "invalid_request"
        assert result.param is not None
        # A change may show elsewhere (`type`: another command's needs; `text` of a part), but mostly just there.
        if path[0] not in ("type", "input", "items") and path[0] in fields:
            assert result.param.split(".")[0].split("[")[0] in (path[0], "store", "min_tokens")


@settings(max_examples=200)
@given(st.data())
def test_valid_commands_with_a_byte_changed(data):
    """Bits that flipped on the way."""
    frame = bytearray(json.dumps(data.draw(st.sampled_from(VALID))).encode())
    frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    check(bytes(frame))
    check(bytes(frame[: data.draw(st.integers(0, len(frame)))]))
