"""Tools, thoughts and forms on the wire: a scripted model behind vLLM's own parsers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.integration.server.conftest import run_checked
from tests.integration.server.wire import Client, client
from tests.support.asyncapi import Described
from tests.support.server import ServerProcess

SCRIPT = r"""
[[answers]]
role = "tool"
chunks = ["<think>It says {{input}}.</think>", "In Paris it is ", "{{input}}."]

[[answers]]
match = "weather"
chunks = [
    "<think>They want", " the weather: {{tools}}.</th", "ink>\n\nLet me ", "look.\n<tool_", "call>\n{\"name\": ",
    "\"get_weather\", \"arguments\": {\"city\": \"Par", "is\"}}\n</tool_call>\n<tool_call>\n",
    "{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Rome\"}}\n</tool_call>",
]

[[answers]]
match = "long call"
chunks = ["<tool_", "call>\n{\"name\": \"get_weather\", \"argu", "ments\": {\"city\": \"w1",
    ' w2', ' w3', ' w4', ' w5', ' w6', ' w7', ' w8', ' w9', ' w10', ' w11', ' w12', "\"}}\n</tool_call>"]

[[answers]]
match = "slowly"
chunks = ["<think>One", " two", " three</think>", "Four", " five", " six"]
"""
TOOL = {
    "type": "function",
    "name": "get_weather",
    "description": "Says how the weather is.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    "strict": True,
}
# One pixel: the smallest GIF that there is.
DOT = "data:image/gif;base64,R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7"
ITEMS = ["reasoning", "message", "function_call", "function_call"]


@pytest.fixture(scope="module")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Loading vLLM's parsers takes ten seconds: one for all."""
    folder = tmp_path_factory.mktemp("scripted")
    (folder / "script.toml").write_text(SCRIPT)
    models = '[models.agent]\nsource = "echo"\ntool_parser = "hermes"\nreasoning_parser = "qwen3"\n'
    config = f'{models}[echo]\nrate = 40\nscript = "{folder / "script.toml"}"\n'
    yield from run_checked(ServerProcess(folder / "data", config=config))


def deep(levels: int) -> dict[str, Any]:
    return {"type": "array", "items": deep(levels - 1)} if levels else {}


async def ask(c: Client, text: Any = "How is the weather?", **fields: Any) -> list[dict[str, Any]]:
    """Return the events of a turn with the tool."""
    await c.send("response.create", input=text, **({"tools": [TOOL]} | fields))
    return await c.until("response.completed", "response.incomplete", "response.failed")


def outputs(events: list[dict[str, Any]], result: str = "sunny") -> list[dict[str, Any]]:
    calls = [item for item in events[-1]["response"]["output"] if item["type"] == "function_call"]
    return [{"type": "function_call_output", "call_id": call["call_id"], "output": result} for call in calls]


async def test_a_thought_an_answer_and_two_calls(scripted):
    """Each its own item, in its place, announced and done; nothing of the markup anywhere; all as documented."""
    described = Described()
    async with client(scripted) as c:
        events = await ask(c)
    for event in events:
        described.check_sent(event)
    response = events[-1]["response"]
    assert [item["type"] for item in response["output"]] == ITEMS
    assert response["output"][0]["content"][0]["text"] == "They want the weather: get_weather."
    assert response["output"][1]["content"][0]["text"].strip() == "Let me look."
    assert [json.loads(item["arguments"]) for item in response["output"][2:]] == [{"city": "Paris"}, {"city": "Rome"}]
    assert response["tools"] == [TOOL]
    assert response["usage"]["output_tokens_details"]["reasoning_tokens"] > 0
    for index, item in enumerate(response["output"]):
        own = [event for event in events if event.get("output_index") == index]
        assert own[0]["type"] == "response.output_item.added"
        assert own[-1] == {**own[-1], "type": "response.output_item.done", "item": item}
        joined = "".join(event.get("delta", "") for event in own)
        assert joined == item.get("arguments") or joined == item["content"][0]["text"]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert "<" not in json.dumps(events)


@pytest.mark.parametrize("way", ["previous", "conversation", "replayed", "unstored"])
async def test_the_turn_after_a_call(scripted, way):
    """The model is told what the function gave: along the response, in a conversation, replayed whole, or unstored."""
    async with client(scripted) as c:
        fields: dict[str, Any] = {"store": False} if way == "unstored" else {}
        if way == "conversation":
            fields["conversation"] = await c.conversation()
        first = await ask(c, **fields)
        if way in ("previous", "unstored"):
            fields["previous_response_id"] = first[-1]["response"]["id"]
        given: list[dict[str, Any]] = outputs(first)
        if way == "replayed":
            said = first[-1]["response"]["output"]
            given = [{"role": "user", "content": "How is the weather?"}, *said, *given]
        events = await ask(c, given, **fields)
        output = events[-1]["response"]["output"]
        assert output[-1]["content"][0]["text"] == "In Paris it is sunny."
        if way == "conversation":
            listed = (await c.do("conversation.items.list", conversation=fields["conversation"]))["data"]
            kinds = ["message", *ITEMS, "function_call_output", "function_call_output", "reasoning", "message"]
            assert [item["type"] for item in listed] == kinds
            assert listed[5]["output"] == "sunny"


async def test_resuming_in_any_item(scripted):
    """The events after any number are the same, on another connection, as they were the first time."""
    async with client(scripted) as c:
        events = await ask(c)
        for after in range(-1, len(events) - 1):
            await c.send("response.retrieve", response_id=events[-1]["response"]["id"], starting_after=after)
            assert await c.until("response.completed") == events[after + 1 :]


async def test_whoever_subscribes_in_the_middle_has_the_items(scripted):
    """The snapshot has the items so far, the events the rest: together the answer."""
    async with client(scripted) as c, client(scripted) as late:
        conversation = await c.conversation()
        await c.send("response.create", input="slowly", conversation=conversation)
        await c.until("response.reasoning_text.delta")
        snapshot = await late.do("conversation.subscribe", conversation=conversation, stream_id="live")
        (running,) = snapshot["responses"]
        events = await late.until("response.completed", stream_id="live")
        said = {index: item["content"][0]["text"] for index, item in enumerate(running["output"]) if item["content"]}
        for event in events:
            if "delta" in event:
                said[event["output_index"]] = said.get(event["output_index"], "") + event["delta"]
        assert said == {0: "One two three", 1: "Four five six"}
        await c.until("response.completed")


ARGUMENTS = "response.function_call_arguments.delta"


async def test_resuming_in_the_middle_of_arguments(scripted):
    """While they come, on another connection: each piece once."""
    async with client(scripted) as c:
        await c.send("response.create", input="long call", tools=[TOOL])
        seen = await c.until(ARGUMENTS)
        c.abort()
    async with client(scripted) as c:
        last = seen[-1]["sequence_number"]
        await c.send("response.retrieve", response_id=seen[0]["response"]["id"], starting_after=last)
        rest = await c.until("response.completed")
    (call,) = rest[-1]["response"]["output"]
    assert rest[0]["sequence_number"] == last + 1
    assert "".join(event["delta"] for event in (*seen, *rest) if event["type"] == ARGUMENTS) == call["arguments"]
    assert json.loads(call["arguments"])["city"].split() == [f"w{number}" for number in range(1, 13)]


@pytest.mark.parametrize("way", ["cancelled", "too long"])
async def test_a_call_that_is_cut_off(scripted, way):
    """It is kept as far as it came, incomplete, and says so; the conversation goes on, with an output or without."""
    async with client(scripted) as c:
        fields = {"max_output_tokens": 6} if way == "too long" else {}
        await c.send("response.create", input="long call", tools=[TOOL], **fields)
        seen = await c.until(ARGUMENTS)
        if way == "cancelled":
            await c.send("response.cancel", response_id=seen[0]["response"]["id"])
        end = (await c.until("response.incomplete"))[-1]["response"]
        (call,) = end["output"]
        assert call["status"] == "incomplete"
        assert call["arguments"].startswith('{"city": "w1')
        for text in ([{"type": "function_call_output", "call_id": call["call_id"], "output": "sunny"}], "weather"):
            assert (await ask(c, text, previous_response_id=end["id"]))[-1]["type"] == "response.completed"
        replayed = [{"role": "user", "content": "x"}, call, *outputs([{"response": end}])]
        assert (await ask(c, replayed))[-1]["type"] == "response.completed"


async def test_one_call_at_most(scripted):
    """The script has two."""
    async with client(scripted) as c:
        output = (await ask(c, parallel_tool_calls=False))[-1]["response"]["output"]
    assert [item["type"] for item in output] == ITEMS[:3]


async def test_cancelled_in_a_thought(scripted):
    """The thought is kept as far as it came, and is no answer; the next turn works."""
    async with client(scripted) as c:
        await c.send("response.create", input="slowly")
        began = await c.until("response.reasoning_text.delta")
        await c.send("response.cancel", response_id=began[0]["response"]["id"])
        end = (await c.until("response.incomplete"))[-1]["response"]
        assert [(item["type"], item["status"]) for item in end["output"]] == [("reasoning", "incomplete")]
        events = await ask(c, "weather", previous_response_id=end["id"])
        assert events[-1]["type"] == "response.completed"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": [{"type": "function_call_output", "call_id": "call_0", "output": "x"}]}, "input[0].call_id"),
        ({"tool_choice": {"type": "function", "name": "other"}}, "tool_choice.name"),
        ({"tools": [{"type": "function", "name": "<|im_end|>"}]}, "tools[0].name"),
        ({"tools": [{**TOOL, "parameters": {"$ref": "#"}}]}, "tools[0].parameters.$ref"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "data:,"}]}]},
            "input[0].content[0].image_url",
        ),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": DOT}]}]}, "input"),
        ({"tools": [TOOL, TOOL]}, "tools[1].name"),
        ({"tools": [{**TOOL, "parameters": deep(200)}]}, "tools[0].parameters"),
        ({"tools": [{**TOOL, "parameters": {"description": "x" * 70_000}}]}, "tools[0].parameters"),
        ({"tools": [{"type": "function", "name": "werkzeug ü"}]}, "tools[0].name"),
        ({"tools": [], "tool_choice": "required"}, "tool_choice"),
    ],
)
async def test_what_is_refused_by_name(scripted, fields, param):
    """Before anything is begun."""
    async with client(scripted) as c:
        error = await c.refused("response.create", **({"input": "x", "tools": [TOOL]} | fields))
        assert (error["code"], error["param"]) == ("invalid_request", param)


async def test_the_output_of_a_call_that_was_never_made(scripted):
    """Also where the history is the store's."""
    async with client(scripted) as c:
        first = await ask(c)
        given = [{"type": "function_call_output", "call_id": "call_0", "output": "x"}]
        previous = first[-1]["response"]["id"]
        error = await c.refused("response.create", input=given, previous_response_id=previous)
        assert (error["code"], error["param"]) == ("invalid_request", "input")
        assert "call_0" in error["message"]
