"""docs/asyncapi.json: the protocol for tools that read AsyncAPI 3.0, made from the types of commands and messages.

`python -m protocol.asyncapi` writes it anew; a test fails while it is not up to date.
"""

from __future__ import annotations

import importlib.metadata
import inspect
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import orjson

from protocol.commands import COMMANDS, Command, ConversationCreate, ResponseCreate
from protocol.items import MAX_INPUT_ITEMS
from protocol.messages import SERVER_MESSAGES
from protocol.options import MAX_TOOLS, MAX_TOP_LOGPROBS

DOCUMENT: Final = Path(__file__).parents[1] / "docs" / "asyncapi.json"

_REF: Final = "#/components/schemas/{name}"
_INPUT: Final = {
    "description": "What is said: text, or items; protocol/README.md, response.create.",
    "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "object"}, "maxItems": MAX_INPUT_ITEMS}],
}
_OPTIONS: Final[dict[str, Any]] = {
    "tools": {"type": ["array", "null"], "items": {"type": "object"}, "maxItems": MAX_TOOLS},
    "tool_choice": {"type": ["string", "object", "null"]},
    "parallel_tool_calls": {"type": ["boolean", "null"]},
    "text": {"type": ["object", "null"]},
    "reasoning": {"type": ["object", "null"]},
    "top_logprobs": {"type": ["integer", "null"], "minimum": 0, "maximum": MAX_TOP_LOGPROBS},
    "include": {},
}
# What is read by hand (parse_input and the like) and not by msgspec: it has no type of its own.
_BY_HAND: Final[dict[type[Command], dict[str, Any]]] = {
    ResponseCreate: {"input": _INPUT, **_OPTIONS},
    ConversationCreate: {"items": {"type": "array", "items": {"type": "object"}, "maxItems": MAX_INPUT_ITEMS}},
}
_LEFT_OUT: Final = frozenset({"title", "discriminator"})  # a discriminator is an object in msgspec's, OpenAPI's way
_OURS: Final = frozenset({"messages", "options", "plain"})  # made by the parser, not sent


def document() -> dict[str, Any]:
    """Return the document as plain objects."""
    commands = list(COMMANDS.values())
    schemas = _schemas(commands)
    messages = {
        **{_type_of(kind): _message(kind) for kind in (*commands, *SERVER_MESSAGES)},
        "text": {"summary": "Plain text: a turn, or a piece of an answer.", "payload": {"type": "string"}},
    }
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "Tokenwire",
            "version": importlib.metadata.version("tokenwire"),
            "description": "The WebSocket mode of OpenAI's Responses API, with additions: see protocol/README.md.",
            "license": {"name": "Apache-2.0"},
        },
        "defaultContentType": "application/json",
        "servers": {"local": {"host": "localhost:8000", "protocol": "ws"}},
        "channels": {
            "responses": {
                "address": "/v1/responses",
                "messages": {name: {"$ref": f"#/components/messages/{name}"} for name in messages},
            },
            "chat": {"address": "/chat", "messages": {"text": {"$ref": "#/components/messages/text"}}},
        },
        "operations": {
            "receiveCommand": _operation("receive", "responses", (*map(_type_of, commands), "text")),
            "sendMessage": _operation("send", "responses", map(_type_of, SERVER_MESSAGES)),
            "receiveText": _operation("receive", "chat", ["text"]),
            "sendText": _operation("send", "chat", ["text"]),
        },
        "components": {"messages": messages, "schemas": schemas},
    }


def encoded() -> bytes:
    """Return the document as it stands in the file."""
    return orjson.dumps(document(), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def _schemas(commands: Sequence[type[Command]]) -> dict[str, Any]:
    _, schemas = msgspec.json.schema_components([*commands, *SERVER_MESSAGES], ref_template=_REF)
    for command in commands:
        schema = schemas[command.__name__]
        by_hand = _BY_HAND.get(command, {})
        own = {name: field for name, field in schema["properties"].items() if name not in _OURS}
        schema["description"] = _summary(command)
        schema["properties"] = {"type": {"const": command.TYPE}, **by_hand, **own}
        if command is not ResponseCreate:  # an object without a type is one
            schema["required"] = ["type", *schema.get("required", [])]
    return {name: _tidy(schemas[name]) for name in sorted(schemas)}


def _tidy(schema: Any) -> Any:
    """Leave out what says nothing or what AsyncAPI has otherwise; write patterns as JavaScript reads them, too."""
    match schema:
        case dict():
            kept = {key: _tidy(value) for key, value in schema.items() if key not in _LEFT_OUT}
            if kept.get("default", ...) is None:
                del kept["default"]
            return kept
        case list():
            return [_tidy(element) for element in schema]
        case str():
            return schema.replace(r"\A", "^").replace(r"\Z", "$")
        case _:
            return schema


def _summary(kind: type[msgspec.Struct]) -> str:
    return (inspect.getdoc(kind) or "").partition("\n")[0]


def _message(kind: type[msgspec.Struct]) -> dict[str, Any]:
    return {
        "summary": _summary(kind),
        "payload": {"$ref": _REF.format(name=kind.__name__)},
    }


def _operation(action: str, channel: str, names: Iterable[str]) -> dict[str, Any]:
    return {
        "action": action,
        "channel": {"$ref": f"#/channels/{channel}"},
        "messages": [{"$ref": f"#/channels/{channel}/messages/{name}"} for name in names],
    }


def _type_of(kind: type[msgspec.Struct]) -> str:
    """Return the wire's word for a message."""
    if issubclass(kind, Command):
        return kind.TYPE
    return str(kind.__struct_config__.tag)


if __name__ == "__main__":
    DOCUMENT.write_bytes(encoded())
