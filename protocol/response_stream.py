"""One response as a sans-I/O state machine: chunks of text in, numbered and encoded events out."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any, Final, Literal

import msgspec

from protocol.codec import decode_object, encode
from protocol.errors import IllegalTransitionError
from protocol.events import Event, Usage, Waiting, delta_event, delta_template
from protocol.items import MessageItem

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

    created_at: Unix seconds. parameters: what of the request the response object repeats.
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

    `take()` hands out what has gathered: all text pushed since the last call is one delta event. Sequence numbers
    count from 0 without a gap. Raises IllegalTransitionError.
    """

    def __init__(self, head: ResponseHead) -> None:
        self.head = head
        self.state = State.NEW
        self.usage: Usage | None = None
        self.notice: dict[str, Any] | None = None
        self._next_number = 0
        self._events: list[Event] = []
        self._taken: list[str] = []  # text that went out in deltas
        self._pending: list[str] = []  # text that did not yet
        self._has_item = False
        self._has_part = False
        self._template = delta_template(head.item_id)
        self._error: dict[str, str] | None = None
        self._incomplete_reason: IncompleteReason | None = None

    def __repr__(self) -> str:
        return f"<ResponseStream {self.head.id} {self.state.value} next={self._next_number}>"

    @property
    def text(self) -> str:
        """The answer so far."""
        return "".join(self._taken) + "".join(self._pending)

    @property
    def incomplete_reason(self) -> IncompleteReason | None:
        """Why the answer was cut short, or None."""
        return self._incomplete_reason

    @property
    def has_pending(self) -> bool:
        return bool(self._pending or self._events)

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
            if event.delta is not None:
                stream._taken.append(event.delta)
                continue
            body = decode_object(event.data)
            match body["type"]:
                case "response.created":
                    stream.state = State.QUEUED
                case "response.in_progress":
                    stream.state = State.RUNNING
                    stream.notice = body["response"].get("tokenwire")
                case "response.output_item.added":
                    stream._has_item = True
                case "response.content_part.added":
                    stream._has_part = True
        return stream

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

    def push(self, text: str) -> None:
        """Add text of the answer; it goes out with the next `take()`."""
        self._require(State.RUNNING)
        if not text:
            return
        if not self._has_part:
            self._open_item()
        # JSON cannot carry lone surrogates; an engine that makes one costs us a character, not the answer.
        self._pending.append(text if text.isascii() else _well_formed(text))

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
        return events

    def output_items(self) -> tuple[MessageItem, ...]:
        """Return the answer as items to keep; empty when the model said nothing."""
        if not self._has_item:
            return ()
        status: Literal["in_progress", "completed", "incomplete"] = "in_progress"
        if self.state.is_terminal:
            status = "completed" if self.state is State.COMPLETED else "incomplete"
        return (MessageItem(self.head.item_id, "assistant", self.text, status, self.head.id),)

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
        if self._has_item or (state is State.COMPLETED and usage.output_tokens):
            self._open_item()
        if self._has_item:
            self._close_item()
        self._emit(f"response.{state.value}", response=self.snapshot())

    def _open_item(self) -> None:
        """Announce what is not announced yet: a takeover may find the item in the journal without its part."""
        if not self._has_item:
            self._has_item = True
            item = _wire_item(MessageItem(self.head.item_id, "assistant", "", "in_progress"), content=[])
            self._emit("response.output_item.added", output_index=0, item=item)
        if not self._has_part:
            self._has_part = True
            self._emit_part("response.content_part.added", part=_text_part(""))

    def _close_item(self) -> None:
        text = self.text
        self._emit_part("response.output_text.done", text=text, logprobs=[])
        self._emit_part("response.content_part.done", part=_text_part(text))
        (item,) = self.output_items()
        self._emit("response.output_item.done", output_index=0, item=_wire_item(item))

    def _flush_delta(self) -> None:
        if not self._pending:
            return
        text = "".join(self._pending)
        self._pending.clear()
        self._taken.append(text)
        self._events.append(delta_event(self._template, self._number(), text))

    def _emit_part(self, type: str, **fields: Any) -> None:
        self._emit(type, item_id=self.head.item_id, output_index=0, content_index=0, **fields)

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


def failed_event(  # noqa: PLR0917 the parts of one event, in the order they have on the wire
    head: ResponseHead, sequence_number: int, text: str, code: str, message: str, usage: Usage
) -> tuple[Event, dict[str, Any], tuple[MessageItem, ...]]:
    """Return the terminal event, response object and items of a response that ends outside its own stream.

    Needed where the stream's last events were lost on the way to the store. text: what clients have seen of it.
    """
    items = (MessageItem(head.item_id, "assistant", text, "incomplete", head.id),) if text else ()
    error = _error(code, message)
    body = response_object(head, status=State.FAILED.value, output=items, usage=usage, error=error)
    event = {"type": "response.failed", "sequence_number": sequence_number, "response": body}
    return Event(sequence_number, encode(event)), body, items


def response_object(
    head: ResponseHead,
    *,
    status: str,
    output: tuple[MessageItem, ...] = (),
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
        "output": [_wire_item(item) for item in output],
        "parallel_tool_calls": True,
        "previous_response_id": head.previous_response_id,
        "conversation": {"id": head.conversation} if head.conversation else None,
        "tool_choice": "auto",
        "tools": [],
        "text": {"format": {"type": "text"}},
        "usage": usage.as_wire() if usage else None,
        **head.parameters,
    }
    if notice:
        body["tokenwire"] = notice
    return body


def _wire_item(item: MessageItem, **changes: Any) -> dict[str, Any]:
    """Return an item as it stands inside its own response, where repeating the response's id says nothing."""
    return {key: value for key, value in item.as_wire().items() if key != "response_id"} | changes


def _error(code: str, message: str) -> dict[str, str]:
    # Texts of exceptions may hold undecodable bytes of file names; an end must never fail for that.
    return {"code": code, "message": _well_formed(message)}


def _well_formed(text: str) -> str:
    """Return `text` with lone surrogates replaced by U+FFFD."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _text_part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": []}
