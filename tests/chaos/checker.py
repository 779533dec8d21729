"""What must hold, whatever broke: pure functions over what clients saw and what the store has in the end."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

TERMINAL: Final = frozenset({"response.completed", "response.incomplete", "response.failed"})
DELTA: Final = "response.output_text.delta"
SUBSCRIBED: Final = "conversation.subscribed"
ITEM_ADDED: Final = "conversation.item.added"

Event = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Turn:
    """What a client asked for. id: its own key, by which it may ask again. text: unlike any other turn's."""

    id: str
    client: str
    conversation: str | None
    text: str


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame that a client got.

    view: a client's view of a response goes on across connections as long as it resumes; a client that asks for
    everything anew begins another view. turn: the id of the turn that it answers, None for those who only watch.
    """

    at: float
    client: str
    view: int
    turn: str | None
    event: Event


@dataclass(slots=True)
class History:
    """Everything that clients did and saw, oldest first. notes: what was broken when, for people.

    watching: the last view of clients that watch a conversation and were still connected at the end.
    """

    turns: list[Turn] = field(default_factory=list)
    frames: list[Frame] = field(default_factory=list)
    notes: list[tuple[float, str]] = field(default_factory=list)
    watching: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class Dump:
    """What the servers say when all is over; lists have one entry for each gateway, in the same order.

    items: by conversation. responses: the response objects, by id. running: by conversation, what it says is being
    answered. gauges: what must be 0, by name.
    """

    items: dict[str, list[list[dict[str, Any]]]] = field(default_factory=dict)
    responses: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    running: dict[str, list[str | None]] = field(default_factory=dict)
    gauges: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Violation:
    """One broken promise. rule: the checking function's name."""

    rule: str
    text: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.text}"


def check(history: History, dump: Dump, *, echo: bool) -> list[Violation]:
    """Return every broken promise. echo: the engine repeats the user's message, so the texts are known."""
    found: list[Violation] = []
    for rule in (turns_are_there_once, orders_agree, views_are_true, ends_agree, everything_ended, watchers_see_all):
        found += [Violation(rule.__name__, text) for text in rule(history, dump)]
    if echo:
        found += [Violation(echoes_are_whole.__name__, text) for text in echoes_are_whole(history, dump)]
    return found


# Views


@dataclass(slots=True)
class View:
    """What one client saw of one response. base: text and number that it was told when it joined late."""

    client: str
    response: str
    text: str = ""
    number: int = -1
    base: tuple[str, int] = ("", -1)
    end: Event | None = None
    faults: list[str] = field(default_factory=list)

    def take(self, event: Event) -> None:
        kind, number = event["type"], event.get("sequence_number", -1)
        if self.end is not None:
            self.faults.append(f"{kind} {number} came after the end ({self.end['type']})")
        # Through a silence of the store, "still in progress" is said without a number of its own.
        if number < self.number or (number == self.number and kind != "response.in_progress"):
            self.faults.append(f"{kind} {number} came after number {self.number}")
        self.number = max(self.number, number)
        if kind == DELTA:
            self.text += event["delta"]
        elif kind == "response.output_text.done" and event["text"] != self.text:
            self.faults.append(f"output_text.done differs from the deltas: {_difference(event['text'], self.text)}")
        elif kind in TERMINAL:
            self.end = event

    def __str__(self) -> str:
        return f"{self.client} of {self.response}"


def response_of(event: Event) -> str | None:
    """Return the response that an event belongs to; None for events that belong to none.

    An item's id is its response's with another prefix: events in the middle name the item only.
    """
    if not event["type"].startswith("response."):
        return None
    if "response" in event:
        return str(event["response"]["id"])
    item = event.get("item_id") or event.get("item", {}).get("id")
    return f"resp_{item.removeprefix('msg_')}" if item else None


def views(frames: Iterable[Frame]) -> list[View]:
    """Return every view in a history."""
    found: dict[tuple[str, int, str], View] = {}
    for frame in frames:
        if frame.event["type"] == SUBSCRIBED:
            for told in frame.event["responses"]:
                response = told["response"]["id"]
                base = (told["text"], told["sequence_number"])
                found[frame.client, frame.view, response] = View(frame.client, response, *base, base)
        response = response_of(frame.event)
        if response is not None:
            key = (frame.client, frame.view, response)
            if key not in found:
                found[key] = View(frame.client, response)
            found[key].take(frame.event)
    return list(found.values())


def output_text(response: dict[str, Any]) -> str:
    """Return the text of a response object."""
    return "".join(part["text"] for item in response["output"] for part in item.get("content", ()))


def _difference(wanted: str, seen: str) -> str:
    """Say where two texts part."""
    at = next((i for i, (a, b) in enumerate(zip(wanted, seen, strict=False)) if a != b), min(len(wanted), len(seen)))
    return f"at {at} of {len(wanted)}/{len(seen)}: {wanted[at : at + 40]!r} / {seen[at : at + 40]!r}"


# The rules


def turns_are_there_once(history: History, dump: Dump) -> Iterator[str]:
    """Each acknowledged turn is in its conversation exactly once, and is one response; a refused one at most once."""
    acknowledged: dict[str, set[str]] = defaultdict(set)
    for frame in history.frames:
        response = response_of(frame.event)
        if frame.turn is not None and response is not None:
            acknowledged[frame.turn].add(response)
    for turn in history.turns:
        responses = acknowledged[turn.id]
        if len(responses) > 1:
            yield f"turn {turn.id} was answered by several responses: {sorted(responses)}"
        for told in dump.items.get(turn.conversation or "", []):
            mine = [item for item in told if item["role"] == "user" and _text(item) == turn.text]
            if len(mine) > 1 or (responses and not mine):
                yield f"turn {turn.id} is in {turn.conversation} {len(mine)} times"
            elif mine and responses and mine[0].get("response_id") not in responses:
                yield f"turn {turn.id} is {mine[0].get('response_id')} in the store, was {sorted(responses)}"


def orders_agree(history: History, dump: Dump) -> Iterator[str]:
    """Every gateway tells a conversation in the same order, and watchers see the turns come in that order."""
    for conversation, told in dump.items.items():
        orders = [[item["id"] for item in items] for items in told]
        yield from (f"gateways disagree on {conversation}: {a} / {b}" for a, b in pairwise(orders) if a != b)
        for items in told[:1]:
            yield from (f"{conversation}: {text}" for text in _answers_follow(items))
    place = {item["id"]: (c, n) for c, told in dump.items.items() for items in told[:1] for n, item in enumerate(items)}
    for (client, _view), added in _added_items(history).items():
        places = [place[item] for item in added if item in place]
        if places != sorted(places):
            yield f"{client} saw turns in another order than the store has: {added}"


def _answers_follow(items: list[dict[str, Any]]) -> Iterator[str]:
    """Within a conversation, a turn's items stand together, the answer last."""
    last: dict[str, int] = {}
    for number, item in enumerate(items):
        response = item.get("response_id")
        if response is None:
            continue
        if last.get(response, number - 1) != number - 1:
            yield f"items of {response} do not stand together"
        last[response] = number


def _added_items(history: History) -> dict[tuple[str, int], list[str]]:
    added: dict[tuple[str, int], list[str]] = defaultdict(list)
    for frame in history.frames:
        if frame.event["type"] == ITEM_ADDED:
            added[frame.client, frame.view].append(frame.event["item"]["id"])
    return added


def views_are_true(history: History, dump: Dump) -> Iterator[str]:
    """A view is a prefix of the stored text, in order, without repeats; one that saw the end has all of it."""
    for view in views(history.frames):
        yield from (f"{view}: {fault}" for fault in view.faults)
        for stored in dump.responses.get(view.response, [])[:1]:
            text = output_text(stored)
            if not text.startswith(view.text):
                yield f"{view}: not the beginning of the stored text: {_difference(text, view.text)}"
            elif view.end is not None and view.text != text and not _is_without_store(view.end["response"]):
                yield f"{view}: ended before the stored text: {_difference(text, view.text)}"


def ends_agree(history: History, dump: Dump) -> Iterator[str]:
    """A response has one end, the same for everybody who saw it and in the store."""
    seen: dict[str, dict[str, str]] = defaultdict(dict)
    for view in views(history.frames):
        if view.end is not None and not _is_without_store(view.end["response"]):
            end = json.dumps(_end(view.end["response"]))
            seen[view.response].setdefault(end, view.client)
    for response, ends in seen.items():
        if len(ends) > 1:
            yield f"{response} ended differently for {sorted(ends.values())}: {[_short(end) for end in ends]}"
        for stored in dump.responses.get(response, []):
            for end in ends:
                if json.loads(end) != _end(stored):
                    yield f"{response}: {ends[end]} saw {_short(end)}, stored is {_short(json.dumps(_end(stored)))}"
    for response, told in dump.responses.items():
        if any(a != b for a, b in pairwise(told)):
            yield f"gateways disagree on {response}"


def _end(response: dict[str, Any]) -> list[Any]:
    """Return what everybody is told of an end."""
    return [response["status"], response["error"], response["incomplete_details"], output_text(response)]


def _is_without_store(response: dict[str, Any]) -> bool:
    """Tell an end for which the store could not be asked.

    It may have taken more of the text than it could say, and even the end that it was told before it fell silent:
    such a client has a true beginning, and finds the rest when the store is back.
    """
    return response["error"] is not None and response["error"]["code"] == "store_unavailable"


def _short(end: str) -> str:
    return end if len(end) <= 200 else f"{end[:160]}…{end[-40:]}"


def everything_ended(history: History, dump: Dump) -> Iterator[str]:
    """When the faults have stopped, every response ends: nothing runs, nothing waits, no engine works for nobody."""
    for response, told in dump.responses.items():
        for status in {stored["status"] for stored in told} & {"queued", "in_progress"}:
            yield f"{response} is still {status}"
    acknowledged = {answer for frame in history.frames if frame.turn and (answer := response_of(frame.event))}
    yield from (f"{response} is lost" for response in sorted(acknowledged - set(dump.responses)))
    for conversation, running in dump.running.items():
        yield from (f"{conversation} still answers {response}" for response in set(running) if response)
    yield from (f"{name} is {value:g}, not 0" for name, value in dump.gauges.items() if value)
    ended = {frame.turn for frame in history.frames if frame.event["type"] in TERMINAL}
    refused = {frame.turn for frame in history.frames if frame.event["type"] == "error"}
    for turn in history.turns:
        if turn.id not in ended:
            yield f"turn {turn.id} of {turn.client} never heard its end{' after an error' * (turn.id in refused)}"


def watchers_see_all(history: History, dump: Dump) -> Iterator[str]:
    """Who watches a conversation was told of every turn in it, and of every end: at once, or when it joined."""
    told: dict[str, set[str]] = defaultdict(set)
    watched: dict[str, str] = {}
    for frame in history.frames:
        event = frame.event
        if history.watching.get(frame.client) != frame.view:
            continue
        if event["type"] == SUBSCRIBED:
            watched[frame.client] = event["conversation"]["id"]
            told[frame.client] = _answered(event["items"])
        elif event["type"] in TERMINAL:
            told[frame.client].add(event["response"]["id"])
    for client, conversation in watched.items():
        for items in dump.items.get(conversation, [])[:1]:
            missed = _answered(items) - told[client]
            yield from (f"{client} was not told the end of {response}" for response in sorted(missed))


def _answered(items: list[dict[str, Any]]) -> set[str]:
    """Return the responses whose answers are among a conversation's items; one without any text has none."""
    return {item["response_id"] for item in items if item["role"] == "assistant" and item.get("response_id")}


def echoes_are_whole(history: History, dump: Dump) -> Iterator[str]:
    """A completed echo says what the user said, and one that was cut short the beginning of it."""
    asked = {turn.id: turn.text for turn in history.turns}
    answered = {(f.turn, response) for f in history.frames if f.turn and (response := response_of(f.event))}
    for turn, response in sorted(answered):
        for stored in dump.responses.get(response, [])[:1]:
            text = output_text(stored)
            whole = stored["status"] == "completed"
            if text != asked[turn] if whole else not asked[turn].startswith(text):
                yield f"{response} ({stored['status']}) is no echo: {_difference(asked[turn], text)}"


def _text(item: dict[str, Any]) -> str:
    return "".join(part.get("text", "") for part in item["content"])


# For people


def summary(history: History, dump: Dump) -> str:
    """Say in a line what happened."""
    statuses = Counter(
        f"{r['status']}{':' + r['error']['code'] if r['error'] else ''}"
        for told in dump.responses.values()
        for r in told[:1]
    )
    ends = ", ".join(f"{count} {status}" for status, count in sorted(statuses.items()))
    return f"{len(history.turns)} turns, {len(history.frames)} frames, {len(history.notes)} faults; {ends}"


def save(history: History, dump: Dump, folder: Path) -> None:
    """Write everything down, a JSON value a line."""
    for name, rows in (
        ("turns", [asdict(turn) for turn in history.turns]),
        ("frames", [asdict(frame) for frame in history.frames]),
        ("notes", history.notes),
        ("dump", [asdict(dump), history.watching]),
    ):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
