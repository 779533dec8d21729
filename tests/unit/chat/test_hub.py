"""The way back to sockets: every listener has every event once, in order; a slow one in fewer frames."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from protocol.events import Event, Usage
from protocol.response_stream import ResponseHead, ResponseStream
from server.chat.hub import Channel, Subscription


class Listener:
    """Takes when it is told to, or at every wake."""

    def __init__(self, *, is_quick: bool = False) -> None:
        self.is_quick = is_quick
        self.wakes = 0
        self.frames: list[dict[str, Any]] = []

    def send(self, frame: bytes) -> None:
        self.frames.append(json.loads(frame))

    def wake(self, subscription: Subscription) -> None:
        self.wakes += 1
        if self.is_quick:
            self.take(subscription)

    def take(self, subscription: Subscription) -> None:
        self.frames += [json.loads(frame) for frame in subscription.take()]

    @property
    def text(self) -> str:
        return "".join(frame.get("delta", "") for frame in self.frames)

    @property
    def numbers(self) -> list[int]:
        return [frame["sequence_number"] for frame in self.frames]


def channel(audience: list[int] | None = None) -> Channel:
    return Channel("resp_1", (audience if audience is not None else []).append)


def answer(*texts: str) -> list[Event]:
    stream = ResponseStream(ResponseHead("resp_1", "msg_1", "m", 1))
    stream.create(waiting=False)
    stream.start()
    events = stream.take()
    for text in texts:
        stream.push(text)
        events += stream.take()
    stream.complete(Usage())
    return events + stream.take()


def listen(to: Channel, listener: Listener, cursor: int = 0, stream_id: str | None = None) -> Subscription:
    subscription = Subscription(to, listener, cursor=cursor, stream_id=stream_id)
    to.add(subscription)
    return subscription


def test_who_keeps_up_gets_each_event_as_it_is():
    """The very bytes that the journal holds, one by one."""
    hub, listener, events = channel(), Listener(is_quick=True), answer("a", "b", "c")
    listen(hub, listener)
    for event in events:
        hub.publish([event])
    assert listener.frames == [json.loads(event.data) for event in events]
    assert listener.wakes == len(events)


def test_who_is_behind_gets_fewer_frames():
    """Neighbouring deltas are one, with the last one's number; other events stay where they are."""
    hub, listener, events = channel(), Listener(), answer("a", "b", "c", "d")
    subscription = listen(hub, listener)
    hub.publish(events[:6])
    listener.take(subscription)
    hub.publish(events[6:])
    listener.take(subscription)
    types = [frame["type"].removeprefix("response.") for frame in listener.frames]
    assert types.count("output_text.delta") == 2
    assert listener.text == "abcd"
    assert listener.numbers == sorted(set(listener.numbers))
    assert listener.numbers[-1] == events[-1].sequence_number


def test_a_late_joiner():
    """From its cursor on; behind the end it has the end."""
    hub, events = channel(), answer("a", "b")
    hub.publish(events)
    late, later = Listener(), Listener()
    late.take(listen(hub, late, hub.index_after(4)))
    assert late.numbers[0] == 5
    hub.close()
    later.take(listen(hub, later))
    assert later.text == "ab"


def test_lanes():
    """Each subscription's lane is put in front; the event itself is shared."""
    hub, listeners = channel(), [Listener(is_quick=True), Listener(is_quick=True)]
    for listener, lane in zip(listeners, ("one", None), strict=True):
        listen(hub, listener, stream_id=lane)
    hub.publish(answer("a"))
    assert {frame.get("stream_id") for frame in listeners[0].frames} == {"one"}
    assert {frame.get("stream_id") for frame in listeners[1].frames} == {None}


def test_the_audience():
    """Told with each who comes and goes; leaving twice counts once."""
    audience: list[int] = []
    hub = channel(audience)
    first, second = listen(hub, Listener()), listen(hub, Listener())
    first.close()
    first.close()
    second.close()
    assert audience == [1, 2, 1, 0]
    assert not hub.has_listeners


def test_the_end():
    """Everybody is woken once more, and may still take; nobody is counted any more; twice is once."""
    audience: list[int] = []
    ends: list[bool] = []
    hub, listener = channel(audience), Listener()
    hub.on_closed = lambda: ends.append(hub.is_closed)
    subscription = listen(hub, listener)
    hub.publish(answer("a"))
    hub.close()
    hub.close()
    assert listener.wakes == 2
    listener.take(subscription)
    assert listener.text == "a"
    subscription.close()
    assert audience == [1]
    assert ends == [True]


def test_remarks():
    """To those who have every event so far, on their lanes; one who is behind would think to have what it has not."""
    hub, quick, slow = channel(), Listener(is_quick=True), Listener()
    listen(hub, quick, stream_id="lane")
    subscription = listen(hub, slow)
    hub.publish(answer("a")[:5])
    hub.remark(b'{"type":"response.in_progress","sequence_number":4}')
    assert quick.frames[-1] == {"stream_id": "lane", "type": "response.in_progress", "sequence_number": 4}
    assert slow.frames == []
    slow.take(subscription)
    hub.remark(b'{"type":"response.in_progress","sequence_number":4}')
    assert slow.numbers[-2:] == [4, 4]


def test_who_left_takes_nothing_more():
    """Not even what was there already: a writer may come to it late."""
    hub, listener = channel(), Listener()
    subscription = listen(hub, listener)
    hub.publish(answer("a"))
    subscription.close()
    listener.take(subscription)
    assert listener.frames == []


def test_leaving_while_events_are_told():
    """A listener that is dropped by another one's wake does no harm."""
    hub = channel()
    subscriptions: list[Subscription] = []

    class Dropper(Listener):
        def wake(self, subscription: Subscription) -> None:
            super().wake(subscription)
            for other in subscriptions:
                other.close()

    listeners = [Dropper(), Dropper()]
    subscriptions += [listen(hub, listener) for listener in listeners]
    hub.publish(answer("a")[:1])
    assert not hub.has_listeners


TEXTS = st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=5), min_size=1, max_size=12)


@given(TEXTS, st.data())
def test_any_pace_gives_the_same_answer(texts, data):
    """Whenever events come and whenever they are taken, from any number on: the text after it, rising numbers."""
    hub, listener, events = channel(), Listener(), answer(*texts)
    after = data.draw(st.integers(-1, events[-1].sequence_number - 1))
    known = data.draw(st.integers(0, len(events)))
    hub.publish(events[:known])
    subscription = listen(hub, listener, min(hub.index_after(after), known))
    start = subscription.cursor
    for event in events[known:]:
        hub.publish([event])
        if data.draw(st.booleans()):
            listener.take(subscription)
    hub.close()
    listener.take(subscription)
    rest = events[start:]
    assert listener.text == "".join(event.delta or "" for event in rest)
    assert listener.numbers == sorted(set(listener.numbers))
    assert [f["type"] for f in listener.frames if "delta" not in f] == [
        json.loads(event.data)["type"] for event in rest if event.delta is None
    ]


@given(st.lists(st.integers(0, 50), unique=True).map(sorted), st.integers(-1, 60))
def test_index_after(numbers, after):
    """The first with a higher number, also where numbers skip."""
    hub = channel()
    hub.events = [Event(number, b"{}") for number in numbers]
    assert hub.index_after(after) == len([number for number in numbers if number <= after])
