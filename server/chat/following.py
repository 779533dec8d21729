"""Responses that run on another gateway, followed through their journals: pub/sub wakes, the stream repairs."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final

import orjson

from protocol.events import Event, Usage, event_from_journal
from protocol.response_stream import failed_event
from server.chat.hub import Channel
from server.chat.reads import terminal_event
from server.chat.runtime import Runtime, wait_at_most
from server.chat.turn import restored_head
from server.store.base import NotFoundError, Store, StoredResponse, StoreUnavailableError

logger = logging.getLogger(__name__)

PAGE: Final = 500  # events read at once
REPAIR_S: Final = 2.0  # the stream is looked at, and its gateway told of us, this often also when nothing wakes us
LINGER_S: Final = 2.0  # followed for nobody this long: a listener may be on its way, or come back
CANCEL_S: Final = 60.0  # where the last one has cancelled it: its gateway may have died, and another one takes it over
ENDED: Final = frozenset({"completed", "incomplete", "failed"})
TERMINAL_TYPES: Final = frozenset(f"response.{status}" for status in ENDED)


def is_terminal(event: Event) -> bool:
    """Return whether this is a response's end."""
    return event.delta is None and orjson.loads(event.data)["type"] in TERMINAL_TYPES


async def read_journal(store: Store, response_id: str) -> list[Event]:
    """Return all of a response's events that Redis holds. Raises StoreUnavailableError."""
    events: list[Event] = []
    after = -1
    while page := await store.read_events(response_id, after=after, count=PAGE):
        events += [event_from_journal(number, data) for number, data in page]
        after = events[-1].sequence_number
    return events


class Follower:
    """One response of another gateway: its events read into a channel of ours for as long as somebody listens.

    Somewhat longer where it is to be stopped.

    channel: one that has listeners and the first events already, of a response that was ours; None makes an empty one.
    """

    def __init__(self, response_id: str, owner: str, runtime: Runtime, channel: Channel | None = None) -> None:
        self.response_id = response_id
        self.owner = owner
        self.channel = channel or Channel(response_id, self._audience_changed)
        self.is_cancelled = False
        self.has_ended = False
        self._stored: StoredResponse | None = None  # as we last read it
        self._runtime = runtime
        self._last = self.channel.events[-1].sequence_number if self.channel.events else -1
        self._reading = asyncio.Lock()
        self._changed = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._asked_at = float("-inf")
        self._left_at: float | None = None  # when the last listener left; None while there is one
        self._audience_changed(self.channel.has_listeners)
        self.channel.on_audience = self._audience_changed

    async def run(self) -> None:
        """Follow to the terminal event, or until nobody listens any more."""
        topic = f"wake:{self.response_id}"
        try:
            await self._runtime.bus.subscribe(topic, self._wake)
            while self._is_wanted and not self.channel.is_closed:
                await self._step()
        finally:
            # Before anything is awaited: who comes meanwhile must find it closed, and begin another one.
            self.channel.close()
            await self._runtime.bus.unsubscribe(topic, self._wake)

    async def catch_up(self) -> None:
        """Read what the journal has now. Raises StoreUnavailableError."""
        async with self._reading:  # two at once would take the same events twice
            while events := await self._runtime.store.read_events(self.response_id, after=self._last, count=PAGE):
                self._take([event_from_journal(number, data) for number, data in events])

    def cancel(self) -> None:
        """Ask the gateway that runs it to stop it; asked again until it has ended, also when who wants it has left."""
        self.is_cancelled = True
        self._ask_owner()

    @property
    def _is_wanted(self) -> bool:
        wanted_s = CANCEL_S if self.is_cancelled else LINGER_S
        return self._left_at is None or self._loop.time() - self._left_at < wanted_s

    async def _step(self) -> None:
        """Tell the owner that we follow, read, and wait for more."""
        self._changed.clear()
        try:
            if self._stored is None:
                await self._check_record()
            if self._loop.time() - self._asked_at >= REPAIR_S:
                self._ask_owner()
            await self.catch_up()
            if not self.channel.is_closed:
                await wait_at_most(self._changed, REPAIR_S)
            if not self.channel.is_closed and not self._changed.is_set():
                await self._check_record()
        except StoreUnavailableError:
            await asyncio.sleep(REPAIR_S)  # the stream is still there when Redis is back

    async def _check_record(self) -> None:
        """Nothing came for a while: has it ended without us, or changed hands?"""
        try:
            stored = await self._runtime.store.get_response(self.owner, self.response_id)
        except NotFoundError:
            self._end_deleted()
            return
        self.learn(stored)
        if stored.status in ENDED:
            await self.catch_up()
            if not self.channel.is_closed:  # its journal has expired
                self._take([Event(stored.last_sequence_number, terminal_event(stored))])

    def _take(self, events: list[Event]) -> None:
        self._last = events[-1].sequence_number
        self.channel.publish(events)
        if is_terminal(events[-1]):
            self._end()

    def _end(self) -> None:
        self.has_ended = True
        self.channel.close()

    def _end_deleted(self) -> None:
        """Tell an end that nobody else tells: with its conversation, the journal is gone."""
        if self._stored is None or self.channel.is_closed:
            self._end()
            return
        head, fault = restored_head(self._stored), ("conversation_not_found", "the conversation was deleted")
        self._take([failed_event(head, self.channel.events, self._last + 1, fault, Usage())[0]])

    def learn(self, stored: StoredResponse) -> None:
        """Note what the store has of it; a gateway that has it now is told of us at once."""
        is_elsewhere = self._stored is not None and self._stored.gateway != stored.gateway
        self._stored = stored
        if is_elsewhere:
            self._ask_owner()

    def _ask_owner(self) -> None:
        if self._stored is None:
            return  # asked as soon as we know whom
        message = {"follow": self.response_id}
        if self.is_cancelled:
            message["cancel"] = self.response_id
        self._asked_at = self._loop.time()
        self._runtime.bus.publish(f"gateway:{self._stored.gateway}", message)

    def _wake(self, _message: dict[str, Any]) -> None:
        self._changed.set()

    def _audience_changed(self, listeners: int) -> None:
        self._left_at = None if listeners else self._loop.time()


class Following:
    """All followers of this gateway: one per response, however many clients listen."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._followers: dict[str, Follower] = {}

    def get(self, response_id: str) -> Follower | None:
        """Return the follower if one runs."""
        follower = self._followers.get(response_id)
        return None if follower is None or follower.channel.is_closed else follower

    async def follow(self, stored: StoredResponse) -> Follower:
        """Return a follower that has read what the journal has now. Raises StoreUnavailableError.

        One that runs already may lag behind, and a client may have seen more than it: elsewhere, or in the journal.
        """
        while True:
            follower = self.get(stored.id) or self._start(Follower(stored.id, stored.owner, self._runtime))
            follower.learn(stored)
            await follower.catch_up()
            if follower.has_ended or not follower.channel.is_closed:  # else its last listener has left meanwhile
                return follower

    def take_over(self, channel: Channel, owner: str) -> None:
        """Go on with the listeners of a response that was ours and runs on another gateway now."""
        if not channel.has_listeners:
            channel.close()
            return
        self._start(Follower(channel.response_id, owner, self._runtime, channel))

    def _start(self, follower: Follower) -> Follower:
        self._followers[follower.response_id] = follower
        task = self._runtime.spawn(follower.run(), f"follow {follower.response_id}")
        task.add_done_callback(lambda _task: self._forget(follower))
        return follower

    def _forget(self, follower: Follower) -> None:
        if self._followers.get(follower.response_id) is follower:
            del self._followers[follower.response_id]
