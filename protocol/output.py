"""The items of one answer while it is made: what a model's output was read as, piece by piece."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import Any, Final

import msgspec

from protocol.events import ARGUMENTS_DELTA, REASONING_DELTA, TEXT_DELTA, DeltaType, Logprob, Part
from protocol.items import Item, ItemStatus, ItemType, output_text


class PieceKind(StrEnum):
    """What a piece of a model's output is."""

    TEXT = "text"
    REASONING = "reasoning"
    CALL = "call"  # a function call begins: its name
    ARGUMENTS = "arguments"  # of the call that began last

    __hash__ = str.__hash__  # Enum's own runs Python code, with every token


class Piece(msgspec.Struct, frozen=True, gc=False):
    """A piece of a model's output without its markup.

    call_id: given by a parser whose model wants one of its own. logprobs: of the tokens of a text, where asked for.
    """

    kind: PieceKind
    text: str
    call_id: str | None = None
    logprobs: tuple[Logprob, ...] = ()


class _Kind(msgspec.Struct, frozen=True):
    """prefix: of an item's id. delta: the type of its deltas, whose name `done` shares. field: of `done`."""

    prefix: str
    delta: DeltaType
    field: str
    part: str | None


_KINDS: Final[dict[ItemType, _Kind]] = {
    "message": _Kind("msg", TEXT_DELTA, "text", "output_text"),
    "reasoning": _Kind("rs", REASONING_DELTA, "text", "reasoning_text"),
    "function_call": _Kind("fc", ARGUMENTS_DELTA, "arguments", None),
}
ITEM_TYPES: Final[dict[PieceKind, ItemType]] = {
    PieceKind.TEXT: "message",
    PieceKind.REASONING: "reasoning",
    PieceKind.CALL: "function_call",
    PieceKind.ARGUMENTS: "function_call",
}


class OutputItem:
    """One item of an answer.

    index: its place in the output. taken: text that went out in deltas. pending: text that did not yet.
    logprobs, pending_logprobs: of the tokens of both, where they are asked for.
    has_part: its part, if items of its type have any, is announced. is_closed: nothing is added to it any more.
    """

    __slots__ = (
        "call_id",
        "has_part",
        "id",
        "index",
        "is_closed",
        "logprobs",
        "name",
        "part",
        "pending",
        "pending_logprobs",
        "taken",
        "type",
    )

    def __init__(self, id: str, type: ItemType, index: int, *, call_id: str | None = None, name: str | None = None):
        self.id = id
        self.type = type
        self.index = index
        self.call_id = call_id
        self.name = name
        self.part = Part(_KINDS[type].delta, id, index)
        self.taken: list[str] = []
        self.pending: list[str] = []
        self.logprobs: list[Logprob] = []
        self.pending_logprobs: list[Logprob] = []
        self.has_part = _KINDS[type].part is None
        self.is_closed = False

    @property
    def text(self) -> str:
        return "".join(self.taken) + "".join(self.pending)

    def as_item(self, status: ItemStatus, response_id: str) -> Item:
        """Return the item to keep. status: where it is not closed."""
        shown = "completed" if self.is_closed else status
        logprobs = tuple(self.logprobs)
        return Item(self.id, "assistant", self.text, shown, response_id, self.type, self.call_id, self.name, logprobs)

    def added(self) -> dict[str, Any]:
        """Return the item as it is announced: empty."""
        item = wire_item(Item(self.id, "assistant", "", "in_progress", None, self.type, self.call_id, self.name))
        return item | {"content": []} if "content" in item else item

    def wire_part(self, text: str) -> dict[str, Any] | None:
        """Return its part with that text, or None where items of its type have none."""
        kind = _KINDS[self.type].part
        if kind is None:
            return None
        if kind == "output_text":
            return output_text(text, self.logprobs if text else ())
        return {"type": kind, "text": text}

    def done(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield what is said of its text at its end: the events' types, and what they have besides the address."""
        kind, text = _KINDS[self.type], self.text
        fields: dict[str, Any] = {kind.field: text}
        if self.type == "message":
            fields["logprobs"] = self.logprobs
        if self.type == "function_call":
            fields["name"] = self.name
        yield kind.delta.replace(".delta", ".done"), fields
        if kind.part is not None:
            yield "response.content_part.done", {"part": self.wire_part(text)}


def spoken(logprobs: Sequence[Logprob], text: str) -> tuple[Logprob, ...]:
    """Return those of the tokens that make up a text, looked for from its end: before it may stand markup."""
    found: list[Logprob] = []
    end = len(text)
    for one in reversed(logprobs):
        start = text.rfind(one["token"], 0, end)
        if start >= 0:
            found.append(one)
            end = start
    return tuple(reversed(found))


def item_id(first_id: str, type: ItemType, index: int) -> str:
    """Return the id of an answer's item: known to every gateway without asking.

    first_id: of the answer's first message, `msg_` and a key of its own.
    """
    key = first_id.removeprefix("msg_")
    prefix = _KINDS[type].prefix
    return f"{prefix}_{key}" if type == "message" and not index else f"{prefix}_{key}.{index}"


def is_output_of(item: Item, first_id: str) -> bool:
    """Return whether an item is of the answer whose first message would have that id."""
    return item.id.partition("_")[2].partition(".")[0] == first_id.removeprefix("msg_")


def wire_item(item: Item) -> dict[str, Any]:
    """Return an item as it stands inside its own response, where repeating the response's id says nothing."""
    return {key: value for key, value in item.as_wire().items() if key != "response_id"}
