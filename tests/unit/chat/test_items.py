"""Answers of several items through the journal, another gateway, and a store that is away."""

from __future__ import annotations

from typing import Any

import pytest

from protocol.codec import decode_object
from protocol.output import Piece, PieceKind
from server.engine.base import Chunk, FinishReason
from tests.support.memory import MemoryClient, MemoryStore
from tests.unit.chat.conftest import Gateway, settle

THINK, SAY, CALL, ARGUE = PieceKind.REASONING, PieceKind.TEXT, PieceKind.CALL, PieceKind.ARGUMENTS
# What the model writes, chunk by chunk, and what is read in it.
WRITTEN: list[tuple[str, tuple[int, ...], tuple[Piece, ...]]] = [
    ("<think>", (1,), ()),
    ("I see", (2, 3), (Piece(THINK, "I see"),)),
    (".</think>", (4, 5), (Piece(THINK, "."),)),
    ("Look:", (6,), (Piece(SAY, "Look:"),)),
    ("<call>f", (7, 8), (Piece(CALL, "f"),)),
    ('{"a":', (9,), (Piece(ARGUE, '{"a":'),)),
    ("1}", (10,), (Piece(ARGUE, "1}"),)),
]
ALL = [("reasoning", "I see."), ("message", "Look:"), ("function_call", '{"a":1}')]
TOOLS = [{"type": "function", "name": "f"}]


def joined(pieces: list[Piece]) -> tuple[Piece, ...]:
    """Pieces of one kind as one, as an engine that reads its whole continuation at once gives them."""
    made: list[Piece] = []
    for piece in pieces:
        if made and piece.kind is made[-1].kind and piece.kind is not CALL:
            made[-1] = Piece(piece.kind, made[-1].text + piece.text)
        else:
            made.append(piece)
    return tuple(made)


async def write(gateway: Gateway, first: int, last: int) -> None:
    for text, token_ids, pieces in WRITTEN[first:last]:
        gateway.engine.say_chunk(Chunk(text, len(token_ids), pieces=pieces, token_ids=token_ids))
        await settle()


def items(response: dict[str, Any]) -> list[tuple[str, str]]:
    return [(item["type"], item.get("arguments") or item["content"][0]["text"]) for item in response["output"]]


def check_whole(events: list[dict[str, Any]]) -> dict[str, Any]:
    """Numbers rise, each item is announced and done once, its deltas are its text. Return the response."""
    numbers = [event["sequence_number"] for event in events]
    assert numbers == sorted(set(numbers))
    output = events[-1]["response"]["output"]
    for name in ("response.output_item.added", "response.output_item.done"):
        assert [e["item"]["id"] for e in events if e["type"] == name] == [item["id"] for item in output]
    for index, item in enumerate(output):
        deltas = "".join(e["delta"] for e in events if e.get("output_index") == index and "delta" in e)
        assert deltas == (item.get("arguments") or item["content"][0]["text"])
    return dict(events[-1]["response"])


@pytest.mark.parametrize("cut", range(1, len(WRITTEN) + 1))
async def test_another_gateway_goes_on_in_any_item(a: Gateway, b: Gateway, cut: int):
    """With the very tokens that the model wrote; what its parser reads once more is not told again."""
    generation = await a.create(tools=TOOLS)
    await write(a, 0, cut)
    await settle()
    await a.client.until("response.in_progress")
    await a.die()
    seen = list(a.client.of())
    await b.takeover.adopt_orphans()
    there = MemoryClient()
    after = seen[-1]["sequence_number"]
    await b.handle(there, type="response.retrieve", response_id=generation.response_id, starting_after=after)
    await settle()
    (request,) = b.engine.requests
    written = request.prompt.continuation
    known = next(n for n in range(cut + 1) if "".join(text for text, _, _ in WRITTEN[:n]) == written.text)
    assert written.token_ids == tuple(index for _, ids, _ in WRITTEN[:known] for index in ids)
    if known:
        again = [piece for _, _, pieces in WRITTEN[:known] for piece in pieces]
        b.engine.say_chunk(Chunk("", 0, pieces=joined(again)))
    await write(b, known, len(WRITTEN))
    b.engine.say_chunk(Chunk("", 0, FinishReason.STOP, pieces=()))
    await there.until("response.completed")
    assert items(check_whole(seen + there.of())) == ALL


async def test_a_form_is_made_again_from_its_beginning(a: Gateway, b: Gateway):
    """A grammar begins with the answer: the engine gets the same order, and what comes again is not sent again."""
    form = {"format": {"type": "json_object"}}
    generation = await a.create(text=form)
    a.engine.say('{"a": ')
    await a.client.until("response.output_text.delta")
    await a.die()
    seen = list(a.client.of())
    await b.takeover.adopt_orphans()
    there = MemoryClient()
    after = seen[-1]["sequence_number"]
    await b.handle(there, type="response.retrieve", response_id=generation.response_id, starting_after=after)
    for text in ('{"a', '": 1', "}"):
        b.engine.say(text)
    b.engine.end()
    await there.until("response.completed")
    (first,), (second,) = a.engine.requests, b.engine.requests
    assert second.prompt.continuation.text == ""
    assert first.sampling == second.sampling
    assert first.sampling.seed is not None
    response = check_whole(seen + there.of())
    assert items(response) == [("message", '{"a": 1}')]
    assert response["usage"]["output_tokens"] == len('{"a": 1}')


async def test_a_form_that_comes_out_another_one_fails(a: Gateway, b: Gateway, store: MemoryStore):
    """Text is never taken back: what there is of it is kept."""
    generation = await a.create(text={"format": {"type": "json_object"}})
    a.engine.say('{"a": ')
    await a.client.until("response.output_text.delta")
    await a.die()
    await b.takeover.adopt_orphans()
    there = MemoryClient()
    await b.handle(there, type="response.retrieve", response_id=generation.response_id)
    b.engine.say('{"b": 1}')
    await there.until("response.failed")
    response = there.of()[-1]["response"]
    assert response["error"]["code"] == "engine_error"
    assert items(response) == [("message", '{"a": ')]
    assert store.responses[generation.response_id].status == "failed"


async def test_the_journal_keeps_markup_to_itself(a: Gateway, store: MemoryStore):
    """It is there, to go on from; no client sees it, live or replayed."""
    generation = await a.create(tools=TOOLS)
    await write(a, 0, len(WRITTEN))
    a.engine.say_chunk(Chunk("", 0, FinishReason.STOP, pieces=()))
    await a.client.until("response.completed")
    journaled = b"".join(data for _, data in await store.read_events(generation.response_id, after=-1, count=999))
    assert b"<think>" in journaled
    late = MemoryClient()
    await a.handle(late, type="response.retrieve", response_id=generation.response_id)
    assert late.of() == a.client.of()
    assert "<think>" not in str(late.of())
    assert items(decode_object(store.responses[generation.response_id].snapshot)) == ALL
