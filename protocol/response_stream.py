"""One response as a sans-I/O state machine: text in, numbered and encoded events out. Long, as it is one machine."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from enum import Enum
from typing import Any, Final, Literal

import msgspec

from protocol.codec import decode_object, encode
from protocol.errors import IllegalTransitionError
from protocol.events import Event, Logprob, Usage, Waiting, Written, delta_event
from protocol.items import Item, ItemStatus, ItemType
from protocol.output import ITEM_TYPES, OutputItem, Piece, PieceKind, item_id, wire_item

IncompleteReason = Literal["max_output_tokens", "cancelled", "content_filter"]


class State(Enum):
    """A response's life: one transition table; illegal pairs raise."""

    NEW = "new"
    QUEUED = "queued"
    RUNNING = "in_progress"
    COMPLETED = "completed"
    INCOMPLETE = "incomplete"
    FAILED = "failed"

    @property
    def is_terminal(self) -> bool:
        return self in _TERMINAL


_TERMINAL: Final = frozenset({State.COMPLETED, State.INCOMPLETE, State.FAILED})

TRANSITIONS: Final[dict[State, frozenset[State]]] = {
    State.NEW: frozenset({State.QUEUED}),
    # A response that generates nothing completes without ever running.
    State.QUEUED: frozenset({State.RUNNING, State.COMPLETED, State.INCOMPLETE, State.FAILED}),
    State.RUNNING: frozenset({State.COMPLETED, State.INCOMPLETE, State.FAILED}),
    State.COMPLETED: frozenset(),
    State.INCOMPLETE: frozenset(),
    State.FAILED: frozenset(),
}


class ResponseHead(msgspec.Struct, frozen=True):
    """What of a response is known before it runs and never changes.

    item_id: of its first message. created_at: Unix seconds. parameters: what of the request the response object
    repeats.
    """

    id: str
    item_id: str
    model: str
    created_at: int
    conversation: str | None = None
    previous_response_id: str | None = None
    parameters: dict[str, Any] = {}


class ResponseStream:
    """Turn one answer into events; every method either obeys the table or raises and changes nothing.

    `take()` hands out what has gathered: text of one item pushed since the last call is one delta event. Sequence
    numbers count from 0 without a gap. Raises IllegalTransitionError.
    """

    def __init__(self, head: ResponseHead) -> None:
        self.head = head
        self.state = State.NEW
        self.usage: Usage | None = None
        self.notice: dict[str, Any] | None = None
        self._next_number = 0
        self._events: list[Event] = []
        self._items: list[OutputItem] = []
        self._written: list[Written] = []  # by the model, not in an event yet
        self._has_written: list[Written] = []  # in events, where the answer is read by a parser
        self._error: dict[str, str] | None = None
        self._incomplete_reason: IncompleteReason | None = None

    def __repr__(self) -> str:
        return f"<ResponseStream {self.head.id} {self.state.value} next={self._next_number}>"

    @property
    def text(self) -> str:
        """What the answer says so far; neither thoughts nor calls."""
        return "".join(item.text for item in self._items if item.type == "message")

    @property
    def written(self) -> Written:
        """What the model has written so far: all of it, markup and all."""
        written = [*self._has_written, *self._written]
        if not written:
            return Written(self.text)
        token_ids = [index for part in written for index in part.token_ids]
        return Written("".join(part.text for part in written), tuple(token_ids))

    @property
    def incomplete_reason(self) -> IncompleteReason | None:
        """Why the answer was cut short, or None."""
        return self._incomplete_reason

    @property
    def has_pending(self) -> bool:
        return bool(self._events or (self._items and self._items[-1].pending))

    @property
    def last_sequence_number(self) -> int:
        """Number of the newest event made, -1 before the first."""
        return self._next_number - 1

    @classmethod
    def restore(cls, head: ResponseHead, events: Sequence[Event]) -> ResponseStream:
        """Return the stream of a response whose journal holds these events, to go on where they end.

        events: all of them from the first, none of them terminal; deltas with their text.
        """
        stream = cls(head)
        for event in events:
            stream._next_number = event.sequence_number + 1
            if event.written is not None:
                stream._has_written.append(event.written)
            if event.delta is not None:
                stream._items[-1].taken.append(event.delta)
                stream._items[-1].logprobs.extend(event.logprobs)
            else:
                stream._recall(decode_object(event.data))
        return stream

    def _recall(self, event: dict[str, Any]) -> None:
        match event["type"]:
            case "response.created":
                self.state = State.QUEUED
            case "response.in_progress":
                self.state = State.RUNNING
                self.notice = event["response"].get("tokenwire")
            case "response.output_item.added":
                item = event["item"]
                call = {"call_id": item.get("call_id"), "name": item.get("name")}
                self._items.append(OutputItem(item["id"], item["type"], event["output_index"], **call))
            case "response.content_part.added":
                self._items[-1].has_part = True
            case "response.output_item.done":
                self._items[-1].is_closed = event["item"]["status"] == "completed"

    # What happens to a response, in the order it can happen

    def create(self, *, waiting: bool) -> None:
        """Begin: `response.created`. waiting: it is known that it cannot run at once."""
        self._move(State.QUEUED)
        self._emit("response.created", response=self.snapshot("queued" if waiting else "in_progress"))

    def queue(self, waiting: Waiting) -> None:
        """Say why it waits and how far it is: `response.queued`."""
        self._require(State.QUEUED)
        info = msgspec.to_builtins(waiting)
        self._emit("response.queued", response=self.snapshot("queued"), tokenwire=info)

    def start(self, notice: dict[str, Any] | None = None) -> None:
        """It runs: `response.in_progress`. notice: what was done to the context, for the client to read."""
        self._move(State.RUNNING)
        self.notice = notice
        self._emit("response.in_progress", response=self.snapshot())

    def note(self, notice: dict[str, Any]) -> None:
        """Say how far it is; from now on the response object has it."""
        self._require(State.RUNNING)
        self.notice = notice
        self.keep_alive()

    def keep_alive(self) -> None:
        """Say again that it runs, through a long silence."""
        self._require(State.RUNNING)
        self._flush_delta()
        self._emit("response.in_progress", response=self.snapshot())

    def push(self, text: str, logprobs: tuple[Logprob, ...] = ()) -> None:
        """Add text of the answer; it goes out with the next `take()`. logprobs: of its tokens."""
        self._require(State.RUNNING)
        if not text:
            return
        item = self._items[-1] if self._items else None
        if logprobs or item is None or item.is_closed or not item.has_part or item.type != "message":
            self.add(Piece(PieceKind.TEXT, text, None, logprobs))
        else:  # nearly always, and nothing but text is new
            item.pending.append(text if text.isascii() else _well_formed(text))

    def add(self, piece: Piece) -> None:
        """Add a piece of the answer; where it is of another item than the last one, that is closed."""
        self._require(State.RUNNING)
        kind = ITEM_TYPES[piece.kind]
        item = self._items[-1] if self._items and not self._items[-1].is_closed else None
        if item is None or item.type != kind or piece.kind is PieceKind.CALL:
            if item is not None:
                self._close(item)
            item = self._append(kind, piece)
        self._announce_part(item)
        if piece.kind is not PieceKind.CALL and piece.text:
            # JSON cannot carry lone surrogates; an engine that makes one costs us a character, not the answer.
            item.pending.append(piece.text if piece.text.isascii() else _well_formed(piece.text))
            item.pending_logprobs.extend(piece.logprobs)

    def record(self, written: Written) -> None:
        """Note what the model wrote for the pieces that are added next; the journal keeps it, to go on from there."""
        self._written.append(written)

    def complete(self, usage: Usage) -> None:
        """The model ended the answer by itself."""
        self._end(State.COMPLETED, usage)

    def interrupt(self, reason: IncompleteReason, usage: Usage) -> None:
        """The answer was cut short; what there is of it is kept."""
        self._require_move(State.INCOMPLETE)
        self._incomplete_reason = reason
        self._end(State.INCOMPLETE, usage)

    def fail(self, code: str, message: str, usage: Usage) -> None:
        """The answer cannot go on; what there is of it is kept."""
        self._require_move(State.FAILED)
        self._error = _error(code, message)
        self._end(State.FAILED, usage)

    # What comes out

    def take(self) -> list[Event]:
        """Return the events since the last call, oldest first."""
        self._flush_delta()
        events, self._events = self._events, []
        if events and self._written:
            token_ids = [index for written in self._written for index in written.token_ids]
            written = Written("".join(written.text for written in self._written), tuple(token_ids))
            events[-1] = msgspec.structs.replace(events[-1], written=written)
            self._has_written.append(written)
            self._written.clear()
        return events

    def output_items(self, status: ItemStatus | None = None) -> tuple[Item, ...]:
        """Return the answer as items to keep; empty when the model said nothing. status: of one that is not closed."""
        if status is None:
            status = "completed" if self.state is State.COMPLETED else "incomplete"
            status = status if self.state.is_terminal else "in_progress"
        return tuple(item.as_item(status, self.head.id) for item in self._items)

    def snapshot(self, status: str | None = None) -> dict[str, Any]:
        """Return the response object as it stands; its output is filled in at the end, as OpenAI's is."""
        return response_object(
            self.head,
            status=status or self.state.value,
            output=self.output_items() if self.state.is_terminal else (),
            usage=self.usage,
            error=self._error,
            incomplete_reason=self._incomplete_reason,
            notice=self.notice,
        )

    # Inside

    def _end(self, state: State, usage: Usage) -> None:
        self._move(state)
        self.usage = usage
        self._flush_delta()
        # An answer of no text at all still has its item when the model ran to its end: clients read output[0].
        if not self._items and state is State.COMPLETED and usage.output_tokens:
            self._append("message", Piece(PieceKind.TEXT, ""))
        if self._items and not self._items[-1].is_closed:
            item = self._items[-1]
            self._announce_part(item)
            self._close(item, "completed" if state is State.COMPLETED else "incomplete")
        self._emit(f"response.{state.value}", response=self.snapshot())

    def _append(self, type: ItemType, piece: Piece) -> OutputItem:
        """Begin an item and announce it."""
        index = len(self._items)
        call: dict[str, str] = {}
        if type == "function_call":
            call = {"call_id": piece.call_id or f"call_{uuid.uuid4().hex}", "name": piece.text}
        item = OutputItem(item_id(self.head.item_id, type, index), type, index, **call)
        self._items.append(item)
        self._emit("response.output_item.added", output_index=index, item=item.added())
        return item

    def _announce_part(self, item: OutputItem) -> None:
        """Announce a part that is not announced yet: a takeover may find the item in the journal without it."""
        if not item.has_part:
            item.has_part = True
            self._emit_part("response.content_part.added", item, part=item.wire_part(""))

    def _close(self, item: OutputItem, status: ItemStatus = "completed") -> None:
        self._flush_delta()
        for name, fields in item.done():
            self._emit_part(name, item, **fields)
        item.is_closed = status == "completed"
        done = wire_item(item.as_item(status, self.head.id))
        self._emit("response.output_item.done", output_index=item.index, item=done)

    def _flush_delta(self) -> None:
        """Make an event of the text that gathered: only the last item's can, as others are closed."""
        item = self._items[-1] if self._items else None
        if item is None or not item.pending:
            return
        text = "".join(item.pending)
        item.pending.clear()
        item.taken.append(text)
        logprobs = tuple(item.pending_logprobs)
        if logprobs:
            item.logprobs.extend(logprobs)
            item.pending_logprobs.clear()
        self._events.append(delta_event(item.part, self._number(), text, logprobs))

    def _emit_part(self, type: str, item: OutputItem, **fields: Any) -> None:
        address: dict[str, Any] = {"item_id": item.id, "output_index": item.index}
        if item.type != "function_call":
            address["content_index"] = 0
        self._emit(type, **address, **fields)

    def _emit(self, type: str, **fields: Any) -> None:
        number = self._number()
        self._events.append(Event(number, encode({"type": type, "sequence_number": number, **fields})))

    def _number(self) -> int:
        number = self._next_number
        self._next_number += 1
        return number

    def _move(self, state: State) -> None:
        self._require_move(state)
        self.state = state

    def _require_move(self, state: State) -> None:
        if state not in TRANSITIONS[self.state]:
            raise IllegalTransitionError(f"{self!r} cannot become {state.value}")

    def _require(self, state: State) -> None:
        if self.state is not state:
            raise IllegalTransitionError(f"{self!r} is not {state.value}")


def in_progress_again(snapshot: dict[str, Any], sequence_number: int) -> bytes:
    """Return `response.in_progress` for a silence that the journal cannot record, since it is what is silent.

    sequence_number: of the newest event that clients have; numbers never go back.
    """
    return encode({"type": "response.in_progress", "sequence_number": sequence_number, "response": snapshot})


def failed_event(
    head: ResponseHead, events: Sequence[Event], sequence_number: int, fault: tuple[str, str], usage: Usage
) -> tuple[Event, dict[str, Any], tuple[Item, ...]]:
    """Return the terminal event, response object and items of a response that ends outside its own stream.

    Needed where the stream's last events were lost on the way to the store. events: what clients have seen of it.
    fault: code and message.
    """
    items = ResponseStream.restore(head, events).output_items("incomplete")
    body = response_object(head, status=State.FAILED.value, output=items, usage=usage, error=_error(*fault))
    event = {"type": "response.failed", "sequence_number": sequence_number, "response": body}
    return Event(sequence_number, encode(event)), body, items


def response_object(
    head: ResponseHead,
    *,
    status: str,
    output: tuple[Item, ...] = (),
    usage: Usage | None = None,
    error: dict[str, str] | None = None,
    incomplete_reason: str | None = None,
    notice: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the Responses API's response object; every field here is required by some client."""
    body: dict[str, Any] = {
        "id": head.id,
        "object": "response",
        "created_at": head.created_at,
        "status": status,
        "error": error,
        "incomplete_details": {"reason": incomplete_reason} if incomplete_reason else None,
        "model": head.model,
        "output": [wire_item(item) for item in output],
        "previous_response_id": head.previous_response_id,
        "conversation": {"id": head.conversation} if head.conversation else None,
        "usage": usage.as_wire() if usage else None,
        **head.parameters,
    }
    if notice:
        body["tokenwire"] = notice
    return body


def _error(code: str, message: str) -> dict[str, str]:
    # Texts of exceptions may hold undecodable bytes of file names; an end must never fail for that.
    return {"code": code, "message": _well_formed(message)}


def _well_formed(text: str) -> str:
    """Return `text` with lone surrogates replaced by U+FFFD."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
