"""What of the Responses API is refused until it is served.

Only what would change the answer if it were ignored. Everything else that is unknown is ignored, as real clients
need: protocol/README.md has the list.
"""

from __future__ import annotations

from typing import Any

from protocol.errors import ProtocolError


def check_supported(fields: dict[str, Any]) -> None:
    """Look at a `response.create` as it was sent. Raises ProtocolError naming the field."""
    if fields.get("prompt") is not None:
        text = "prompt templates are not supported; send the text itself as instructions and input"
        raise ProtocolError("invalid_request", text, param="prompt")
