"""vLLM's own parsers behind ours: whatever pieces a model's output comes in, the same items come out."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.fields import TOOL_NAME
from protocol.options import PLAIN, FunctionTool, Options, TextFormat
from protocol.output import Piece, PieceKind
from server.engine.base import EngineStartError, RefusedError
from server.engine.parsing import AnswerReader, OutputReader, Parsers
from server.engine.prompt import PromptRenderer
from server.engine.script import byte_tokenizer
from server.engine.vllm import VllmEngine
from tests.support.formats import FORMATS, THOUGHT, TIME, TOOLS, WEATHER, Format

_readers: dict[Parsers, OutputReader] = {}


@cache
def tokenizer() -> Any:
    return byte_tokenizer()


@pytest.fixture(scope="module", autouse=True)
def _imported() -> None:
    """VLLM and torch warn while they are imported, and our tests take warnings for errors."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for form in FORMATS:
            reader(form)


def reader(form: Format) -> OutputReader:
    """One for each pair of parsers, as each model has one."""
    parsers = Parsers(form.tool_parser, form.reasoning_parser)
    if parsers not in _readers:
        _readers[parsers] = OutputReader(tokenizer(), parsers)
    return _readers[parsers]


def begin(form: Format, options: Options = TOOLS, opening: Sequence[int] = ()) -> AnswerReader:
    answer = reader(form).begin(options, opening)
    assert answer is not None
    return answer


def read(answer: AnswerReader, chunks: Iterable[str]) -> tuple[tuple[object, ...], ...]:
    """What was read, in the shape of `Format.read`: white space at an item's end does not count."""
    pieces: list[Piece] = []
    for chunk in chunks:
        pieces += answer.feed(chunk, is_last=False)
    pieces += answer.feed("", is_last=True)
    items: list[list[str]] = []
    for piece in pieces:
        if piece.kind is PieceKind.CALL:
            items.append([piece.kind, piece.text, ""])
        elif piece.kind is PieceKind.ARGUMENTS:
            items[-1][2] += piece.text
        elif items and items[-1][0] == piece.kind:
            items[-1][1] += piece.text
        else:
            items.append([piece.kind, piece.text])
    return tuple(
        (PieceKind.CALL, item[1], json.loads(item[2])) if len(item) == 3 else (item[0], item[1].rstrip())
        for item in items
    )


def cut(text: str, at: Iterable[int]) -> list[str]:
    bounds = sorted({0, *(place % len(text) for place in at), len(text)})
    return [text[low:high] for low, high in pairwise(bounds)]


NAMES = [f"{form.tool_parser}-{form.reasoning_parser}" for form in FORMATS]


@pytest.mark.parametrize("form", FORMATS, ids=NAMES)
@settings(max_examples=25, deadline=None)
@given(places=st.lists(st.integers(0, 10_000), max_size=30))
def test_any_splitting_gives_the_same_items(form, places):
    """Also where markup is cut in its middle."""
    assert read(begin(form), cut(form.output, places)) == form.read


@pytest.mark.parametrize("form", FORMATS, ids=NAMES)
def test_letter_by_letter(form):
    """The finest cut of all."""
    assert read(begin(form), form.output) == form.read


@pytest.mark.parametrize("form", FORMATS, ids=NAMES)
def test_nothing_is_read_before_it_is_sure(form):
    """Whatever has been read of a beginning stays: no text is taken back, no markup shown."""
    whole = list(begin(form).feed(form.output, is_last=True))
    for end in range(0, len(form.output), 5):
        shown = "".join(piece.text for piece in begin(form).feed(form.output[:end], is_last=False))
        assert not any(mark in shown for mark in ("<think", "</think", "<tool_c", "[TOOL", "\uff5c"))
        assert "".join(piece.text for piece in whole).startswith(shown)


@pytest.mark.parametrize("form", [form for form in FORMATS if form.reasoning_parser], ids=lambda form: str(form[:2]))
def test_a_thought_that_is_cut_off_is_no_answer(form):
    """An answer that ends in its thoughts has none of them in its text."""
    output = form.output[: form.output.index("</think>")]
    assert read(begin(form), output) == (THOUGHT,)


@pytest.mark.parametrize("name", ["qwen3", "deepseek_r1"])
def test_thoughts_of_earlier_turns_end_no_thought_of_this_one(name):
    """Only what the template opens the answer with is looked at, not the history."""
    form = Format(None, name, "", ())
    think, end = (tokenizer().convert_tokens_to_ids(mark) for mark in ("<think>", "</think>"))
    opened = read(begin(form, PLAIN, [think]), "hm</think>Hello.")
    assert opened == ((PieceKind.REASONING, "hm"), (PieceKind.TEXT, "Hello."))
    closed = read(begin(form, PLAIN, [think, end]), "Hello.")
    assert closed == ((PieceKind.TEXT, "Hello."),)


@pytest.mark.parametrize("form", [form for form in FORMATS if form.tool_parser], ids=lambda form: str(form[:2]))
def test_one_call_at_most_where_no_more_are_wanted(form):
    """Also of a model that nothing guides, and that writes two."""
    first = [item for item in form.read if item[0] is PieceKind.CALL][:1]
    options = Options(tools=(WEATHER, TIME), parallel_tool_calls=False)
    calls = [item for item in read(begin(form, options), form.output) if item[0] is PieceKind.CALL]
    assert calls == first


def test_a_function_of_an_odd_name():
    """A model may write anything; what we show is a name that clients can send back."""
    written = '<tool_call>\n{"name": "say <|im_end|> ü' + "x" * 200 + '", "arguments": {}}\n</tool_call>'
    ((kind, name, arguments),) = read(begin(Format("hermes", None, "", ())), written)
    assert (kind, arguments) == (PieceKind.CALL, {})
    assert TOOL_NAME.fullmatch(str(name))
    assert str(name).startswith("say___im_end____x")


FORCED = '[{"name": "get_weather", "parameters": {"city": "Paris"}}, {"name": "get_time", "parameters": {}}]'


@settings(max_examples=25, deadline=None)
@given(places=st.lists(st.integers(0, 10_000), max_size=30))
def test_calls_that_are_forced_without_a_parser(places):
    """A model whose output has no markup of its own is guided to JSON, which is read as calls."""
    form = Format(None, None, FORCED, ())
    options = Options(tools=(WEATHER, TIME), tool_choice="required")
    assert reader(form).guide(options).structured is not None
    found = read(begin(form, options), cut(FORCED, places))
    assert found == ((PieceKind.CALL, "get_weather", {"city": "Paris"}), (PieceKind.CALL, "get_time", {}))
    options = Options(tools=(WEATHER, TIME), tool_choice="required", forced="get_weather")
    found = read(begin(form, options), cut('{"city": "Paris"}', places))
    assert found == ((PieceKind.CALL, "get_weather", {"city": "Paris"}),)


@pytest.mark.parametrize("form", [form for form in FORMATS if form.tool_parser], ids=lambda form: str(form[:2]))
def test_a_forced_call_is_guided(form):
    """VLLM is told of a grammar whenever a function must be called, one or any."""
    for forced in (None, "get_weather"):
        options = Options(tools=(WEATHER, TIME), tool_choice="required", forced=forced)
        assert reader(form).guide(options).structured is not None


def test_who_is_not_read():
    """A model without parsers, asked for nothing, says its text; tools that nobody would find are not offered."""
    plain = reader(Format(None, None, "", ()))
    assert plain.begin(PLAIN, ()) is None
    assert plain.begin(TOOLS, ()) is None
    assert not plain.offers_tools(TOOLS)
    assert reader(FORMATS[0]).offers_tools(TOOLS)
    assert not reader(FORMATS[0]).offers_tools(Options(tools=TOOLS.tools, tool_choice="none"))


@pytest.mark.parametrize("parsers", [Parsers("hermess"), Parsers(None, "qwen33"), Parsers("harmony", "nothing")])
def test_a_parser_that_there_is_not(parsers):
    """The name is in the error, in one line."""
    with pytest.raises(EngineStartError) as caught:
        OutputReader(tokenizer(), parsers)
    assert repr(parsers.tool or parsers.reasoning) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.fixture
def unstarted(default_model_dir: str) -> VllmEngine:
    """VLLM's settings of the default model, and no process: enough for what is checked before an answer runs."""
    from transformers import AutoTokenizer
    from vllm.config import ModelConfig, StructuredOutputsConfig

    engine: Any = VllmEngine("default", default_model_dir)
    known = AutoTokenizer.from_pretrained(default_model_dir)
    config = SimpleNamespace(speculative_config=None, structured_outputs_config=StructuredOutputsConfig())
    model = ModelConfig(model=default_model_dir, dtype="float32")
    engine._llm = SimpleNamespace(model_config=model, vllm_config=config, get_tokenizer=lambda: known)
    engine._reader = OutputReader(known, Parsers())
    engine._renderer = PromptRenderer(known)
    engine._is_up = True
    made: VllmEngine = engine
    return made


EMPTY = {"type": "integer", "minimum": 5, "maximum": 1}
UNCLOSED = {"type": "object", "properties": {"a": {"type": "string", "pattern": "(unclosed"}}}


@pytest.mark.filterwarnings("ignore")
async def test_what_vllm_cannot_be_guided_by_is_refused(unstarted: VllmEngine):
    """By name, in one line, before anything runs; what it can be guided by is taken."""
    fine = [
        Options(format=TextFormat("json_schema", "n", WEATHER.parameters)),
        Options(format=TextFormat("json_object")),
        Options(format=TextFormat("tokenwire:choice", choices=("a", "b"))),
        Options(format=TextFormat("tokenwire:grammar", grammar='root ::= "a"')),
        Options(tools=(WEATHER, TIME), tool_choice="required"),
        Options(tools=(WEATHER, TIME), tool_choice="required", forced="get_time"),
        TOOLS,
    ]
    for options in fine:
        await unstarted.check(options)
    wrong = [
        (Options(format=TextFormat("tokenwire:grammar", grammar="this is none ::= ::=")), "text.format"),
        (Options(format=TextFormat("tokenwire:grammar", grammar="root ::= missing")), "text.format"),
        (Options(format=TextFormat("json_schema", "n", UNCLOSED)), "text.format"),
        (
            Options(format=TextFormat("json_schema", "n", {"type": "integer", "minimum": 5, "maximum": 1})),
            "text.format",
        ),
        (Options(tools=(FunctionTool("f", None, UNCLOSED),), tool_choice="required"), "tools"),
    ]
    for options, param in wrong:
        with pytest.raises(RefusedError) as caught:
            await unstarted.check(options)
        assert caught.value.param == param
        assert "\n" not in str(caught.value)
