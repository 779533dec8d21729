"""Schemas from strangers: what an engine's native code could not bear is refused before it."""

from __future__ import annotations

import contextlib
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import ProtocolError
from protocol.schema import MAX_SCHEMA_BYTES, MAX_SCHEMA_DEPTH, check_schema


def fault(schema: Any) -> str:
    with pytest.raises(ProtocolError) as caught:
        check_schema(schema, "s")
    assert len(caught.value.message) < 400
    return caught.value.param or ""


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


def named(count: int) -> dict[str, Any]:
    return {f"p{number}": {"type": "string"} for number in range(count)}


TREE = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "children": {"type": "array", "items": {"$ref": "#"}}},
    "required": ["name"],
}


# The longest pattern that people often have in their schemas.
SEMVER = (
    r"^(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(?:-((?:0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*)"
    r"(?:\.(?:0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*))*))?(?:\+([0-9a-zA-Z-]+(?:\.[0-9a-zA-Z-]+)*))?$"
)


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"type": "object", "additionalProperties": False, "properties": {"a": {"type": ["string", "null"]}}},
        {"$defs": {"a": {"enum": [1, "x", None]}}, "anyOf": [{"$ref": "#/$defs/a"}, {"const": 5}]},
        {"type": "array", "items": {"type": "integer", "minimum": 1}, "minItems": 1, "maxItems": 9},
        {"type": "string", "pattern": "^a+$"},
        {"definitions": {"a/b~c": {}}, "$ref": "#/definitions/a~1b~0c"},
        {"properties": named(500), "required": list(named(100))},
        {"anyOf": [{"const": number} for number in range(300)]},
        {"anyOf": [{"properties": {"a": {}}}] * 64},
        {"type": "string", "pattern": "^[a-z]{2,16}@[a-z{}]{1,}$"},
        {"type": "string", "pattern": r"(a{,}b|\{999999\}){5}{,}"},
        {"anyOf": [{"type": "string", "pattern": SEMVER}] * 8},
        {"properties": {f"p{number}": {"pattern": "[a-z0-9]+(?:-[*+?]+)*"} for number in range(200)}},
        TREE,
        nested(MAX_SCHEMA_DEPTH - 1),
    ],
)
def test_fine(schema):
    """What real clients send, trees included."""
    assert check_schema(schema, "s") is schema


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        (None, "s"),
        ("object", "s"),
        ([], "s"),
        ({"type": "objekt"}, "s.type"),
        ({"type": []}, "s.type"),
        ({"type": ["string", 5]}, "s.type"),
        ({"properties": []}, "s.properties"),
        ({"properties": {"a": 5}}, "s.properties.a"),
        ({"properties": {"a": {"items": "x"}}}, "s.properties.a.items"),
        ({"anyOf": []}, "s.anyOf"),
        ({"anyOf": {"a": 1}}, "s.anyOf"),
        ({"required": "a"}, "s.required"),
        ({"required": [1]}, "s.required"),
        ({"enum": []}, "s.enum"),
        ({"enum": "a"}, "s.enum"),
        ({"type": "string", "pattern": 5}, "s.pattern"),
        ({"type": "string", "pattern": "a" * 9999}, "s.pattern"),
        ({"type": "string", "maxLength": 10**9}, "s.maxLength"),
        ({"type": "array", "minItems": -1}, "s.minItems"),
        ({"type": "array", "maxItems": 1.5}, "s.maxItems"),
        ({"$ref": "https://example.com/schema.json"}, "s.$ref"),
        ({"$ref": "#/$defs/none"}, "s.$ref"),
        ({"$ref": 5}, "s.$ref"),
        ({"$ref": "#"}, "s.$ref"),
        ({"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}, "s.$defs.a.$ref"),
        ({"$defs": {"a": {}, "b": {"$ref": "#/$defs/a"}, "c": {"$ref": "#/$defs/c"}}}, "s.$defs.c.$ref"),
        (nested(MAX_SCHEMA_DEPTH), "s"),
        ({"description": "x" * MAX_SCHEMA_BYTES}, "s"),
        ({"anyOf": [{"type": "string", "maxLength": 1000} for _ in range(11)]}, "s"),
        ({"enum": ["x" * 500] * 33}, "s"),
        ({"type": "string", "pattern": "[a-z]{0,999}" * 11}, "s"),
        ({"type": "string", "pattern": "a{10001}"}, "s"),
        ({"type": "string", "pattern": "a{99999999,}"}, "s"),
        ({"items": {"properties": named(401), "required": ["other"]}}, "s.items.properties"),
        ({"anyOf": [{"properties": {"a": {}}}] * 65}, "s"),
        ({"anyOf": [{"oneOf": [{}] * 32}, {"anyOf": [{}] * 31}]}, "s"),
        ({"patternProperties": {"(a|b)*" * 200: {}}}, "s.patternProperties"),
        ({"patternProperties": {"[a-z]{0,99999}": {}}}, "s"),
        ({"$ref": "#/examples/0", "examples": [{"maxLength": 10**9}]}, "s.examples.0.maxLength"),
        ({"$ref": "#/x/y", "x": {"y": {"$ref": "#/z"}}, "z": {"items": {"pattern": "a{99999}"}}}, "s"),
        ({"$ref": "#/x", "x": 5}, "s.$ref"),
        ({"$ref": "#/x", "x": None}, "s.$ref"),
        ({"$ref": "#/x", "x": {"$ref": "#/y", "minLength": -1}, "y": {}}, "s.x.minLength"),
        ({"pattern": "(.{0,300}){0,300}"}, "s"),
        ({"pattern": "((x{,99}y){9}z){12,}"}, "s"),
        ({"pattern": "(.{0,99}){0,16}"}, "s"),
        ({"pattern": ".*" * 33}, "s"),
        ({"pattern": ".?" * 300}, "s"),
        ({"anyOf": [{"pattern": r"\[.*" * 32} for _ in range(3)]}, "s"),
        ({"unevaluatedProperties": {"maxLength": 10**9}}, "s.unevaluatedProperties.maxLength"),
    ],
)
def test_refused(schema, place):
    """With the place at fault."""
    assert fault(schema) == place


@pytest.mark.parametrize("text", ["[", "{", "{9", "(", "\\\\", "[\\\\", "(?", "{1,", "a{2}("])
def test_no_pattern_takes_long_to_look_at(text):
    """A frame holds a hundred times as much."""
    schema = {"anyOf": [{"pattern": (text * 1000)[:1000]} for _ in range(15)]}
    began = time.process_time()
    with contextlib.suppress(ProtocolError):
        check_schema(schema, "s")
    assert time.process_time() - began < 0.5


def chain(length: int) -> dict[str, Any]:
    """Each refers to the next one."""
    links = {str(number): {"$ref": f"#/$defs/{number + 1}"} for number in range(length)}
    return {"$defs": links | {str(length): {"type": "string"}}}


@pytest.mark.parametrize(
    "schema",
    [
        {"x": {"properties": named(400)}, "allOf": [{"$ref": "#/x"} for _ in range(2000)]},
        chain(2000),
        {"$ref": "#/$defs/0", **chain(2000)},
    ],
    ids=["to one", "a chain", "a chain from its end"],
)
def test_many_references_cost_little(schema):
    """Each schema is looked at once, however often it is referred to: a frame must not stop the others."""
    began = time.process_time()
    check_schema(schema, "s")
    assert time.process_time() - began < 1


def test_the_deepest_frame_costs_nothing():
    """Nested as deep as JSON may be here: refused at once."""
    began = time.process_time()
    assert fault(nested(400)) == "s"
    assert time.process_time() - began < 1


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["type", "properties", "items", "anyOf", "$ref", "required", "enum", "$defs", "a"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(JSON)
def test_anything_is_taken_or_refused_by_name(schema):
    """No other exception, whatever comes."""
    found = "s"
    try:
        check_schema(schema, "s")
    except ProtocolError as error:
        found = error.param or ""
    assert found.startswith("s")
