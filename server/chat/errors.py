"""Faults of the layers below, in the words of the wire."""

from __future__ import annotations

import logging

from protocol.errors import ProtocolError
from server.access.admission import QueueFullError
from server.engine.base import BusyError, EngineDeadError, EngineError, PromptError, RefusedError, RequestError
from server.models.errors import ModelUnavailableError, RegistryError, UnknownModelError
from server.store.base import (
    NotFoundError,
    NotInConversationError,
    ResponseRunningError,
    StoreUnavailableError,
    TurnQueueFullError,
)

logger = logging.getLogger(__name__)

STORE_RETRY_MS = 2000
OVERLOAD_RETRY_MS = 5000

# kind -> (code, the field that named it)
_MISSING = {
    "conversation": ("conversation_not_found", "conversation"),
    "response": ("response_not_found", "response_id"),
    "previous_response": ("previous_response_not_found", "previous_response_id"),
}


def translate(error: BaseException) -> ProtocolError:  # noqa: C901, PLR0912 a table of faults
    """Return what the client is told about `error`; what nobody expected is logged and told as `server_error`."""
    match error:
        case ProtocolError():
            return error
        case NotFoundError():
            code, param = _MISSING[error.kind]
            message = f"{param} '{error.id}' is not there: it never was, was deleted, or is older than the retention"
            return ProtocolError(code, message, param=param)
        case NotInConversationError():
            return _invalid("previous_response_id belongs to another conversation; name that one, or leave it out")
        case ResponseRunningError():
            return _invalid("previous_response_id names a response that has not ended; wait for its end or cancel it")
        case TurnQueueFullError():
            return ProtocolError("server_is_overloaded", str(error), retry_after_ms=OVERLOAD_RETRY_MS)
        case QueueFullError():
            return ProtocolError("server_is_overloaded", str(error), retry_after_ms=error.retry_after_ms)
        case StoreUnavailableError():
            return ProtocolError(
                "store_unavailable", "the store does not answer; try again", retry_after_ms=STORE_RETRY_MS
            )
        case UnknownModelError():
            return ProtocolError("model_not_found", str(error), param="model")
        case ModelUnavailableError():
            retry_ms = None if error.retry_after_s is None else max(1, int(error.retry_after_s * 1000))
            return ProtocolError("model_unavailable", str(error), param="model", retry_after_ms=retry_ms)
        case RegistryError():
            return ProtocolError("invalid_request", str(error), param="model")
        case RefusedError():
            return ProtocolError("invalid_request", str(error), param=error.param)
        case PromptError():
            return ProtocolError(
                "invalid_request", f"the model's chat template refuses this input: {error}", param="input"
            )
        case RequestError():
            return ProtocolError("invalid_request", f"the model's server refuses this request: {error}")
        case BusyError():
            retry_ms = max(1, int(error.retry_after_s * 1000))
            return ProtocolError("server_is_overloaded", str(error), retry_after_ms=retry_ms)
        case EngineDeadError():
            return ProtocolError("engine_error", "the engine died while answering", retry_after_ms=OVERLOAD_RETRY_MS)
        case EngineError():
            return ProtocolError("engine_error", str(error))
        case _:
            logger.error("unexpected error", exc_info=error)
            return ProtocolError("server_error", "an internal error; the server's log has the details")


def _invalid(message: str) -> ProtocolError:
    return ProtocolError("invalid_request", message, param="previous_response_id")
