"""Items in and out."""

from __future__ import annotations

import pytest

from protocol.errors import ProtocolError
from protocol.items import MAX_INPUT_ITEMS, Item, Message, json_type, parse_input


def refusal(value, param: str = "input") -> ProtocolError:
    with pytest.raises(ProtocolError) as caught:
        parse_input(value, param=param)
    assert caught.value.code == "invalid_request"
    return caught.value


def test_a_string_is_one_user_message():
    """White space around text is kept; a blank string says nothing."""
    assert parse_input(" hi\n") == (Message("user", " hi\n"),)
    assert parse_input(" \n") == ()


@pytest.mark.parametrize(
    ("role", "shown"), [("user", "user"), ("assistant", "assistant"), ("system", "system"), ("developer", "system")]
)
def test_roles(role, shown):
    """`developer` is OpenAI's newer word for system."""
    assert parse_input([{"role": role, "content": "x"}]) == (Message(shown, "x"),)


@pytest.mark.parametrize("role", ["tool", "User", "", None, 5, ["user"]])
def test_unknown_roles(role):
    """The field and the known roles are named."""
    error = refusal([{"role": "user", "content": "x"}, {"role": role, "content": "x"}])
    assert error.param == "input[1].role"
    assert "user, assistant, system, developer" in error.message


def test_parts_are_joined():
    """Text parts of every kind that real clients send make one message, in order."""
    content = [
        {"type": "input_text", "text": "a"},
        {"type": "output_text", "text": "b", "annotations": [], "logprobs": []},
        {"type": "text", "text": "c"},
        {"type": "summary_text", "text": "d"},
        {"type": "refusal", "refusal": "e"},
    ]
    assert parse_input([{"type": "message", "role": "user", "content": content}]) == (Message("user", "abcde"),)


def test_empty_content_is_kept():
    """A replayed transcript may hold an answer of no text."""
    items = [{"role": "assistant", "content": []}, {"role": "user", "content": ""}]
    assert parse_input(items) == (Message("assistant", ""), Message("user", ""))


@pytest.mark.parametrize("type", ["message", None])
def test_message_is_the_default_kind(type):
    """An item without a type, or with null, is a message."""
    assert parse_input([{"type": type, "role": "user", "content": "x"}]) == (Message("user", "x"),)


def test_reasoning_is_left_out():
    """A model's earlier thoughts are not shown to it again."""
    items = [{"type": "reasoning", "id": "rs_1", "summary": []}, {"role": "user", "content": "x"}]
    assert parse_input(items) == (Message("user", "x"),)


@pytest.mark.parametrize("kind", ["item_reference", "web_search_call", "", 0, False, [], {}])
def test_other_kinds_are_refused(kind):
    """What the model cannot be shown is refused by name."""
    assert refusal([{"type": kind, "role": "user", "content": "x"}]).param == "input[0].type"


@pytest.mark.parametrize(
    ("value", "param", "words"),
    [
        (5, "input", "a string or a list of items, not a number"),
        ({"a": 1}, "input", "a string or a list of items, not an object"),
        (True, "input", "not a boolean"),
        (["x"], "input[0]", "an object, not a string"),
        ([None], "input[0]", "an object, not null"),
        ([{"role": "user"}], "input[0].content", "a string or a list of parts, not null"),
        ([{"role": "user", "content": None}], "input[0].content", "not null"),
        ([{"role": "user", "content": {}}], "input[0].content", "not an object"),
        ([{"role": "user", "content": ["x"]}], "input[0].content[0]", "an object, not a string"),
        ([{"role": "user", "content": [{}]}], "input[0].content[0].type", "null is not supported"),
        (
            [{"role": "user", "content": [{"type": "input_audio"}]}],
            "input[0].content[0].type",
            "'input_audio' is not supported; send text",
        ),
        (
            [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": 5}]}],
            "input[0].content[1].text",
            "a string, not a number",
        ),
        ([{"role": "user", "content": [{"type": "refusal"}]}], "input[0].content[0].type", "'refusal'"),
        ([{"role": "user", "content": [{"type": ["text"]}]}], "input[0].content[0].type", "a list"),
    ],
)
def test_faults_are_named_by_their_place(value, param, words):
    """The path leads to the very field, in JSON's words."""
    error = refusal(value)
    assert error.param == param
    assert words in error.message


def test_the_path_begins_with_the_commands_own_field():
    """`items` of a conversation is named so."""
    assert refusal([5], param="items").param == "items[0]"


def test_too_many_items():
    """Refused with the numbers."""
    item = {"role": "user", "content": "x"}
    assert len(parse_input([item] * MAX_INPUT_ITEMS)) == MAX_INPUT_ITEMS
    error = refusal([item] * (MAX_INPUT_ITEMS + 1))
    assert error.message == f"input has {MAX_INPUT_ITEMS + 1} items; at most {MAX_INPUT_ITEMS} are taken"


def test_input_is_not_repeated_at_length():
    """Error texts repeat 200 characters of input at most."""
    for item in ({"type": "x" * 5000}, {"role": "x" * 5000}, {"role": "user", "content": [{"type": "x" * 5000}]}):
        assert "x" * 199 + "…'" in refusal([item]).message


def test_items_as_they_are_shown():
    """A user's text is input, an assistant's output; the response's id stands only where there is one."""
    assert Item("msg_1", "user", "hi").as_wire() == {
        "id": "msg_1",
        "type": "message",
        "role": "user",
        "status": "completed",
        "content": [{"type": "input_text", "text": "hi"}],
    }
    assert Item("msg_2", "assistant", "yo", "incomplete", "resp_1").as_wire() == {
        "id": "msg_2",
        "type": "message",
        "role": "assistant",
        "status": "incomplete",
        "content": [{"type": "output_text", "text": "yo", "annotations": []}],
        "response_id": "resp_1",
    }


def test_what_is_shown_can_be_sent_again():
    """An item as listed is an item as taken."""
    for role in ("user", "assistant", "system"):
        item = Item("msg_1", role, "text", "completed", "resp_1")
        assert parse_input([item.as_wire()]) == (item.as_message(),)


@pytest.mark.parametrize(
    ("value", "name"),
    [(None, "null"), (True, "a boolean"), (1, "a number"), (0.5, "a number"), ("", "a string"), ([], "a list")],
)
def test_json_types(value, name):
    """Types have JSON's names."""
    assert json_type(value) == name
