"""What the use cases need to know of a connection."""

from __future__ import annotations

from typing import Any, Protocol

from protocol.events import Event
from protocol.items import Message
from server.access.auth import User
from server.chat.hub import Channel, Subscription


class LocalResponses:
    """Answers of `store:false`, which live on their connection only: the newest few, whole.

    limit: how many are remembered; the oldest go first.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._contexts: dict[str, tuple[Message, ...]] = {}
        self._events: dict[str, list[Event]] = {}
        self.commands: dict[str, str] = {}  # a command's id -> the response it made

    def get(self, response_id: str) -> tuple[Message, ...] | None:
        return self._contexts.get(response_id)

    def put(self, response_id: str, context: tuple[Message, ...]) -> None:
        """Remember everything said up to and including this response."""
        self._contexts[response_id] = context
        self._trim(self._contexts)

    def events(self, response_id: str) -> list[Event] | None:
        """Return the events of an ended response, or None where it is not known here."""
        return self._events.get(response_id)

    def put_events(self, response_id: str, events: list[Event]) -> None:
        """Remember an ended response's events, for a repeated command."""
        self._events[response_id] = events
        self._trim(self._events)

    def put_command(self, command_id: str, response_id: str) -> None:
        """Remember which response a command made."""
        self.commands[command_id] = response_id
        self._trim(self.commands)

    def discard(self, response_id: str) -> None:
        self._contexts.pop(response_id, None)

    def _trim(self, kept: dict[str, Any]) -> None:
        while len(kept) > self._limit:
            del kept[next(iter(kept))]


class ClientGoneError(Exception):
    """The client's connection is closed: there is nobody to tell anything."""


class Client(Protocol):
    """One signed-in connection."""

    user: User
    local: LocalResponses

    def send(self, frame: bytes) -> None:
        """Queue a frame; never blocks."""
        ...

    async def write(self, frame: bytes) -> None:
        """Send a frame and wait for room: for replays of any length. Raises ClientGoneError."""
        ...

    def subscribe(self, channel: Channel, *, cursor: int, stream_id: str | None) -> Subscription:
        """Send the channel's events from the cursor on, now and as they come."""
        ...

    def is_subscribed(self, response_id: str) -> bool: ...
