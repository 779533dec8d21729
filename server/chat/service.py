"""The use cases: one method per command, which makes it longer than our other files."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, Final

from protocol.codec import with_stream_id
from protocol.commands import (
    DEFAULT_PAGE,
    Command,
    ConversationCreate,
    ConversationDelete,
    ConversationItemsList,
    ConversationList,
    ConversationRetrieve,
    ConversationSearch,
    ConversationSubscribe,
    ConversationUnsubscribe,
    ConversationUpdate,
    LimitsRetrieve,
    ModelList,
    ResponseCancel,
    ResponseCreate,
    ResponseProcessed,
    ResponseRetrieve,
    ResponseSteer,
    SessionUpdate,
)
from protocol.errors import ProtocolError
from protocol.events import Event, answer, steer_failed, unjournaled
from protocol.response_stream import State
from server.access.auth import User
from server.chat.allowance import settled
from server.chat.client import Client, ClientGoneError
from server.chat.errors import translate
from server.chat.feeds import Feeds
from server.chat.following import ENDED, Follower, Following, read_journal
from server.chat.generation import Generation, Interrupt, Resumed
from server.chat.hub import Channel
from server.chat.model_admin import ModelAdmin
from server.chat.pooling import Pooling
from server.chat.reads import Reads, terminal_event, wire_conversation
from server.chat.rights import check_conversation, check_turn, may_use
from server.chat.runtime import Runtime
from server.chat.search import search
from server.chat.session import wire_session
from server.chat.turn import Turn, make_turn, message_items, restored_turn
from server.models.changes import Changes
from server.models.pool import Pool
from server.store.base import Conversation, StoredResponse, StoreError

logger = logging.getLogger(__name__)

DOUBT_LOOKS: Final = 5  # for a turn whose acknowledgement was lost, once Redis is back
DOUBT_PAUSE_S: Final = 1.0
REPLAY_PAGE: Final = 500  # events read from the journal at once


class Chat:
    """Everything a signed-in client can do. Errors come out as ProtocolError, ready for the wire."""

    def __init__(self, runtime: Runtime, pool: Pool) -> None:
        self._runtime = runtime
        self._store = runtime.store
        self._pool = pool
        self.reads = Reads(self._store, pool, runtime.access.limits)
        self._following = Following(runtime)
        runtime.go_on_elsewhere = self._following.take_over
        self._feeds = Feeds(runtime, self._channel_of)
        self._pooling = Pooling(runtime, pool)
        self.model_changes = Changes(runtime.store, runtime.bus, pool)
        self._running: dict[str, Generation] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.is_draining = False
        self._handlers: dict[type[Command], Callable[[Client, Any], Awaitable[None]]] = {
            ResponseCancel: self.cancel,
            ResponseRetrieve: self.retrieve,
            ResponseSteer: self.steer,
            ResponseProcessed: self.processed,
            ConversationCreate: self.create_conversation,
            ConversationRetrieve: self.retrieve_conversation,
            ConversationUpdate: self.update_conversation,
            ConversationDelete: self.delete_conversation,
            ConversationSubscribe: self.subscribe,
            ConversationUnsubscribe: self.unsubscribe,
            ConversationList: self.list_conversations,
            ConversationSearch: self.search_conversations,
            ConversationItemsList: self.list_items,
            ModelList: self.list_models,
            SessionUpdate: self.update_session,
            **ModelAdmin(runtime, pool, self.model_changes).handlers,
            LimitsRetrieve: self.read_limits,
            **self._pooling.handlers,
        }

    @property
    def running(self) -> int:
        """Responses of this gateway that have not ended."""
        return len(self._running)

    async def handle(self, client: Client, command: Command) -> None:
        """Do any command but `response.create`, which has a lane of its own. Raises ProtocolError."""
        try:
            await self._handlers[type(command)](client, command)
        except (ClientGoneError, ProtocolError):
            raise  # not from itself: a cycle, which would keep all that it met until a collection
        except Exception as error:  # translated for the wire; what nobody expected is logged there
            raise translate(error) from error

    # Responses

    async def create(self, client: Client, command: ResponseCreate) -> Generation | None:
        """Begin to answer and subscribe the client; return when the turn is acknowledged.

        Return None where the command was a repetition: the earlier response's events have been sent or will be.
        Raises ProtocolError when the turn is refused; then nothing of it remains.
        """
        try:
            return await self._create(client, command)
        except (ClientGoneError, ProtocolError):
            raise
        except Exception as error:  # translated for the wire; what nobody expected is logged there
            raise translate(error) from error

    async def _create(self, client: Client, command: ResponseCreate) -> Generation | None:
        if self.is_draining:
            raise ProtocolError("server_is_overloaded", "the server is stopping; connect again", retry_after_ms=2000)
        check_turn(client.user, command)
        earlier = client.local.commands.get(command.id or "")
        if earlier is not None:
            await self._attach(client, earlier, -1, command.stream_id)
            return None
        turn = self._turn(client, command)
        hold = await self._runtime.access.limits.begin_turn(client.user, turn.head.id, command)
        generation = Generation(turn, self._runtime)
        self._run(generation, settled(generation, generation.run(), hold, self._runtime))
        try:
            response_id = await asyncio.shield(generation.accepted)
        except asyncio.CancelledError:
            if not generation.is_ended:
                generation.audience_changed(0)  # the client left before it could listen
            raise
        except ProtocolError as error:
            if error.code == "store_unavailable" and generation.is_stored:
                self._runtime.when_store_is_back(partial(self._take_up, generation.response_id), generation.response_id)
            del generation  # it has the error, and the error would have it
            raise
        if response_id != generation.response_id:
            await self._attach(client, response_id, -1, command.stream_id)
            return None
        client.subscribe(generation.channel, cursor=0, stream_id=command.stream_id)
        if generation.conversation is not None:
            self._feeds.began(client, client.user.id, generation.conversation, response_id)
        if not generation.is_stored:
            self._remember(client, command, generation)
        return generation

    async def _take_up(self, response_id: str) -> None:
        """Answer a turn that Redis took although its reply was lost: it is ours, and its conversation waits for it.

        Redis may come to read it after our first question: it lies on another connection.
        """
        for _ in range(DOUBT_LOOKS):
            stored = await self._store.claim(response_id, self._runtime.gateway_id)
            if stored is not None:
                self.adopt(stored, await read_journal(self._store, response_id))
                return
            await asyncio.sleep(DOUBT_PAUSE_S)

    def has_model(self, name: str) -> bool:
        """Return whether this gateway could go on with an answer of a model."""
        return name in self._pool.models

    def adopt(self, stored: StoredResponse, events: list[Event]) -> bool:
        """Go on with a response whose gateway is gone; return False where its model is not ours."""
        model = self._pool.models.get(stored.model)
        if model is None or self.is_draining:
            return False
        running = self._running.get(stored.id)
        if running is not None and running.epoch >= stored.epoch:
            return True  # the same claim twice
        generation = Generation(restored_turn(stored, model), self._runtime, Resumed(stored.epoch, events))
        hold = self._runtime.access.limits.adopt_turn(stored.owner, stored.id)
        self._run(generation, settled(generation, generation.resume(), hold, self._runtime))
        self._runtime.tell_conversation(stored.conversation, begun=stored.id)
        return True

    def control(self, message: dict[str, Any]) -> None:
        """Do what another gateway asks for a client of its own."""
        generation = self._running.get(message.get("follow", ""))
        if generation is not None:
            generation.follow()
            if "cancel" in message:
                generation.cancel()

    async def _channel_of(self, stored: StoredResponse) -> Channel:
        """Return the channel of a response, wherever it runs or ran."""
        generation = self._running.get(stored.id)
        if generation is not None and not generation.is_ended:
            return generation.channel
        return (await self._following.follow(stored)).channel

    def _run(self, generation: Generation, life: Coroutine[Any, Any, None]) -> None:
        self._running[generation.response_id] = generation
        task = asyncio.create_task(life, name=f"response {generation.response_id}")
        self._tasks.add(task)
        task.add_done_callback(lambda task: self._ended(task, generation))

    def _ended(self, task: asyncio.Task[None], generation: Generation) -> None:
        self._tasks.discard(task)
        if self._running.get(generation.response_id) is generation:  # else it came back to us meanwhile
            del self._running[generation.response_id]
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("%r broke", generation, exc_info=error)

    def _remember(self, client: Client, command: ResponseCreate, generation: Generation) -> None:
        """Keep an unstored answer on its connection once it has ended."""
        if command.id is not None:
            client.local.put_command(command.id, generation.response_id)

        def ended() -> None:
            client.local.put_events(generation.response_id, generation.channel.events)
            if generation.stream.state in (State.COMPLETED, State.INCOMPLETE):
                said = tuple(item.as_message() for item in generation.stream.output_items())
                client.local.put(generation.response_id, (*generation.context_messages, *said))
            else:
                client.local.discard(command.previous_response_id or "")

        if generation.channel.is_closed:
            ended()  # with `generate: false` there is nothing to wait for
        else:
            generation.channel.on_closed = ended

    def _turn(self, client: Client, command: ResponseCreate) -> Turn:
        """Give the turn its ids, its model, and what only this connection knows of its past."""
        model = self._pool.registry.get(command.model, lambda model: may_use(client.user, model))
        before = client.local.get(command.previous_response_id or "")
        return make_turn(client.user.id, model, command, before)

    async def drain(self, timeout_s: float) -> None:
        """Take no new turns; return when running answers have ended, or leave them as they are when time is up."""
        self.is_draining = True
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout_s)
        await self._runtime.late_ends_written(max(0.0, deadline - loop.time()))
        for generation in tuple(self._running.values()):
            generation.interrupt(Interrupt.ABANDONED)
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def cancel(self, client: Client, command: ResponseCancel) -> None:
        """Stop a response; its terminal event answers. One that has ended answers with the end it has."""
        response_id = command.response_id or ""
        generation = self._running_for(client, response_id)
        if generation is None:
            # One that it follows already needs no second subscription: it would hear everything twice.
            follower = self._following.get(response_id) if client.is_subscribed(response_id) else None
            follower = follower or await self._attach(client, response_id, None, command.stream_id)
            if follower is not None:
                follower.cancel()
            return
        if not client.is_subscribed(response_id):
            channel = generation.channel
            client.subscribe(channel, cursor=len(channel.events), stream_id=command.stream_id)
        generation.cancel()

    async def retrieve(self, client: Client, command: ResponseRetrieve) -> None:
        """Send what the client has missed of a response, then go on live."""
        after = -1 if command.starting_after is None else command.starting_after
        await self._attach(client, command.response_id, after, command.stream_id)

    async def _attach(
        self, client: Client, response_id: str, after: int | None, stream_id: str | None
    ) -> Follower | None:
        """Subscribe to a running response, or replay an ended one. after: None wants its terminal event alone.

        1. It runs here: from memory, then live.
        2. It was unstored and has ended: from this connection's memory.
        3. It runs on another gateway (or waits to be taken over): follow it; the follower is returned.
        4. It has ended and its journal is there: replay the journal.
        5. Its journal has expired: the terminal event alone, with the full output; also where it expires meanwhile.
        """
        generation = self._running_for(client, response_id)
        if generation is not None:
            channel = generation.channel
            cursor = len(channel.events) if after is None else channel.index_after(after)
            client.subscribe(channel, cursor=cursor, stream_id=stream_id)
            return None
        local = client.local.events(response_id)
        if local is not None:
            missed = [] if after is None else [event for event in local if event.sequence_number > after]
            for event in missed or local[-1:]:
                await client.write(with_stream_id(event.data, stream_id))
            return None
        stored = await self._store.get_response(client.user.id, response_id)
        if stored.status not in ENDED:
            follower = await self._following.follow(stored)
            channel = follower.channel
            cursor = len(channel.events) - channel.is_closed if after is None else channel.index_after(after)
            client.subscribe(channel, cursor=cursor, stream_id=stream_id)
            return follower
        if after is None:
            after = stored.last_sequence_number - 1
        newest = await self._replay(client, response_id, after, stream_id)
        if newest < max(stored.last_sequence_number, 0):  # the journal is gone, perhaps since its first page was read
            await client.write(with_stream_id(terminal_event(stored), stream_id))
        return None

    async def _replay(self, client: Client, response_id: str, after: int, stream_id: str | None) -> int:
        """Send journaled events after a number; return the newest one's number, -1 where there were none."""
        newest = -1
        while events := await self._store.read_events(response_id, after=after, count=REPLAY_PAGE):
            for number, event in events:
                await client.write(with_stream_id(unjournaled(event), stream_id))
                after = newest = number
        return newest

    def _running_for(self, client: Client, response_id: str) -> Generation | None:
        """Return the response if it runs here and is this client's to see; an unstored one is its connection's."""
        generation = self._running.get(response_id)
        if generation is None or generation.is_ended or generation.turn.owner != client.user.id:
            return None
        return generation if generation.is_stored or client.is_subscribed(response_id) else None

    async def steer(self, client: Client, command: ResponseSteer) -> None:
        client.send(steer_failed(command))

    async def processed(self, client: Client, command: ResponseProcessed) -> None:
        """Ignore a client's note, silently."""

    # Conversations

    async def create_conversation(self, client: Client, command: ConversationCreate) -> None:
        conversation = await self.new_conversation(client.user, command)
        client.send(answer("conversation.created", command, conversation=wire_conversation(conversation)))

    async def new_conversation(self, user: User, command: ConversationCreate) -> Conversation:
        """Make a conversation with the command's metadata and first items. Raises ProtocolError."""
        check_conversation(user, command)
        now = int(time.time())
        conversation = Conversation(
            id=f"conv_{uuid.uuid4().hex}",
            owner=user.id,
            created_at=now,
            updated_at=now,
            metadata=command.metadata or {},
        )
        items = message_items(command.messages, None)
        limits = self._runtime.access.limits
        try:
            hold = await limits.check_conversation(user, conversation.id, command)
            try:
                made = await self._store.create_conversation(conversation, items, command.id)
            except BaseException:
                limits.forget(hold)  # it may have been made all the same: the place is given up when its time is up
                raise
            await limits.close(hold)
        except StoreError as error:
            raise translate(error) from error
        return made

    async def retrieve_conversation(self, client: Client, command: ConversationRetrieve) -> None:
        conversation = await self.reads.conversation(client.user, command.conversation)
        client.send(answer("conversation.retrieved", command, conversation=conversation))

    async def update_conversation(self, client: Client, command: ConversationUpdate) -> None:
        conversation = await self._store.update_conversation(client.user.id, command.conversation, command.metadata)
        self._runtime.tell_conversation(conversation.id, updated=True)
        client.send(answer("conversation.updated", command, conversation=wire_conversation(conversation)))

    async def delete_conversation(self, client: Client, command: ConversationDelete) -> None:
        """Delete it with everything in it; running answers stop.

        They stop first: the journal refuses events of what is deleted, and their listeners must hear of an end.
        """
        running = [
            generation
            for generation in self._running.values()
            if generation.conversation == command.conversation and generation.turn.owner == client.user.id
        ]
        for generation in running:
            generation.cancel()
        for generation in running:
            await generation.settled()
        await self._store.delete_conversation(client.user.id, command.conversation)
        self._runtime.tell_conversation(command.conversation, deleted=True)
        deleted = {"id": command.conversation, "object": "conversation.deleted", "deleted": True}
        client.send(answer("conversation.deleted", command, conversation=deleted))

    async def subscribe(self, client: Client, command: ConversationSubscribe) -> None:
        """Send the conversation as it is, then everything that happens in it."""
        await self._feeds.leave(client, command.conversation)  # a second subscription replaces the first
        subscribed = partial(answer, "conversation.subscribed", command)
        await self._feeds.join(client, client.user.id, command.conversation, command.stream_id, subscribed)

    async def unsubscribe(self, client: Client, command: ConversationUnsubscribe) -> None:
        await self._feeds.leave(client, command.conversation)
        client.send(answer("conversation.unsubscribed", command, conversation={"id": command.conversation}))

    async def leave(self, client: Client) -> None:
        """The connection is gone: end its subscriptions, and what only it has asked for."""
        self._pooling.leave(client)
        await self._feeds.leave(client, None)

    async def list_conversations(self, client: Client, command: ConversationList) -> None:
        page = await self.reads.conversations(client.user, command.after, command.limit or DEFAULT_PAGE)
        client.send(answer("conversation.listed", command, data=page["data"], has_more=page["has_more"]))

    async def search_conversations(self, client: Client, command: ConversationSearch) -> None:
        found = await search(
            self._store, client.user.id, command.query, after=command.after, limit=command.limit or DEFAULT_PAGE
        )
        client.send(answer("conversation.searched", command, **found))

    async def list_items(self, client: Client, command: ConversationItemsList) -> None:
        page = await self.reads.items(client.user, command.conversation, command.after, command.limit or DEFAULT_PAGE)
        client.send(
            answer(
                "conversation.items.listed",
                command,
                conversation=command.conversation,
                data=page["data"],
                has_more=page["has_more"],
            )
        )

    # The rest

    async def list_models(self, client: Client, command: ModelList) -> None:
        models = await self.reads.models(client.user)
        client.send(answer("model.listed", command, data=models["data"]))

    async def read_limits(self, client: Client, command: LimitsRetrieve) -> None:
        limits = await self.reads.limits(client.user)
        client.send(answer("limits.retrieved", command, data=limits["data"]))

    async def update_session(self, client: Client, command: SessionUpdate) -> None:
        """Sign a connection in again, which is signed in already: its time goes on, with other rights perhaps."""
        client.user = await self._runtime.access.sign_in.renew(client.user, command.token)
        client.send(answer("session.updated", command, session=wire_session(client.user)))
