"""Why a command was refused, in plain words: the field at fault, what it may hold, and what it held.

Runs only after msgspec has said no. msgspec's own texts speak of Python's types and of regular expressions, and do
not tell which key of an object is at fault.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import islice
from types import NoneType, UnionType
from typing import Annotated, Any, Final, NamedTuple, Union, get_args, get_origin

import msgspec
from msgspec import inspect

from protocol.errors import ProtocolError, excerpt
from protocol.items import json_type

# Elements of one list or object that are looked at one by one: more than any of ours may have, so that a larger one
# is refused for its size, and a frame full of elements costs no time.
MAX_LOOKED_AT: Final = 64

_MISSING: Final = object()


class _Place(NamedTuple):
    """Something in a command. param: its path. subject: what an error text calls it."""

    param: str
    subject: str
    kind: Any
    value: Any


def explain(kind: type[msgspec.Struct], fields: dict[str, Any]) -> ProtocolError:
    """Return the error for fields that `kind` does not take, with the innermost place at fault in `param`."""
    place = _locate(_Place("", "the command", kind, fields))
    what = f"{place.subject} is required" if place.value is _MISSING else _complaint(place)
    return ProtocolError("invalid_request", what, param=place.param or None)


def _locate(place: _Place) -> _Place:
    for child in _children(place):
        if child.value is _MISSING or not _fits(child):
            return _locate(child)
    return place


def _fits(place: _Place) -> bool:
    try:
        msgspec.convert(place.value, place.kind)
    except msgspec.ValidationError:
        return False
    return True


def _children(place: _Place) -> Iterator[_Place]:
    """Yield what is inside a value that has the shape its kind asks for."""
    for kind in map(_without_meta, _alternatives(place.kind)):
        if isinstance(place.value, dict) and isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            yield from _fields(place, kind)
        elif isinstance(place.value, dict) and get_origin(kind) is dict:
            yield from _entries(place, *get_args(kind))
        elif isinstance(place.value, list) and get_origin(kind) is list:
            for index, value in enumerate(islice(place.value, MAX_LOOKED_AT)):
                path = f"{place.param}[{index}]"
                yield _Place(path, path, get_args(kind)[0], value)


def _fields(place: _Place, kind: type[msgspec.Struct]) -> Iterator[_Place]:
    for field in _fields_of(kind):
        value = place.value.get(field.name, _MISSING)
        if value is not _MISSING or field.required:
            path = f"{place.param}.{field.name}" if place.param else field.name
            yield _Place(path, path, field.type, value)


@cache  # resolving annotations takes a millisecond, and bad frames may come fast; there are a dozen kinds
def _fields_of(kind: type[msgspec.Struct]) -> tuple[msgspec.structs.FieldInfo, ...]:
    return msgspec.structs.fields(kind)


def _entries(place: _Place, key_kind: Any, value_kind: Any) -> Iterator[_Place]:
    for key, value in islice(place.value.items(), MAX_LOOKED_AT):
        path = f"{place.param}.{excerpt(key)}"
        yield _Place(path, f"each key of {place.param}", key_kind, key)
        yield _Place(path, path, value_kind, value)


# Words


def _complaint(place: _Place) -> str:
    """Say what may stand here and what does. Where several kinds may, those of the value's own JSON type count."""
    infos = [inspect.type_info(kind) for kind in _alternatives(place.kind)]
    near = [info for info in infos if _same_shape(info, place.value)]
    expected = " or ".join(_words(info) for info in near or infos)
    return f"{place.subject} must be {expected}{_found(near, place.value)}"


def _found(near: list[inspect.Type], value: Any) -> str:
    match value:
        case str() if not near:
            return ", not a string"
        case "":
            return "; it is empty"
        case str() if any(_limits(info) for info in near):
            return f"; it has {len(value)} characters"
        case str():
            return f", not '{excerpt(value)}'"
        case bool():
            return f", not {'true' if value else 'false'}"
        case int() | float() if near:
            return f", not {excerpt(str(value), 40)}"
        case list() | dict() if near:
            return f"; it has {len(value)}"
        case _:
            return f", not {json_type(value)}"


def _limits(info: inspect.Type) -> bool:
    return isinstance(info, inspect.StrType) and info.max_length is not None


def _same_shape(info: inspect.Type, value: Any) -> bool:
    match _without_metadata(info):
        case inspect.StrType() | inspect.LiteralType():
            return isinstance(value, str)
        case inspect.IntType() | inspect.FloatType():
            return isinstance(value, int | float) and not isinstance(value, bool)
        case inspect.ListType():
            return isinstance(value, list)
        case inspect.DictType():
            return isinstance(value, dict)
        case _:
            return False


def _words(info: inspect.Type) -> str:
    match info:
        case inspect.Metadata():
            return f"{_words(info.type)} {(info.extra_json_schema or {}).get('description', '')}".rstrip()
        case inspect.StrType():
            return f"a string{_count(info.min_length, info.max_length, 'characters')}"
        case inspect.IntType():
            return f"a whole number{_range(info)}"
        case inspect.FloatType():
            return f"a number{_range(info)}"
        case inspect.BoolType():
            return "true or false"
        case inspect.LiteralType():
            return " or ".join(f"'{value}'" for value in info.values)
        case inspect.ListType():
            return f"a list{_count(info.min_length, info.max_length, 'items')}"
        case inspect.DictType():
            return f"an object{_count(info.min_length, info.max_length, 'keys')}"
        case inspect.StructType():
            return f"an object with {', '.join(field.name for field in info.fields if field.required)}"
        case _:
            return "something else"


def _count(least: int | None, most: int | None, of_what: str) -> str:
    if most is None:
        return ""
    return f" of {least} to {most} {of_what}" if least else f" of at most {most} {of_what}"


def _range(info: inspect.IntType | inspect.FloatType) -> str:
    """Return the bounds in words; every number of ours has a lower one."""
    low = f"above {info.gt}" if info.gt is not None else f"{info.ge}"
    if info.le is None:
        return f" of at least {low}"
    return f" {low} and at most {info.le}" if info.gt is not None else f" from {low} to {info.le}"


# Types


def _alternatives(kind: Any) -> list[Any]:
    """Return what may stand here besides null."""
    members = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    return [member for member in members if member is not NoneType]


def _without_meta(kind: Any) -> Any:
    return get_args(kind)[0] if get_origin(kind) is Annotated else kind


def _without_metadata(info: inspect.Type) -> inspect.Type:
    return info.type if isinstance(info, inspect.Metadata) else info
