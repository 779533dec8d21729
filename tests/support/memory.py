"""A store, a bus and a client in memory: several gateways of one test share them, and a test can break them."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, cast

import orjson

from protocol.items import Item
from server.access.auth import User
from server.chat.client import LocalResponses
from server.chat.hub import Channel, Subscription
from server.store.base import (
    Begun,
    Conversation,
    FencedError,
    Finish,
    History,
    JournalEntry,
    NewTurn,
    NotFoundError,
    StoredResponse,
    StoreUnavailableError,
)

ENDED = frozenset({"completed", "incomplete", "failed"})


async def until(condition: Callable[[], object]) -> None:
    """Return when a condition holds that nothing tells of; fails after 10 s."""
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 nothing tells of it
            await asyncio.sleep(0.001)


class MemoryStore:
    """What tests of the layers above need of `server.store.base.Store`, by its contract.

    is_away: every call raises StoreUnavailableError. `pause(name)` holds calls of one method. Gateways live until
    `kill`. calls: names of the methods called, in order.
    """

    def __init__(self) -> None:
        self.conversations: dict[str, Conversation] = {}
        self.first_items: dict[str, list[Item]] = {}
        self.responses: dict[str, StoredResponse] = {}
        self.commands: dict[tuple[str, str], str] = {}
        self.journals: dict[str, list[JournalEntry]] = defaultdict(list)
        self.gateways: set[str] = set()
        self.changes: dict[str, bytes] = {}
        self.is_away = False
        self.calls: list[str] = []
        self.waiting: dict[str, int] = defaultdict(int)  # calls that a pause holds
        self._open: dict[str, asyncio.Event] = {}
        self._arrived = asyncio.Event()

    @contextmanager
    def pause(self, name: str):
        """Hold every call of a method while inside."""
        gate = self._open[name] = asyncio.Event()
        try:
            yield gate
        finally:
            gate.set()
            self._open.pop(name, None)

    async def held(self, name: str, count: int = 1) -> None:
        """Return when a pause holds that many calls."""
        while self.waiting[name] < count:
            self._arrived.clear()
            await self._arrived.wait()

    async def _call(self, name: str) -> None:
        self.calls.append(name)
        if name in self._open:
            self.waiting[name] += 1
            self._arrived.set()
            try:
                await self._open[name].wait()
            finally:
                self.waiting[name] -= 1
        else:
            await asyncio.sleep(0)
        if self.is_away:
            raise StoreUnavailableError("away")

    def kill(self, gateway: str) -> None:
        self.gateways.discard(gateway)

    # Life

    async def connect(self) -> None: ...

    async def close(self) -> None: ...

    async def ping(self) -> None:
        await self._call("ping")

    # Conversations

    async def create_conversation(
        self, conversation: Conversation, items: Sequence[Item], command_id: str | None
    ) -> Conversation:
        await self._call("create_conversation")
        self.conversations[conversation.id] = conversation
        self.first_items[conversation.id] = list(items)
        return conversation

    async def get_conversation(self, owner: str, conversation: str) -> Conversation:
        await self._call("get_conversation")
        found = self.conversations.get(conversation)
        if found is None or found.owner != owner:
            raise NotFoundError("conversation", conversation)
        ended = [r.id for r in self.responses.values() if r.conversation == conversation and r.status in ENDED]
        return replace(
            found, head=ended[-1] if ended else None, running_response=next(iter(self._turns(found.id)), None)
        )

    async def update_conversation(self, owner: str, conversation: str, metadata: dict[str, str]) -> Conversation:
        found = await self.get_conversation(owner, conversation)
        self.conversations[conversation] = replace(found, metadata=metadata)
        return self.conversations[conversation]

    async def delete_conversation(self, owner: str, conversation: str) -> None:
        await self.get_conversation(owner, conversation)
        del self.conversations[conversation]
        for gone in [r.id for r in self.responses.values() if r.conversation == conversation]:
            del self.responses[gone]
            self.journals.pop(gone, None)

    async def list_conversations(self, owner: str, *, after: str | None, limit: int) -> tuple[list[Conversation], bool]:
        await self._call("list_conversations")
        return [found for found in self.conversations.values() if found.owner == owner][:limit], False

    async def list_items(
        self, owner: str, conversation: str, *, after: str | None, limit: int
    ) -> tuple[list[Item], bool]:
        await self._call("list_items")
        items = list(self.first_items.get(conversation, ()))
        for response in self.responses.values():
            if response.conversation == conversation:
                items += [*response.items, *response.output]
        return items[:limit], len(items) > limit

    # Turns

    def _turns(self, conversation: str) -> list[str]:
        return [r.id for r in self.responses.values() if r.conversation == conversation and r.status not in ENDED]

    async def history(self, owner: str, *, conversation: str | None, previous: str | None) -> History:
        await self._call("history")
        return self._history(owner, conversation, previous)

    def _history(self, owner: str, conversation: str | None, previous: str | None) -> History:
        ended = [r for r in self.responses.values() if r.conversation == conversation and r.status in ENDED]
        if conversation is None:
            ended = [r for r in self.responses.values() if r.id == previous]
        items = [item for r in ended for item in (*r.items, *r.output)]
        return History((*self.first_items.get(conversation or "", ()), *items), ended[-1].id if ended else None)

    async def begin(self, turn: NewTurn) -> Begun:
        await self._call("begin")
        earlier = self.commands.get((turn.owner, turn.command_id or ""))
        if earlier is not None:
            return Begun(earlier, duplicate=True, position=0)
        position = len(self._turns(turn.conversation)) if turn.conversation else 0
        if turn.command_id is not None:
            self.commands[turn.owner, turn.command_id] = turn.response_id
        self.responses[turn.response_id] = StoredResponse(
            id=turn.response_id,
            owner=turn.owner,
            conversation=turn.conversation,
            previous=turn.previous,
            status="queued",
            model=turn.model,
            created_at=turn.created_at,
            epoch=1,
            takeovers=0,
            gateway=turn.gateway,
            items=turn.items,
            output=(),
            request=turn.request,
            snapshot=turn.snapshot,
            last_sequence_number=-1,
        )
        history = None if position else self._run_now(turn.response_id)
        return Begun(turn.response_id, duplicate=False, position=position, history=history)

    def _run_now(self, response_id: str) -> History:
        record = self.responses[response_id]
        history = self._history(record.owner, record.conversation, record.previous)
        self.responses[response_id] = replace(record, status="in_progress", previous=record.previous or history.head)
        return history

    async def start(self, response_id: str, epoch: int) -> History | int:
        await self._call("start")
        record = self.responses.get(response_id)
        if record is None:
            raise NotFoundError("response", response_id)
        if record.epoch > epoch or record.status in ENDED:
            raise FencedError(response_id)
        if record.conversation is not None and (before := self._turns(record.conversation).index(response_id)):
            return before
        return self._run_now(response_id)

    async def turns(self, conversation: str) -> list[str]:
        await self._call("turns")
        return self._turns(conversation)

    async def finish(self, end: Finish) -> str | None:
        await self._call("finish")
        record = self.responses.get(end.response_id)
        if record is None:
            return None
        if record.epoch > end.epoch:
            raise FencedError(end.response_id)
        if record.status not in ENDED:
            for number, data in end.events:
                self._add(JournalEntry(end.response_id, end.epoch, number, data))
            last = end.events[-1][0] if end.events else record.last_sequence_number
            self.responses[end.response_id] = replace(
                record, status=end.status, output=end.output, snapshot=end.snapshot, last_sequence_number=last
            )
        return None

    async def get_response(self, owner: str, response_id: str) -> StoredResponse:
        await self._call("get_response")
        found = self.responses.get(response_id)
        if found is None or found.owner != owner:
            raise NotFoundError("response", response_id)
        return found

    async def find_command(self, owner: str, command_id: str) -> str | None:
        await self._call("find_command")
        return self.commands.get((owner, command_id))

    # Journal

    def _add(self, entry: JournalEntry) -> None:
        journal = self.journals[entry.response_id]
        if not journal or (entry.epoch, entry.sequence_number) > (journal[-1].epoch, journal[-1].sequence_number):
            journal.append(entry)

    async def append(self, entries: Sequence[JournalEntry]) -> frozenset[str]:
        await self._call("append")
        refused = set()
        for entry in entries:
            record = self.responses.get(entry.response_id)
            if record is None or record.epoch > entry.epoch:
                refused.add(entry.response_id)
            else:
                self._add(entry)
        return frozenset(refused)

    async def read_events(self, response_id: str, *, after: int, count: int) -> list[tuple[int, bytes]]:
        await self._call("read_events")
        journal = self.journals.get(response_id, [])
        return [(e.sequence_number, e.data) for e in journal if e.sequence_number > after][:count]

    # Gateways

    async def put_model_changes(
        self, fields: Mapping[str, bytes], gone: Sequence[str], *, seen: str, mark: str
    ) -> bool:
        await self._call("put_model_changes")
        if self.changes.get("mark", b"").decode() != seen:
            return False
        self.changes.update(fields)
        for name in gone:
            self.changes.pop(name, None)
        self.changes["mark"] = mark.encode()
        return True

    async def model_changes(self) -> dict[str, bytes]:
        await self._call("model_changes")
        return dict(self.changes)

    async def heartbeat(self, gateway: str, ttl_s: float) -> None:
        await self._call("heartbeat")
        if ttl_s:
            self.gateways.add(gateway)
        else:
            self.gateways.discard(gateway)

    async def orphans(self) -> dict[str, str]:
        await self._call("orphans")
        orphans = [r for r in self.responses.values() if r.status not in ENDED and r.gateway not in self.gateways]
        return {orphan.id: orphan.model for orphan in orphans}

    async def claim(self, response_id: str, gateway: str) -> StoredResponse | None:
        await self._call("claim")
        record = self.responses.get(response_id)
        if record is None or record.status in ENDED or (record.gateway != gateway and record.gateway in self.gateways):
            return None
        if record.gateway != gateway:
            record = self.responses[response_id] = replace(
                record, gateway=gateway, epoch=record.epoch + 1, takeovers=record.takeovers + 1
            )
        return record


class MemoryBus:
    """`server.store.bus.Bus` in one process: messages are called in the next turn of the loop.

    is_cut: messages are lost, as they are while Redis is away.
    """

    def __init__(self) -> None:
        self.handlers: dict[str, list[Callable[[dict[str, Any]], None]]] = defaultdict(list)
        self.sent: list[tuple[str, dict[str, Any]]] = []
        self.is_cut = False

    def publish(self, channel: str, message: dict[str, Any]) -> None:
        self.sent.append((channel, message))
        if not self.is_cut:
            asyncio.get_running_loop().call_soon(self.deliver, channel, message)

    def deliver(self, channel: str, message: dict[str, Any]) -> None:
        for handler in tuple(self.handlers[channel]):
            handler(message)

    async def subscribe(self, channel: str, handler: Callable[[dict[str, Any]], None]) -> None:
        await asyncio.sleep(0)
        if handler not in self.handlers[channel]:
            self.handlers[channel].append(handler)

    async def unsubscribe(self, channel: str, handler: Callable[[dict[str, Any]], None]) -> None:
        if handler in self.handlers[channel]:
            self.handlers[channel].remove(handler)
        await asyncio.sleep(0)

    @property
    def listeners(self) -> int:
        return sum(len(handlers) for handlers in self.handlers.values())


class MemoryClient:
    """A connection that keeps what it is sent. frames: decoded, in order."""

    def __init__(self, user: str = "ann", *rights: str) -> None:
        self.user = User(user, frozenset(rights))
        self.local = LocalResponses(16)
        self.frames: list[dict[str, Any]] = []
        self.subscriptions: list[Subscription] = []
        self._arrived = asyncio.Event()

    def send(self, frame: bytes) -> None:
        self.frames.append(orjson.loads(frame))
        self._arrived.set()

    async def write(self, frame: bytes) -> None:
        self.send(frame)

    def subscribe(self, channel: Channel, *, cursor: int, stream_id: str | None) -> Subscription:
        subscription = Subscription(channel, self, cursor=cursor, stream_id=stream_id)
        self.subscriptions.append(subscription)
        channel.add(subscription)
        self.wake(subscription)
        return subscription

    def is_subscribed(self, response_id: str) -> bool:
        return any(s.channel.response_id == response_id for s in self.subscriptions if not s.is_closed)

    def wake(self, subscription: Subscription) -> None:
        for frame in subscription.take():
            self.send(frame)

    def leave(self) -> None:
        for subscription in self.subscriptions:
            subscription.close()

    def types(self) -> list[str]:
        return [frame["type"] for frame in self.frames]

    def of(self, response_id: str | None = None) -> list[dict[str, Any]]:
        """The events of responses: those with a number."""
        return [frame for frame in self.frames if "sequence_number" in frame and "type" in frame]

    def text(self) -> str:
        return "".join(cast("str", frame["delta"]) for frame in self.frames if frame["type"].endswith("text.delta"))

    async def until(self, type: str, count: int = 1, timeout_s: float = 10) -> dict[str, Any]:
        """Return the `count`-th frame of a type once it is here."""
        async with asyncio.timeout(timeout_s):
            while len(found := [frame for frame in self.frames if frame["type"] == type]) < count:
                self._arrived.clear()
                await self._arrived.wait()
        return found[count - 1]
