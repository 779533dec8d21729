"""An answer that is made once more from its beginning: what clients have of it already is not sent again."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from protocol.items import Item, ItemType
from protocol.output import ITEM_TYPES, Piece, PieceKind, spoken
from server.engine.base import EngineError


class _Known:
    """What is left of an item that comes again. is_named: the beginning of a call has come."""

    def __init__(self, item: Item) -> None:
        self.type: ItemType = item.type
        self.name = item.name
        self.left = item.text
        self.is_named = item.type != "function_call"


class Repetition:
    """Let through only what is new. items: what clients have seen, in order."""

    def __init__(self, items: Iterable[Item]) -> None:
        self._known = deque(_Known(item) for item in items)

    def new(self, piece: Piece) -> Piece | None:
        """Return what of a piece comes for the first time, or None.

        Raises EngineError where it is not what was said the first time: the answer cannot go on.
        """
        while self._known:
            known = self._known[0]
            if self._is_of(piece, known):
                return self._cut(piece, known)
            if known.left or not known.is_named:
                raise _differs()
            self._known.popleft()
        return piece

    def _is_of(self, piece: Piece, known: _Known) -> bool:
        if ITEM_TYPES[piece.kind] != known.type:
            return False
        return known.is_named != (piece.kind is PieceKind.CALL) or known.type != "function_call"

    def _cut(self, piece: Piece, known: _Known) -> Piece | None:
        if piece.kind is PieceKind.CALL:
            if piece.text != known.name:
                raise _differs()
            known.is_named = True
            return None
        if known.left.startswith(piece.text):
            known.left = known.left[len(piece.text) :]
            return None
        if not piece.text.startswith(known.left):
            raise _differs()
        rest = piece.text[len(known.left) :]
        self._known.popleft()
        if self._known:
            raise _differs()  # the item went no further the first time
        return Piece(piece.kind, rest, piece.call_id, spoken(piece.logprobs, rest))


def _differs() -> EngineError:
    return EngineError("the answer was interrupted, and made again it is not the same; send the turn again")
