"""Frames held against docs/asyncapi.json."""

from __future__ import annotations

import json
from typing import Any

from jsonschema import Draft202012Validator

from protocol.asyncapi import DOCUMENT


def strict(schema: Any) -> Any:
    """Return a schema in which what is not described is not allowed."""
    if isinstance(schema, list):
        return [strict(element) for element in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: strict(value) for key, value in schema.items()}
    if schema.get("type") == "object" and "properties" in schema:
        made.setdefault("additionalProperties", False)
    return made


class Described:
    """The document in the repository."""

    def __init__(self) -> None:
        self.document = json.loads(DOCUMENT.read_bytes())
        components = self.document["components"]
        self.messages: dict[str, Any] = components["messages"]
        self._lenient = components["schemas"]
        self._strict = strict(self._lenient)

    def check_sent(self, frame: dict[str, Any]) -> None:
        """Assert that a frame of the server's is described, with every field it has."""
        self._check(frame, frame["type"], self._strict)

    def check_taken(self, frame: dict[str, Any]) -> None:
        """Assert that a command is described; clients may send more than that."""
        self._check(frame, frame.get("type", "response.create"), self._lenient)

    def _check(self, frame: dict[str, Any], kind: str, schemas: dict[str, Any]) -> None:
        assert kind in self.messages, f"{kind} is not described: add it to protocol/messages.py"
        schema = {**self.messages[kind]["payload"], "components": {"schemas": schemas}}
        faults = [f"{error.json_path}: {error.message}" for error in Draft202012Validator(schema).iter_errors(frame)]
        assert faults == [], f"{kind}, protocol/messages.py"
