"""JSON in and out: the one place that knows the library and its limits."""

from __future__ import annotations

from typing import Any

import orjson

from protocol.errors import ProtocolError


def encode(value: Any) -> bytes:
    """Return `value` as compact JSON in UTF-8. Text in it must be free of lone surrogates, as all decoded input is."""
    return orjson.dumps(value)


def decode_object(frame: bytes) -> dict[str, Any]:
    """Return the JSON object in `frame`.

    Raises ProtocolError (`invalid_json`) for anything else, including nesting too deep and bytes that are not UTF-8.
    """
    try:
        value = orjson.loads(frame)
    except orjson.JSONDecodeError as error:
        raise ProtocolError("invalid_json", f"the frame is not valid JSON: {error}; send one JSON object") from None
    if not isinstance(value, dict):
        raise ProtocolError("invalid_json", "the frame must be one JSON object")
    return value


def with_stream_id(event: bytes, stream_id: str | None) -> bytes:
    """Return an encoded event with `stream_id` put in front; the event itself is encoded once for all lanes."""
    if stream_id is None:
        return event
    return b'{"stream_id":' + orjson.dumps(stream_id) + b"," + event[1:]
