"""What a client may send, field by field, and what is said when it may not. Long: there are many fields."""

from __future__ import annotations

import json
from typing import Any

import pytest

from protocol.commands import (
    ConversationCreate,
    ConversationItemsList,
    ConversationRef,
    ConversationUpdate,
    ResponseCancel,
    ResponseCreate,
    ResponseRetrieve,
    SessionUpdate,
    parse_command,
    plain_turn,
)
from protocol.errors import ProtocolError
from protocol.items import Message

TYPES = [
    "conversation.create",
    "conversation.delete",
    "conversation.items.list",
    "conversation.list",
    "conversation.retrieve",
    "conversation.search",
    "conversation.update",
    "model.list",
    "response.cancel",
    "response.create",
    "response.processed",
    "response.retrieve",
    "response.steer",
    "session.update",
]
NEEDED: dict[str, dict[str, Any]] = {
    "response.create": {"input": "hi"},
    "response.retrieve": {"response_id": "resp_1"},
    "conversation.retrieve": {"conversation": "conv_1"},
    "conversation.update": {"conversation": "conv_1", "metadata": {}},
    "conversation.delete": {"conversation": "conv_1"},
    "conversation.items.list": {"conversation": "conv_1"},
    "conversation.search": {"query": "x"},
}


def parse(**fields) -> Any:
    return parse_command(json.dumps(fields))


def parse_turn(frame: str) -> ResponseCreate:
    command = parse_command(frame)
    assert isinstance(command, ResponseCreate)
    return command


def create(**fields) -> ResponseCreate:
    command = parse(**{"input": "hi", **fields})
    assert isinstance(command, ResponseCreate)
    return command


def refusal(frame: str | bytes) -> ProtocolError:
    with pytest.raises(ProtocolError) as caught:
        parse_command(frame)
    return caught.value


def refused(**fields) -> tuple[str | None, str]:
    """The field and text of a refused `response.create`."""
    error = refusal(json.dumps({"input": "hi", **fields}))
    assert error.code == "invalid_request"
    return error.param, error.message


# Frames


@pytest.mark.parametrize("kind", TYPES)
def test_every_command_by_its_type(kind):
    """Each type with the fields it needs is taken, and carries id and stream_id."""
    command = parse(type=kind, id="k-1", stream_id="main", **NEEDED.get(kind, {}))
    assert kind == type(command).TYPE
    assert (command.id, command.stream_id) == ("k-1", "main")


@pytest.mark.parametrize(("kind", "field"), [(kind, field) for kind in NEEDED for field in NEEDED[kind]])
def test_needed_fields_are_named(kind, field):
    """A needed field that is absent is named; one that is null is refused, too."""
    fields = {key: value for key, value in NEEDED[kind].items() if key != field}
    error = refusal(json.dumps({"type": kind, **fields}))
    assert (error.code, error.param) == ("invalid_request", field)
    assert f"{field} is required" in error.message
    assert refusal(json.dumps({"type": kind, **fields, field: None})).param == field


def test_object_without_type_is_a_turn():
    """A JSON object without `type` is a `response.create`, and not a plain one."""
    command = create()
    assert command.messages == (Message("user", "hi"),)
    assert not command.plain
    assert command.truncation is None


@pytest.mark.parametrize("frame", ["null", "[]", "3", '"x"', "hello", "[" * 4096, "hi {", "\x0b{}", "é", "a\x00b"])
def test_frames_that_are_not_objects_are_plain_turns(frame):
    """Whatever does not start with a brace is the user's text, unchanged, in the connection's own conversation."""
    for command in (parse_command(frame), parse_command(frame.encode())):
        assert isinstance(command, ResponseCreate)
        assert command.messages == (Message("user", frame),)
        assert command.plain
        assert command.truncation == "auto"


@pytest.mark.parametrize("frame", ["", " ", "\n", " \r\n\t ", "\ufeff", "\u2003", "\x0b\x0c"])
def test_frames_of_white_space_are_refused(frame):
    """A frame with nothing to read in it is no turn."""
    error = refusal(frame)
    assert (error.code, error.param) == ("invalid_request", "input")
    assert "type some text" in error.message


@pytest.mark.parametrize(
    "frame",
    [
        "{",
        "{}x",
        "{'input':'x'}",
        '{"input":"x"',
        '{"input":"x",}',
        '{"input":NaN}',
        '{"input":Infinity}',
        '{"seed":1e400,"input":"x"}',
        '{"input":"\\ud800"}',
        '{"input":"\\udc00\\ud800"}',
        '{"input":"a\nb"}',
        '{"a":' * 100_000,
        '{"input":"\ud800"}',
        "\ud800",
        "\ud800{}",
    ],
    ids=lambda frame: ascii(frame[:24]),
)
def test_frames_that_are_no_json(frame):
    """Broken JSON, NaN, lone surrogates and endless nesting are `invalid_json`; the text says what to send."""
    error = refusal(frame)
    assert error.code == "invalid_json"
    assert "send" in error.message
    assert len(error.message) < 200


@pytest.mark.parametrize("frame", [b"\xff", b'{"input":"\xff"}', b"\xed\xa0\x80", b"{\xc3", b"\x80abc"])
def test_bytes_that_are_no_utf8(frame):
    """Bytes that are not UTF-8 are `invalid_json`."""
    assert refusal(frame).code == "invalid_json"


def test_type_null_and_unknown_types():
    """A type that is null, a number or unknown is named, with the known ones."""
    assert refusal('{"type":null}').message.startswith("type is null; it must be one of classify.create, ")
    assert refusal('{"type":3}').message.startswith("type is a number;")
    error = refusal('{"type":"response.creat","id":"a","stream_id":"b"}')
    assert error.message.startswith("unknown type 'response.creat';")
    assert (error.param, error.command_id, error.stream_id) == ("type", "a", "b")


def test_byte_order_mark_and_white_space_before_json():
    """A byte order mark and JSON's white space before the object are passed over; a plain turn loses the mark."""
    for frame in ('\ufeff{"input":"x"}', ' \r\n\t{"input":"x"} ', '\ufeff\n{"input":"x"}'):
        assert parse_turn(frame).messages == (Message("user", "x"),)
    assert parse_turn("\ufeffhello").messages == (Message("user", "hello"),)


def test_deep_nesting_in_a_field_that_is_ignored():
    """What is nested as deep as the parser allows, and ignored, harms nothing."""
    assert parse_turn('{"input":"x","deep":' + "[" * 1000 + "]" * 1000 + "}").messages == (Message("user", "x"),)


def test_a_mebibyte_of_text():
    """A string of 1 MiB comes through whole, as text and in JSON; as an id it is refused and not repeated."""
    text = "x" * 2**20
    assert create(input=text).messages == (Message("user", text),)
    assert parse_turn(text).messages == (Message("user", text),)
    for error in (refusal(json.dumps({"type": text})), refusal(json.dumps({"input": "x", "conversation": text}))):
        assert len(error.message) < 1000


def test_the_last_of_duplicate_keys_counts():
    """JSON leaves it open; here the last one wins."""
    assert parse_turn('{"input":"a","input":"b"}').messages == (Message("user", "b"),)
    assert refusal('{"type":"model.list","type":"x"}').param == "type"


def test_unknown_keys_are_ignored():
    """What real clients send besides is no error, whatever its type, and sets nothing."""
    command = create(
        stream=True,
        background=False,
        client_metadata={"a": 1},
        include=["reasoning.encrypted_content"],
        prompt_cache_key="k",
        tools=[{"type": "web_search"}],
        messages="mine",
        options={"tools": [{"name": "f"}]},
        plain=True,
        TYPE="x",
    )
    assert command == create()


@pytest.mark.parametrize("tier", ["auto", "default", "flex", "priority", "of somebody else"])
def test_any_service_tier_is_taken(tier):
    """Clients know names of other services; what is no text is an error."""
    assert create(service_tier=tier).service_tier == tier
    assert refusal('{"input":"x","service_tier":7}').param == "service_tier"


def test_null_is_as_good_as_absent():
    """Every field of a turn but `input` may be null."""
    names = [name for name in ResponseCreate.__struct_fields__ if name not in ("messages", "options", "plain")]
    names += ["tools", "tool_choice", "parallel_tool_calls", "text", "reasoning", "top_logprobs", "include", "prompt"]
    assert create(**dict.fromkeys(names)) == create()


# Fields of every command


@pytest.mark.parametrize("id", ["1", "x" * 256, "é \n☃", "{}"])
def test_any_text_is_an_id(id):
    """`id` is the client's own: any 1 to 256 characters."""
    assert create(id=id).id == id


@pytest.mark.parametrize(("id", "echoed"), [("", None), ("x" * 257, None), (5, None), (["a"], None), (True, None)])
def test_bad_ids(id, echoed):
    """Anything else is refused, and cannot be echoed; the lane still is."""
    error = refusal(json.dumps({"input": "x", "id": id, "stream_id": "s"}))
    assert (error.param, error.command_id, error.stream_id) == ("id", echoed, "s")
    assert error.message.startswith("id must be a string of 1 to 256 characters")


@pytest.mark.parametrize("stream_id", ["a", "A-z_0.9", "x" * 256])
def test_stream_ids(stream_id):
    """A lane's name has 1 to 256 plain characters."""
    assert create(stream_id=stream_id).stream_id == stream_id


@pytest.mark.parametrize("stream_id", ["", "a b", "a\n", "é", "x" * 257, "a:b", 3, {}])
def test_bad_stream_ids(stream_id):
    """Others are refused and not echoed; the command's id still is."""
    error = refusal(json.dumps({"input": "x", "id": "k", "stream_id": stream_id}))
    assert (error.param, error.command_id, error.stream_id) == ("stream_id", "k", None)
    assert "1 to 256 characters from A-Z a-z 0-9 _ . -" in error.message
    assert len(error.message) < 300


def test_id_and_lane_are_echoed_for_a_fault_elsewhere():
    """A client can tell which of its commands failed."""
    error = refusal('{"input":5,"id":"k","stream_id":"s"}')
    assert (error.param, error.command_id, error.stream_id) == ("input", "k", "s")


@pytest.mark.parametrize("value", ["", "a b", "a/b", "é", "x" * 129, "a\n", 'x"'])
@pytest.mark.parametrize("field", ["conversation", "previous_response_id"])
def test_bad_references(field, value):
    """Ids of ours have 1 to 128 plain characters; an explicit empty one is a mistake, not an absence."""
    param, message = refused(**{field: value})
    assert param == field
    assert "1 to 128 characters from A-Z a-z 0-9 _ . : -" in message


# response.create


@pytest.mark.parametrize(
    ("field", "good", "bad", "words"),
    [
        ("temperature", [0, 0.7, 2, 2.0], [-0.1, 2.5, 1e300], "a number from 0 to 2, not "),
        ("top_p", [0.001, 1], [0, -1, 1.01], "a number above 0 and at most 1, not "),
        ("top_k", [-1, 0, 1_000_000], [-2, 1_000_001, 1.0, 1e30], "a whole number from -1 to 1000000, not "),
        ("min_p", [0, 1], [-0.5, 1.5], "a number from 0 to 1, not "),
        ("seed", [-(2**63), 0, 2**63 - 1], [2**63, 2**64, -(2**63) - 1, 10**40], "a whole number from "),
        ("presence_penalty", [-2, 2], [-2.1, 2.1], "a number from -2 to 2, not "),
        ("frequency_penalty", [-2, 2], [-2.1, 2.1], "a number from -2 to 2, not "),
        ("repetition_penalty", [0.1, 10], [0, 10.5], "a number above 0 and at most 10, not "),
        ("max_output_tokens", [1, 2**31], [0, -1, 2**31 + 1, 1.5], "a whole number from 1 to 2147483648, not "),
        ("min_tokens", [0, 2**31], [-1, 2**31 + 1], "a whole number from 0 to 2147483648, not "),
    ],
)
def test_numbers(field, good, bad, words):
    """Each number's bounds are taken; beyond them, and for other types, the text gives the bounds in words."""
    for value in good:
        assert getattr(create(**{field: value}), field) == value
    for value in bad:
        param, message = refused(**{field: value})
        assert param == field
        assert message.startswith(f"{field} must be {words}")
    for value, shown in [("1", "a string"), (True, "true"), ([1], "a list"), ({}, "an object")]:
        assert refused(**{field: value})[1].endswith(f", not {shown}")


@pytest.mark.parametrize("field", ["store", "generate", "ignore_eos"])
def test_booleans(field):
    """Only true and false are booleans."""
    assert getattr(create(**{field: True}), field) is True
    assert getattr(create(**{field: False}), field) is False
    for value, shown in [("true", "a string"), (1, "a number"), ([], "a list")]:
        assert refused(**{field: value}) == (field, f"{field} must be true or false, not {shown}")


def test_truncation():
    """Two words are known."""
    assert create(truncation="auto").truncation == "auto"
    assert create(truncation="disabled").truncation == "disabled"
    assert refused(truncation="max") == ("truncation", "truncation must be 'auto' or 'disabled', not 'max'")


@pytest.mark.parametrize("field", ["model", "instructions"])
def test_strings(field):
    """Strings come through as they are."""
    assert getattr(create(**{field: "some text"}), field) == "some text"
    param, message = refused(**{field: 5})
    assert param == field
    assert message.endswith(", not a number")


def test_model_has_a_length():
    """A model's name is bounded; instructions are as long as the frame allows."""
    assert refused(model="") == ("model", "model must be a string of 1 to 256 characters; it is empty")
    assert refused(model="m" * 257)[1].endswith("; it has 257 characters")
    assert create(instructions="").instructions == ""
    assert len(create(instructions="i" * 500_000).instructions or "") == 500_000


def test_stop():
    """`stop` is one string or up to 16; a bad one is named by its place."""
    assert create().stop_strings == ()
    assert create(stop="a").stop_strings == ("a",)
    assert create(stop=["a", "b"]).stop_strings == ("a", "b")
    assert create(stop=[]).stop_strings == ()
    assert create(stop=["a"] * 16).stop_strings == ("a",) * 16
    assert refused(stop=["a"] * 17) == ("stop", "stop must be a list of at most 16 items; it has 17")
    assert refused(stop=["a", ""]) == ("stop[1]", "stop[1] must be a string of 1 to 256 characters; it is empty")
    assert refused(stop=["a", "b", 5])[0] == "stop[2]"
    assert refused(stop="")[0] == "stop"
    assert refused(stop=5)[1] == (
        "stop must be a string of 1 to 256 characters or a list of at most 16 items, not a number"
    )


def test_many_bad_elements_cost_little():
    """A list far over its bound is refused for its size, without a look at each element."""
    assert refused(stop=["a"] * 100_000)[1].endswith("it has 100000")
    assert refused(metadata={str(n): "" for n in range(20_000)})[1].endswith("it has 20000")


def test_metadata():
    """Up to 16 pairs, keys to 64 characters, values to 512; the key at fault is in `param`."""
    full = {f"{n:064d}": "v" * 512 for n in range(16)}
    assert create(metadata=full).metadata == full
    assert refused(metadata={"a": "x", "b": 1})[0] == "metadata.b"
    assert refused(metadata={"b": "v" * 513})[1] == (
        "metadata.b must be a string of at most 512 characters; it has 513 characters"
    )
    assert refused(metadata={"": "x"})[1].startswith("each key of metadata must be a string of 1 to 64 characters")
    assert refused(metadata={"k" * 9999: "x"})[0] == f"metadata.{'k' * 199}…"
    assert refused(metadata={str(n): "" for n in range(17)})[0] == "metadata"
    assert refused(metadata=["a"])[1] == "metadata must be an object of at most 16 keys, not a list"


def test_conversation_by_name_and_by_object():
    """A conversation is named by its id, or by an object with it."""
    assert create(conversation="conv_1").conversation_id == "conv_1"
    long = create(conversation={"id": "conv_1", "object": "conversation"})
    assert long.conversation == ConversationRef("conv_1")
    assert long.conversation_id == "conv_1"
    assert create().conversation_id is None
    assert refused(conversation={}) == ("conversation.id", "conversation.id is required")
    assert refused(conversation={"id": 5})[0] == "conversation.id"
    assert refused(conversation=5)[1].endswith("or an object with id, not a number")


def test_store():
    """Stored unless told otherwise; a conversation cannot be left unstored."""
    assert create().is_stored
    assert create(store=True).is_stored
    assert not create(store=False).is_stored
    assert refused(store=False, conversation="conv_1")[0] == "store"
    assert create(store=False, previous_response_id="resp_1").previous_response_id == "resp_1"


def test_min_tokens_and_max_output_tokens_fit_together():
    """An answer cannot be longer than its bound."""
    assert create(min_tokens=5, max_output_tokens=5).min_tokens == 5
    assert refused(min_tokens=6, max_output_tokens=5) == (
        "min_tokens",
        "min_tokens (6) must not be more than max_output_tokens (5)",
    )


@pytest.mark.parametrize("input", [None, "", " \n", [], [{"type": "reasoning", "summary": []}]])
def test_input_must_say_something(input):
    """No input, a blank string or a list without messages is no turn, except to warm up."""
    param, message = refused(input=input)
    assert param == "input"
    assert message.startswith("input is required: a string with some text, or a list with at least one message")
    assert create(input=input, generate=False).messages == ()


def test_chat_completions_body_gets_a_hint():
    """Who sends `messages` is told the name that counts."""
    assert "'messages' is Chat Completions' name" in refused(input=None, messages=[])[1]


@pytest.mark.parametrize(
    ("field", "value", "param"),
    [
        ("prompt", {"id": "pmpt_1"}, "prompt"),
    ],
)
def test_what_is_not_served_yet_is_refused_by_name(field, value, param):
    """What would change the answer if it were ignored is refused."""
    found, message = refused(**{field: value})
    assert found == param
    assert len(message) < 400


@pytest.mark.parametrize("text", [None, {}, {"format": None}, {"format": {}}, {"format": {"type": "text"}}])
def test_plain_text_format(text):
    """Asking for plain text asks for what there is."""
    assert create(text=text) == create()


def test_plain_turn():
    """A line of text is a turn with trimming allowed; an empty one is refused."""
    assert plain_turn("hi").plain
    with pytest.raises(ProtocolError, match="type some text"):
        plain_turn("  ")


# The other commands


def test_cancel_with_and_without_an_id():
    """Without an id it means the lane's own response."""
    assert parse(type="response.cancel").response_id is None
    command = parse(type="response.cancel", response_id="resp_1")
    assert isinstance(command, ResponseCancel)
    assert command.response_id == "resp_1"
    assert refusal('{"type":"response.cancel","response_id":""}').param == "response_id"


def test_retrieve():
    """`starting_after` is a sequence number, or -1 for all."""
    for good in (None, -1, 0, 2**53 - 1):
        command = parse(type="response.retrieve", response_id="resp_1", starting_after=good)
        assert isinstance(command, ResponseRetrieve)
        assert command.starting_after == good
    for number in (-2, 1.5, "3", True, 2**53, 2**64):
        error = refusal(json.dumps({"type": "response.retrieve", "response_id": "r", "starting_after": number}))
        assert error.param == "starting_after"
        assert error.message.startswith("starting_after must be a whole number from -1 to 9007199254740991")


def test_conversation_create_takes_first_items():
    """Items are messages; faults in them are named under `items`."""
    command = parse(type="conversation.create", items=[{"role": "user", "content": "a"}], metadata={"k": "v"})
    assert isinstance(command, ConversationCreate)
    assert command.messages == (Message("user", "a"),)
    assert command.metadata == {"k": "v"}
    assert parse(type="conversation.create").messages == ()
    assert parse(type="conversation.create", items=None).messages == ()
    assert refusal('{"type":"conversation.create","items":[{"role":"x"}]}').param == "items[0].role"


def test_conversation_update_replaces_metadata():
    """Metadata is needed there."""
    command = parse(type="conversation.update", conversation="c", metadata={"a": "b"})
    assert isinstance(command, ConversationUpdate)
    assert command.metadata == {"a": "b"}


@pytest.mark.parametrize("kind", ["conversation.list", "conversation.items.list"])
def test_lists_are_paged(kind):
    """Pages hold 1 to 1,000 rows."""
    for good in (None, 1, 1000):
        assert parse(type=kind, conversation="c", limit=good).limit == good
    for limit in (0, 1001, "5", 2.5):
        error = refusal(json.dumps({"type": kind, "conversation": "c", "limit": limit}))
        assert error.param == "limit"
        assert error.message.startswith("limit must be a whole number from 1 to 1000")
    items = parse(type="conversation.items.list", conversation="c", after="msg_1")
    assert isinstance(items, ConversationItemsList)
    assert items.after == "msg_1"


@pytest.mark.parametrize("query", ["", " ", "\n\t", "\u3000", "x" * 257])
def test_a_search_is_for_something(query):
    """White space is nothing."""
    error = refusal(json.dumps({"type": "conversation.search", "query": query}))
    assert error.param == "query"
    assert error.message.startswith("query must be a string of 1 to 256 characters with more in it than white space")


def test_a_token_is_never_repeated():
    """A credential that is refused does not come back in the error."""
    command = parse(type="session.update", token="secret")
    assert isinstance(command, SessionUpdate)
    assert command.token == "secret"
    for token in ("s" * 16_385, 31337, ["hunter2"], {"hunter2": 1}):
        error = refusal(json.dumps({"type": "session.update", "token": token}))
        assert error.param == "token"
        assert not any(secret in error.message for secret in ("sss", "31337", "hunter2"))


def test_commands_are_frozen():
    """Nothing changes a command after it was checked."""
    with pytest.raises(AttributeError):
        create().model = "other"  # type: ignore[misc]  # what is tested
