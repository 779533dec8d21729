"""What else a turn asks of its answer: functions that may be called, a form to keep to, how much to think."""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec

from protocol.errors import ProtocolError, excerpt
from protocol.fields import TOOL_NAME
from protocol.items import json_type
from protocol.schema import check_schema

MAX_TOOLS: Final = 256  # in one turn; agents with many MCP servers send a hundred
MAX_DESCRIPTION_CHARS: Final = 16_384
MAX_CHOICES: Final = 256
MAX_CHOICE_CHARS: Final = 1024
MAX_GRAMMAR_CHARS: Final = 65_536
MAX_TOP_LOGPROBS: Final = 20  # OpenAI's
LOGPROBS: Final = "message.output_text.logprobs"  # OpenAI's word for them in `include`

FormatType = Literal["json_object", "json_schema", "tokenwire:choice", "tokenwire:grammar"]
EFFORTS: Final = ("none", "minimal", "low", "medium", "high", "xhigh")


class FunctionTool(msgspec.Struct, frozen=True, omit_defaults=True):
    """A function that the client offers. parameters: JSON schema of its arguments, None where it has none."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None

    def as_wire(self) -> dict[str, Any]:
        """Return the tool as the Responses API shows it."""
        return {
            "type": "function",
            "name": self.name,
            "description": self.description,
            "parameters": self.parameters,
            "strict": self.strict,
        }


class TextFormat(msgspec.Struct, frozen=True, omit_defaults=True):
    """The form that the answer's text keeps to. schema, choices, grammar: as the type wants it."""

    type: FormatType
    name: str | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None
    choices: tuple[str, ...] = ()
    grammar: str | None = None

    def as_wire(self) -> dict[str, Any]:
        """Return `text.format` as the Responses API shows it."""
        match self.type:
            case "json_schema":
                return {"type": self.type, "name": self.name, "schema": self.schema, "strict": self.strict}
            case "tokenwire:choice":
                return {"type": self.type, "choices": list(self.choices)}
            case "tokenwire:grammar":
                return {"type": self.type, "grammar": self.grammar}
            case _:
                return {"type": self.type}


class Options(msgspec.Struct, frozen=True, omit_defaults=True):
    """All of it; what is left out changes nothing.

    tool_choice: whether a function must be called. forced: the one that must be, by name.
    effort: how long the model may think, in OpenAI's words. top_logprobs: alternatives shown for each token of the
    answer; 0 shows the token's own probability alone, None nothing.
    """

    tools: tuple[FunctionTool, ...] = ()
    tool_choice: Literal["auto", "none", "required"] = "auto"
    forced: str | None = None
    parallel_tool_calls: bool = True
    format: TextFormat | None = None
    effort: str | None = None
    top_logprobs: int | None = None

    @property
    def must_call(self) -> bool:
        """Whether the answer is a function call, whatever the model would rather say."""
        return self.tool_choice == "required"

    @property
    def is_guided(self) -> bool:
        """Whether the answer's form is prescribed from its first character on."""
        return self.must_call or self.format is not None

    def as_wire(self) -> dict[str, Any]:
        """Return what the response object repeats of it."""
        choice: Any = self.tool_choice
        if self.forced is not None:
            choice = {"type": "function", "name": self.forced}
        return {
            "parallel_tool_calls": self.parallel_tool_calls,
            "reasoning": {"effort": self.effort, "summary": None},
            "text": {"format": self.format.as_wire() if self.format else {"type": "text"}},
            "tool_choice": choice,
            "tools": [tool.as_wire() for tool in self.tools],
            "top_logprobs": self.top_logprobs,
        }


PLAIN: Final = Options()


def parse_options(fields: dict[str, Any]) -> Options:
    """Read them from a `response.create` as it was sent. Raises ProtocolError naming the field at fault."""
    tools = _parse_tools(fields.get("tools"))
    tools, choice, forced = _parse_choice(fields.get("tool_choice"), tools)
    parallel = fields.get("parallel_tool_calls")
    if not isinstance(parallel, bool | None):
        raise _invalid("must be true or false", "parallel_tool_calls", parallel)
    return Options(
        tools=tools,
        tool_choice=choice,
        forced=forced,
        parallel_tool_calls=parallel is not False,
        format=_parse_text(fields.get("text")),
        effort=_parse_reasoning(fields.get("reasoning")),
        top_logprobs=_parse_logprobs(fields.get("top_logprobs"), fields.get("include")),
    )


# Tools


def _parse_tools(value: Any) -> tuple[FunctionTool, ...]:
    """Return the functions. Tools of other types are the client's vendor's own: the model is not shown them."""
    if value is None:
        return ()
    if not isinstance(value, list):
        raise _invalid("must be a list", "tools", value)
    if len(value) > MAX_TOOLS:
        raise ProtocolError("invalid_request", f"tools has {len(value)}; at most {MAX_TOOLS} are taken", param="tools")
    tools: dict[str, FunctionTool] = {}
    for index, entry in enumerate(value):
        param = f"tools[{index}]"
        if not isinstance(entry, dict):
            raise _invalid("must be an object", param, entry)
        if not isinstance(entry.get("type"), str):
            raise _invalid("must be a string, such as 'function'", f"{param}.type", entry.get("type"))
        if entry["type"] != "function":
            continue
        tool = _parse_function(entry, param)
        if tool.name in tools:
            text = f"{param}.name '{excerpt(tool.name)}' is used twice"
            raise ProtocolError("invalid_request", text, param=f"{param}.name")
        tools[tool.name] = tool
    return tuple(tools.values())


def _parse_function(entry: dict[str, Any], param: str) -> FunctionTool:
    name = entry.get("name")
    if not isinstance(name, str) or not TOOL_NAME.fullmatch(name):
        nested = "; it stands beside type here, not inside 'function'" if "function" in entry else ""
        raise _invalid(f"must be 1 to 128 characters from A-Z a-z 0-9 _ . -{nested}", f"{param}.name", name)
    description = entry.get("description")
    if not isinstance(description, str | None):
        raise _invalid("must be a string", f"{param}.description", description)
    if len(description or "") > MAX_DESCRIPTION_CHARS:
        text = f"{param}.description has {len(description or '')} characters; at most {MAX_DESCRIPTION_CHARS} are taken"
        raise ProtocolError("invalid_request", text, param=f"{param}.description")
    strict = entry.get("strict")
    if not isinstance(strict, bool | None):
        raise _invalid("must be true or false", f"{param}.strict", strict)
    parameters = entry.get("parameters")
    if parameters is not None:
        check_schema(parameters, f"{param}.parameters")
    return FunctionTool(name, description, parameters, strict)


def _parse_choice(
    value: Any, tools: tuple[FunctionTool, ...]
) -> tuple[tuple[FunctionTool, ...], Literal["auto", "none", "required"], str | None]:
    """Return the tools that may be called, whether one must be, and which."""
    match value:
        case None | "auto":
            return tools, "auto", None
        case "none":
            return tools, "none", None
        case "required":
            return _not_empty(tools, "tool_choice"), "required", None
        case {"type": "function", "name": name}:
            _known(name, tools, "tool_choice.name")
            return tools, "required", name
        case {"type": "allowed_tools", "mode": "auto" | "required" as mode, "tools": list() as allowed}:
            param = "tool_choice.tools"
            names = [entry.get("name") if isinstance(entry, dict) else None for entry in allowed]
            for index, name in enumerate(names):
                _known(name, tools, f"{param}[{index}].name")
            some = tuple(tool for tool in tools if tool.name in names)
            return (_not_empty(some, param), "required", None) if mode == "required" else (some, "auto", None)
    raise ProtocolError(
        "invalid_request",
        "tool_choice must be 'auto', 'none', 'required', {\"type\":\"function\",\"name\":…} or "
        '{"type":"allowed_tools","mode":…,"tools":[…]}',
        param="tool_choice",
    )


def _known(name: Any, tools: tuple[FunctionTool, ...], param: str) -> None:
    if name not in [tool.name for tool in tools]:
        shown = f"'{excerpt(name)}'" if isinstance(name, str) else json_type(name)
        raise ProtocolError("invalid_request", f"{param} {shown} is not among the functions in tools", param=param)


def _not_empty(tools: tuple[FunctionTool, ...], param: str) -> tuple[FunctionTool, ...]:
    if not tools:
        raise ProtocolError("invalid_request", f"{param}: there is no function in tools to call", param=param)
    return tools


# The form of the text


def _parse_text(value: Any) -> TextFormat | None:
    if value is None:
        return None
    if not isinstance(value, dict):
        raise _invalid("must be an object", "text", value)
    form = value.get("format")
    if form is None:
        return None
    if not isinstance(form, dict):
        raise _invalid("must be an object", "text.format", form)
    kind = form.get("type", "text")
    if kind == "text":
        return None
    parser = _FORMATS.get(kind) if isinstance(kind, str) else None
    if parser is None:
        raise _invalid(f"must be one of text, {', '.join(_FORMATS)}", "text.format.type", kind)
    return parser(form)


def _json_schema(form: dict[str, Any]) -> TextFormat:
    name, strict = form.get("name"), form.get("strict")
    if not isinstance(name, str) or not TOOL_NAME.fullmatch(name):
        raise _invalid("must be 1 to 128 characters from A-Z a-z 0-9 _ . -", "text.format.name", name)
    if not isinstance(strict, bool | None):
        raise _invalid("must be true or false", "text.format.strict", strict)
    schema = check_schema(form.get("schema"), "text.format.schema")
    return TextFormat("json_schema", name, schema, strict)


def _choice(form: dict[str, Any]) -> TextFormat:
    given = form.get("choices")
    choices = given if isinstance(given, list) and len(given) <= MAX_CHOICES else []
    if not choices or not all(isinstance(choice, str) and 1 <= len(choice) <= MAX_CHOICE_CHARS for choice in choices):
        what = f"must be a list of 1 to {MAX_CHOICES} strings, each of 1 to {MAX_CHOICE_CHARS} characters"
        raise ProtocolError("invalid_request", f"text.format.choices {what}", param="text.format.choices")
    return TextFormat("tokenwire:choice", choices=tuple(choices))


def _grammar(form: dict[str, Any]) -> TextFormat:
    grammar = form.get("grammar")
    if not isinstance(grammar, str) or not 1 <= len(grammar) <= MAX_GRAMMAR_CHARS:
        what = f"must be a string of 1 to {MAX_GRAMMAR_CHARS} characters: a grammar in EBNF"
        raise ProtocolError("invalid_request", f"text.format.grammar {what}", param="text.format.grammar")
    return TextFormat("tokenwire:grammar", grammar=grammar)


_FORMATS: Final = {
    "json_object": lambda _form: TextFormat("json_object"),
    "json_schema": _json_schema,
    "tokenwire:choice": _choice,
    "tokenwire:grammar": _grammar,
}


# The rest


def _parse_reasoning(value: Any) -> str | None:
    if value is None:
        return None
    if not isinstance(value, dict):
        raise _invalid("must be an object", "reasoning", value)
    effort = value.get("effort")
    if effort is not None and effort not in EFFORTS:
        raise _invalid(f"must be one of {', '.join(EFFORTS)}", "reasoning.effort", effort)
    return effort


def _parse_logprobs(top: Any, include: Any) -> int | None:
    if top is None:
        return 0 if isinstance(include, list) and LOGPROBS in include else None
    if isinstance(top, bool) or not isinstance(top, int) or not 0 <= top <= MAX_TOP_LOGPROBS:
        raise _invalid(f"must be a whole number from 0 to {MAX_TOP_LOGPROBS}", "top_logprobs", top)
    return top


def _invalid(what: str, param: str, value: Any) -> ProtocolError:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    shown = f"'{excerpt(value)}'" if isinstance(value, str) else str(value) if is_number else json_type(value)
    return ProtocolError("invalid_request", f"{param} {what}, not {shown}", param=param)
