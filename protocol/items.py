"""Items: what a conversation is made of, as the client sends them and as we keep and show them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Final, Literal

import msgspec

from protocol.errors import ProtocolError, excerpt
from protocol.fields import MAX_CALL_ID_CHARS, TOOL_NAME
from protocol.images import MAX_IMAGES, Image, parse_image

Role = Literal["system", "user", "assistant", "tool"]
ItemType = Literal["message", "reasoning", "function_call", "function_call_output"]
ItemStatus = Literal["in_progress", "completed", "incomplete"]

# `developer` is OpenAI's newer word for a system message. What tools say comes as an item of its own.
_ROLES: Final[dict[str, Role]] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
}
_TEXT_PARTS: Final = frozenset({"input_text", "output_text", "text", "summary_text", "reasoning_text"})

MAX_INPUT_ITEMS: Final = 4096  # items in one `input`; precedent: agents replay whole sessions of some hundreds


class FunctionCall(msgspec.Struct, frozen=True, gc=False):
    """A function that the model calls. arguments: JSON as the model wrote it, which need not be valid."""

    call_id: str
    name: str
    arguments: str


class Message(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """One message as a model sees it: who says what. `content` is plain text, never markup of a template.

    reasoning: what the assistant thought before. calls: functions that it calls. call_id: the call whose output the
    content is, where a tool speaks. images: what a user shows, in order.
    """

    role: Role
    content: str
    reasoning: str = ""
    calls: tuple[FunctionCall, ...] = ()
    call_id: str | None = None
    images: tuple[Image, ...] = ()

    @property
    def size(self) -> int:
        """Characters that it takes, images included."""
        return len(self.content) + sum(len(image.url) for image in self.images)


class Item(msgspec.Struct, frozen=True, omit_defaults=True):
    """An item as it is kept and listed.

    text: what the message says, the model thought, the arguments of a function call, or its output.
    status: `completed`, or `incomplete` for an answer that was cut short.
    response_id: the turn that it belongs to; None for items that a conversation was created with.
    call_id, name: of a function call; of its output the `call_id` alone.
    logprobs: of the tokens of an answer, where they were asked for. images: of a user's message.
    """

    id: str
    role: Role
    text: str
    status: ItemStatus = "completed"
    response_id: str | None = None
    type: ItemType = "message"
    call_id: str | None = None
    name: str | None = None
    logprobs: tuple[dict[str, Any], ...] = ()
    images: tuple[Image, ...] = ()

    @classmethod
    def of(cls, message: Message, key: str, response_id: str | None) -> Item:
        """Return an item to keep for a message that `parse_input` has made. key: makes its id, behind the prefix."""
        keep = partial(cls, role=message.role, response_id=response_id)
        if message.calls:
            (call,) = message.calls
            return keep(f"fc_{key}", text=call.arguments, type="function_call", call_id=call.call_id, name=call.name)
        if message.role == "tool":
            return keep(f"fco_{key}", text=message.content, type="function_call_output", call_id=message.call_id)
        if message.reasoning:
            return keep(f"rs_{key}", text=message.reasoning, type="reasoning")
        return keep(f"msg_{key}", text=message.content, images=message.images)

    def as_message(self) -> Message:
        """Return what the model is shown of this item."""
        match self.type:
            case "reasoning":
                return Message("assistant", "", reasoning=self.text)
            case "function_call":
                return Message("assistant", "", calls=(FunctionCall(self.call_id or "", self.name or "", self.text),))
            case "function_call_output":
                return Message("tool", self.text, call_id=self.call_id)
            case _:
                return Message(self.role, self.text, images=self.images)

    def as_wire(self) -> dict[str, Any]:
        """Return the item as the Responses API shows it."""
        item: dict[str, Any] = {"id": self.id, "type": self.type}
        match self.type:
            case "reasoning":
                content = [{"type": "reasoning_text", "text": self.text}] if self.text else []
                item |= {"status": self.status, "summary": [], "content": content}
            case "function_call":
                item |= {"status": self.status, "call_id": self.call_id, "name": self.name, "arguments": self.text}
            case "function_call_output":
                item |= {"status": self.status, "call_id": self.call_id, "output": self.text}
            case _:
                item |= {"role": self.role, "status": self.status, "content": self._wire_parts()}
        if self.response_id is not None:
            item["response_id"] = self.response_id
        return item

    def _wire_parts(self) -> list[dict[str, Any]]:
        if self.role == "assistant":
            return [output_text(self.text, self.logprobs)]
        if not self.images:
            return [{"type": "input_text", "text": self.text}]
        return [
            {"type": "input_text", "text": part}
            if isinstance(part, str)
            else {"type": "input_image", "image_url": part.url, "detail": "auto"}
            for part in mixed(self.text, self.images)
        ]


def mixed(text: str, images: Iterable[Image]) -> Iterator[str | Image]:
    """Yield a message's images and the texts between them, without empty ones."""
    start = 0
    for image in images:
        if image.at > start:
            yield text[start : image.at]
        yield image
        start = image.at
    if start < len(text):
        yield text[start:]


def output_text(text: str, logprobs: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
    """Return the part that an answer is; with logprobs only where there are any."""
    part: dict[str, Any] = {"type": "output_text", "text": text, "annotations": []}
    return part | {"logprobs": logprobs} if logprobs else part


def parse_input(value: Any, *, param: str = "input") -> tuple[Message, ...]:
    """Turn the `input` of a command into messages, one for each item that carries something for the model.

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
    parsed = (_parse_item(item, f"{param}[{index}]") for index, item in enumerate(value))
    messages = tuple(message for message in parsed if message is not None)
    images = sum(len(message.images) for message in messages)
    if images > MAX_IMAGES:
        raise _invalid(f"{param} has {images} images; at most {MAX_IMAGES} are taken", param)
    return messages


def unknown_call(messages: Iterable[Message]) -> str | None:
    """Return the call id of the first output whose call is in no message before it, or None."""
    known: set[str | None] = set()
    for message in messages:
        known.update(call.call_id for call in message.calls)
        if message.role == "tool" and message.call_id not in known:
            return message.call_id
    return None


def _parse_item(item: Any, param: str) -> Message | None:
    if not isinstance(item, dict):
        raise _invalid(f"{param} must be an object, not {json_type(item)}", param)
    kind = "message" if item.get("type") is None else item["type"]
    parser = _PARSERS.get(kind) if isinstance(kind, str) else None
    if parser is None:
        known = ", ".join(_PARSERS)
        raise _invalid(
            f"{param}.type {_quoted(kind)} is not supported; send items of the types {known}", f"{param}.type"
        )
    return parser(item, param)


def _parse_message(item: dict[str, Any], param: str) -> Message:
    role = item.get("role")
    known = _ROLES.get(role) if isinstance(role, str) else None
    if known is None:
        raise _invalid(
            f"{param}.role must be one of user, assistant, system, developer; got {_quoted(role)}", f"{param}.role"
        )
    content = item.get("content")
    if known == "user" and isinstance(content, list):
        return _parse_mixed(content, f"{param}.content")
    return Message(known, _parse_content(content, f"{param}.content"))


def _parse_mixed(parts: list[Any], param: str) -> Message:
    """Return a user's message of texts and images."""
    text = ""
    images: list[Image] = []
    for index, part in enumerate(parts):
        place = f"{param}[{index}]"
        if isinstance(part, dict) and part.get("type") == "input_image":
            images.append(parse_image(part, place, len(text)))
        else:
            text += _parse_part(part, place)
    return Message("user", text, images=tuple(images))


def _parse_reasoning(item: dict[str, Any], param: str) -> Message | None:
    """Take a thought as it was shown; what other servers keep of one (`encrypted_content`) says nothing here."""
    content = item.get("content")
    text = "" if content is None else _parse_content(content, f"{param}.content")
    return Message("assistant", "", reasoning=text) if text else None


def _parse_call(item: dict[str, Any], param: str) -> Message:
    call_id = _parse_call_id(item, param)
    name = item.get("name")
    if not isinstance(name, str) or not TOOL_NAME.fullmatch(name):
        raise _invalid(f"{param}.name must be a function's name, not {_quoted(name)}", f"{param}.name")
    arguments = item.get("arguments")
    if not isinstance(arguments, str):
        raise _invalid(f"{param}.arguments must be a string of JSON, not {json_type(arguments)}", f"{param}.arguments")
    return Message("assistant", "", calls=(FunctionCall(call_id, name, arguments),))


def _parse_output(item: dict[str, Any], param: str) -> Message:
    call_id = _parse_call_id(item, param)
    return Message("tool", _parse_content(item.get("output"), f"{param}.output"), call_id=call_id)


def _parse_call_id(item: dict[str, Any], param: str) -> str:
    call_id = item.get("call_id")
    if not isinstance(call_id, str) or not 1 <= len(call_id) <= MAX_CALL_ID_CHARS:
        raise _invalid(
            f"{param}.call_id must be a string of 1 to {MAX_CALL_ID_CHARS} characters, not {_quoted(call_id)}",
            f"{param}.call_id",
        )
    return call_id


_PARSERS: Final[dict[str, Callable[[dict[str, Any], str], Message | None]]] = {
    "message": _parse_message,
    "reasoning": _parse_reasoning,
    "function_call": _parse_call,
    "function_call_output": _parse_output,
}


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
        raise _invalid(
            f"{param}.type {_quoted(kind)} is not supported; send text, or from users input_image", f"{param}.type"
        )
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
