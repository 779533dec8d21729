"""One response as a state machine: the table, the events, the numbers. Long: one machine is one file."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from protocol.codec import encode
from protocol.errors import IllegalTransitionError
from protocol.events import TEXT_DELTA, Event, Part, Usage, Waiting, merge_deltas
from protocol.response_stream import (
    TRANSITIONS,
    ResponseHead,
    ResponseStream,
    State,
    failed_event,
    response_object,
)

HEAD = ResponseHead("resp_1", "msg_1", "m", 1_700_000_000, "conv_1", "resp_0", {"store": True, "metadata": {}})
USAGE = Usage(input_tokens=3, cached_tokens=2, output_tokens=4)
ENDS = (State.COMPLETED, State.INCOMPLETE, State.FAILED)

# How each state is reached, and what moves to it.
PATHS: dict[State, list[Callable[[ResponseStream], None]]] = {
    State.NEW: [],
    State.QUEUED: [lambda s: s.create(waiting=True)],
    State.RUNNING: [lambda s: s.create(waiting=True), lambda s: s.start()],
    State.COMPLETED: [lambda s: s.create(waiting=True), lambda s: s.start(), lambda s: s.complete(USAGE)],
    State.INCOMPLETE: [lambda s: s.create(waiting=True), lambda s: s.interrupt("cancelled", USAGE)],
    State.FAILED: [lambda s: s.create(waiting=True), lambda s: s.fail("engine_error", "x", USAGE)],
}
MOVES: dict[State, Callable[[ResponseStream], None]] = {
    State.QUEUED: lambda s: s.create(waiting=False),
    State.RUNNING: lambda s: s.start({"context": {"dropped_turns": 1}}),
    State.COMPLETED: lambda s: s.complete(USAGE),
    State.INCOMPLETE: lambda s: s.interrupt("max_output_tokens", USAGE),
    State.FAILED: lambda s: s.fail("server_error", "y", USAGE),
}
WITHIN: dict[str, tuple[State, Callable[[ResponseStream], None]]] = {
    "queue": (State.QUEUED, lambda s: s.queue(Waiting("admission", position=1))),
    "push": (State.RUNNING, lambda s: s.push("text")),
    "push of nothing": (State.RUNNING, lambda s: s.push("")),
    "keep_alive": (State.RUNNING, lambda s: s.keep_alive()),
}


def in_state(state: State) -> ResponseStream:
    stream = ResponseStream(HEAD)
    for step in PATHS[state]:
        step(stream)
    assert stream.state is state
    return stream


def running(*texts: str) -> ResponseStream:
    stream = in_state(State.RUNNING)
    stream.take()
    for text in texts:
        stream.push(text)
    return stream


def look(stream: ResponseStream) -> tuple[Any, ...]:
    """Everything that could be seen of it, without taking."""
    fields = {key: list(value) if isinstance(value, list) else value for key, value in vars(stream).items()}
    return (fields, stream.snapshot(), stream.output_items(), repr(stream))


def read(events: list[Event]) -> list[dict[str, Any]]:
    return [json.loads(event.data) for event in events]


def types(events: list[Event]) -> list[str]:
    return [event["type"].removeprefix("response.") for event in read(events)]


# The table


@pytest.mark.parametrize("target", MOVES)
@pytest.mark.parametrize("state", PATHS)
def test_every_pair_of_the_table(state, target):
    """A legal move moves and says so; an illegal one raises and changes nothing, pending events included."""
    stream = in_state(state)
    before = look(stream)
    if target in TRANSITIONS[state]:
        MOVES[target](stream)
        assert stream.state is target
        assert stream.has_pending
    else:
        with pytest.raises(IllegalTransitionError, match=rf"resp_1 {state.value} .* cannot become {target.value}"):
            MOVES[target](stream)
        assert look(stream) == before


@pytest.mark.parametrize("method", WITHIN)
@pytest.mark.parametrize("state", PATHS)
def test_what_is_said_within_a_state(state, method):
    """Waiting is told while queued, text comes while running; elsewhere it raises and changes nothing."""
    home, call = WITHIN[method]
    stream = in_state(state)
    before = look(stream)
    if state is home:
        call(stream)
        assert stream.state is state
    else:
        with pytest.raises(IllegalTransitionError, match=f"is not {home.value}"):
            call(stream)
        assert look(stream) == before


def test_terminal_states_have_no_way_out():
    """The table itself: three ends, and everything else leads on."""
    assert {state for state, targets in TRANSITIONS.items() if not targets} == set(ENDS)
    assert all(state.is_terminal is (state in ENDS) for state in State)
    assert set(TRANSITIONS) == set(State)


def test_repr():
    """Its id, state and next number."""
    assert repr(running()) == "<ResponseStream resp_1 in_progress next=2>"


# Events


def test_a_whole_answer():
    """The order that clients expect, numbers without a gap, and the same text everywhere."""
    stream = ResponseStream(HEAD)
    stream.create(waiting=False)
    stream.start()
    stream.push("Hel")
    events = stream.take()
    stream.push("lo")
    stream.push(" you")
    events += stream.take()
    stream.complete(USAGE)
    events += stream.take()
    assert types(events) == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    assert [event["sequence_number"] for event in read(events)] == list(range(10))
    assert [event.sequence_number for event in events] == list(range(10))
    assert stream.last_sequence_number == 9
    assert [event.delta for event in events if event.delta is not None] == ["Hel", "lo you"]
    item = read(events)[-1]["response"]["output"][0]
    assert item["content"] == [{"type": "output_text", "text": "Hello you", "annotations": []}]
    assert item["status"] == "completed"
    assert stream.text == "Hello you"
    assert not stream.has_pending
    assert stream.take() == []


def test_created_says_whether_it_waits():
    """A response that will wait is `queued` from its first event on."""
    for waiting, status in ((True, "queued"), (False, "in_progress")):
        stream = ResponseStream(HEAD)
        stream.create(waiting=waiting)
        assert read(stream.take())[0]["response"]["status"] == status


def test_waiting_is_told_as_often_as_wanted():
    """Each notice has the response and what is known of the wait, and no more."""
    stream = in_state(State.QUEUED)
    stream.take()
    stream.queue(Waiting("conversation", position=2))
    stream.queue(Waiting("model_loading", progress=0.4, detail="reading weights"))
    stream.queue(Waiting("admission", position=1, estimated_wait_ms=1200))
    events = read(stream.take())
    assert [event["type"] for event in events] == ["response.queued"] * 3
    assert [event["sequence_number"] for event in events] == [1, 2, 3]
    assert {event["response"]["status"] for event in events} == {"queued"}
    assert [event["tokenwire"] for event in events] == [
        {"reason": "conversation", "position": 2},
        {"reason": "model_loading", "progress": 0.4, "detail": "reading weights"},
        {"reason": "admission", "position": 1, "estimated_wait_ms": 1200},
    ]


def test_long_silences_are_broken_in_order():
    """`keep_alive` comes after the text that was pushed before it."""
    stream = running("a")
    stream.keep_alive()
    stream.push("b")
    assert types(stream.take())[-3:] == ["output_text.delta", "in_progress", "output_text.delta"]


def test_the_context_notice_stays():
    """What was done to the context stands in the response object from its start to its end."""
    notice = {"context": {"dropped_turns": 2, "context_length": 8192}}
    stream = in_state(State.QUEUED)
    stream.start(notice)
    stream.complete(USAGE)
    with_notice = [event["response"].get("tokenwire") for event in read(stream.take()) if "response" in event]
    assert with_notice == [None, notice, notice]


def test_an_answer_of_nothing():
    """A response that was to generate nothing has no output; a model that ended at once has an empty item."""
    nothing = in_state(State.QUEUED)
    nothing.complete(Usage())
    assert types(nothing.take()) == ["created", "completed"]
    assert nothing.output_items() == ()
    silent = running()
    silent.complete(Usage(input_tokens=3, output_tokens=1))
    events = silent.take()
    assert types(events) == [
        "output_item.added",
        "content_part.added",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    assert read(events)[-1]["response"]["output"][0]["content"][0]["text"] == ""


@pytest.mark.parametrize("state", [State.QUEUED, State.RUNNING])
def test_cancelled_before_the_first_token(state):
    """There is no item, and the reason is told."""
    stream = in_state(state)
    stream.take()
    stream.interrupt("cancelled", Usage(input_tokens=3))
    events = read(stream.take())
    assert [event["type"] for event in events] == ["response.incomplete"]
    response = events[0]["response"]
    assert response["output"] == []
    assert response["incomplete_details"] == {"reason": "cancelled"}
    assert stream.incomplete_reason == "cancelled"


@pytest.mark.parametrize("reason", ["cancelled", "max_output_tokens", "content_filter"])
def test_cut_short(reason):
    """The partial text is kept, marked incomplete, with the text that had not gone out yet."""
    stream = running("par")
    stream.take()
    stream.push("tial")
    stream.interrupt(reason, USAGE)
    events = read(stream.take())
    assert events[0]["delta"] == "tial"
    response = events[-1]["response"]
    assert response["status"] == "incomplete"
    assert response["incomplete_details"] == {"reason": reason}
    assert response["output"][0]["status"] == "incomplete"
    assert response["output"][0]["content"][0]["text"] == "partial"


def test_failed():
    """The error is told in the response, the partial text kept."""
    stream = running("par")
    stream.fail("engine_error", "the engine died", USAGE)
    response = read(stream.take())[-1]["response"]
    assert response["status"] == "failed"
    assert response["error"] == {"code": "engine_error", "message": "the engine died"}
    assert response["incomplete_details"] is None
    assert response["output"][0]["content"][0]["text"] == "par"
    assert response["output"][0]["status"] == "incomplete"


def test_failing_never_fails():
    """An error text with undecodable bytes of a file name still reaches the client."""
    stream = running()
    stream.fail("engine_error", "no such file: caf\udce9", USAGE)
    assert read(stream.take())[-1]["response"]["error"]["message"] == "no such file: caf\ufffd"
    event, body, _ = failed_event(HEAD, (), 3, ("engine_error", "caf\udce9"), USAGE)
    assert json.loads(event.data)["response"] == body


def test_lone_surrogates_cost_a_character():
    """An engine that makes half a character does not cost the answer."""
    stream = running("a\ud83d", "b\udc00c")
    stream.complete(USAGE)
    events = read(stream.take())
    assert events[2]["delta"] == "a\ufffdb\ufffdc"
    assert stream.text == "a\ufffdb\ufffdc"


def test_usage():
    """Usage stands at the end only, and adds up."""
    stream = running("x")
    assert stream.snapshot()["usage"] is None
    stream.complete(USAGE)
    assert stream.snapshot()["usage"] == {
        "input_tokens": 3,
        "input_tokens_details": {"cached_tokens": 2, "cache_write_tokens": 0},
        "output_tokens": 4,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 7,
    }


@pytest.mark.parametrize("state", PATHS)
def test_snapshots_have_the_same_keys_in_every_state(state):
    """Every field that some client requires is there from the first event to the last."""
    snapshot = in_state(state).snapshot()
    assert snapshot.keys() == in_state(State.RUNNING).snapshot().keys()
    assert snapshot["object"] == "response"
    assert snapshot["id"] == "resp_1"
    assert snapshot["created_at"] == 1_700_000_000
    assert snapshot["conversation"] == {"id": "conv_1"}
    assert snapshot["previous_response_id"] == "resp_0"
    assert snapshot["store"] is True
    assert isinstance(snapshot["output"], list)


def test_output_is_told_at_the_end():
    """While it runs the response object has no output, as OpenAI's; the items to keep are there at any time."""
    stream = running("x")
    assert stream.snapshot()["output"] == []
    assert stream.output_items()[0].status == "in_progress"
    assert stream.output_items()[0].response_id == "resp_1"


def test_without_conversation():
    """No conversation and no usage are null."""
    body = response_object(ResponseHead("resp_1", "msg_1", "m", 1), status="queued")
    assert body["conversation"] is None
    assert body["usage"] is None
    assert body["previous_response_id"] is None


def test_an_end_outside_the_stream():
    """`failed_event` makes what `fail` would have made of the same text."""
    stream = running("par", "tial")
    stream.fail("server_error", "lost", USAGE)
    *seen, last = stream.take()
    event, body, items = failed_event(HEAD, seen, last.sequence_number, ("server_error", "lost"), USAGE)
    assert event == last
    assert body == stream.snapshot()
    assert items == stream.output_items()
    assert failed_event(HEAD, (), 1, ("server_error", "lost"), USAGE)[2] == ()


# Properties

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
CHUNKS = st.lists(TEXT | st.sampled_from(["🫠", "🥹", "龜", "🇳🇵", "👨‍👩‍👧", "नमस्ते", '"\\\n', "\x00"]), max_size=20)


@given(st.lists(st.tuples(st.text(max_size=8), st.booleans()), max_size=20))
def test_any_chunking_gives_the_same_text(chunks):
    """Joined deltas, done text, item text and stored text agree, whatever the chunks and the points of `take`."""
    stream = running()
    events: list[Event] = []
    for text, takes in chunks:
        stream.push(text)
        if takes:
            events += stream.take()
    stream.complete(USAGE)
    events += stream.take()
    seen = read(events)
    expected = "".join(
        chunk.encode("utf-16", "surrogatepass").decode("utf-16", "replace") if not chunk.isascii() else chunk
        for chunk, _ in chunks
    )
    deltas = "".join(event["delta"] for event in seen if event["type"] == "response.output_text.delta")
    (done,) = [event["text"] for event in seen if event["type"] == "response.output_text.done"]
    (part,) = [event["part"]["text"] for event in seen if event["type"] == "response.content_part.done"]
    (item,) = [event["item"] for event in seen if event["type"] == "response.output_item.done"]
    (output,) = seen[-1]["response"]["output"]
    assert {deltas, done, part, item["content"][0]["text"], stream.text} == {expected}
    assert output == item
    assert stream.output_items()[0].text == expected
    assert [event["sequence_number"] for event in seen] == list(range(2, 2 + len(seen)))


@given(CHUNKS, st.sampled_from(["complete", "interrupt", "fail"]))
def test_chunking_does_not_show_in_the_end(chunks, end):
    """One push of the whole and many of its pieces end in the same response."""

    def final(texts: list[str]) -> dict[str, Any]:
        stream = running(*texts)
        if end == "complete":
            stream.complete(USAGE)
        elif end == "interrupt":
            stream.interrupt("cancelled", USAGE)
        else:
            stream.fail("engine_error", "x", USAGE)
        return stream.snapshot()

    assert final(chunks) == final(["".join(chunks)])


@given(CHUNKS.filter(len), st.data())
def test_merged_deltas_say_the_same(chunks, data):
    """Any split of an answer's deltas, merged group by group, is the same text; the last number is kept."""
    stream = running()
    deltas: list[Event] = []
    for text in chunks:
        stream.push(text or "x")
        deltas += [event for event in stream.take() if event.delta is not None]
    cuts = data.draw(st.sets(st.integers(1, len(deltas))))
    bounds = sorted({0, *cuts, len(deltas)})
    groups = [deltas[low:high] for low, high in pairwise(bounds)]
    merged = [merge_deltas(group) for group in groups]
    assert "".join(json.loads(event.data)["delta"] for event in merged) == stream.text
    assert "".join(event.delta or "" for event in merged) == stream.text
    assert [event.sequence_number for event in merged] == [group[-1].sequence_number for group in groups]
    assert merge_deltas(deltas[:1]) == deltas[0]


@given(TEXT, st.integers(0, 2**53), TEXT)
def test_deltas_built_by_hand_are_json(text, number, item_id):
    """The fast path makes the bytes that the encoder would."""
    event = merge_deltas([Event(number, b"", text, Part(TEXT_DELTA, item_id))])
    assert event.data == encode(
        {
            "type": "response.output_text.delta",
            "sequence_number": number,
            "item_id": item_id,
            "output_index": 0,
            "content_index": 0,
            "delta": text,
            "logprobs": [],
        }
    )


# Going on where another gateway stopped

STEPS = st.lists(st.sampled_from(["queue", "start", "keep_alive"]) | TEXT, max_size=15)


def tell(stream: ResponseStream, steps: list[str]) -> list[Event]:
    """Do what is legal of the steps, and take the events one by one."""
    events: list[Event] = []
    for step in steps:
        if step == "queue" and stream.state is State.QUEUED:
            stream.queue(Waiting("admission", position=1))
        elif step == "start" and stream.state is State.QUEUED:
            stream.start({"context": {"dropped_turns": 1, "context_length": 8}})
        elif step == "keep_alive" and stream.state is State.RUNNING:
            stream.keep_alive()
        elif stream.state is State.RUNNING:
            stream.push(step)
        events += stream.take()
    return events


def ended(stream: ResponseStream, end: str) -> list[Event]:
    if end == "complete":
        stream.complete(USAGE)
    elif end == "interrupt":
        stream.interrupt("cancelled", USAGE)
    else:
        stream.fail("engine_error", "x", USAGE)
    return stream.take()


@given(STEPS, st.data(), STEPS, st.sampled_from(["complete", "interrupt", "fail"]))
def test_going_on_from_any_cut(before, data, after, end):
    """Whatever of its events reached the journal: numbers rise, nothing is announced twice, the text joins, one end.

    The closing events are not cut: they are one write with the end.
    """
    first = ResponseStream(HEAD)
    first.create(waiting=True)
    events = first.take() + tell(first, before)
    journal = events[: data.draw(st.integers(0, len(events)))]
    second = ResponseStream.restore(HEAD, journal)
    had = "".join(event.delta or "" for event in journal)
    assert second.text == had
    assert second.last_sequence_number == len(journal) - 1
    assert not second.has_pending
    if second.state is State.NEW:
        second.create(waiting=True)
    more = second.take() + tell(second, after)
    if second.state is State.QUEUED:
        second.start()
    more += ended(second, end)
    whole = journal + more
    assert [event.sequence_number for event in whole] == list(range(len(whole)))
    names = types(whole)
    assert names[0] == "created"
    for once in ("created", "output_item.added", "content_part.added", "output_text.done", "output_item.done"):
        assert names.count(once) <= 1
    assert names.count("output_item.added") == names.count("content_part.added") == names.count("output_item.done")
    assert [name for name in names if name in {state.value for state in ENDS}] == [names[-1]]
    text = had + "".join(event.delta or "" for event in more)
    assert second.text == text
    assert "".join(item["content"][0]["text"] for item in read(whole)[-1]["response"]["output"]) == text


def test_an_item_without_its_part():
    """A batch of which Redis took half: the item is there, its part is not. Only the part is announced."""
    first = running("lost")
    item = first.take()[:1]
    journal = in_state(State.RUNNING).take() + item
    assert types(journal)[-1] == "output_item.added"
    for say in (lambda s: s.push("again"), lambda s: None):
        stream = ResponseStream.restore(HEAD, journal)
        say(stream)
        stream.complete(USAGE)
        names = types(stream.take())
        assert names[0] == "content_part.added"
        assert "output_item.added" not in names
        assert names[-4:] == ["output_text.done", "content_part.done", "output_item.done", "completed"]


def test_numbers_go_on_behind_a_gap():
    """The journal's last number counts, not how many events it has: merged and lost events skip numbers."""
    journal = [Event(7, in_state(State.RUNNING).take()[1].data)]
    stream = ResponseStream.restore(HEAD, journal)
    stream.keep_alive()
    assert stream.take()[0].sequence_number == 8


def test_the_context_notice_survives():
    """What was done to the context is still told at the end."""
    first = in_state(State.QUEUED)
    notice = {"context": {"dropped_turns": 2, "context_length": 8192}}
    first.start(notice)
    stream = ResponseStream.restore(HEAD, first.take())
    stream.complete(USAGE)
    assert read(stream.take())[-1]["response"]["tokenwire"] == notice


def test_nothing_was_journaled():
    """A response without any event is a new one."""
    assert ResponseStream.restore(HEAD, []).state is State.NEW


class ResponseStreamMachine(RuleBasedStateMachine):
    """Any order of calls, against the table and a list of what was accepted."""

    @initialize()
    def begin(self) -> None:
        self.stream = ResponseStream(HEAD)
        self.state = State.NEW
        self.text = ""
        self.events: list[dict[str, Any]] = []

    @rule(to=st.sampled_from(list(MOVES)))
    def move(self, to: State) -> None:
        """Any move: obeys the table."""
        before = look(self.stream)
        if to in TRANSITIONS[self.state]:
            MOVES[to](self.stream)
            self.state = to
        else:
            with pytest.raises(IllegalTransitionError):
                MOVES[to](self.stream)
            assert look(self.stream) == before

    @rule(text=TEXT)
    def push(self, text: str) -> None:
        """Text: taken while running only."""
        if self.state is State.RUNNING:
            self.stream.push(text)
            self.text += text
        else:
            with pytest.raises(IllegalTransitionError):
                self.stream.push(text)

    @rule(name=st.sampled_from(["queue", "keep_alive"]))
    def say(self, name: str) -> None:
        """Notices: in their own state only."""
        home, call = WITHIN[name]
        if self.state is home:
            call(self.stream)
        else:
            with pytest.raises(IllegalTransitionError):
                call(self.stream)

    @rule()
    def take(self) -> None:
        """Events: numbered without a gap, each once."""
        self.events += read(self.stream.take())
        assert not self.stream.has_pending
        assert [event["sequence_number"] for event in self.events] == list(range(len(self.events)))
        assert self.stream.last_sequence_number == len(self.events) - 1

    @precondition(lambda self: self.state in ENDS)
    @rule()
    def read_the_end(self) -> None:
        """An ended response has one terminal event, its last, and every text in it agrees."""
        self.events += read(self.stream.take())
        ends = [event for event in self.events if event["type"].removeprefix("response.") in {s.value for s in ENDS}]
        assert ends == [self.events[-1]]
        assert ends[0]["type"] == f"response.{self.state.value}"
        assert "".join(event.get("delta", "") for event in self.events) == self.text
        output = ends[0]["response"]["output"]
        assert "".join(item["content"][0]["text"] for item in output) == self.text

    @invariant()
    def agrees(self) -> None:
        assert self.stream.state is self.state
        assert self.stream.text == self.text


TestResponseStreamMachine = ResponseStreamMachine.TestCase
TestResponseStreamMachine.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
