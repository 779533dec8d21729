"""Forms and forced calls on real vLLM with a small model: always of the form; and what cannot be is refused, alone."""

from __future__ import annotations

import asyncio
import itertools
import json
from contextlib import aclosing
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from protocol.errors import ProtocolError
from protocol.options import PLAIN, FunctionTool, Options, TextFormat, parse_options
from protocol.output import PieceKind
from server.engine.base import Chunk, FinishReason, GenerationRequest, RefusedError, Sampling
from server.engine.vllm import VllmEngine
from tests.unit.engine.contract import user

pytestmark = pytest.mark.asyncio(loop_scope="session")

CITY: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "kind": {"enum": ["village", "town", "city"]},
        "people": {"type": "integer", "minimum": 0, "maximum": 99},
    },
    "required": ["name", "kind", "people"],
    "additionalProperties": False,
}
TREE: dict[str, Any] = {
    "type": "object",
    "properties": {"children": {"type": "array", "items": {"$ref": "#"}, "maxItems": 1}},
    "required": ["children"],
    "additionalProperties": False,
}
LIST: dict[str, Any] = {"type": "array", "items": {"anyOf": [{"const": "a"}, {"type": "boolean"}]}, "maxItems": 3}
WEATHER = FunctionTool("get_weather", "Says how the weather is.", CITY)
TIME = FunctionTool("get_time", None, {"type": "object", "properties": {}, "additionalProperties": False})
LIMIT = 40  # tokens: more than the longest CITY has
_ids = itertools.count()


def form(schema: dict[str, Any]) -> Options:
    return Options(format=TextFormat("json_schema", "n", schema))


async def ask(engine: VllmEngine, options: Options, seed: int = 1, limit: int = LIMIT) -> list[Chunk]:
    """Return the chunks of an answer drawn at random: the form does not hang on the model's best guess."""
    await engine.check(options)
    prompt = await engine.render(user("Tell me of Paris."), options)
    sampling = Sampling(limit, temperature=1.5, seed=seed)
    request = GenerationRequest(f"form-{next(_ids)}", prompt, sampling, options=options)
    async with aclosing(engine.generate(request)) as chunks:
        return [chunk async for chunk in chunks]


def text_of(chunks: list[Chunk]) -> str:
    return "".join(chunk.text for chunk in chunks)


async def test_json_is_always_of_the_schema(vllm_engine: VllmEngine) -> None:
    """Of any seed, nine answers at once; a tree may grow until it is cut off, and is a beginning of JSON then."""
    asked = [(schema, seed) for schema in (CITY, TREE, LIST) for seed in range(3)]
    answers = await asyncio.gather(*(ask(vllm_engine, form(schema), seed) for schema, seed in asked))
    for (schema, _), chunks in zip(asked, answers, strict=True):
        if schema is not TREE:
            assert chunks[-1].finish_reason is FinishReason.STOP
        if chunks[-1].finish_reason is FinishReason.STOP:
            Draft202012Validator(schema).validate(json.loads(text_of(chunks)))
        else:
            assert text_of(chunks).startswith('{"children":')


async def test_json_that_is_cut_off_says_so(vllm_engine: VllmEngine) -> None:
    """LENGTH, which clients see as incomplete: the text is the beginning of the form."""
    chunks = await ask(vllm_engine, form(CITY), limit=8)  # of one character each, at least
    assert chunks[-1].finish_reason is FinishReason.LENGTH
    assert text_of(chunks).startswith('{"name":')


async def test_any_object_a_choice_and_a_grammar(vllm_engine: VllmEngine) -> None:
    """Nothing else is ever said."""
    forms = [
        TextFormat("tokenwire:choice", choices=("yes", "no")),
        TextFormat("tokenwire:grammar", grammar='root ::= [0-9] "!"'),
        TextFormat("json_object"),
    ]
    choice, grammar, anything = await asyncio.gather(*(ask(vllm_engine, Options(format=kind)) for kind in forms))
    assert text_of(choice) in {"yes", "no"}
    assert text_of(grammar)[1:] == "!"
    assert text_of(grammar)[0].isdecimal()
    assert text_of(anything).startswith("{")


@pytest.mark.parametrize("forced", [None, "get_weather"])
async def test_a_forced_call_parses(vllm_engine: VllmEngine, forced: str | None) -> None:
    """Of a model that knows no tools at all: a known function, with arguments of its schema, and no other text."""
    options = Options(tools=(WEATHER, TIME), tool_choice="required", forced=forced, parallel_tool_calls=False)
    chunks = await ask(vllm_engine, options, limit=2 * LIMIT)
    assert chunks[-1].finish_reason is FinishReason.STOP
    call, *rest = [piece for chunk in chunks for piece in chunk.pieces or ()]
    assert call.kind is PieceKind.CALL
    tool = {tool.name: tool for tool in options.tools if forced in (None, tool.name)}[call.text]
    assert {piece.kind for piece in rest} == {PieceKind.ARGUMENTS}
    arguments = json.loads("".join(piece.text for piece in rest))
    Draft202012Validator(tool.parameters or {}).validate(arguments)


async def test_made_again_it_is_the_same(vllm_engine: VllmEngine) -> None:
    """What lets a takeover go on with such an answer: the same seed, the same words."""
    first, again = [await ask(vllm_engine, form(CITY), seed=7) for _ in range(2)]
    assert text_of(first) == text_of(again)


@pytest.mark.parametrize(
    "kind",
    [
        TextFormat("tokenwire:grammar", grammar="this is no grammar ::= ::="),
        TextFormat("tokenwire:grammar", grammar="root ::= missing"),
        TextFormat("tokenwire:grammar", grammar="root ::= " + "(" * 30_000 + '"a"' + ")" * 30_000),
        TextFormat("json_schema", "n", {"type": "string", "pattern": "(unclosed"}),
        TextFormat("json_schema", "n", {"type": "integer", "minimum": 5, "maximum": 1}),
        TextFormat("json_schema", "n", {"type": "integer", "multipleOf": 7}),
        TextFormat("json_schema", "n", {"type": "array", "uniqueItems": True}),
        TextFormat("json_schema", "n", {"allOf": [{"type": "string"}, {"maxLength": 3}]}),
    ],
    ids=["no grammar", "missing rule", "deep", "no pattern", "nothing fits", "multipleOf", "uniqueItems", "allOf"],
)
async def test_what_cannot_guide_is_refused(vllm_engine: VllmEngine, kind: TextFormat) -> None:
    """By name, before anything runs: faults, and what vLLM's grammar library would pass over."""
    with pytest.raises(RefusedError) as caught:
        await vllm_engine.check(Options(format=kind))
    assert caught.value.param == "text.format"
    assert "\n" not in str(caught.value)
    await vllm_engine.check_health()


HOSTILE: dict[str, dict[str, Any]] = {
    "endless": {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
    "left recursion": {"$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}, {"type": "null"}]}}, "$ref": "#/$defs/a"},
    "pattern": {"type": "string", "pattern": "(a|a)*" * 32},
    "library's limit": {
        "type": "object",
        "propertyNames": {"pattern": "[a-z]{1,900}"},
        "additionalProperties": {"type": "string", "maxLength": 900},
    },
    "repeats": {"type": "array", "items": {"type": "array", "items": {"type": "array", "maxItems": 1000}}},
    "not": {"not": {"type": "string"}},
    "optional": {"type": "object", "properties": {f"p{number}": {} for number in range(400)}},
    "branches": {"anyOf": [{"type": "object", "properties": {"k": {}, f"z{n}": {}}} for n in range(64)]},
    "large": {"anyOf": [{"type": "string", "maxLength": 1000}] * 10},
    "many": {"type": "object", "properties": {f"p{number}": {} for number in range(401)}},
    "wide": {"anyOf": [{"type": "object", "properties": {f"z{n}": {}}} for n in range(65)]},
    "counts": {"type": "string", "pattern": "[a-z]{0,999}" * 70},
    "counts of counts": {"type": "string", "pattern": "(.{0,300}){0,300}"},
    "ambiguous": {"type": "string", "pattern": ".*" * 250},
    "keys": {"type": "object", "patternProperties": {"(a|b)*" * 1000: {}}},
    "hidden": {"$ref": "#/examples/0", "examples": [{"type": "string", "maxLength": 10**8}]},
}


async def test_the_engine_survives_what_is_hostile(vllm_engine: VllmEngine) -> None:
    """All of it at once: refused, failed alone, or answered; plain turns go on meanwhile, and after it."""

    async def try_one(schema: dict[str, Any]) -> str:
        """Return how it ends, or the field that is refused."""
        try:
            given = {"text": {"format": {"type": "json_schema", "name": "n", "schema": schema}}}
            chunks = await ask(vllm_engine, parse_options(given), limit=4)
        except (ProtocolError, RefusedError) as error:
            return (error.param or "").removeprefix("text.")
        return str(chunks[-1].finish_reason)

    tries = [asyncio.create_task(try_one(schema)) for schema in HOSTILE.values()]
    for _ in range(3):
        assert sum(chunk.token_count for chunk in await ask(vllm_engine, PLAIN, limit=2)) == 2
    found = dict(zip(HOSTILE, await asyncio.gather(*tries), strict=True))
    assert {name: end for name, end in found.items() if end.startswith("format")} == {
        "library's limit": "format",
        "many": "format.schema.properties",
        "wide": "format.schema",
        "counts": "format.schema",
        "counts of counts": "format.schema",
        "ambiguous": "format.schema",
        "keys": "format.schema.patternProperties",
        "hidden": "format.schema.examples.0.maxLength",
    }
    assert sum(chunk.token_count for chunk in await ask(vllm_engine, PLAIN, limit=2)) == 2
    assert vllm_engine.unfinished == 0


async def test_tools_without_a_parser_are_not_shown(vllm_engine: VllmEngine) -> None:
    """The prompt is what it would be without them."""
    plain = await vllm_engine.render(user("x"))
    assert (await vllm_engine.render(user("x"), Options(tools=(WEATHER,)))).token_ids == plain.token_ids
