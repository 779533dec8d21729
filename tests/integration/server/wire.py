"""A client that checks the wire's promises while it talks."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from tests.support.server import ServerProcess

PATIENCE_S = 30  # for one event: a fault, not slowness, makes a test wait this long
TERMINAL = {"response.completed", "response.incomplete", "response.failed"}
DELTA = "response.output_text.delta"


@dataclass
class Answer:
    """All events of one response that a client saw."""

    events: list[dict[str, Any]]

    @property
    def types(self) -> list[str]:
        return [event["type"] for event in self.events]

    @property
    def end(self) -> dict[str, Any]:
        return self.events[-1]

    @property
    def type(self) -> str:
        return str(self.end["type"])

    @property
    def response(self) -> dict[str, Any]:
        return dict(self.end["response"])

    @property
    def id(self) -> str:
        return str(self.response["id"])

    @property
    def text(self) -> str:
        return "".join(event["delta"] for event in self.events if event["type"] == DELTA)

    @property
    def final_text(self) -> str:
        return "".join(part["text"] for item in self.response["output"] for part in item["content"])

    @property
    def input_tokens(self) -> int:
        return int(self.response["usage"]["input_tokens"])

    @property
    def numbers(self) -> list[int]:
        """Numbers in the order they came, without those of `response.in_progress` while Redis is away: it has none."""
        numbers: list[int] = []
        for event in self.events:
            if event["type"] != "response.in_progress" or event["sequence_number"] not in numbers[-1:]:
                numbers.append(event["sequence_number"])
        return numbers

    def check(self, *, whole: bool = True) -> Answer:
        """Assert what holds for every answer; whole: it was read from its beginning."""
        assert self.numbers == sorted(set(self.numbers)), self.numbers
        assert not set(self.types[:-1]) & TERMINAL, self.types
        if whole:
            assert self.numbers[0] == 0
            assert self.types[0] == "response.created"
            assert self.text == self.final_text
            ids = {event["response"]["id"] for event in self.events if "response" in event}
            assert len(ids) == 1
        return self


class Client:
    """One connection to `/v1/responses`. Events of other lanes than the one asked for are kept for later."""

    def __init__(self, websocket: ClientConnection) -> None:
        self.websocket = websocket
        self._kept: list[dict[str, Any]] = []

    async def send(self, frame: Any, **fields: Any) -> None:
        """Send a frame: text or bytes as they are, a type's name with its fields, or any JSON value."""
        if fields:
            frame = {"type": frame, **fields}
        if not isinstance(frame, str | bytes):
            frame = json.dumps(frame)
        await self.websocket.send(frame)

    async def create(self, text: Any, **fields: Any) -> None:
        await self.send({"type": "response.create", "input": text, **fields})

    async def event(self) -> dict[str, Any]:
        """Return the next event, of any lane."""
        if self._kept:
            return self._kept.pop(0)
        return await self._receive()

    async def lane_event(self, stream_id: str | None) -> dict[str, Any]:
        """Return the next event of one lane."""
        for index, event in enumerate(self._kept):
            if event.get("stream_id") == stream_id:
                return self._kept.pop(index)
        while True:
            event = await self._receive()
            if event.get("stream_id") == stream_id:
                return event
            self._kept.append(event)

    async def until(self, *types: str, stream_id: str | None = None) -> list[dict[str, Any]]:
        """Return a lane's events up to the first of these types. An error that is not wanted fails the test."""
        events = []
        while True:
            events.append(event := await self.lane_event(stream_id))
            if event["type"] in types:
                return events
            assert event["type"] != "error", event

    async def answer(self, stream_id: str | None = None, *, whole: bool = True) -> Answer:
        """Return a lane's next answer, to its end."""
        return Answer(await self.until(*TERMINAL, stream_id=stream_id)).check(whole=whole)

    async def ask(self, text: Any, **fields: Any) -> Answer:
        """Send a turn and return its answer."""
        await self.create(text, **fields)
        return await self.answer(fields.get("stream_id"))

    async def begin(self, text: Any, **fields: Any) -> str:
        """Send a turn and return the response's id when its first text has come."""
        await self.create(text, **fields)
        events = await self.until(DELTA, stream_id=fields.get("stream_id"))
        self._kept[:0] = events
        return str(events[0]["response"]["id"])

    async def do(self, command: str, **fields: Any) -> dict[str, Any]:
        """Send a command and return the one event that answers it."""
        await self.send({"type": command, **fields})
        return await self.lane_event(fields.get("stream_id"))

    async def error(self, stream_id: str | None = None) -> dict[str, Any]:
        """Return the next event of a lane, which must be an error, without its envelope."""
        event = await self.lane_event(stream_id)
        assert event["type"] == "error", event
        assert event["status"] >= 400
        assert set(event["error"]) >= {"type", "code", "message", "param"}
        return dict(event["error"])

    async def refused(self, command: str, **fields: Any) -> dict[str, Any]:
        """Send a command that must be refused; return the error."""
        await self.send({"type": command, **fields})
        return await self.error(fields.get("stream_id"))

    async def conversation(self, **fields: Any) -> str:
        """Make a conversation and return its id."""
        return str((await self.do("conversation.create", **fields))["conversation"]["id"])

    async def items(self, conversation: str) -> list[tuple[str, str]]:
        """Return who said what in a conversation."""
        listed = await self.do("conversation.items.list", conversation=conversation)
        return [(item["role"], "".join(part["text"] for part in item["content"])) for item in listed["data"]]

    async def until_closed(self) -> list[dict[str, Any]]:
        """Return all events until the server closes the connection."""
        events = []
        with contextlib.suppress(ConnectionClosed):
            while True:
                events.append(await self.event())
        return events

    def forget(self) -> None:
        """Drop the events that were kept."""
        self._kept.clear()

    async def no_more(self) -> None:
        """Assert that nothing more has come: what was asked now is answered first."""
        event = await self.do("model.list", stream_id="no-more")
        assert event["type"] == "model.listed"
        assert self._kept == []

    def write_together(self, *frames: dict[str, Any]) -> None:
        """Send frames in one write: the server reads them in one packet."""
        for frame in frames:
            self.websocket.protocol.send_text(json.dumps(frame).encode())
        self.websocket.transport.write(b"".join(self.websocket.protocol.data_to_send()))

    def abort(self) -> None:
        """Drop the TCP connection without a word."""
        self.websocket.transport.abort()

    async def _receive(self) -> dict[str, Any]:
        async with asyncio.timeout(PATIENCE_S):
            frame = await self.websocket.recv()
        assert isinstance(frame, str), "binary frames kill some clients"
        event = json.loads(frame)
        assert isinstance(event, dict)
        return event


@asynccontextmanager
async def client(server: ServerProcess, **options: Any) -> AsyncIterator[Client]:
    """Connect."""
    async with connect(f"{server.ws_url}/v1/responses", max_size=None, compression=None, **options) as websocket:
        yield Client(websocket)
