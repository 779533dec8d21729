"""A person's side of one conversation, over a socket that may be lost at any time; knows no terminal.

The recipe is protocol/README.md's, "Resuming": a turn has an `id` and is sent again with it until the server has named
the response; from then on only what follows the last sequence number is asked for.
"""

from __future__ import annotations

import asyncio
import json
import random
import uuid
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Any, Final, NoReturn
from urllib.parse import urlsplit, urlunsplit

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus, InvalidURI

TERMINAL: Final = frozenset({"response.completed", "response.incomplete", "response.failed"})
FINAL_CODES: Final = frozenset({1002, 1003, 1007, 1008, 1009, 1010, 4401, 4408})  # connecting again is no use
UNAUTHORIZED: Final = 401  # HTTP
SERVER_FAULTS: Final = 500  # HTTP statuses from here on may be others a moment later
FIRST_DELAY_S: Final = 0.3
MAX_DELAY_S: Final = 10.0
OPEN_TIMEOUT_S: Final = 10.0


class TalkError(Exception):
    """Something that the person should read. code: the wire's, where there is one."""

    def __init__(self, message: str, code: str = "") -> None:
        super().__init__(message)
        self.code = code


class SignInError(TalkError):
    """The server wants a key, or another one."""


@dataclass(frozen=True)
class Said:
    """A piece of the answer."""

    text: str


@dataclass(frozen=True)
class Waits:
    """Why nothing comes yet, in words."""

    text: str


@dataclass(frozen=True)
class Ended:
    """The end of the answer; why: where it did not end by itself."""

    why: str = ""


Happening = Said | Waits | Ended


def address(url: str) -> str:
    """Return the WebSocket address that a person means by `url`: any scheme or none, with or without a path.

    Raises TalkError.
    """
    parts = urlsplit(url if "://" in url else f"ws://{url}")
    scheme = {"http": "ws", "https": "wss"}.get(parts.scheme, parts.scheme)
    try:
        is_good = scheme in {"ws", "wss"} and bool(parts.hostname) and (parts.port or 0) >= 0
    except ValueError:  # a port that is no number
        is_good = False
    if not is_good:
        raise TalkError(f"{url!r} is no address; it looks like ws://localhost:8000 or https://chat.example.com")
    path = parts.path if parts.path.strip("/") else "/v1/responses"
    return urlunsplit((scheme, parts.netloc, path, parts.query, ""))


def find_model(models: Sequence[dict[str, Any]], name: str | None) -> dict[str, Any] | None:
    """Return the model of this id, or of this alias."""
    return next((model for model in models if name in (model["id"], *model["aliases"])), None)


class Turn:
    """One turn, from its first frame to the end of its answer."""

    def __init__(self, frame: dict[str, Any]) -> None:
        self.frame = frame
        self.response_id: str | None = None
        self.last = -1  # sequence number
        self.is_cancelled = False  # the cancel is sent on this connection

    def again(self) -> dict[str, Any]:
        """Return what to send on the next connection."""
        self.is_cancelled = False
        if self.response_id is None:
            return self.frame
        return {"type": "response.retrieve", "response_id": self.response_id, "starting_after": self.last}

    def take(self, event: dict[str, Any]) -> Happening | None:
        """Take an event in; return what it says, if it is new and says anything."""
        kind, number = event["type"], event.get("sequence_number", -1)
        if self.response_id is None and kind != "response.created":
            return None  # the answer to a cancel that came after the end of its response
        if kind in TERMINAL:
            return Ended(_why(event["response"]))
        if number <= self.last:
            return None
        self.last = number
        if self.response_id is None:
            self.response_id = event["response"]["id"]
        match kind:
            case "response.output_text.delta":
                return Said(event["delta"])
            case "response.reasoning_text.delta":
                return Waits("thinking")
            case "response.queued":
                return Waits(_waiting(event["tokenwire"]))
            case _:
                return None


class Talk:
    """One conversation.

    url: of `address`. key: sent as a bearer token; None sends none. model: None takes the server's default.
    conversation: to go on with; None begins one at the first turn.
    """

    def __init__(
        self, url: str, *, key: str | None = None, model: str | None = None, conversation: str | None = None
    ) -> None:
        self.url = url
        self.key = key
        self.model = model
        self.conversation = conversation
        self._socket: ClientConnection | None = None
        self._turn: Turn | None = None
        self._stop = asyncio.Event()  # the person has had enough of this answer

    async def open(self) -> None:
        """Connect. Raises TalkError at the first failure: a wrong address should be told at once."""
        try:
            await self._connect()
        except (OSError, TimeoutError, InvalidHandshake, InvalidURI) as error:
            self._explain(error)

    async def close(self) -> None:
        if self._socket is not None:
            await self._socket.close()
            self._socket = None

    async def sign_in(self, key: str) -> None:
        """Use another key from now on. Raises TalkError where it is refused at once."""
        await self.close()
        self.key = key
        await self.open()

    def begin_anew(self) -> None:
        """Let the next turn begin another conversation."""
        self.conversation = None

    async def models(self) -> list[dict[str, Any]]:
        """Return what the server has. Raises TalkError."""
        self._stop.clear()
        return list((await self._answer_to({"type": "model.list"}, "model.listed"))["data"])

    async def ask(self, text: str) -> AsyncGenerator[Happening, None]:
        """Send a turn; yield what comes of it, the last an Ended. Raises TalkError where the turn is refused."""
        self._stop.clear()
        if self.conversation is None:
            made = await self._answer_to({"type": "conversation.create"}, "conversation.created")
            self.conversation = made["conversation"]["id"]
        frame = {"type": "response.create", "id": _key(), "input": text, "truncation": "auto"}
        frame |= {"conversation": self.conversation} | ({"model": self.model} if self.model else {})
        turn = self._turn = Turn(frame)
        async with aclosing(self._events(turn)) as events:
            async for event in events:
                happening = Waits("the connection is lost; trying again") if event is None else turn.take(event)
                await self._cancel_if_wanted()
                if happening is not None:
                    yield happening
                if isinstance(happening, Ended):
                    return

    async def stop(self) -> None:
        """Have the answer that `ask` yields cut short; without a connection, give it up."""
        self._stop.set()
        await self._cancel_if_wanted()

    # Inside

    async def _cancel_if_wanted(self) -> None:
        """Send the cancel once on each connection, as soon as it is known of what."""
        turn = self._turn
        if not self._stop.is_set() or self._socket is None or turn is None or turn.response_id is None:
            return
        if not turn.is_cancelled:
            turn.is_cancelled = True
            with suppress(ConnectionClosed):  # told by whoever reads
                await self._socket.send(json.dumps({"type": "response.cancel", "response_id": turn.response_id}))

    async def _answer_to(self, command: dict[str, Any], kind: str) -> dict[str, Any]:
        """Send a command and return the event that answers it."""
        async with aclosing(self._events(Turn({**command, "id": _key()}))) as events:
            async for event in events:
                if event is not None and event["type"] == kind:
                    return event
        raise AssertionError  # events end by raising only

    async def _events(self, turn: Turn) -> AsyncGenerator[dict[str, Any] | None, None]:
        """Send a turn; yield what the server says from then on, over as many connections as it takes.

        Between two connections None is yielded. Raises TalkError for an error, and where connecting again is no use.
        """
        attempt = 0
        frame = turn.frame
        while True:
            try:
                socket = self._socket or await self._connect()
                await socket.send(json.dumps(frame))
                while True:
                    event = json.loads(await socket.recv())
                    attempt = 0
                    if event["type"] != "error":
                        yield event
                    elif event["error"]["code"] != "websocket_connection_limit_reached":  # which precedes a close
                        self._refuse(event["error"])
            except ConnectionClosed as closed:
                self._socket = None
                if closed.rcvd is not None and closed.rcvd.code in FINAL_CODES:
                    self._explain(closed)
            except InvalidStatus as refused:
                if refused.response.status_code < SERVER_FAULTS:
                    self._explain(refused)
            except (OSError, TimeoutError, InvalidHandshake):
                pass  # not there (yet)
            self._socket = None
            yield None
            await self._pause(attempt)
            attempt += 1
            frame = turn.again()

    async def _pause(self, attempt: int) -> None:
        """Wait before the next try. Raises TalkError as soon as the person gives up."""
        delay = random.uniform(0.5, 1) * min(MAX_DELAY_S, FIRST_DELAY_S * 2**attempt)  # noqa: S311 only jitter
        with suppress(TimeoutError):
            async with asyncio.timeout(delay):
                await self._stop.wait()
            raise TalkError("given up; if the server has the turn, its answer goes on there")

    async def _connect(self) -> ClientConnection:
        headers = {"Authorization": f"Bearer {self.key}"} if self.key else None
        self._socket = await connect(
            self.url, additional_headers=headers, max_size=None, compression=None, open_timeout=OPEN_TIMEOUT_S
        )
        return self._socket

    def _refuse(self, error: dict[str, Any]) -> NoReturn:
        if error["code"] == "unauthorized":
            raise self._key_wanted()
        raise TalkError(error["message"], error["code"])

    def _key_wanted(self) -> SignInError:
        return SignInError(f"{self.url} wants {'another' if self.key else 'a'} key")

    def _explain(self, error: Exception) -> NoReturn:
        """Raise what a person should read of a connection that failed."""
        match error:
            case InvalidStatus() if error.response.status_code == UNAUTHORIZED:
                raise self._key_wanted() from None
            case InvalidStatus():
                raise TalkError(f"{self.url} refuses with HTTP status {error.response.status_code}") from None
            case ConnectionClosed() if error.rcvd is not None and error.rcvd.code in {4401, 4408}:
                raise self._key_wanted() from None
            case ConnectionClosed():
                raise TalkError(f"the server closed the connection: {error.rcvd}") from None
            case _:
                raise TalkError(f"cannot connect to {self.url}: {error}; is the server running?") from None


def _key() -> str:
    return uuid.uuid4().hex


def _waiting(notice: dict[str, Any]) -> str:
    """Return a waiting notice in words."""
    what = {"model_loading": "the model is loading", "conversation": "another turn is answered first"}
    words = what.get(notice["reason"], "waiting for a place")
    if notice.get("position"):
        words += f", {notice['position']} before this"
    if notice.get("progress") is not None:
        words += f", {notice['progress']:.0%}"
    return words


def _why(response: dict[str, Any]) -> str:
    if response["status"] == "failed":
        return f"failed: {response['error']['message']}"
    if response["status"] == "incomplete":
        reason = response["incomplete_details"]["reason"]
        return {"cancelled": "stopped", "max_output_tokens": "cut off: it is too long"}.get(reason, str(reason))
    return ""
