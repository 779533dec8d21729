"""Live conversations: every subscribed connection sees every turn as it happens, whichever gateway answers it."""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from protocol.codec import encode, with_stream_id
from protocol.items import Item
from protocol.output import is_output_of, wire_item
from protocol.response_stream import ResponseStream
from server.chat.client import Client
from server.chat.following import is_terminal
from server.chat.hub import Channel, Subscription
from server.chat.reads import wire_conversation
from server.chat.runtime import Runtime, conversation_topic
from server.chat.turn import item_id_of, restored_head
from server.store.base import NotFoundError, StoredResponse, StoreUnavailableError

logger = logging.getLogger(__name__)

RETRY_S: Final = 1.0  # a feed looks again this long after Redis was away
SNAPSHOT_ITEMS: Final = 1000  # items sent with `conversation.subscribed`; more are listed by page

Key = tuple[str, str]  # of a feed: owner, conversation


@dataclass(eq=False)
class Member:
    """One connection's subscription. It is told nothing before its snapshot has been sent.

    seen: responses that it was told of, in its snapshot or since. own: those that the connection began itself and was
    not told of yet. running: those of its snapshot that go on, and how many events of each the snapshot covers.
    """

    client: Client
    stream_id: str | None
    is_listening: bool = False
    seen: set[str] = field(default_factory=set)
    own: set[str] = field(default_factory=set)
    running: list[tuple[Channel, int]] = field(default_factory=list)
    # Weak: what has ended and was sent is let go, with all its events.
    subscriptions: weakref.WeakSet[Subscription] = field(default_factory=weakref.WeakSet)

    def begin(self) -> None:
        """The snapshot is on its way: from now on send what happens."""
        self.is_listening = True
        for channel, cursor in self.running:
            self.subscribe(channel, cursor)
        self.running.clear()

    def subscribe(self, channel: Channel, cursor: int) -> None:
        """Send a response's events, unless the connection gets or has had them: it may have begun the turn itself."""
        response_id = channel.response_id
        self.seen.add(response_id)
        if response_id not in self.own and not self.client.is_subscribed(response_id):
            self.subscriptions.add(self.client.subscribe(channel, cursor=cursor, stream_id=self.stream_id))
        self.own.discard(response_id)

    def end(self) -> None:
        """Send no more, of running responses neither."""
        self.is_listening = False
        for subscription in self.subscriptions:
            subscription.close()
        self.subscriptions.clear()

    def send(self, event: bytes) -> None:
        self.client.send(with_stream_id(event, self.stream_id))


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
        self.key = (owner, conversation)
        self.members: list[Member] = []
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
            except Exception:  # one piece of news that cannot be told must not end the feed
                logger.exception("news of %s could not be told", self.conversation)

    async def snapshot(self, member: Member) -> dict[str, Any]:
        """Return what a late joiner needs; `member.begin` goes on from there. Raises NotFoundError."""
        store = self._runtime.store
        # Turns before items: of a turn that ends between the two, the answer is among the items.
        turns = await store.turns(self.conversation)
        conversation = await store.get_conversation(self._owner, self.conversation)
        items, has_more = await store.list_items(self._owner, self.conversation, after=None, limit=SNAPSHOT_ITEMS)
        # Those with their answer: a turn that began since we asked for turns is still to be told, its items again.
        member.seen.update(filter(None, map(_answered, items)))
        if conversation.head is not None:
            member.seen.add(conversation.head)  # also where its items are on a later page, or it has none
        responses = [response for turn in turns if (response := await self._response(turn)) is not None]
        # Nothing is awaited from here to `begin`: what is told of a response ends where its subscription begins.
        member.running = [(channel, _covered(channel)) for _, channel in responses]
        return {
            "conversation": wire_conversation(conversation),
            "items": [item.as_wire() for item in items],
            "has_more": has_more,
            "responses": [_so_far(stored, channel) for stored, channel in responses],
        }

    async def _response(self, response_id: str) -> tuple[StoredResponse, Channel] | None:
        try:
            stored = await self._runtime.store.get_response(self._owner, response_id)
        except NotFoundError:
            return None  # deleted meanwhile
        return stored, await self._channel_of(stored)

    async def _tell(self, message: dict[str, Any]) -> None:
        if "deleted" in message:
            gone = {"id": self.conversation, "object": "conversation.deleted", "deleted": True}
            self._send({"type": "conversation.deleted", "conversation": gone}, self._listening())
        elif "updated" in message:
            conversation = await self._runtime.store.get_conversation(self._owner, self.conversation)
            updated = {"type": "conversation.updated", "conversation": wire_conversation(conversation)}
            self._send(updated, self._listening())
        else:  # begun, ended, or a gap
            # News of two gateways may come late and in any order; the conversation has one. What runs is read before
            # what has ended: a turn that ends between the two is in both then, and not in neither.
            turns = await self._runtime.store.turns(self.conversation)
            for response_id in [*await self._missed(), *turns]:
                await self._announce(response_id)

    async def _missed(self) -> list[str]:
        """Return ended responses that somebody has not been told of, oldest first."""
        conversation = await self._runtime.store.get_conversation(self._owner, self.conversation)
        missed, response_id = [], conversation.head
        while response_id is not None and self._strangers_to(response_id):
            missed.append(response_id)
            response_id = (await self._runtime.store.get_response(self._owner, response_id)).previous
        return missed[::-1]

    async def _announce(self, response_id: str) -> None:
        """Tell every member of a turn, once: its items, then its events."""
        if not self._strangers_to(response_id):
            return
        stored = await self._runtime.store.get_response(self._owner, response_id)
        channel = await self._channel_of(stored)
        members = self._strangers_to(response_id)
        for item in stored.items:
            added = {"type": "conversation.item.added", "conversation": self.conversation, "item": item.as_wire()}
            self._send(added, members)
        for member in members:
            member.subscribe(channel, 0)

    def _listening(self) -> list[Member]:
        return [member for member in self.members if member.is_listening]

    def _strangers_to(self, response_id: str) -> list[Member]:
        return [member for member in self._listening() if response_id not in member.seen]

    def _send(self, event: dict[str, Any], members: list[Member]) -> None:
        data = encode(event)
        for member in members:
            member.send(data)


def _answered(item: Item) -> str | None:
    """Return the response whose answer this item is, or None for what was asked."""
    response_id = item.response_id
    return response_id if response_id and is_output_of(item, item_id_of(response_id)) else None


def _covered(channel: Channel) -> int:
    """Return how many events a snapshot covers: all but the end, which may come while it is made, and must be told."""
    events = channel.events
    return len(events) - (1 if events and is_terminal(events[-1]) else 0)


def _so_far(stored: StoredResponse, channel: Channel) -> dict[str, Any]:
    events = channel.events[: _covered(channel)]
    items = ResponseStream.restore(restored_head(stored), events).output_items()
    return {
        "response": orjson.loads(stored.snapshot),
        "output": [wire_item(item) for item in items],
        "text": "".join(event.text for event in events),
        "sequence_number": events[-1].sequence_number if events else -1,
    }


class Feeds:
    """All feeds of this gateway: one per conversation, however many connections subscribe."""

    def __init__(self, runtime: Runtime, channel_of: Callable[[StoredResponse], Awaitable[Channel]]) -> None:
        self._runtime = runtime
        self._channel_of = channel_of
        # By owner, too: a stranger gets a feed of his own, which finds no such conversation.
        self._feeds: dict[Key, tuple[Feed, asyncio.Task[None]]] = {}
        # One for each feed that opens or closes: while Redis is away that takes seconds, of which others spend none.
        self._locks: weakref.WeakValueDictionary[Key, asyncio.Lock] = weakref.WeakValueDictionary()

    async def join(
        self, client: Client, owner: str, conversation: str, stream_id: str | None, answer: Callable[..., bytes]
    ) -> None:
        """Subscribe a connection: send the snapshot, put into words by `answer`, then everything that happens.

        Raises NotFoundError, StoreUnavailableError; then nothing of the subscription remains.
        """
        member = Member(client, stream_id)
        async with self._lock((owner, conversation)):
            feed = await self._open(conversation, owner)
            feed.members.append(member)
        try:
            async with feed.lock:
                client.send(answer(**await feed.snapshot(member)))
                member.begin()
        except BaseException:
            await self._drop(feed, member)
            raise

    async def leave(self, client: Client, conversation: str | None) -> None:
        """End a connection's subscriptions, of one conversation or (None) of all."""
        for feed, _ in tuple(self._feeds.values()):
            if conversation in (None, feed.conversation):
                for member in [member for member in feed.members if member.client is client]:
                    await self._drop(feed, member)

    def began(self, client: Client, owner: str, conversation: str, response_id: str) -> None:
        """A connection has begun a turn: its events come on the turn's own lane, however late the feed hears of it."""
        feed, _ = self._feeds.get((owner, conversation), (None, None))
        for member in feed.members if feed is not None else ():
            if member.client is client:
                member.own.add(response_id)

    def _lock(self, key: Key) -> asyncio.Lock:
        lock = self._locks.get(key)
        if lock is None:
            lock = self._locks[key] = asyncio.Lock()
        return lock

    async def _open(self, conversation: str, owner: str) -> Feed:
        if (owner, conversation) not in self._feeds:
            feed = Feed(conversation, owner, self._runtime, self._channel_of)
            topic = conversation_topic(conversation)
            try:
                await self._runtime.bus.subscribe(topic, feed.hear)
            except BaseException:
                await self._runtime.bus.unsubscribe(topic, feed.hear)
                raise
            task = self._runtime.spawn(feed.run(), f"feed {conversation}")
            self._feeds[owner, conversation] = (feed, task)
        return self._feeds[owner, conversation][0]

    async def _drop(self, feed: Feed, member: Member) -> None:
        if member in feed.members:
            feed.members.remove(member)
        member.end()
        async with self._lock(feed.key):
            if not feed.members and self._feeds.get(feed.key, (None,))[0] is feed:
                _, task = self._feeds.pop(feed.key)
                task.cancel()
                await self._runtime.bus.unsubscribe(conversation_topic(feed.conversation), feed.hear)
