"""Answers of several items: thoughts, words, calls."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.events import Event, Usage, Written, event_from_journal, merge_deltas, unjournaled
from protocol.items import Item
from protocol.output import Piece, PieceKind, is_output_of
from protocol.response_stream import ResponseHead, ResponseStream, failed_event

HEAD = ResponseHead("resp_1", "msg_1", "m", 1)
USAGE = Usage(3, 0, 9, 4)
THINK, SAY, CALL, ARGUE = PieceKind.REASONING, PieceKind.TEXT, PieceKind.CALL, PieceKind.ARGUMENTS
ANSWER = [
    Piece(THINK, "I need "),
    Piece(THINK, "the weather."),
    Piece(SAY, "Let me look."),
    Piece(CALL, "weather"),
    Piece(ARGUE, '{"city": '),
    Piece(ARGUE, '"Paris"}'),
    Piece(CALL, "weather", "call_of_its_own"),
    Piece(ARGUE, "{}"),
]


def running() -> ResponseStream:
    stream = ResponseStream(HEAD)
    stream.create(waiting=False)
    stream.start()
    return stream


def begun() -> ResponseStream:
    stream = running()
    stream.take()
    return stream


def read(events: list[Event]) -> list[dict[str, Any]]:
    return [json.loads(event.data) for event in events]


def whole(pieces: list[Piece]) -> list[Event]:
    """All events of an answer but its first two, each piece in an event of its own."""
    stream, events = begun(), list[Event]()
    for piece in pieces:
        stream.add(piece)
        events += stream.take()
    stream.complete(USAGE)
    return events + stream.take()


def test_each_item_has_its_place_and_its_events():
    """`output_index` counts the items; one is done before the next is announced."""
    events = read(whole(ANSWER))
    assert [event["type"].removeprefix("response.") for event in events] == [
        *("output_item.added", "content_part.added", "reasoning_text.delta", "reasoning_text.delta"),
        *("reasoning_text.done", "content_part.done", "output_item.done"),
        *("output_item.added", "content_part.added", "output_text.delta"),
        *("output_text.done", "content_part.done", "output_item.done"),
        *("output_item.added", "function_call_arguments.delta", "function_call_arguments.delta"),
        *("function_call_arguments.done", "output_item.done"),
        *("output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done"),
        "completed",
    ]
    assert [event["output_index"] for event in events[:-1]] == [0] * 7 + [1] * 6 + [2] * 5 + [3] * 4
    assert [event["sequence_number"] for event in events] == list(range(2, 2 + len(events)))


def test_the_output():
    """What the response holds in the end is what each item's own end said."""
    events = read(whole(ANSWER))
    output = events[-1]["response"]["output"]
    assert output == [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert [item["type"] for item in output] == ["reasoning", "message", "function_call", "function_call"]
    assert output[0]["content"] == [{"type": "reasoning_text", "text": "I need the weather."}]
    assert output[1]["content"][0]["text"] == "Let me look."
    assert (output[2]["name"], output[2]["arguments"]) == ("weather", '{"city": "Paris"}')
    assert output[2]["call_id"].startswith("call_")
    assert output[3]["call_id"] == "call_of_its_own"
    assert len({item["id"] for item in output}) == 4
    assert events[-1]["response"]["usage"]["output_tokens_details"] == {"reasoning_tokens": 4}


def test_an_answer_that_is_cut_short_in_a_call():
    """What is done stays completed; the call is incomplete, with the arguments so far."""
    stream = running()
    for piece in ANSWER[:5]:
        stream.add(piece)
    stream.interrupt("max_output_tokens", USAGE)
    output = read(stream.take())[-1]["response"]["output"]
    assert [item["status"] for item in output] == ["completed", "completed", "incomplete"]
    assert output[2]["arguments"] == '{"city": '


def test_thoughts_and_arguments_are_no_text():
    """`text`, for clients of plain text, is what the answer says."""
    events = whole(ANSWER)
    assert "".join(event.text for event in events) == "Let me look."


def test_deltas_of_different_parts_do_not_join():
    """Each keeps its address; those of one part are one."""
    events = [event for event in whole(ANSWER) if event.delta is not None]
    merged = merge_deltas(events[:2])
    assert json.loads(merged.data)["delta"] == "I need the weather."
    assert json.loads(merged.data)["type"] == "response.reasoning_text.delta"
    assert len({event.part for event in events}) == 4


def test_whose_item_it_is():
    """Items of an answer are told apart from what was asked, by their ids alone."""
    ids = [item["id"] for item in read(whole(ANSWER))[-1]["response"]["output"]]
    assert all(is_output_of(Item(name, "assistant", ""), "msg_1") for name in ids)
    assert not is_output_of(Item("msg_12", "user", ""), "msg_1")


PIECES = st.lists(
    st.builds(Piece, st.sampled_from([THINK, SAY, ARGUE]), st.text("ab", min_size=1, max_size=3))
    | st.builds(Piece, st.just(CALL), st.sampled_from(["f", "g"])),
    max_size=12,
).map(lambda pieces: [p for i, p in enumerate(pieces) if p.kind is not ARGUE or (i and pieces[i - 1].kind is CALL)])


@given(PIECES, st.lists(st.booleans(), min_size=12, max_size=12))
def test_any_gathering_gives_the_same_items(pieces, takes):
    """Whether pieces go out one by one or together shows in the deltas alone."""
    stream, events = begun(), list[Event]()
    for piece, take in zip(pieces, takes, strict=False):
        stream.add(piece)
        events += stream.take() if take else []
    stream.complete(USAGE)
    events += stream.take()

    def told(events: list[Event]) -> list[Any]:
        seen = [event for event in read(events) if not event["type"].endswith(".delta")]
        return [without_ids(event) for event in seen]

    assert told(events) == told(whole(pieces))
    for index, item in enumerate(read(events)[-1]["response"]["output"]):
        joined = "".join(event.delta or "" for event in events if event.part and event.part.output_index == index)
        assert joined == item.get("arguments", "".join(part["text"] for part in item.get("content", [])))


def without_ids(value: Any) -> Any:
    """Leave out what is drawn by lot, and numbers, which count deltas."""
    if isinstance(value, dict):
        return {key: without_ids(inner) for key, inner in value.items() if key not in ("call_id", "sequence_number")}
    return [without_ids(inner) for inner in value] if isinstance(value, list) else value


@given(PIECES, PIECES, st.data())
def test_another_gateway_goes_on_from_any_cut(before, after, data):
    """From the journal alone: no item twice, none lost, numbers rise, ids stay, and what the model wrote is known."""
    stream = running()
    events = stream.take()
    for piece in before:
        stream.record(Written(f"<{piece.text}>", (1, 2)))
        stream.add(piece)
        events += stream.take()
    cut = data.draw(st.integers(0, len(events)))
    kept = [event_from_journal(event.sequence_number, event.journaled) for event in events[:cut]]
    assert kept == events[:cut]
    written = [event.written for event in kept if event.written is not None]
    restored = ResponseStream.restore(HEAD, kept)
    if written:
        assert restored.written.text == "".join(part.text for part in written)
        assert restored.written.token_ids == (1, 2) * len(written)
    seen = read(kept)
    if restored.state.value != "in_progress":
        return
    for piece in after:
        restored.add(piece)
    restored.complete(USAGE)
    more = read(restored.take())
    numbers = [event["sequence_number"] for event in (*seen, *more)]
    assert numbers == sorted(set(numbers))
    added = [event["item"]["id"] for event in (*seen, *more) if event["type"] == "response.output_item.added"]
    output = more[-1]["response"]["output"]
    assert added == [item["id"] for item in output]
    assert len(set(added)) == len(added)
    done = [event["item"] for event in (*seen, *more) if event["type"] == "response.output_item.done"]
    assert done == output


@pytest.mark.parametrize("cut", range(1, 20))
def test_an_end_outside_the_stream_keeps_every_item(cut):
    """Whoever ends it has the items of the journal: whole ones completed, the last one as far as it came."""
    events = whole(ANSWER)[:cut]
    assert events
    _, body, items = failed_event(HEAD, events, 99, ("server_error", "x"), Usage())
    done = [event["item"]["id"] for event in read(events) if event["type"] == "response.output_item.done"]
    assert [item.id for item in items if item.status == "completed"] == done
    assert len(body["output"]) == len(items) <= len(done) + 1


def test_clients_never_see_what_the_journal_keeps_besides():
    """The model's markup stays behind the line end."""
    stream = running()
    stream.record(Written("<think>a", (5, 6)))
    stream.add(Piece(THINK, "a"))
    *_, last = stream.take()
    assert b"<think>" in last.journaled
    assert unjournaled(last.journaled) == last.data
    assert b"<think>" not in last.data
