"""How likely the tokens of an answer were: from the engine to the client, the journal and back."""

from __future__ import annotations

import json
from typing import Any

import pytest

from protocol.events import Usage, event_from_journal, merge_deltas
from protocol.output import Piece, PieceKind, spoken
from protocol.response_stream import ResponseHead, ResponseStream

HEAD = ResponseHead("resp_1", "msg_1", "m", 1)


def token(text: str, value: float = -0.5) -> dict[str, Any]:
    return {"token": text, "bytes": list(text.encode()), "logprob": value, "top_logprobs": []}


def running() -> ResponseStream:
    stream = ResponseStream(HEAD)
    stream.create(waiting=False)
    stream.start()
    return stream


def bodies(events: Any) -> list[dict[str, Any]]:
    return [json.loads(event.data) for event in events]


def test_they_are_in_every_place_that_shows_the_text():
    """Each delta has those of its own text; `done`, the part and the item all of them."""
    stream = running()
    for word in ("Par", "is"):
        stream.push(word, (token(word),))
    first = stream.take()
    stream.push(".", (token("."),))
    stream.complete(Usage(1, 0, 3))
    events = {event["type"].removeprefix("response."): event for event in bodies([*first, *stream.take()])}
    assert bodies(first)[-1]["logprobs"] == [token("Par"), token("is")]
    assert events["output_text.delta"]["logprobs"] == [token(".")]
    whole = [token("Par"), token("is"), token(".")]
    assert events["output_text.done"]["logprobs"] == whole
    assert events["content_part.added"]["part"] == {"type": "output_text", "text": "", "annotations": []}
    assert events["content_part.done"]["part"]["logprobs"] == whole
    assert events["output_item.done"]["item"]["content"][0]["logprobs"] == whole
    assert events["completed"]["response"]["output"][0]["content"][0]["logprobs"] == whole


def test_unasked_for_nothing_of_them_is_anywhere():
    """Deltas and `done` have the empty list that clients read, items nothing."""
    stream = running()
    stream.push("Paris")
    stream.complete(Usage(1, 0, 1))
    for event in bodies(stream.take()):
        assert event.get("logprobs", []) == []
        assert "logprobs" not in json.dumps(event.get("item", event.get("part", event.get("response"))))


def test_a_takeover_goes_on_with_them():
    """What the journal has is what the clients had, and the end has all of it."""
    stream = running()
    stream.push("Par", (token("Par"),))
    journal = [(event.sequence_number, event.journaled) for event in stream.take()]
    again = ResponseStream.restore(HEAD, [event_from_journal(number, data) for number, data in journal])
    again.push("is", (token("is"),))
    again.complete(Usage(1, 0, 2))
    end = bodies(again.take())[-1]["response"]
    assert end["output"][0]["content"][0]["logprobs"] == [token("Par"), token("is")]


def test_a_slow_client_gets_them_merged():
    """One event for several has the tokens of all."""
    stream = running()
    deltas = []
    for word in ("a", "b"):
        stream.push(word, (token(word),))
        deltas.append(stream.take()[-1])
    merged = json.loads(merge_deltas(deltas).data)
    assert (merged["delta"], merged["logprobs"]) == ("ab", [token("a"), token("b")])


def test_of_other_items_nothing_is_told():
    """Thoughts and calls have none; the text between them its own."""
    stream = running()
    stream.add(Piece(PieceKind.REASONING, "Hm."))
    stream.add(Piece(PieceKind.TEXT, "Yes", None, (token("Yes"),)))
    stream.add(Piece(PieceKind.CALL, "f"))
    stream.complete(Usage(1, 0, 3))
    thought, text, call = bodies(stream.take())[-1]["response"]["output"]
    assert text["content"][0]["logprobs"] == [token("Yes")]
    assert "logprobs" not in json.dumps([thought, call])


@pytest.mark.parametrize(
    ("tokens", "text", "found"),
    [
        (["Par", "is"], "Paris", ["Par", "is"]),
        (["the", " cat", "</think>", "\n", "the", " end"], "the end", ["the", " end"]),
        (["ok", "<call>", "{"], "ok", ["ok"]),
        (["", "\u00e9"], "\u00e9", ["", "\u00e9"]),
        (["a"], "", []),
        ([], "abc", []),
    ],
)
def test_the_tokens_that_make_up_a_text(tokens, text, found):
    """Markup and thoughts before it and calls behind it are left out."""
    assert [one["token"] for one in spoken([token(word) for word in tokens], text)] == found
