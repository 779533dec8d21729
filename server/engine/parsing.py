"""vLLM's own tool and reasoning parsers: a model's output in, pieces of an answer out.

Which parsers a model needs is configured, by vLLM's names (`--tool-call-parser`, `--reasoning-parser`). This module
imports vLLM when a model with a parser is loaded, and only then: the echo engine uses it, too.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec

from protocol.errors import excerpt
from protocol.fields import MAX_CALL_ID_CHARS, MAX_TOOL_NAME_CHARS
from protocol.options import Options, TextFormat
from protocol.output import Piece, PieceKind
from server.engine.base import Chunk, EngineError, EngineStartError, RefusedError
from server.engine.core_process import prepare_environment
from server.engine.markup import Cutter, Markup

if TYPE_CHECKING:
    from vllm.entrypoints.generate.base.protocol import DeltaMessage
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.parser.abstract_parser import Parser
    from vllm.sampling_params import StructuredOutputsParams

_TEMPLATE_SWITCH: Final = "enable_thinking"  # most templates' word; parsers of such models look at it, too
_NOT_IN_NAMES: Final = re.compile(r"[^A-Za-z0-9_.-]")


@dataclass(frozen=True, slots=True)
class Parsers:
    """Names of vLLM's parsers for one model; None where its output has no such markup."""

    tool: str | None = None
    reasoning: str | None = None


@dataclass(frozen=True, slots=True)
class Guide:
    """What vLLM is told of one answer. structured: what guides it. keeps_markup: special tokens show in the text."""

    structured: StructuredOutputsParams | None
    keeps_markup: bool


class OutputReader:
    """Reads the output of one model.

    tokenizer: the model's. Raises EngineStartError where vLLM has no such parser, or it does not suit the tokenizer.
    """

    def __init__(self, tokenizer: Any, parsers: Parsers) -> None:
        prepare_environment()
        from vllm.parser import ParserManager  # noqa: PLC0415 - seconds of imports, needed with parsers only
        from vllm.parser.abstract_parser import DelegatingParser  # noqa: PLC0415 - as above
        from vllm.tool_parsers import ToolParser  # noqa: PLC0415 - as above

        class JsonCalls(DelegatingParser):  # type: ignore[misc]  # vLLM has no types here
            """Calls that a schema forces, of a model without a tool parser."""

            tool_parser_cls = ToolParser

        self._tokenizer = tokenizer
        self._parsers = parsers
        self._markup = Markup(tokenizer)
        self._kind: type[Parser] | None = None
        self._json_calls = JsonCalls
        try:
            if parsers.tool or parsers.reasoning:
                self._kind = ParserManager.get_parser(
                    tool_parser_name=parsers.tool,
                    reasoning_parser_name=parsers.reasoning,
                    enable_auto_tools=True,
                    tokenizer=tokenizer,
                )
        except Exception as error:
            raise EngineStartError(_unsuited(parsers, error)) from error
        JsonCalls.reasoning_parser_cls = self._kind.reasoning_parser_cls if self._kind else None

    def reads(self, options: Options) -> bool:
        """Return whether an answer has to be read; else its text is what the model writes."""
        return bool(self._parsers.reasoning or options.must_call or self.offers_tools(options))

    def offers_tools(self, options: Options) -> bool:
        """Return whether the model is shown the tools: calls that nobody finds in its text would be its text."""
        return bool(options.tools and options.tool_choice != "none" and (self._parsers.tool or options.must_call))

    def guide(self, options: Options) -> Guide:
        """Return what vLLM is told of an answer. Raises RefusedError."""
        if not self.reads(options):
            return Guide(_structured(options.format), keeps_markup=False)
        request = _request(options)
        try:
            request = self._parser(request, options).adjust_request(request)
        except Exception as error:
            raise RefusedError(f"these tools cannot be used: {_first_line(error)}", "tools") from error
        return Guide(request.structured_outputs, keeps_markup=not request.skip_special_tokens)

    def begin(self, options: Options, opening: Sequence[int]) -> AnswerReader | None:
        """Return what reads one answer, or None where nothing has to. opening: tokens before it, by the template."""
        if not self.reads(options):
            return None
        request = _request(options)
        return AnswerReader(self._parser(request, options), request, Cutter(self._markup), opening)

    def _parser(self, request: ChatCompletionRequest, options: Options) -> Parser:
        kind = self._kind
        if kind is None or (options.must_call and not self._parsers.tool):
            kind = self._json_calls
        return kind(self._tokenizer, request.tools or [], chat_template_kwargs=template_switches(options.effort))


class AnswerReader:
    """Reads one answer as it comes."""

    def __init__(self, parser: Parser, request: ChatCompletionRequest, cutter: Cutter, opening: Sequence[int]) -> None:
        self._parser = parser
        self._request = request
        self._cutter = cutter
        self._opening: list[int] | None = list(opening)  # until the parser has seen it
        self._call = -1  # the parser's index of the call that began last
        self._may_call_again = request.parallel_tool_calls is not False
        self._kind: PieceKind | None = None  # of the last piece

    def chunk(self, chunk: Chunk) -> Chunk:
        """Return an engine's chunk with what was read in its text."""
        pieces = self.feed(chunk.text, is_last=chunk.finish_reason is not None)
        sizes = [len(piece.text) for piece in pieces]
        thought = sum(len(piece.text) for piece in pieces if piece.kind is PieceKind.REASONING)
        # Which token is a thought is not known once tokens are joined: by characters it is as good as right.
        reasoning_tokens = round(chunk.token_count * thought / sum(sizes)) if thought else 0
        return msgspec.structs.replace(chunk, pieces=pieces, reasoning_tokens=reasoning_tokens)

    async def again(self, text: str) -> tuple[Piece, ...]:
        """Read the beginning of an answer that goes on; a long one takes a second, so not on the event loop."""
        return await asyncio.to_thread(self.feed, text, is_last=False)

    def feed(self, text: str, *, is_last: bool) -> tuple[Piece, ...]:
        """Return what a text adds to the answer; neighbours of one kind are joined.

        Raises EngineError where vLLM's parser fails.
        """
        try:
            return tuple(_joined(self._read(text, is_last=is_last)))
        except EngineError:
            raise
        except Exception as error:
            raise EngineError(f"the answer could not be read: {_first_line(error)}") from error

    def _read(self, text: str, *, is_last: bool) -> Iterator[Piece]:
        for step, token_ids in self._cutter.feed(text):
            yield from self._step(step, token_ids)
        if is_last:
            for step, token_ids in self._cutter.flush():
                yield from self._step(step, token_ids)
            yield from self._step("", [], finished=True)

    def _step(self, text: str, token_ids: list[int], *, finished: bool = False) -> Iterator[Piece]:
        opening, self._opening = self._opening, None
        delta = self._parser.parse_delta(text, token_ids, self._request, opening, finished=finished)
        if delta is not None:
            yield from self._pieces(delta)

    def _pieces(self, delta: DeltaMessage) -> Iterator[Piece]:
        if delta.reasoning:
            yield self._trimmed(PieceKind.REASONING, delta.reasoning)
        if delta.content:
            yield self._trimmed(PieceKind.TEXT, delta.content)
        for call in delta.tool_calls or ():
            function = call.function
            if function is None:
                continue
            if call.index > self._call and function.name and (self._may_call_again or self._call < 0):
                self._call, self._kind = call.index, PieceKind.CALL
                yield Piece(PieceKind.CALL, _own_name(function.name), _own_id(call.id))
            if function.arguments and call.index == self._call:
                yield Piece(PieceKind.ARGUMENTS, function.arguments)

    def _trimmed(self, kind: PieceKind, text: str) -> Piece:
        """Leave out white space around markup: what an item begins with."""
        if self._kind is not kind:
            text = text.lstrip()
        if text:
            self._kind = kind
        return Piece(kind, text)


def _own_id(call_id: str | None) -> str | None:
    """Return the id that a parser gave a call, if it means something to the model."""
    is_own = call_id is not None and not call_id.startswith("chatcmpl-tool-") and len(call_id) <= MAX_CALL_ID_CHARS
    return call_id if is_own else None


def _own_name(name: str) -> str:
    """Return a name that the model wrote as one that we take back: unguided, it may write anything."""
    return _NOT_IN_NAMES.sub("_", name)[:MAX_TOOL_NAME_CHARS]


def _joined(pieces: Iterator[Piece]) -> Iterator[Piece]:
    """Yield pieces with neighbours of one kind as one, and empty ones left out."""
    kind, texts = PieceKind.CALL, list[str]()
    for piece in pieces:
        if texts and piece.kind is not kind:
            yield Piece(kind, "".join(texts))
            texts.clear()
        if piece.kind is PieceKind.CALL:
            yield piece
        elif piece.text:
            kind = piece.kind
            texts.append(piece.text)
    if texts:
        yield Piece(kind, "".join(texts))


def template_switches(effort: str | None) -> dict[str, Any]:
    """Return what chat templates are told of the effort, in the two ways that they ask."""
    if effort is None:
        return {}
    return {_TEMPLATE_SWITCH: effort != "none", "reasoning_effort": effort}


def template_tools(options: Options) -> list[dict[str, Any]]:
    """Return the tools as chat templates want them: Chat Completions' form."""
    return [
        {"type": "function", "function": {key: value for key, value in wire.items() if value is not None}}
        for wire in ({"name": t.name, "description": t.description, "parameters": t.parameters} for t in options.tools)
    ]


def _request(options: Options) -> ChatCompletionRequest:
    """Return the turn in the words that vLLM's parsers ask for it."""
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest  # noqa: PLC0415 - as above

    fields: dict[str, Any] = {"messages": [], "structured_outputs": _structured(options.format)}
    if options.tools and options.tool_choice != "none":
        fields["tools"] = [
            {"type": "function", "function": {**tool["function"], "strict": given.strict}}
            for tool, given in zip(template_tools(options), options.tools, strict=True)
        ]
        fields["tool_choice"] = options.tool_choice
        if options.forced is not None:
            fields["tool_choice"] = {"type": "function", "function": {"name": options.forced}}
        fields["parallel_tool_calls"] = options.parallel_tool_calls
    return ChatCompletionRequest(**fields)


def _structured(form: TextFormat | None) -> StructuredOutputsParams | None:
    if form is None:
        return None
    from vllm.sampling_params import StructuredOutputsParams  # noqa: PLC0415 - as above

    match form.type:
        case "json_schema":
            return StructuredOutputsParams(json=form.schema)
        case "json_object":
            return StructuredOutputsParams(json_object=True)
        case "tokenwire:choice":
            return StructuredOutputsParams(choice=list(form.choices))
        case "tokenwire:grammar":
            return StructuredOutputsParams(grammar=form.grammar)


def _unsuited(parsers: Parsers, error: Exception) -> str:
    names = [f"tool_parser {parsers.tool!r}"] if parsers.tool else []
    names += [f"reasoning_parser {parsers.reasoning!r}"] if parsers.reasoning else []
    cause = error.__cause__ or error
    return f"{' and '.join(names)} cannot be used with this model: {_first_line(cause)}; see vLLM's list of parsers"


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return excerpt(lines[0]) if lines else type(error).__name__
