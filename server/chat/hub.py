"""The way back to sockets: acknowledged events of running responses, and a cursor for each subscriber."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

from protocol.codec import with_stream_id
from protocol.events import Event, Part, merge_deltas


class Subscriber(Protocol):
    """A connection, as the hub sees it."""

    def send(self, frame: bytes) -> None:
        """Send a frame that belongs to no subscription. Never blocks."""
        ...

    def wake(self, subscription: Subscription) -> None:
        """Events wait in `subscription`; take and send them. Never blocks."""
        ...


class Channel:
    """The events of one response that Redis holds (or, unstored, that were made), and who wants them.

    on_audience: called with the number of subscribers whenever it changes. on_closed: called once, at the end.
    """

    def __init__(self, response_id: str, on_audience: Callable[[int], None]) -> None:
        self.response_id = response_id
        self.events: list[Event] = []
        self.is_closed = False
        self._subscriptions: dict[Subscription, None] = {}
        self.on_audience = on_audience
        self.on_closed: Callable[[], None] | None = None

    def publish(self, events: list[Event]) -> None:
        """Append acknowledged events and wake every subscriber."""
        self.events.extend(events)
        for subscription in tuple(self._subscriptions):
            subscription.subscriber.wake(subscription)

    def remark(self, frame: bytes) -> None:
        """Send an event that is no part of the response's stream to whoever listens now and has all that is.

        It carries the newest number, which one who is behind must not see before the events that lead to it.
        """
        for subscription in tuple(self._subscriptions):
            if subscription.cursor == len(self.events):
                subscription.subscriber.send(with_stream_id(frame, subscription.stream_id))

    def close(self) -> None:
        """Say that no event follows; subscriptions still hand out what they have not yet. Idempotent."""
        if self.is_closed:
            return
        self.is_closed = True
        for subscription in tuple(self._subscriptions):
            subscription.subscriber.wake(subscription)
        self._subscriptions.clear()
        if self.on_closed is not None:
            self.on_closed()
        # Whoever these belong to knows this channel: a cycle, which would keep a whole history until a collection.
        self.on_closed, self.on_audience = None, _ignore

    @property
    def has_listeners(self) -> bool:
        return bool(self._subscriptions)

    def add(self, subscription: Subscription) -> None:
        if not self.is_closed:
            self._subscriptions[subscription] = None
            self.on_audience(len(self._subscriptions))

    def discard(self, subscription: Subscription) -> None:
        if self._subscriptions.pop(subscription, self) is None:
            self.on_audience(len(self._subscriptions))

    def index_after(self, sequence_number: int) -> int:
        """Return the index of the first event with a higher number. Numbers rise, without gaps or nearly so."""
        low, high = 0, len(self.events)
        while low < high:
            middle = (low + high) // 2
            if self.events[middle].sequence_number <= sequence_number:
                low = middle + 1
            else:
                high = middle
        return low


def _ignore(_listeners: int) -> None:
    return None


class Subscription:
    """A cursor into one channel's events: a slow client costs a number, not a queue."""

    __slots__ = ("__weakref__", "channel", "cursor", "is_closed", "stream_id", "subscriber")

    def __init__(self, channel: Channel, subscriber: Subscriber, *, cursor: int, stream_id: str | None) -> None:
        self.channel = channel
        self.subscriber = subscriber
        self.cursor = cursor
        self.stream_id = stream_id
        self.is_closed = False

    def take(self) -> list[bytes]:
        """Return the frames since the last call; text deltas that gathered are one frame."""
        events = self.take_events()
        if len(events) == 1:  # nearly always, and for every subscriber
            return [with_stream_id(events[0].data, self.stream_id)]
        return [with_stream_id(event.data, self.stream_id) for event in _merged(events)]

    def take_events(self) -> list[Event]:
        """Return the events since the last call, unmerged."""
        events = [] if self.is_closed else self.channel.events[self.cursor :]
        self.cursor += len(events)
        return events

    def close(self) -> None:
        """Want no more events; idempotent."""
        self.is_closed = True
        self.channel.discard(self)


def _merged(events: list[Event]) -> Iterator[Event]:
    """Yield events with each run of neighbouring deltas of one part joined."""
    run: list[Event] = []
    part: Part | None = None  # of those in the run
    for event in events:
        if run and event.part != part:
            yield _joined(run)
            run.clear()
        part = event.part
        if part is None:
            yield event
        else:
            run.append(event)
    if run:
        yield _joined(run)


def _joined(run: list[Event]) -> Event:
    return run[0] if len(run) == 1 else merge_deltas(run)
