"""JSON schemas from clients: whether one is fit to guide an engine, checked before any engine sees it.

An engine makes a grammar of a schema, in native code: what that code cannot bear must be refused here. Only shape and
size are looked at; keywords that the engine does not know are its own to refuse.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from protocol.codec import encode
from protocol.errors import ProtocolError, excerpt
from protocol.patterns import pattern_cost

MAX_SCHEMA_BYTES: Final = 64 * 1024  # as JSON; a tool of a large agent has some kilobytes
MAX_SCHEMA_DEPTH: Final = 32  # objects and lists inside each other; OpenAI takes 10 levels of properties
# Numbers that say how often something is repeated, and words that stand in the schema: a grammar has a state for each.
# xgrammar takes some seconds for all that is allowed here, and minutes for ten times as much.
MAX_REPEATS: Final = 1000
MAX_ALL_REPEATS: Final = 10_000  # together
MAX_WORDS_CHARS: Final = 16_000  # of all strings in enum, const and patterns; OpenAI takes 15,000 of long ones
MAX_PATTERN_CHARS: Final = 1000
# Where a pattern can go on in two ways, the engine has more to write down before, and more to go along at each token,
# while every other answer waits: with the square of such places and more. One for semantic versions has 15 of them.
MAX_PATTERN_WAYS: Final = 32
MAX_ALL_PATTERN_WAYS: Final = 2 * MAX_PATTERN_WAYS**2  # the sum of their squares
# With each optional property the next one may be any of those behind it: the time for a grammar grows with the square.
MAX_OPTIONAL: Final = 400  # in one object: half a second
# The engine goes along all branches that fit so far, at each token, while every other answer waits.
MAX_BRANCHES: Final = 64  # of anyOf and oneOf together, without those that are one value or a list of values

_TYPES: Final = frozenset({"object", "array", "string", "number", "integer", "boolean", "null"})
_COUNTS: Final = frozenset({"minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"})
_SCHEMA_MAPS: Final = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
_SCHEMA_LISTS: Final = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
_SCHEMAS: Final = frozenset(
    {"items", "additionalProperties", "not", "contains", "propertyNames", "if", "then", "else"}
    | {"additionalItems", "unevaluatedItems", "unevaluatedProperties"}
)


def check_schema(schema: Any, param: str) -> dict[str, Any]:
    """Return a client's schema. Raises ProtocolError naming the place in it that is at fault."""
    if not isinstance(schema, dict):
        raise _invalid("must be an object: a JSON schema", param)
    _check_depth(schema, param)
    size = len(encode(schema))
    if size > MAX_SCHEMA_BYTES:
        raise _invalid(f"has {size} bytes; at most {MAX_SCHEMA_BYTES} are taken", param)
    repeats = words = branches = ways = 0
    for place, part in _all_parts(schema, param):
        for pattern in _patterns(part):
            repeated, own_ways = pattern_cost(pattern)
            if own_ways > MAX_PATTERN_WAYS:
                text = f"can go on in two ways in {own_ways} places; at most {MAX_PATTERN_WAYS} are taken"
                raise _invalid(f"has a pattern that {text}: use fewer of * + ? and {{}}", place)
            repeats += repeated
            words += len(pattern)
            ways += own_ways**2
        repeats += _repeats(part)
        words += _words(part)
        branches += _branches(part)
    if repeats > MAX_ALL_REPEATS:
        raise _invalid(f"repeats things {repeats} times in all; at most {MAX_ALL_REPEATS} are taken", param)
    if words > MAX_WORDS_CHARS:
        raise _invalid(
            f"has {words} characters in enum, const and patterns; at most {MAX_WORDS_CHARS} are taken", param
        )
    if branches > MAX_BRANCHES:
        raise _invalid(f"has {branches} branches in anyOf and oneOf; at most {MAX_BRANCHES} are taken", param)
    if ways > MAX_ALL_PATTERN_WAYS:
        raise _invalid("has too many or too wide patterns; use fewer of * + ? and {} in them", param)
    return schema


def _repeats(part: Any) -> int:
    if not isinstance(part, dict):
        return 0
    return max((part[key] for key in _COUNTS & part.keys()), default=0)


def _branches(part: Any) -> int:
    if not isinstance(part, dict):
        return 0
    branches = [branch for key in ("anyOf", "oneOf") for branch in part.get(key, ())]
    return sum(1 for branch in branches if not (isinstance(branch, dict) and branch.keys() & {"const", "enum"}))


def _words(part: Any) -> int:
    if not isinstance(part, dict):
        return 0
    return sum(len(word) for word in (*part.get("enum", ()), part.get("const")) if isinstance(word, str))


def _check_depth(schema: Any, param: str) -> None:
    level, depth = [schema], 0
    while level:
        depth += 1
        if depth > MAX_SCHEMA_DEPTH:
            raise _invalid(f"is nested more than {MAX_SCHEMA_DEPTH} deep", param)
        level = [
            inner
            for value in level
            for inner in (value.values() if isinstance(value, dict) else value)
            if isinstance(inner, dict | list)
        ]


def _patterns(part: Any) -> Iterator[Any]:
    if not isinstance(part, dict):
        return
    yield part.get("pattern", "")
    yield from part.get("patternProperties", ())


def _all_parts(schema: dict[str, Any], param: str) -> Iterator[tuple[str, Any]]:
    """Yield the schema and every schema in it, each once, with its path, when it is checked.

    A reference may lead to where no schema is looked for (`#/examples/0`): an engine follows it there.
    """
    seen: set[int] = set()
    ending: set[str] = set()
    waiting: list[tuple[str, Any]] = [(param, schema)]
    while waiting:
        place, part = waiting.pop()
        for place_of_inner, inner in _parts(part, place, seen):
            target = _check_part(inner, place_of_inner, schema, ending)
            yield place_of_inner, inner
            if target is not None and id(target) not in seen:
                waiting.append((_place_of(inner["$ref"], param), target))


def _parts(schema: Any, param: str, seen: set[int]) -> Iterator[tuple[str, Any]]:
    """Yield the schema and every schema in it that was not seen before, each with its path."""
    if id(schema) in seen:
        return
    yield param, schema
    if not isinstance(schema, dict):
        return
    seen.add(id(schema))
    for key, value in schema.items():
        place = f"{param}.{excerpt(key, 64)}"
        if key in _SCHEMA_MAPS and isinstance(value, dict):
            for name, inner in value.items():
                yield from _parts(inner, f"{place}.{excerpt(name, 64)}", seen)
        elif key in _SCHEMA_LISTS and isinstance(value, list):
            for index, inner in enumerate(value):
                yield from _parts(inner, f"{place}[{index}]", seen)
        elif key in _SCHEMAS:
            yield from _parts(value, place, seen)


def _check_part(part: Any, place: str, root: dict[str, Any], ending: set[str]) -> Any:
    """Check one schema without those in it; return the one that it refers to, or None. ending: see there."""
    if isinstance(part, bool):
        return None
    if not isinstance(part, dict):
        raise _invalid("must be a schema: an object, true or false", place)
    _check_type(part.get("type"), place)
    for key in _SCHEMA_MAPS & part.keys():
        if not isinstance(part[key], dict):
            raise _invalid("must be an object", f"{place}.{key}")
    for key in _SCHEMA_LISTS & part.keys():
        if not isinstance(part[key], list) or not part[key]:
            raise _invalid("must be a list of at least one schema", f"{place}.{key}")
    for key in _COUNTS & part.keys():
        if not _is_count(part[key]):
            raise _invalid(f"must be a whole number from 0 to {MAX_REPEATS}", f"{place}.{key}")
    _check_names(part, place)
    return _check_reference(part, place, root, ending) if "$ref" in part else None


def _check_type(kind: Any, place: str) -> None:
    names = kind if isinstance(kind, list) else [kind]
    if kind is not None and not (names and all(isinstance(name, str) and name in _TYPES for name in names)):
        raise _invalid(f"must be one of {', '.join(sorted(_TYPES))}, or a list of them", f"{place}.type")


def _check_names(part: dict[str, Any], place: str) -> None:
    required = part.get("required", [])
    if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
        raise _invalid("must be a list of names", f"{place}.required")
    optional = part.get("properties", {}).keys() - set(required)
    if len(optional) > MAX_OPTIONAL:
        raise _invalid(
            f"has {len(optional)} that are not required; at most {MAX_OPTIONAL} are taken", f"{place}.properties"
        )
    if not isinstance(part.get("enum", [0]), list) or part.get("enum") == []:
        raise _invalid("must be a list of at least one value", f"{place}.enum")
    for pattern in _patterns(part):
        if not isinstance(pattern, str) or len(pattern) > MAX_PATTERN_CHARS:
            key = "pattern" if pattern == part.get("pattern") else "patternProperties"
            raise _invalid(f"must be a string of at most {MAX_PATTERN_CHARS} characters", f"{place}.{key}")


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_REPEATS


def _check_reference(part: dict[str, Any], place: str, root: dict[str, Any], ending: set[str]) -> Any:
    """Return where a reference leads.

    Refuse those out of the schema, to nothing, and those that only lead back to themselves. A schema may well hold
    itself (a tree): each level then has text of its own. ending: references that are known to lead to such text; more
    are added, so that a chain of them is gone along once.
    """
    seen: set[str] = set()
    first: Any = None
    target: Any = part
    while isinstance(target, dict) and "$ref" in target:
        reference = target["$ref"]
        if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
            raise _invalid("must point into this schema: '#', or '#/$defs/' and a name", f"{place}.$ref")
        if reference in seen:
            raise _invalid("only leads back to itself", f"{place}.$ref")
        target = _resolved(root, reference, place)
        if not isinstance(target, dict | bool):
            raise _invalid(f"points to no schema: '{excerpt(reference)}'", f"{place}.$ref")
        first = target if first is None else first
        if reference in ending:
            break
        seen.add(reference)
    ending |= seen
    return first


def _place_of(reference: str, param: str) -> str:
    return ".".join([param, *(excerpt(step, 64) for step in reference.split("/")[1:])])


def _resolved(root: dict[str, Any], reference: str, place: str) -> Any:
    part: Any = root
    for step in reference.split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(part, list) and name.isdecimal() and int(name) < len(part):
            part = part[int(name)]
        elif isinstance(part, dict) and name in part:
            part = part[name]
        else:
            raise _invalid(f"points to nothing: '{excerpt(reference)}'", f"{place}.$ref")
    return part


def _invalid(what: str, param: str) -> ProtocolError:
    return ProtocolError("invalid_request", f"{param} {what}", param=param)
