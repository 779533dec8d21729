"""Items: what a conversation is made of, as the client sends them and as we keep and show them."""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec

from protocol.errors import ProtocolError, excerpt

Role = Literal["system", "user", "assistant"]

# `developer` is OpenAI's newer word for a system message.
_ROLES: Final[dict[str, Role]] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
}
_TEXT_PARTS: Final = frozenset({"input_text", "output_text", "text", "summary_text"})

MAX_INPUT_ITEMS: Final = 4096  # items in one `input`; precedent: agents replay whole sessions of some hundreds


class Message(msgspec.Struct, frozen=True, gc=False):
    """One message as a model sees it: who says what. `content` is plain text, never markup of a template."""

    role: Role
    content: str


class MessageItem(msgspec.Struct, frozen=True, omit_defaults=False):
    """A message as it is kept and listed.

    status: `completed`, or `incomplete` for an answer that was cut short.
    response_id: the turn that it belongs to; None for items that a conversation was created with.
    """

    id: str
    role: Role
    text: str
    status: Literal["in_progress", "completed", "incomplete"] = "completed"
    response_id: str | None = None

    def as_message(self) -> Message:
        """Return what the model is shown of this item."""
        return Message(self.role, self.text)

    def as_wire(self) -> dict[str, Any]:
        """Return the item as the Responses API shows it."""
        part: dict[str, Any] = (
            {"type": "output_text", "text": self.text, "annotations": []}
            if self.role == "assistant"
            else {"type": "input_text", "text": self.text}
        )
        item: dict[str, Any] = {
            "id": self.id,
            "type": "message",
            "role": self.role,
            "status": self.status,
            "content": [part],
        }
        if self.response_id is not None:
            item["response_id"] = self.response_id
        return item


def parse_input(value: Any, *, param: str = "input") -> tuple[Message, ...]:
    """Turn the `input` of a command into messages.

    value: a string (one user message; none where it is blank) or a list of items.
    param: the field's name in error texts.

    Raises ProtocolError naming the item and field at fault.
    """
    if isinstance(value, str):
        return (Message("user", value),) if value.strip() else ()
    if not isinstance(value, list):
        raise _invalid(f"{param} must be a string or a list of items, not {json_type(value)}", param)
    if len(value) > MAX_INPUT_ITEMS:
        raise _invalid(f"{param} has {len(value)} items; at most {MAX_INPUT_ITEMS} are taken", param)
    messages = (_parse_item(item, f"{param}[{index}]") for index, item in enumerate(value))
    return tuple(message for message in messages if message is not None)


def _parse_item(item: Any, param: str) -> Message | None:
    """Return the item's message, or None for kinds that carry nothing for the model."""
    if not isinstance(item, dict):
        raise _invalid(f"{param} must be an object, not {json_type(item)}", param)
    kind = "message" if item.get("type") is None else item["type"]
    if kind == "reasoning":
        return None  # a model's earlier thoughts are not shown to it again
    if kind != "message":
        raise _invalid(f"{param}.type {_quoted(kind)} is not supported; send items of type 'message'", f"{param}.type")
    role = item.get("role")
    known = _ROLES.get(role) if isinstance(role, str) else None
    if known is None:
        raise _invalid(
            f"{param}.role must be one of user, assistant, system, developer; got {_quoted(role)}", f"{param}.role"
        )
    return Message(known, _parse_content(item.get("content"), f"{param}.content"))


def _parse_content(content: Any, param: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise _invalid(f"{param} must be a string or a list of parts, not {json_type(content)}", param)
    return "".join(_parse_part(part, f"{param}[{index}]") for index, part in enumerate(content))


def _parse_part(part: Any, param: str) -> str:
    if not isinstance(part, dict):
        raise _invalid(f"{param} must be an object, not {json_type(part)}", param)
    kind = part.get("type")
    if kind == "refusal" and isinstance(part.get("refusal"), str):
        return str(part["refusal"])
    if not isinstance(kind, str) or kind not in _TEXT_PARTS:
        raise _invalid(f"{param}.type {_quoted(kind)} is not supported; this model takes text only", f"{param}.type")
    text = part.get("text")
    if not isinstance(text, str):
        raise _invalid(f"{param}.text must be a string, not {json_type(text)}", f"{param}.text")
    return text


def _invalid(message: str, param: str) -> ProtocolError:
    return ProtocolError("invalid_request", message, param=param)


def _quoted(value: Any) -> str:
    return f"'{excerpt(value)}'" if isinstance(value, str) else json_type(value)


def json_type(value: Any) -> str:
    """Name a decoded JSON value's type in JSON's own words."""
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int() | float():
            return "a number"
        case str():
            return "a string"
        case list():
            return "a list"
        case _:
            return "an object"
