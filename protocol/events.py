"""Events out: everything that is not part of a response's own stream (see response_stream.py for that)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from protocol.codec import encode
from protocol.commands import Command
from protocol.errors import ProtocolError

DELTA_TYPE: Final = "response.output_text.delta"


class Event(msgspec.Struct, frozen=True, gc=False):
    """One event of a response, encoded once for every subscriber and for the journal.

    delta: the text it adds where it is a text delta, so that neighbours can be merged; else None.
    """

    sequence_number: int
    data: bytes
    delta: str | None = None


class Usage(msgspec.Struct, frozen=True, gc=False):
    """Tokens of one response."""

    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0

    def as_wire(self) -> dict[str, Any]:
        return {
            "input_tokens": self.input_tokens,
            "input_tokens_details": {"cached_tokens": self.cached_tokens, "cache_write_tokens": 0},
            "output_tokens": self.output_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": self.input_tokens + self.output_tokens,
        }


class Waiting(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why a response does not run yet, as `response.queued` tells it.

    reason: admission, conversation or model_loading. position: turns before this one. progress: 0.0 to 1.0.
    """

    reason: str
    position: int | None = None
    estimated_wait_ms: int | None = None
    progress: float | None = None
    detail: str | None = None


def error_event(error: ProtocolError, command: Command | None = None) -> bytes:
    """Return the nested error event (the flat shape of SSE makes Codex wait for ever)."""
    inner: dict[str, Any] = {
        "type": error.type,
        "code": error.code,
        "message": error.message,
        "param": error.param,
    }
    if error.retry_after_ms is not None:
        inner["retry_after_ms"] = error.retry_after_ms
    return encode(_addressed({"type": "error", "status": error.status, "error": inner}, command, error))


def answer(type: str, command: Command, **fields: Any) -> bytes:
    """Return the one event that answers a command, with its lane and id if it had them."""
    return encode(_addressed({"type": type, **fields}, command, None))


def steer_failed(command: Command) -> bytes:
    """Return the answer to `response.steer`."""
    error = ProtocolError(
        "steering_not_supported", "a running response cannot be steered; cancel it and send a new turn"
    )
    inner = {"type": error.type, "code": error.code, "message": error.message, "param": None}
    return answer("response.steer.failed", command, status=error.status, error=inner)


def merge_deltas(events: Sequence[Event], template: tuple[bytes, bytes]) -> Event:
    """Join neighbouring text deltas of one part into one event with the last one's number.

    template: what stands before the number and between number and text (`ResponseStream.delta_template`).
    """
    text = "".join(event.delta or "" for event in events)
    return delta_event(template, events[-1].sequence_number, text)


def delta_event(template: tuple[bytes, bytes], sequence_number: int, text: str) -> Event:
    """Return a text delta; built by hand around one encoded string, since this is the hot path."""
    data = b"%b%d%b%b%b" % (template[0], sequence_number, template[1], encode(text), b',"logprobs":[]}')
    return Event(sequence_number, data, text)


def delta_template(item_id: str) -> tuple[bytes, bytes]:
    """Return the constant pieces of an item's text deltas."""
    start = b'{"type":"%b","sequence_number":' % DELTA_TYPE.encode()
    middle = b',"item_id":%b,"output_index":0,"content_index":0,"delta":' % encode(item_id)
    return start, middle


def _addressed(event: dict[str, Any], command: Command | None, error: ProtocolError | None) -> dict[str, Any]:
    """Add `stream_id` and `id`, only where the client sent them."""
    stream_id = command.stream_id if command else error.stream_id if error else None
    command_id = command.id if command else error.command_id if error else None
    if stream_id is not None:
        event["stream_id"] = stream_id
    if command_id is not None:
        event["id"] = command_id
    return event
