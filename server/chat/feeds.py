"""Live conversations: every subscribed connection sees every turn as it happens, whichever gateway answers it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from protocol.codec import encode, with_stream_id
from server.chat.client import Client
from server.chat.hub import Channel
from server.chat.reads import wire_conversation
from server.chat.runtime import Runtime, conversation_topic
from server.store.base import NotFoundError, StoredResponse, StoreUnavailableError

RETRY_S: Final = 1.0  # a feed looks again this long after Redis was away
SNAPSHOT_ITEMS: Final = 1000  # items sent with `conversation.subscribed`; more are listed by page


@dataclass(eq=False)
class Member:
    """One connection's subscription. It counts as soon as it is here; `is_ready` once its snapshot has been sent."""

    client: Client
    stream_id: str | None
    is_ready: bool = False
    missed: list[bytes] = field(default_factory=list)

    def begin(self) -> None:
        """The snapshot is on its way: send what happened meanwhile, and from now on at once."""
        self.is_ready = True
        for frame in self.missed:
            self.client.send(frame)
        self.missed.clear()

    def send(self, event: bytes) -> None:
        frame = with_stream_id(event, self.stream_id)
        if self.is_ready:
            self.client.send(frame)
        else:
            self.missed.append(frame)


class Feed:
    """One conversation's subscribers on this gateway, and the task that tells them the news in order.

    channel_of: gives the channel of a response, running here or elsewhere, or ended.
    """

    def __init__(
        self,
        conversation: str,
        owner: str,
        runtime: Runtime,
        channel_of: Callable[[StoredResponse], Awaitable[Channel]],
    ) -> None:
        self.conversation = conversation
        self.members: list[Member] = []
        self.seen: set[str] = set()  # responses that were announced
        self.lock = asyncio.Lock()
        self._owner = owner
        self._runtime = runtime
        self._channel_of = channel_of
        self._news: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    def hear(self, message: dict[str, Any]) -> None:
        self._news.put_nowait(message)

    async def run(self) -> None:
        """Tell the news until cancelled. News that meets a silent Redis is told again when it is back."""
        while True:
            message = await self._news.get()
            try:
                async with self.lock:
                    await self._tell(message)
            except NotFoundError:
                pass  # deleted since: its own news follows
            except StoreUnavailableError:
                await asyncio.sleep(RETRY_S)
                self._news.put_nowait(message)

    async def snapshot(self, member: Member) -> dict[str, Any]:
        """Return what a late joiner needs, and subscribe it to what goes on from there. Raises NotFoundError."""
        store = self._runtime.store
        conversation = await store.get_conversation(self._owner, self.conversation)
        items, has_more = await store.list_items(self._owner, self.conversation, after=None, limit=SNAPSHOT_ITEMS)
        responses = [await self._join(member, response_id) for response_id in await store.turns(self.conversation)]
        return {
            "conversation": wire_conversation(conversation),
            "items": [item.as_wire() for item in items],
            "has_more": has_more,
            "responses": [response for response in responses if response],
        }

    async def _join(self, member: Member, response_id: str) -> dict[str, Any] | None:
        """Subscribe a member to a response behind what it is told now of it."""
        self.seen.add(response_id)
        stored = await self._runtime.store.get_response(self._owner, response_id)
        channel = await self._channel_of(stored)
        cursor = len(channel.events)
        if not member.client.is_subscribed(response_id):
            member.client.subscribe(channel, cursor=cursor, stream_id=member.stream_id)
        return {
            "response": orjson.loads(stored.snapshot),
            "text": "".join(event.delta or "" for event in channel.events),
            "sequence_number": channel.events[-1].sequence_number if channel.events else -1,
        }

    async def _tell(self, message: dict[str, Any]) -> None:
        if "deleted" in message:
            gone = {"id": self.conversation, "object": "conversation.deleted", "deleted": True}
            self._send({"type": "conversation.deleted", "conversation": gone})
        elif "updated" in message:
            conversation = await self._runtime.store.get_conversation(self._owner, self.conversation)
            self._send({"type": "conversation.updated", "conversation": wire_conversation(conversation)})
        elif "gap" in message:
            for response_id in await self._runtime.store.turns(self.conversation):
                await self._announce(response_id)
            conversation = await self._runtime.store.get_conversation(self._owner, self.conversation)
            if conversation.head is not None:
                await self._announce(conversation.head)
        else:  # begun, or ended where we have not heard of the beginning
            await self._announce(message.get("begun") or message["ended"])

    async def _announce(self, response_id: str) -> None:
        """Tell every member of a turn, once: its items, then its events."""
        if response_id in self.seen:
            return
        stored = await self._runtime.store.get_response(self._owner, response_id)
        channel = await self._channel_of(stored)
        self.seen.add(response_id)
        for item in stored.items:
            self._send({"type": "conversation.item.added", "conversation": self.conversation, "item": item.as_wire()})
        for member in self.members:
            if not member.client.is_subscribed(response_id):
                member.client.subscribe(channel, cursor=0, stream_id=member.stream_id)

    def _send(self, event: dict[str, Any]) -> None:
        data = encode(event)
        for member in self.members:
            member.send(data)


class Feeds:
    """All feeds of this gateway: one per conversation, however many connections subscribe."""

    def __init__(self, runtime: Runtime, channel_of: Callable[[StoredResponse], Awaitable[Channel]]) -> None:
        self._runtime = runtime
        self._channel_of = channel_of
        self._feeds: dict[str, tuple[Feed, asyncio.Task[None]]] = {}
        self._lock = asyncio.Lock()

    async def join(
        self, client: Client, owner: str, conversation: str, stream_id: str | None
    ) -> tuple[Member, dict[str, Any]]:
        """Subscribe a connection; return its membership and the snapshot to send first.

        Raises NotFoundError, StoreUnavailableError; then nothing of the subscription remains.
        """
        async with self._lock:
            feed = await self._open(conversation, owner)
            member = Member(client, stream_id)
            feed.members.append(member)
        try:
            async with feed.lock:
                return member, await feed.snapshot(member)
        except BaseException:
            await self._drop(feed, member)
            raise

    async def leave(self, client: Client, conversation: str | None) -> int:
        """End a connection's subscriptions, of one conversation or (None) of all; return how many there were."""
        count = 0
        for feed, _ in tuple(self._feeds.values()):
            if conversation in (None, feed.conversation):
                for member in [member for member in feed.members if member.client is client]:
                    count += 1
                    await self._drop(feed, member)
        return count

    async def _open(self, conversation: str, owner: str) -> Feed:
        if conversation not in self._feeds:
            feed = Feed(conversation, owner, self._runtime, self._channel_of)
            await self._runtime.bus.subscribe(conversation_topic(conversation), feed.hear)
            task = self._runtime.spawn(feed.run(), f"feed {conversation}")
            self._feeds[conversation] = (feed, task)
        return self._feeds[conversation][0]

    async def _drop(self, feed: Feed, member: Member) -> None:
        if member in feed.members:
            feed.members.remove(member)
        async with self._lock:
            if not feed.members and self._feeds.get(feed.conversation, (None,))[0] is feed:
                _, task = self._feeds.pop(feed.conversation)
                task.cancel()
                await self._runtime.bus.unsubscribe(conversation_topic(feed.conversation), feed.hear)
