"""What of the Responses API is refused until it is served.

Only what would change the answer if it were ignored. Everything else that is unknown is ignored, as real clients
need: protocol/README.md has the list.
"""

from __future__ import annotations

from typing import Any

from protocol.errors import ProtocolError, excerpt
from protocol.items import json_type


def check_supported(fields: dict[str, Any]) -> None:
    """Look at a `response.create` as it was sent. Raises ProtocolError naming the field."""
    _check_text_format(fields.get("text"))
    if fields.get("tool_choice") not in (None, "auto", "none"):
        raise _refused("tools cannot be forced yet; tool_choice must be 'auto' or 'none'", "tool_choice")
    if fields.get("prompt") is not None:
        raise _refused("prompt templates are not supported; send the text itself as instructions and input", "prompt")


def _check_text_format(text: Any) -> None:
    """`text.format`: only plain text is written."""
    if text is None:
        return
    if not isinstance(text, dict):
        raise _refused(f"text must be an object, not {json_type(text)}", "text")
    form = text.get("format")
    if form is None:
        return
    if not isinstance(form, dict):
        raise _refused(f"text.format must be an object, not {json_type(form)}", "text.format")
    kind = form.get("type", "text")
    if kind != "text":
        shown = f"'{excerpt(kind)}'" if isinstance(kind, str) else json_type(kind)
        raise _refused(f"text.format.type {shown} is not supported yet; it must be 'text'", "text.format.type")


def _refused(message: str, param: str) -> ProtocolError:
    return ProtocolError("invalid_request", message, param=param)
