"""Answers on `/v1/responses`, as the SDKs need them."""

from __future__ import annotations

import json
import urllib.error
import urllib.request

import pytest
from websockets.exceptions import ConnectionClosed

from tests.integration.server.wire import DELTA, Answer, client
from tests.support.server import ServerProcess
from tests.unit.protocol.test_readme import CLIENT

TEXT_ANSWER = [
    "response.created",
    "response.in_progress",
    "response.output_item.added",
    "response.content_part.added",
    DELTA,
    "response.output_text.done",
    "response.content_part.done",
    "response.output_item.done",
    "response.completed",
]
REQUIRED = {
    "response.output_item.added": {"output_index", "item"},
    "response.content_part.added": {"item_id", "output_index", "content_index", "part"},
    DELTA: {"item_id", "output_index", "content_index", "delta", "logprobs"},
    "response.output_text.done": {"item_id", "output_index", "content_index", "text", "logprobs"},
    "response.content_part.done": {"item_id", "output_index", "content_index", "part"},
    "response.output_item.done": {"output_index", "item"},
}
RESPONSE_FIELDS = {
    "id",
    "object",
    "created_at",
    "status",
    "model",
    "output",
    "parallel_tool_calls",
    "tool_choice",
    "tools",
}


def _without_repeats(types: list[str]) -> list[str]:
    return [kind for index, kind in enumerate(types) if index == 0 or types[index - 1] != kind]


async def test_an_answer_has_every_event_and_field_that_clients_need(server: ServerProcess):
    """Created to completed in the documented order, numbered from 0 without a gap, each with its required fields."""
    async with client(server) as c:
        answer = await c.ask("one two three", model="echo")
    assert _without_repeats(answer.types) == TEXT_ANSWER
    assert answer.numbers == list(range(len(answer.events)))
    for event in answer.events:
        wanted = REQUIRED.get(event["type"], {"response"})
        assert set(event) == {"type", "sequence_number"} | wanted
        if "response" in event:
            assert set(event["response"]) >= RESPONSE_FIELDS
    assert answer.text == answer.final_text == "one two three"
    assert answer.response["usage"] == {
        "input_tokens": 3,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": 3,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 6,
    }


async def test_bare_text_is_a_turn_and_goes_on_in_one_conversation(server: ServerProcess):
    """A frame that does not start with { is a user's turn; the connection's turns share a conversation."""
    async with client(server) as c:
        await c.send("first words")
        first = await c.answer()
        await c.send("more")
        second = await c.answer()
    assert first.text == "first words"
    assert second.text == "more"
    assert first.response["conversation"] == second.response["conversation"] is not None
    assert second.input_tokens == 2 + 2 + 1


async def test_bare_text_goes_on_after_its_conversation_was_deleted(server: ServerProcess):
    """Plain text after its conversation is gone: told once, and then there is a new one."""
    async with client(server) as c:
        await c.send("old words")
        old = (await c.answer()).response["conversation"]["id"]
        await c.do("conversation.delete", conversation=old)
        await c.send("lost")
        assert (await c.error())["code"] == "conversation_not_found"
        await c.send("new")
        answer = await c.answer()
    assert answer.text == "new"
    assert answer.input_tokens == 1
    assert answer.response["conversation"]["id"] != old


async def test_an_object_without_a_type_is_a_turn_of_its_own(server: ServerProcess):
    """`{"input": …}` is a response.create, with a fresh context each time."""
    async with client(server) as c:
        for _ in range(2):
            await c.send({"input": "hello there"})
            answer = await c.answer()
            assert answer.text == "hello there"
            assert answer.input_tokens == 2


async def test_input_may_be_a_list_and_unknown_keys_are_ignored(server: ServerProcess):
    """What real clients send besides does no harm."""
    items = [
        {"role": "system", "content": "be brief"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "list input"}]},
    ]
    async with client(server) as c:
        answer = await c.ask(
            items, stream=True, background=False, include=[], client_metadata={"a": 1}, service_tier="auto", x=None
        )
    assert answer.text == "list input"
    assert answer.input_tokens == 4


async def test_any_text_comes_back_as_it_was(server: ServerProcess):
    """Emoji, flags, families, rare Han, Devanagari, control characters, quotes: no U+FFFD, nothing lost."""
    text = '🫠 🥹 龜 🇩🇪 👨‍👩‍👧‍👦 नमस्ते \u0001 "q" \\ \u2028 <|im_end|> \n\n end'
    async with client(server) as c:
        answer = await c.ask(text)
        again = await c.do("response.retrieve", response_id=answer.id, starting_after=answer.end["sequence_number"] - 1)
    assert answer.text == answer.final_text == text
    assert Answer([again]).final_text == text


async def test_instructions_count_but_are_not_inherited(server: ServerProcess):
    """`instructions` reach the model in their turn only."""
    async with client(server) as c:
        first = await c.ask("a b", instructions="i j k")
        second = await c.ask("c", previous_response_id=first.id)
    assert first.input_tokens == 5
    assert second.input_tokens == 2 + 2 + 1


async def test_a_chain_by_previous_response_id(server: ServerProcess):
    """Each turn sees all before it, and the engine's prefix cache is hit."""
    async with client(server) as c:
        previous, seen = None, 0
        for turn in range(4):
            text = f"turn number {turn}"
            answer = await c.ask(text, previous_response_id=previous)
            assert answer.text == text
            assert answer.input_tokens == seen + 3
            assert answer.response["previous_response_id"] == previous
            if previous:
                assert answer.response["usage"]["input_tokens_details"]["cached_tokens"] > 0
            previous, seen = answer.id, seen + 6
        branch = await c.ask("x", previous_response_id=previous)
    async with client(server) as other:
        assert (await other.ask("x", previous_response_id=previous)).input_tokens == branch.input_tokens


@pytest.mark.parametrize("store", [True, False])
async def test_generate_false_makes_an_id_to_go_on_from(server: ServerProcess, store: bool):
    """Created and completed without output; the input is history for the next turn. Codex warms up so, unstored."""
    async with client(server) as c:
        warm = await c.ask("some words here", generate=False, store=store)
        assert warm.types == ["response.created", "response.completed"]
        assert warm.response["output"] == []
        answer = await c.ask("next", previous_response_id=warm.id, store=store)
        empty = await c.ask([], generate=False, store=store)
        after = await c.ask("next", previous_response_id=empty.id, store=store)
    assert answer.input_tokens == 4
    assert after.input_tokens == 1


async def test_stop_strings_and_length(server: ServerProcess):
    """A stop string ends the answer before it; max_output_tokens ends it as incomplete."""
    async with client(server) as c:
        stopped = await c.ask("one two STOP three", stop="STOP")
        listed = await c.ask("one two STOP three", stop=["three", "two"])
        short = await c.ask("one two three four", max_output_tokens=2)
    assert (stopped.type, stopped.text) == ("response.completed", "one two ")
    assert listed.text == "one "
    assert (short.type, short.text.split()) == ("response.incomplete", ["one", "two"])
    assert short.response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert short.response["output"][0]["status"] == "incomplete"


async def test_an_unknown_model_is_refused_with_the_nearest_names(server: ServerProcess):
    """model_not_found names what there is; the socket lives."""
    async with client(server) as c:
        error = await c.refused("response.create", input="hi", model="ecko")
        assert (error["code"], error["param"]) == ("model_not_found", "model")
        assert "echo" in error["message"]
        assert (await c.ask("hi")).text == "hi"


async def test_small_commands(server: ServerProcess):
    """session.update, model.list, steer and processed answer as documented, with id and lane."""
    async with client(server) as c:
        session = await c.do("session.update", token="anything", id="s1", stream_id="l")
        assert (session["type"], session["id"], session["stream_id"]) == ("session.updated", "s1", "l")
        models = await c.do("model.list", id="m1")
        assert models["type"] == "model.listed"
        assert models["data"][0]["id"] == "echo"
        assert models["data"][0]["context_length"] == 8192
        assert "stream_id" not in models
        steer = await c.do("response.steer", response_id="resp_1", id="st")
        assert (steer["type"], steer["error"]["code"]) == ("response.steer.failed", "steering_not_supported")
        await c.send("response.processed", response_id="resp_1")
        await c.no_more()


BAD_FRAMES = [
    ("{", "invalid_json", None),
    ('{"type":null}', "invalid_request", "type"),
    ('{"type":3}', "invalid_request", "type"),
    ('{"type":"nope"}', "invalid_request", "type"),
    ('{"type":"response.create","input":{"a":1}}', "invalid_request", "input"),
    ('{"type":"response.create"}', "invalid_request", "input"),
    ('{"input":[{"role":"user"}]}', "invalid_request", "input[0].content"),
    ('{"input":[{"role":"king","content":"x"}]}', "invalid_request", "input[0].role"),
    ('{"input":"x","temperature":9}', "invalid_request", "temperature"),
    ('{"input":"x","max_output_tokens":0}', "invalid_request", "max_output_tokens"),
    ('{"input":"x","stream_id":"a b"}', "invalid_request", "stream_id"),
    ('{"input":"x","conversation":"conv_1","store":false}', "invalid_request", "store"),
    ('{"type":"response.retrieve"}', "invalid_request", "response_id"),
    ('{"type":"conversation.items.list","conversation":"c","limit":0}', "invalid_request", "limit"),
    ('{"input":"x","top_p":NaN}', "invalid_json", None),
    ('{"input":"' + "\\ud800" + '"}', "invalid_json", None),
    ("{" + '"a":[' * 5000, "invalid_json", None),
    ("   ", "invalid_request", "input"),
    (b"\xff\xfe", "invalid_json", None),
    (b"{\xff", "invalid_json", None),
]


@pytest.mark.parametrize(("frame", "code", "param"), BAD_FRAMES, ids=[str(frame)[:40] for frame, _, _ in BAD_FRAMES])
async def test_a_bad_frame_gets_an_error_that_names_the_field(
    server: ServerProcess, frame: str | bytes, code: str, param: str | None
):
    """Whatever is wrong, the error says where, and the next frame is served."""
    async with client(server) as c:
        await c.send(frame)
        error = await c.error()
        assert (error["code"], error["param"]) == (code, param)
        assert (await c.ask("still here")).text == "still here"


@pytest.mark.parametrize("frame", ["null", "[]", "3", '"x"', "hello", "[" * 10_000])
async def test_a_frame_that_is_no_object_is_plain_text(server: ServerProcess, frame: str):
    """JSON that is not an object was typed by hand: it is a turn."""
    async with client(server) as c:
        await c.send(frame)
        assert (await c.answer()).text == frame


async def test_a_frame_over_the_limit_closes_with_1009(server: ServerProcess):
    """2 MiB of [ is not even read."""
    async with client(server) as c:
        await c.send("[" * 2 * 1024 * 1024)
        with pytest.raises(ConnectionClosed) as closed:
            await c.event()
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1009


async def test_an_error_carries_lane_and_id_of_a_readable_command(server: ServerProcess):
    """A client can tell which of its commands failed."""
    async with client(server) as c:
        await c.send({"type": "response.create", "input": 5, "id": "k", "stream_id": "s"})
        event = await c.event()
        assert (event["id"], event["stream_id"], event["status"]) == ("k", "s", 400)


async def test_get_twins_equal_the_commands(server: ServerProcess):
    """The JSON routes say what the commands say."""
    async with client(server) as c:
        conversation = await c.conversation(metadata={"title": "t"})
        answer = await c.ask("twins", conversation=conversation)
        models = await c.do("model.list")
        got = await c.do("conversation.retrieve", conversation=conversation)
        items = await c.do("conversation.items.list", conversation=conversation)
        listed = await c.do("conversation.list", limit=1)
    assert server.get("/v1/models")[1]["data"] == models["data"]
    assert server.get(f"/v1/conversations/{conversation}") == (200, got["conversation"])
    found = server.get(f"/v1/conversations/{conversation}/items")[1]
    assert (found["data"], found["has_more"]) == (items["data"], items["has_more"])
    page = server.get("/v1/conversations?limit=1")[1]
    assert (page["data"], page["has_more"]) == (listed["data"], listed["has_more"])
    assert server.get(f"/v1/responses/{answer.id}") == (200, answer.response)
    status, body = server.get("/v1/responses/resp_none")
    assert (status, body["error"]["code"]) == (404, "response_not_found")
    status, body = server.get("/v1/conversations/conv_none")
    assert (status, body["error"]["code"]) == (404, "conversation_not_found")
    assert json.dumps(server.get("/v1/responses")[0]) == "426"


async def test_whatever_the_spec_says_is_refused_is_refused(server: ServerProcess):
    """Each example of an error in protocol/README.md, on one connection, which lives."""
    examples = [example for example in CLIENT if "error" in example.settings]
    assert len(examples) > 40
    async with client(server) as c:
        for example in examples:
            await c.send(example.line)
            event = await c.event()
            assert event["type"] == "error", example.line
            found = (event["error"]["code"], event["error"]["param"])
            assert found == (example.settings["error"], example.settings.get("param")), example.line
        assert (await c.ask("fine")).text == "fine"


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("POST", "/v1/responses", 426, "upgrade_required"),
        ("DELETE", "/v1/responses/resp_1", 405, "method_not_allowed"),
        ("POST", "/v1/responses/compact", 405, "method_not_allowed"),
        ("POST", "/v1/conversations", 405, "method_not_allowed"),
        ("POST", "/v1/responses/resp_1/cancel", 404, "not_found"),
        ("GET", "/v1/responses/resp_1/input_items", 404, "not_found"),
        ("POST", "/v1/chat/completions", 404, "not_found"),
    ],
)
def test_what_is_not_served_over_plain_http(server: ServerProcess, method: str, path: str, status: int, code: str):
    """As the end of protocol/README.md has it."""
    request = urllib.request.Request(server.url + path, method=method)  # noqa: S310 our own http URL
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(request, timeout=20)  # noqa: S310 as above
    with caught.value as error:
        assert (error.code, json.loads(error.read())["error"]["code"]) == (status, code)
