"""What the use cases need to know of a connection."""

from __future__ import annotations

from collections import OrderedDict
from typing import Protocol

from protocol.items import Message
from server.access.auth import User
from server.chat.hub import Channel, Subscription


class LocalResponses:
    """Answers of `store:false`, which live on their connection only: the newest few, whole.

    limit: how many are remembered; the oldest go first.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._contexts: OrderedDict[str, tuple[Message, ...]] = OrderedDict()

    def get(self, response_id: str) -> tuple[Message, ...] | None:
        return self._contexts.get(response_id)

    def put(self, response_id: str, context: tuple[Message, ...]) -> None:
        """Remember everything said up to and including this response."""
        self._contexts[response_id] = context
        while len(self._contexts) > self._limit:
            self._contexts.popitem(last=False)

    def discard(self, response_id: str) -> None:
        self._contexts.pop(response_id, None)


class Client(Protocol):
    """One signed-in connection."""

    user: User
    local: LocalResponses
    commands: dict[str, str]  # a `store:false` command's id -> the response it made, on this connection

    def send(self, frame: bytes) -> None:
        """Queue a frame; never blocks."""
        ...

    async def write(self, frame: bytes) -> None:
        """Send a frame and wait for room: for replays of any length."""
        ...

    def subscribe(self, channel: Channel, *, cursor: int, stream_id: str | None) -> Subscription:
        """Send the channel's events from the cursor on, now and as they come."""
        ...

    def is_subscribed(self, response_id: str) -> bool: ...
