"""docs/asyncapi.json against frames that are recorded on the wire, both ways."""

from __future__ import annotations

from typing import Any

from tests.integration.server.wire import Client, client
from tests.support.asyncapi import Described
from tests.support.server import ServerProcess


class Recorder(Client):
    """A client that keeps all frames."""

    def __init__(self, other: Client) -> None:
        super().__init__(other.websocket)
        self.sent: list[dict[str, Any]] = []
        self.received: list[dict[str, Any]] = []

    async def send(self, frame: Any, **fields: Any) -> None:
        self.sent.append({"type": frame, **fields} if fields else frame)
        await super().send(frame, **fields)

    async def _receive(self) -> dict[str, Any]:
        self.received.append(event := await super()._receive())
        return event


async def test_a_session(slow: ServerProcess):
    """Every kind of command and nearly every kind of event."""
    described = Described()
    async with client(slow) as plain:
        c = Recorder(plain)
        conversation = await c.conversation(metadata={"title": "x"}, items=[{"role": "user", "content": "hi"}])
        other = await c.conversation()
        await c.do("conversation.subscribe", conversation=conversation, stream_id="live")
        await c.ask([{"role": "user", "content": "one two"}], conversation=conversation, id="turn-1", stream_id="main")
        await c.begin("w " * 100, conversation=conversation, stream_id="a")
        await c.create("waits", conversation=conversation, stream_id="b")
        await c.until("response.queued", stream_id="b")
        await c.do("conversation.subscribe", conversation=conversation, stream_id="late")
        await c.send({"type": "response.cancel", "stream_id": "a"})
        cut = await c.answer("a")
        await c.answer("b", whole=False)
        await c.send({"type": "response.retrieve", "response_id": cut.id, "starting_after": 2, "stream_id": "again"})
        await c.answer("again", whole=False)
        await c.ask("a b c", max_output_tokens=1, stop=["x"], temperature=0.5, seed=1, store=False)
        await c.refused("response.create", input="x", previous_response_id="resp_0", id="k")
        await c.refused("response.retrieve", response_id="resp_0", stream_id="again")
        for command in ("conversation.retrieve", "conversation.items.list", "conversation.unsubscribe"):
            await c.do(command, conversation=conversation, id="k", stream_id="do")
        await c.do("conversation.update", conversation=other, metadata={})
        await c.do("conversation.list", limit=1)
        await c.do("conversation.search", query="two one", id="k", stream_id="do")
        await c.do("conversation.delete", conversation=other)
        settings = {"source": "x", "min_replicas": 0}
        await c.do("model.add", model="other", settings=settings, stream_id="do")
        await c.do("model.alias", model="other", alias="o", stream_id="do")
        await c.do("model.pin", model="other", pinned=False, stream_id="do")
        for command in ("model.load", "model.unload", "model.remove"):
            await c.do(command, model="other", stream_id="do", id="k")
        for command in ("embedding.create", "classify.create"):
            await c.refused(command, model="echo", input="x", id="k", stream_id="do")
        await c.refused("rerank.create", model="echo", query="x", documents=["x"], stream_id="do")
        for command in ("model.list", "limits.retrieve", "session.update", "response.steer"):
            await c.do(command, stream_id="do")
    for frame in c.sent:
        described.check_taken(frame)
    for event in c.received:
        described.check_sent(event)
    assert {event["type"] for event in c.received} >= described.messages.keys() - {
        *(frame.get("type") for frame in c.sent),
        "response.failed",
        "response.processed",
        "text",
        *("embedding.created", "rerank.created", "classify.created"),  # test_kinds_of_model.py
        *(
            f"response.{part}.{step}"
            for part in ("reasoning_text", "function_call_arguments")
            for step in ("delta", "done")
        ),  # test_tools.py
    }
