"""Errors that reach a client: one exception, and the table of codes behind it."""

from __future__ import annotations

from typing import Final

# code -> (HTTP-like status, OpenAI error type). `status >= 500` or 429 means that trying again helps.
ERROR_CODES: Final[dict[str, tuple[int, str]]] = {
    "invalid_json": (400, "invalid_request_error"),
    "invalid_request": (400, "invalid_request_error"),
    "model_not_found": (404, "invalid_request_error"),
    "previous_response_not_found": (400, "invalid_request_error"),
    "conversation_not_found": (404, "invalid_request_error"),
    "response_not_found": (404, "invalid_request_error"),
    "context_length_exceeded": (400, "invalid_request_error"),
    "steering_not_supported": (400, "invalid_request_error"),
    "unauthorized": (401, "authentication_error"),
    "permission_denied": (403, "permission_error"),
    "rate_limit_exceeded": (429, "rate_limit_error"),
    "websocket_connection_limit_reached": (429, "rate_limit_error"),
    "server_error": (500, "server_error"),
    "engine_error": (500, "server_error"),
    "server_is_overloaded": (503, "server_error"),
    "model_unavailable": (503, "server_error"),
    "store_unavailable": (503, "server_error"),
}

# Longest piece of a client's own input that an error text repeats, in characters.
MAX_REFLECTED_CHARS: Final = 200


class ProtocolError(Exception):
    """A request that cannot be served, said in the words the client will read.

    code: a key of ERROR_CODES.
    message: what was wrong, where, and what to do.
    param: the field at fault, as a path such as `input[2].content`; None when no single field is.
    retry_after_ms: when trying again may help, in milliseconds; None where waiting does not.
    command_id, stream_id, previous_response_id: the failed command's own, where they could be read.

    Raises KeyError for a code that is not in the table.
    """

    def __init__(
        self,
        code: str,
        message: str,
        *,
        param: str | None = None,
        retry_after_ms: int | None = None,
        command_id: str | None = None,
        stream_id: str | None = None,
        previous_response_id: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.type = ERROR_CODES[code]
        self.code = code
        self.message = message
        self.param = param
        self.retry_after_ms = retry_after_ms
        self.command_id = command_id
        self.stream_id = stream_id
        self.previous_response_id = previous_response_id

    def __repr__(self) -> str:
        return f"ProtocolError({self.code!r}, {self.message!r}, param={self.param!r})"


class IllegalTransitionError(Exception):
    """A response was asked to do what its state forbids; the state is unchanged."""


def excerpt(value: str, limit: int = MAX_REFLECTED_CHARS) -> str:
    """Return `value` cut to `limit` characters, for error texts that repeat input."""
    return value if len(value) <= limit else value[: limit - 1] + "…"
