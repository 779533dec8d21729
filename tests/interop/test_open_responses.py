"""What Open Responses and OpenAI ask of a server's WebSocket transport, said in our own words and tried on the wire.

Sources: openresponses.org, specification, "WebSocket transport" (2026-04-24); OpenAI's guide "WebSocket mode". Each
test's first line is the requirement.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from openai.types.responses import ResponseStreamEvent
from pydantic import TypeAdapter

from tests.integration.server.wire import DELTA, Client, client
from tests.support.server import ServerProcess

LONG = " ".join(f"w{number}" for number in range(40))
CONFIG = """
default_model = "echo"
[models.echo]
source = "echo"
backend = "echo"
[models.gone]  # turns for it are taken, and fail: nobody listens there
source = "x"
backend = "openai"
min_replicas = 0
remote.url = "http://127.0.0.1:9/v1"
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("data"), "--echo-rate", "200", config=CONFIG) as server:
        yield server
        server.until_metric("connections", 0)
    assert server.faults() == [], server.tail()


async def not_found(c: Client, response_id: str, **fields: Any) -> None:
    """A turn that follows this response is refused by name, and the connection lives."""
    error = await c.refused("response.create", input="x", previous_response_id=response_id, **fields)
    assert error["code"] == "previous_response_not_found"
    assert error["param"] == "previous_response_id"
    assert (await c.ask("still here")).text == "still here"


async def test_response(server: ServerProcess):
    """A `response.create` frame begins a turn, and the events are those of HTTP streaming, one a frame."""
    async with client(server) as c:
        answer = await c.ask([{"type": "message", "role": "user", "content": "two words"}], model="echo")
    assert answer.type == "response.completed"
    assert answer.text == "two words"
    # OpenAI's own types, strictly: no field that they need may be missing or of another type.
    events: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
    for event in answer.events:
        events.validate_python(event)
    assert answer.numbers == list(range(len(answer.events)))


async def test_sequential(server: ServerProcess):
    """Turns that are sent while one runs are answered after it, in the order in which they came."""
    async with client(server) as c:
        for text in (LONG, "second", "third"):
            await c.create(text)
        answers = [await c.answer() for _ in range(3)]
    assert [answer.text for answer in answers] == [LONG, "second", "third"]


@pytest.mark.parametrize("store", [True, False])
async def test_continuation(server: ServerProcess, store: bool):
    """`previous_response_id` goes on from that response: only what is new is sent."""
    async with client(server) as c:
        first = await c.ask("my name is Ada", store=store)
        second = await c.ask("who am I", previous_response_id=first.id, store=store)
        third = await c.ask("and now", previous_response_id=second.id, store=store)
    assert [a.input_tokens for a in (first, second, third)] == [4, 4 + 4 + 3, 4 + 4 + 3 + 3 + 2]
    assert second.response["previous_response_id"] == first.id


async def test_a_branch(server: ServerProcess):
    """A response can be followed more than once, on lanes side by side."""
    async with client(server) as c:
        root = await c.ask("one two", store=False)
        for lane in ("left", "right"):
            await c.create(f"{lane} {LONG}", previous_response_id=root.id, store=False, stream_id=lane)
        answers = [await c.answer(lane) for lane in ("right", "left")]
    assert [answer.text.split()[0] for answer in answers] == ["right", "left"]
    assert {answer.input_tokens for answer in answers} == {2 + 2 + 41}


async def test_warm_up(server: ServerProcess):
    """`generate: false` generates nothing and gives an id to go on from; state of the connection is enough for it."""
    async with client(server) as c:
        warm = await c.ask("be brief", generate=False, store=False, tools=[], instructions="You are terse.")
        assert warm.response["output"] == []
        answer = await c.ask("hello", previous_response_id=warm.id, store=False)
    assert answer.input_tokens == 3


async def test_reconnect_with_store_false(server: ServerProcess):
    """What is not stored lives on its connection only: on a new one its id is not found, and all is sent anew."""
    async with client(server) as c:
        first = await c.ask("my name is Ada", store=False)
    async with client(server) as c:
        await not_found(c, first.id, store=False)
        said = [{"role": "user", "content": "my name is Ada"}, {"role": "assistant", "content": first.text}]
        answer = await c.ask([*said, {"role": "user", "content": "who am I"}], store=False)
    assert answer.input_tokens == 4 + 4 + 3


async def test_reconnect_with_store_true(server: ServerProcess):
    """What is stored can be followed from any connection."""
    async with client(server) as c:
        first = await c.ask("my name is Ada")
    async with client(server) as c:
        assert (await c.ask("who am I", previous_response_id=first.id)).input_tokens == 4 + 4 + 3


async def test_not_found(server: ServerProcess):
    """An unknown `previous_response_id` is a structured error with status and code; the connection stays usable."""
    async with client(server) as c:
        await c.create("x", previous_response_id="resp_never_was", stream_id="main")
        event = await c.lane_event("main")
        assert {key: event[key] for key in ("type", "status", "stream_id")} == {
            "type": "error",
            "status": 400,
            "stream_id": "main",
        }
        assert event["error"]["code"] == "previous_response_not_found"
        await not_found(c, "resp_never_was")


@pytest.mark.parametrize("wrong", [{"temperature": 9}, {"model": "no-such"}, {"input": "w " * 9000}], ids=str)
async def test_a_failed_continuation_evicts(server: ServerProcess, wrong: dict[str, Any]):
    """After a turn with status 4xx or 5xx, what it was to continue is gone from the connection's memory."""
    async with client(server) as c:
        first = await c.ask("my name is Ada", store=False)
        await c.refused("response.create", **{"input": "x", "previous_response_id": first.id, "store": False, **wrong})
        await not_found(c, first.id, store=False)


async def test_a_continuation_that_fails_while_it_is_answered_evicts(server: ServerProcess):
    """The same with `response.failed`; what failed cannot be followed either."""
    async with client(server) as c:
        first = await c.ask("my name is Ada", store=False)
        failed = await c.ask("x", previous_response_id=first.id, store=False, model="gone")
        assert (failed.type, failed.response["error"]["code"]) == ("response.failed", "model_unavailable")
        for response_id in (failed.id, first.id):
            await not_found(c, response_id, store=False)


async def test_a_stored_response_that_failed_can_be_followed(server: ServerProcess):
    """What was asked is kept, and so is what it followed; from another connection, too."""
    async with client(server) as c:
        first = await c.ask("my name is Ada")
        failed = await c.ask("are you there", previous_response_id=first.id, model="gone")
        assert failed.type == "response.failed"
    async with client(server) as c:
        answer = await c.ask("who am I", previous_response_id=failed.id)
        assert answer.input_tokens == 4 + 4 + 3 + 3
        assert (await c.ask("and now", previous_response_id=first.id)).input_tokens == 4 + 4 + 2


async def test_lanes(server: ServerProcess):
    """`stream_id`: first in first out within a lane, lanes side by side; each event says its lane, if it was sent."""
    async with client(server) as c:
        await c.create(f"slow {LONG}", stream_id="a")
        await c.create("after it", stream_id="a")
        await c.create("other lane", stream_id="b")
        await c.create("no lane")
        events = []
        ended: list[str | None] = []
        while len(ended) < 4:
            events.append(event := await c.event())
            if event["type"] == "response.completed":
                ended.append(event.get("stream_id"))
    assert ended[-2:] == ["a", "a"]
    texts = {
        lane: "".join(e["delta"] for e in events if e["type"] == DELTA and e.get("stream_id") == lane) for lane in ended
    }
    assert texts == {"a": f"slow {LONG}after it", "b": "other lane", None: "no lane"}
    assert all("stream_id" not in event for event in events if event.get("stream_id") is None)


async def test_a_lane_name_that_is_not_one(server: ServerProcess):
    """`stream_id` is 1 to 256 of A-Z a-z 0-9 _ . -."""
    async with client(server) as c:
        for lane in ("", "a b", "ä", "x" * 257):
            await c.send({"type": "response.create", "input": "x", "stream_id": lane})
            error = await c.error()
            assert error["param"] == "stream_id"
        assert (await c.ask("fine", stream_id="x" * 256)).text == "fine"


async def test_unknown_fields_and_transport_fields(server: ServerProcess):
    """`stream`, `background` and what a server does not know are no reason to refuse a turn."""
    async with client(server) as c:
        answer = await c.ask("hi", stream=True, background=False, service_tier="auto", x_new={"deep": [1]})
    assert answer.text == "hi"


async def test_an_old_connection(tmp_path):
    """Before the server ends a connection it says so with `websocket_connection_limit_reached`."""
    with ServerProcess(tmp_path, "--model", "echo") as server:
        async with client(server) as c:
            await c.ask("hi")
            server.process.terminate()
            (event,) = await c.until_closed()
            assert event["type"] == "error"
            assert event["error"]["code"] == "websocket_connection_limit_reached"
            assert c.websocket.close_code == 1012
