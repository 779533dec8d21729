"""Events out: everything that is not part of a response's own stream (see response_stream.py for that)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import chain
from typing import Any, Final, Literal, TypeAlias

import msgspec

from protocol.codec import decode_object, encode
from protocol.commands import Command
from protocol.errors import ProtocolError

DeltaType = Literal[
    "response.output_text.delta", "response.reasoning_text.delta", "response.function_call_arguments.delta"
]
TEXT_DELTA: Final = "response.output_text.delta"
REASONING_DELTA: Final = "response.reasoning_text.delta"
ARGUMENTS_DELTA: Final = "response.function_call_arguments.delta"
DELTA_TYPES: Final = frozenset({TEXT_DELTA, REASONING_DELTA, ARGUMENTS_DELTA})


class Part(msgspec.Struct, frozen=True, gc=False):
    """What a delta adds to: the one part of an item that grows. content_index is always 0, where there is one."""

    type: DeltaType
    item_id: str
    output_index: int = 0


class Written(msgspec.Struct, frozen=True, gc=False):
    """What a model has written, markup and all, where the answer's items do not show it as it was.

    token_ids: its tokens, where the engine knows them.
    """

    text: str = ""
    token_ids: tuple[int, ...] = ()


NOTHING_WRITTEN: Final = Written()

# One token: `token`, `bytes`, `logprob`, and in `top_logprobs` the likeliest in its place, as OpenAI has them.
Logprob: TypeAlias = dict[str, Any]


class Event(msgspec.Struct, frozen=True, gc=False):
    """One event of a response, encoded once for every subscriber and for the journal.

    delta, part: the text it adds where it is a delta, and what to, so that neighbours can be merged; else None.
    written: what the model wrote for this event and those since the last one with a `written`, where the answer is
    read by a parser; else None. Only the journal has it.
    logprobs: of the tokens in a delta of text, where they were asked for.
    """

    sequence_number: int
    data: bytes
    delta: str | None = None
    part: Part | None = None
    written: Written | None = None
    logprobs: tuple[Logprob, ...] = ()

    @property
    def text(self) -> str:
        """What the event adds to the answer's own text: neither thoughts nor arguments."""
        return self.delta or "" if self.part is not None and self.part.type == TEXT_DELTA else ""

    @property
    def journaled(self) -> bytes:
        """Return the event as the journal keeps it: what is not for clients stands behind a line end."""
        return self.data if self.written is None else self.data + b"\n" + encode(msgspec.to_builtins(self.written))


def unjournaled(data: bytes) -> bytes:
    """Return a journaled event as clients get it."""
    return data.partition(b"\n")[0]


def event_from_journal(number: int, data: bytes) -> Event:
    """Return a journaled event; deltas can be merged again."""
    shown, _, hidden = data.partition(b"\n")
    written = msgspec.json.decode(hidden, type=Written) if hidden else None
    body = decode_object(shown)
    if body["type"] not in DELTA_TYPES:
        return Event(number, shown, written=written)
    part = Part(body["type"], body["item_id"], body["output_index"])
    return Event(number, shown, body["delta"], part, written, tuple(body.get("logprobs", ())))


class Usage(msgspec.Struct, frozen=True, gc=False):
    """Tokens of one response."""

    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0

    def as_wire(self) -> dict[str, Any]:
        return {
            "input_tokens": self.input_tokens,
            "input_tokens_details": {"cached_tokens": self.cached_tokens, "cache_write_tokens": 0},
            "output_tokens": self.output_tokens,
            "output_tokens_details": {"reasoning_tokens": self.reasoning_tokens},
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


def merge_deltas(events: Sequence[Event]) -> Event:
    """Join neighbouring deltas of one part into one event with the last one's number."""
    part = events[-1].part
    assert part is not None
    logprobs = tuple(chain.from_iterable(event.logprobs for event in events))
    return delta_event(part, events[-1].sequence_number, "".join(event.delta or "" for event in events), logprobs)


def delta_event(part: Part, sequence_number: int, text: str, logprobs: tuple[Logprob, ...] = ()) -> Event:
    """Return a delta; built by hand around one encoded string, since this is the hot path."""
    start, middle, end = _template(part)
    if logprobs:
        end = b',"logprobs":%b}' % encode(logprobs)
    data = b"%b%d%b%b%b" % (start, sequence_number, middle, encode(text), end)
    return Event(sequence_number, data, text, part, None, logprobs)


@lru_cache(maxsize=4096)  # the parts that grow now
def _template(part: Part) -> tuple[bytes, bytes, bytes]:
    """Return the constant pieces of a part's deltas: around the number and the text."""
    start = b'{"type":"%b","sequence_number":' % part.type.encode()
    index = b"" if part.type == ARGUMENTS_DELTA else b',"content_index":0'
    middle = b',"item_id":%b,"output_index":%d%b,"delta":' % (encode(part.item_id), part.output_index, index)
    return start, middle, b',"logprobs":[]}' if part.type == TEXT_DELTA else b"}"


def _addressed(event: dict[str, Any], command: Command | None, error: ProtocolError | None) -> dict[str, Any]:
    """Add `stream_id` and `id`, only where the client sent them."""
    stream_id = command.stream_id if command else error.stream_id if error else None
    command_id = command.id if command else error.command_id if error else None
    if stream_id is not None:
        event["stream_id"] = stream_id
    if command_id is not None:
        event["id"] = command_id
    return event
