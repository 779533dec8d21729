"""An answer that is made once more: only what is new goes out."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.items import Item
from protocol.output import Piece, PieceKind
from server.chat.repetition import Repetition
from server.engine.base import EngineError

KINDS = {"reasoning": PieceKind.REASONING, "message": PieceKind.TEXT, "function_call": PieceKind.ARGUMENTS}
ITEMS = st.lists(
    st.tuples(st.sampled_from(sorted(KINDS)), st.text("ab", min_size=1, max_size=6)), min_size=1, max_size=5
).map(lambda items: [item for i, item in enumerate(items) if item[0] == "function_call" or item[0] != items[i - 1][0]])


def item(kind: Any, text: str) -> Item:
    return Item("x", "assistant", text, type=kind, name="f" if kind == "function_call" else None)


def pieces_of(items: list[tuple[str, str]], sizes: list[int]) -> list[Piece]:
    """The items as pieces of these sizes, over and over."""
    pieces, turn = [], 0
    for kind, text in items:
        if kind == "function_call":
            pieces.append(Piece(PieceKind.CALL, "f"))
        start = 0
        while start < len(text):
            end = start + sizes[turn % len(sizes)]
            pieces.append(Piece(KINDS[kind], text[start:end]))
            start, turn = end, turn + 1
    return pieces


@given(ITEMS, st.data(), st.lists(st.integers(1, 4), min_size=1, max_size=5))
def test_what_was_said_and_what_is_new_are_the_answer(items, data, sizes):
    """Cut anywhere, and made again in other pieces: nothing comes twice, nothing is lost."""
    upto = data.draw(st.integers(0, len(items)))
    known = [item(*entry) for entry in items[:upto]]
    if known and data.draw(st.booleans()):
        kind, text = items[upto - 1]
        known[-1] = item(kind, text[: data.draw(st.integers(0 if kind == "function_call" else 1, len(text)))])
    repetition = Repetition(known)
    new = [piece for piece in map(repetition.new, pieces_of(items, sizes)) if piece is not None]
    said = [list(entry) for entry in ((k.type, k.text) for k in known)]
    for piece in new:
        if piece.kind is PieceKind.CALL:
            said.append(["function_call", ""])
        else:
            kind = next(name for name, of in KINDS.items() if of is piece.kind)
            if not said or said[-1][0] != kind:
                said.append([kind, ""])
            said[-1][1] += piece.text
    assert said == [list(entry) for entry in items]


@pytest.mark.parametrize(
    "again",
    [
        [Piece(PieceKind.TEXT, "other")],
        [Piece(PieceKind.CALL, "f")],
        [Piece(PieceKind.REASONING, "hm")],
        [Piece(PieceKind.TEXT, "He"), Piece(PieceKind.CALL, "f")],
    ],
)
def test_an_answer_that_is_another_one_cannot_go_on(again):
    """Text is never taken back."""
    repetition = Repetition([item("message", "Hello")])
    *first, last = again
    assert [repetition.new(piece) for piece in first] == [None] * len(first)
    with pytest.raises(EngineError, match="not the same"):
        repetition.new(last)


def test_another_function_cannot_go_on():
    repetition = Repetition([item("function_call", "{}")])
    with pytest.raises(EngineError):
        repetition.new(Piece(PieceKind.CALL, "g"))
