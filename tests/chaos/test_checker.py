"""The checker catches what it is there for: each planted fault is found, and a run without faults is not blamed."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from tests.chaos.checker import DELTA, Dump, Frame, History, Turn, Violation, check, save, summary, views

WORDS = {"r1": ["one ", "two ", "three"], "r2": ["four ", "five"]}


def events_of(name: str) -> list[dict[str, Any]]:
    """Return all events of a small answer."""
    response, item = f"resp_{name}", f"msg_{name}"
    head = {"id": response, "status": "in_progress", "output": []}
    events: list[dict[str, Any]] = [
        {"type": "response.created", "response": head},
        {"type": "response.in_progress", "response": head},
        {"type": "response.output_item.added", "item": {"id": item}},
    ]
    events += [{"type": DELTA, "item_id": item, "delta": word} for word in WORDS[name]]
    events += [
        {"type": "response.output_text.done", "item_id": item, "text": "".join(WORDS[name])},
        {"type": "response.completed", "response": stored(name)},
    ]
    return [{**event, "sequence_number": number} for number, event in enumerate(events)]


def stored(name: str) -> dict[str, Any]:
    return {
        "id": f"resp_{name}",
        "status": "completed",
        "error": None,
        "incomplete_details": None,
        "output": [{"id": f"msg_{name}", "content": [{"type": "output_text", "text": "".join(WORDS[name])}]}],
    }


def items_of(*names: str) -> list[dict[str, Any]]:
    """Return a conversation's items: each turn's question and answer."""
    return [
        {
            "id": f"{prefix}_{name}",
            "role": role,
            "response_id": f"resp_{name}",
            "content": [{"text": "".join(WORDS[name])}],
        }
        for name in names
        for prefix, role in (("ask", "user"), ("msg", "assistant"))
    ]


@pytest.fixture
def history() -> History:
    """Two turns in one conversation, a client that resumes, and one that joins in the middle of the first."""
    made = History()
    for number, name in enumerate(WORDS):
        made.turns.append(Turn(f"t{number}", "ann", "c", "".join(WORDS[name])))
        made.frames += [Frame(0, "ann", number, f"t{number}", event) for event in events_of(name)]
    told = [{"response": {"id": "resp_r1"}, "text": "one ", "sequence_number": 3}]
    late = [{"type": "conversation.subscribed", "conversation": {"id": "c"}, "items": [], "responses": told}]
    late += events_of("r1")[4:]
    late += [{"type": "conversation.item.added", "item": item} for item in items_of("r2")[:1]]
    late += events_of("r2")
    made.frames += [Frame(0, "bob", 1, None, event) for event in late]
    made.watching = {"bob": 1}
    return made


@pytest.fixture
def dump() -> Dump:
    return Dump(
        items={"c": [items_of("r1", "r2"), items_of("r1", "r2")]},
        responses={f"resp_{name}": [stored(name), stored(name)] for name in WORDS},
        running={"c": [None, None]},
        gauges={"g0 responses_running": 0},
    )


def found(history: History, dump: Dump) -> set[str]:
    """Return the rules that were broken."""
    return {violation.rule for violation in check(copy.deepcopy(history), dump, echo=True)}


def frames_of(history: History, kind: str, client: str = "ann") -> list[int]:
    """Return the places of a client's frames of one type."""
    return [n for n, frame in enumerate(history.frames) if frame.client == client and frame.event["type"] == kind]


def test_a_run_without_faults_keeps_every_promise(history, dump):
    assert check(history, dump, echo=True) == []
    assert summary(history, dump) == "2 turns, 28 frames, 0 faults; 2 completed"


@pytest.mark.parametrize("client", ["ann", "bob"])
def test_a_dropped_delta(history, dump, client):
    del history.frames[frames_of(history, DELTA, client)[1]]
    assert "views_are_true" in found(history, dump)


def test_a_dropped_delta_at_the_end_of_the_text(history, dump):
    """Without `output_text.done`, only the end tells that something is missing."""
    at = frames_of(history, DELTA)[2]
    del history.frames[at : at + 2]
    assert found(history, dump) == {"views_are_true"}


def test_a_view_that_just_stops_is_a_prefix_and_no_fault_of_its_own(history, dump):
    """A client that was cut off for good has seen a true beginning; that it never heard the end is another rule."""
    del history.frames[frames_of(history, DELTA)[1] : frames_of(history, "response.completed")[0] + 1]
    assert found(history, dump) == {"everything_ended"}


def test_a_repeated_delta(history, dump):
    at = frames_of(history, DELTA)[1]
    history.frames.insert(at, history.frames[at])
    assert "views_are_true" in found(history, dump)


def test_a_repeated_text_under_a_new_number(history, dump):
    """As when an answer is made again from its beginning."""
    at = frames_of(history, DELTA)[0]
    again = dict(history.frames[at + 1].event, delta=history.frames[at].event["delta"])
    history.frames[at + 1] = Frame(0, "ann", 0, "t0", again)
    assert "views_are_true" in found(history, dump)


def test_a_reordered_delta(history, dump):
    first, second = frames_of(history, DELTA)[:2]
    history.frames[first], history.frames[second] = history.frames[second], history.frames[first]
    assert "views_are_true" in found(history, dump)


def test_a_number_that_does_not_rise(history, dump):
    """Even with the right text."""
    event = history.frames[frames_of(history, DELTA)[1]].event
    event["sequence_number"] -= 1
    assert found(history, dump) == {"views_are_true"}


def test_a_silence_may_be_broken_without_a_number(history, dump):
    """Nothing can be numbered while the store is silent, but clients want to hear that the server lives."""
    at = frames_of(history, DELTA)[1]
    said = dict(history.frames[1].event, sequence_number=history.frames[at].event["sequence_number"])
    history.frames.insert(at + 1, Frame(0, "ann", 0, "t0", said))
    assert found(history, dump) == set()
    said["sequence_number"] -= 1
    assert found(history, dump) == {"views_are_true"}


def test_numbers_may_skip(history, dump):
    """Deltas that gathered come as one, with the last one's number."""
    at = frames_of(history, DELTA)[0]
    merged = dict(history.frames[at + 1].event, delta="one two ")
    history.frames[at : at + 2] = [Frame(0, "ann", 0, "t0", merged)]
    assert found(history, dump) == set()


def test_text_after_the_end(history, dump):
    late = dict(history.frames[frames_of(history, DELTA)[2]].event, sequence_number=99)
    history.frames.append(Frame(0, "ann", 0, "t0", late))
    assert "views_are_true" in found(history, dump)


def test_two_ends_for_one_client(history, dump):
    end = history.frames[frames_of(history, "response.completed")[0]].event
    history.frames.append(Frame(0, "ann", 0, "t0", dict(end, sequence_number=99)))
    assert "views_are_true" in found(history, dump)


def test_two_clients_hear_different_ends(history, dump):
    at = frames_of(history, "response.completed", "bob")[0]
    other = {**history.frames[at].event, "type": "response.failed"}
    other["response"] = {**other["response"], "status": "failed", "error": {"code": "server_error", "message": "x"}}
    history.frames[at] = Frame(0, "bob", 1, None, other)
    assert "ends_agree" in found(history, dump)


def test_an_end_that_the_store_does_not_have(history, dump):
    for told in dump.responses["resp_r1"]:
        told.update(status="incomplete", incomplete_details={"reason": "cancelled"})
    assert "ends_agree" in found(history, dump)


def failed_without_store(text: str) -> dict[str, Any]:
    error = {"code": "store_unavailable", "message": "…"}
    output = [{"id": "msg_r1", "content": [{"type": "output_text", "text": text}]}]
    return {**stored("r1"), "status": "failed", "error": error, "output": output}


def test_an_end_without_store_may_know_less_than_the_store(history, dump):
    """What was on its way when the store fell silent, even the end, may have arrived: who gave up cannot know."""
    begin, end = frames_of(history, DELTA)[1], frames_of(history, "response.completed")[0]
    failed = {"type": "response.failed", "sequence_number": 9, "response": failed_without_store("one ")}
    history.frames[begin : end + 1] = [Frame(0, "ann", 0, "t0", failed)]
    history.frames = [frame for frame in history.frames if frame.client == "ann"]
    history.watching = {}
    dump.responses["resp_r1"] = [failed_without_store("one two ")] * 2
    assert found(history, dump) == set()
    dump.responses["resp_r1"] = [stored("r1")] * 2
    assert found(history, dump) == set()
    dump.responses["resp_r1"] = [failed_without_store("")] * 2
    assert "views_are_true" in found(history, dump)


def test_an_end_without_store_that_only_the_store_has(history, dump):
    """Who saw another end saw it because the store had it: it cannot become this one."""
    dump.responses["resp_r1"] = [failed_without_store("one two three")] * 2
    assert found(history, dump) == {"ends_agree"}


def test_a_stored_text_that_differs_from_what_was_seen(history, dump):
    for told in dump.responses["resp_r2"]:
        told["output"][0]["content"][0]["text"] = "four six"
    assert {"views_are_true", "echoes_are_whole"} <= found(history, dump)


@pytest.mark.parametrize(
    "harm",
    [
        pytest.param(lambda items: items[:2], id="lost"),
        pytest.param(lambda items: [*items, *items_of("r1")], id="doubled"),
        pytest.param(lambda items: [{**items[0], "response_id": "resp_x"}, *items[1:]], id="another's"),
    ],
)
def test_a_turn_that_is_not_there_exactly_once(history, dump, harm: Callable[..., Any]):
    dump.items["c"] = [harm(items) for items in dump.items["c"]]
    assert "turns_are_there_once" in found(history, dump)


def test_a_turn_that_became_two_responses(history, dump):
    history.frames += [Frame(0, "ann", 9, "t0", event) for event in events_of("r2")]
    assert "turns_are_there_once" in found(history, dump)


def test_gateways_that_tell_another_order(history, dump):
    dump.items["c"][1] = items_of("r2", "r1")
    assert found(history, dump) == {"orders_agree"}


def test_items_of_two_turns_that_are_mixed(history, dump):
    a, b = items_of("r1"), items_of("r2")
    dump.items["c"] = [[a[0], b[0], a[1], b[1]]] * 2
    assert found(history, dump) == {"orders_agree"}


def test_a_watcher_that_saw_turns_in_another_order(history, dump):
    history.frames += [
        Frame(0, "eve", 1, None, {"type": "conversation.item.added", "item": i}) for i in items_of("r2", "r1")
    ]
    assert found(history, dump) == {"orders_agree"}


def test_a_watcher_that_was_not_told_of_a_turn(history, dump):
    history.frames = [frame for frame in history.frames if frame.client != "bob" or "_r2" not in str(frame.event)]
    assert found(history, dump) == {"watchers_see_all"}


@pytest.mark.parametrize("status", ["queued", "in_progress"])
def test_a_response_that_never_ended(history, dump, status):
    dump.responses["resp_r2"] = [{**told, "status": status} for told in dump.responses["resp_r2"]]
    assert "everything_ended" in found(history, dump)


def test_a_response_that_is_gone(history, dump):
    del dump.responses["resp_r2"]
    assert "everything_ended" in found(history, dump)


def test_a_client_that_never_heard_the_end(history, dump):
    history.turns.append(Turn("t9", "ann", None, "never answered"))
    assert found(history, dump) == {"everything_ended"}


def test_a_conversation_that_still_answers(history, dump):
    dump.running["c"] = ["resp_r2", "resp_r2"]
    assert found(history, dump) == {"everything_ended"}


def test_an_engine_that_works_for_nobody(history, dump):
    dump.gauges["g1 engine running"] = 1
    assert found(history, dump) == {"everything_ended"}


def test_an_echo_that_is_not_whole(history, dump):
    """All views and the store agree, and all are wrong."""
    history.turns[0] = Turn("t0", "ann", "c", "one two three four")
    dump.items["c"] = [
        [{**told[0], "content": [{"text": "one two three four"}]}, *told[1:]] for told in dump.items["c"]
    ]
    assert found(history, dump) == {"echoes_are_whole"}
    assert check(history, dump, echo=False) == []


def test_a_violation_says_who_and_what(history, dump):
    del history.frames[frames_of(history, DELTA)[1]]
    texts = [str(violation) for violation in check(history, dump, echo=True)]
    assert any("ann of resp_r1" in text and "wo three" in text for text in texts), texts
    assert str(Violation("rule", "text")) == "rule: text"


def test_histories_are_kept_line_by_line(history, dump, tmp_path):
    save(history, dump, tmp_path)
    assert len((tmp_path / "frames.jsonl").read_text().splitlines()) == len(history.frames)
    assert len(views(history.frames)) == 4
