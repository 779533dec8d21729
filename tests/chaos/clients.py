"""Clients that do what the README's recipe says, and write down every frame they get."""

from __future__ import annotations

import asyncio
import json
import random
import socket
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from typing import Any, Final

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import WebSocketException

from tests.chaos.checker import TERMINAL, Event, Frame, History, Turn, response_of

OPEN_S: Final = 3.0  # a handshake that takes longer is given up for the next gateway
BACKOFF_FIRST_S: Final = 0.05
BACKOFF_MAX_S: Final = 1.0
PING_S: Final = 3.0  # a phone's client notices a dead path within twice that
LANES: Final = 16  # names that a client uses in turn: one for each of its turns; a connection may have 32
SMALL_BUFFER: Final = 4096  # bytes of a slow reader's receive buffer; the kernel doubles it


class Client:
    """Keeps one connection open, to one gateway after the other.

    addresses: of the gateways. first: the one it begins with. pings: whether it notices a silent path by itself.
    """

    def __init__(
        self,
        name: str,
        addresses: Sequence[str],
        history: History,
        rng: random.Random,
        *,
        first: int = 0,
        pings: bool = True,
        small_buffer: bool = False,
    ) -> None:
        self.name = name
        self.at = first % len(addresses)  # the gateway it is at, or tries next
        self.view = 0
        self.reconnects = -1
        self._addresses = addresses
        self._history = history
        self._rng = rng
        self._ping_s = PING_S if pings else None
        self._small_buffer = small_buffer
        self._socket: ClientConnection | None = None

    async def connected(self) -> ClientConnection:
        """Return the connection; make one where there is none, however long that takes."""
        delay = BACKOFF_FIRST_S
        while self._socket is None:
            try:
                self._socket = await self._connect(self._addresses[self.at])
                self.reconnects += 1
            except (OSError, TimeoutError, WebSocketException):
                self.at = (self.at + 1) % len(self._addresses)
                await asyncio.sleep(delay * (0.5 + self._rng.random()))
                delay = min(delay * 2, BACKOFF_MAX_S)
        return self._socket

    async def _connect(self, address: str) -> ClientConnection:
        options: dict[str, Any] = {}
        if self._small_buffer:
            options["sock"] = await self._slow_socket(address)
        return await connect(
            address,
            open_timeout=OPEN_S,
            close_timeout=0.2,
            ping_interval=self._ping_s,
            ping_timeout=self._ping_s,
            max_size=None,
            max_queue=1 if self._small_buffer else 16,
            compression=None,
            proxy=None,
            **options,
        )

    async def _slow_socket(self, address: str) -> socket.socket:
        raw = socket.socket()
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER)
        raw.setblocking(False)
        host, port = address.removeprefix("ws://").partition("/")[0].split(":")
        await asyncio.get_running_loop().sock_connect(raw, (host, int(port)))
        return raw

    async def leave(self, *, move: bool = True) -> None:
        """Drop the connection. move: go to another gateway next."""
        if self._socket is not None:
            gone, self._socket = self._socket, None
            await gone.close()
        if move:
            self.at = (self.at + 1) % len(self._addresses)

    async def send(self, command: dict[str, Any]) -> None:
        await (await self.connected()).send(json.dumps(command))

    async def events(self, turn: str | None = None, lane: str | None = None) -> AsyncIterator[Event]:
        """Yield what comes on this connection (on this lane of it), and write it down. Raises ConnectionClosed."""
        websocket = await self.connected()
        while True:
            event = json.loads(await websocket.recv())
            if event.get("stream_id") != lane:
                continue  # a second answer to a cancel, from a turn that has ended
            now = asyncio.get_running_loop().time()
            self._history.frames.append(Frame(now, self.name, self.view, turn, event))
            yield event

    async def ask(self, command: str, **fields: Any) -> Event:
        """Send a command that has one answer, again and again until it comes."""
        while True:
            try:
                await self.send({"type": command, "id": f"ask-{self._rng.random()}", **fields})
                event: Event = json.loads(await (await self.connected()).recv())
            except (OSError, WebSocketException):
                await self.leave()
                continue
            if "retry_after_ms" not in event.get("error", {}):
                return event
            await asyncio.sleep(BACKOFF_MAX_S)


class Talker(Client):
    """Says things and follows each answer to its end, whatever happens on the way.

    pause_s: how long it waits after each frame, for readers that are slower than the answer.
    """

    pause_s = 0.0

    async def say(
        self, text: str, conversation: str | None, *, cancel_after: int | None = None, **fields: Any
    ) -> Event:
        """Return the event that ended it: the response's, or an error that waiting does not help.

        cancel_after: frames after which the user has had enough.
        """
        turn = Turn(str(uuid.UUID(int=self._rng.getrandbits(128))), self.name, conversation, text)
        self._history.turns.append(turn)
        self.view += 1
        lane = f"lane-{self.view % LANES}"
        create = {"type": "response.create", "id": turn.id, "stream_id": lane, "input": text, **fields}
        if conversation is not None:
            create["conversation"] = conversation
        reading = Reading(turn, create, cancel_after)
        while reading.end is None:
            try:
                await self.send(reading.command())
                await self._read(reading)
            except (OSError, WebSocketException):
                await self.leave()
        return reading.end

    async def _read(self, reading: Reading) -> None:
        """Read to the end, or until it has to be asked for again."""
        if reading.must_cancel:
            await self.send(reading.cancel())
        async with aclosing(self.events(reading.turn.id, reading.lane)) as events:  # type: ignore[type-var]  # an async generator
            async for event in events:
                could_cancel = reading.must_cancel
                reading.take(event)
                if reading.end is not None:
                    return
                if event["type"] == "error":
                    await asyncio.sleep(min(event["error"]["retry_after_ms"] / 1000, BACKOFF_MAX_S))
                    await self.leave()  # another gateway may be better off
                    return
                if reading.must_cancel and not could_cancel:
                    await self.send(reading.cancel())
                if self.pause_s:
                    await asyncio.sleep(self.pause_s)


class Reading:
    """What a client knows of one of its turns: enough to go on with it on any connection."""

    def __init__(self, turn: Turn, create: dict[str, Any], cancel_after: int | None) -> None:
        self.turn = turn
        self.response: str | None = None
        self.last = -1
        self.end: Event | None = None
        self.lane = create["stream_id"]
        self._create = create
        self._left = cancel_after

    @property
    def must_cancel(self) -> bool:
        return self._left is not None and self._left <= 0 and self.response is not None

    def command(self) -> dict[str, Any]:
        """Return what to send on a new connection: the same turn while nothing is known of it, else the rest of it."""
        if self.response is None:
            return self._create
        rest = {"type": "response.retrieve", "response_id": self.response, "starting_after": self.last}
        return {**rest, "stream_id": self.lane}

    def cancel(self) -> dict[str, Any]:
        return {"type": "response.cancel", "response_id": self.response, "stream_id": self.lane}

    def take(self, event: Event) -> None:
        if event["type"] == "error":
            if "retry_after_ms" not in event["error"]:
                self.end = event
            return
        self.response = self.response or response_of(event)
        self.last = max(self.last, event.get("sequence_number", -1))
        if self._left is not None:
            self._left -= 1
        if event["type"] in TERMINAL:
            self.end = event


class Watcher(Client):
    """Only watches a conversation, as a second device does: subscribes, and again after each loss."""

    def __init__(self, *args: Any, conversation: str, **options: Any) -> None:
        super().__init__(*args, **options)
        self.conversation = conversation
        self.open: set[str] = set()  # responses that it has seen begin and not end
        self.is_subscribed = False

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            try:
                await self._watch()
            except (OSError, WebSocketException):
                pass
            self.is_subscribed = False
            self._history.watching.pop(self.name, None)
            await self.leave()

    async def _watch(self) -> None:
        self.view += 1
        await self.send({"type": "conversation.subscribe", "conversation": self.conversation})
        async with aclosing(self.events()) as events:  # type: ignore[type-var]  # an async generator
            async for event in events:
                if event["type"] == "error":
                    await asyncio.sleep(BACKOFF_MAX_S)
                    return
                self._take(event)

    def _take(self, event: Event) -> None:
        response = response_of(event)
        if event["type"] == "conversation.subscribed":
            self.is_subscribed = True
            self.open = {told["response"]["id"] for told in event["responses"]}
            self._history.watching[self.name] = self.view
        elif event["type"] in TERMINAL:
            self.open.discard(str(response))
        elif response is not None:
            self.open.add(response)


class Reader(Client):
    """Reads responses that have ended, from their beginning: what anybody would find later."""

    async def read(self, response: str) -> None:
        """Read all of a response's events."""
        self.view += 1
        await self.send({"type": "response.retrieve", "response_id": response})
        async with aclosing(self.events()) as events:  # type: ignore[type-var]  # an async generator
            async for event in events:
                if event["type"] in TERMINAL or event["type"] == "error":
                    return
