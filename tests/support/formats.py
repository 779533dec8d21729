"""What models with tools and thoughts write, in the formats that are most common, and what is to be read in it."""

from __future__ import annotations

from typing import Final, NamedTuple

from protocol.options import FunctionTool, Options
from protocol.output import PieceKind

WEATHER: Final = FunctionTool(
    "get_weather",
    "Says how the weather is.",
    {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        "required": ["city"],
    },
)
TIME: Final = FunctionTool("get_time", "Says what time it is.", {"type": "object", "properties": {}})
TOOLS: Final = Options(tools=(WEATHER, TIME))

THOUGHT: Final = (PieceKind.REASONING, "The user wants < the </weather.\nSo: call.")
WORDS: Final = (PieceKind.TEXT, "Let me look.")
PARIS: Final = (PieceKind.CALL, "get_weather", {"city": 'Paris "X"', "days": 3})
ROME: Final = (PieceKind.CALL, "get_weather", {"city": "Rome"})


class Format(NamedTuple):
    """tool_parser, reasoning_parser: vLLM's names. output: as the model wrote it. read: what it means."""

    tool_parser: str | None
    reasoning_parser: str | None
    output: str
    read: tuple[tuple[object, ...], ...]


_HERMES: Final = (
    '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris \\"X\\"", "days": 3}}\n</tool_call>\n'
    '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome"}}\n</tool_call>'
)
_XML: Final = (
    '<tool_call>\n<function=get_weather>\n<parameter=city>\nParis "X"\n</parameter>\n'
    "<parameter=days>\n3\n</parameter>\n"
    "</function>\n</tool_call>\n<tool_call>\n<function=get_weather>\n<parameter=city>\nRome\n</parameter>\n</function>\n"
    "</tool_call>"
)
_THINK: Final = f"<think>{THOUGHT[1]}</think>\n\n"
_BAR: Final = "\uff5c"
_DEEPSEEK: Final = "".join(
    f"<{_BAR}tool\u2581call\u2581begin{_BAR}>function<{_BAR}tool\u2581sep{_BAR}>get_weather\n```json\n{arguments}\n```"
    f"<{_BAR}tool\u2581call\u2581end{_BAR}>{end}"
    for arguments, end in (('{"city": "Paris \\"X\\"", "days": 3}', "\n"), ('{"city": "Rome"}', ""))
)

FORMATS: Final = (
    Format("hermes", None, f"Let me look.\n{_HERMES}", (WORDS, PARIS, ROME)),
    Format("hermes", "qwen3", f"{_THINK}Let me look.\n{_HERMES}", (THOUGHT, WORDS, PARIS, ROME)),
    Format("hermes", "deepseek_r1", f"{_THINK}{_HERMES}", (THOUGHT, PARIS, ROME)),
    Format("qwen3_xml", "qwen3", f"{_THINK}Let me look.\n{_XML}", (THOUGHT, WORDS, PARIS, ROME)),
    Format("qwen3_coder", None, f"Let me look.\n{_XML}", (WORDS, PARIS, ROME)),
    Format(
        "llama3_json",
        None,
        '{"name": "get_weather", "parameters": {"city": "Paris \\"X\\"", "days": 3}}; '
        '{"name": "get_weather", "parameters": {"city": "Rome"}}',
        (PARIS, ROME),
    ),
    Format("pythonic", None, "[get_weather(city='Paris \"X\"', days=3), get_weather(city='Rome')]", (PARIS, ROME)),
    Format(
        "mistral",
        None,
        'Let me look.[TOOL_CALLS][{"name": "get_weather", "arguments": {"city": "Paris \\"X\\"", "days": 3}}, '
        '{"name": "get_weather", "arguments": {"city": "Rome"}}]',
        (WORDS, PARIS, ROME),
    ),
    Format(
        "deepseek_v3",
        "deepseek_r1",
        f"{_THINK}Let me look.<{_BAR}tool\u2581calls\u2581begin{_BAR}>"
        f"{_DEEPSEEK}<{_BAR}tool\u2581calls\u2581end{_BAR}>",
        (THOUGHT, WORDS, PARIS, ROME),
    ),
    Format(None, "qwen3", f"{_THINK}Let me look.", (THOUGHT, WORDS)),
    Format(None, "deepseek_r1", f"{_THINK}Let me look.", (THOUGHT, WORDS)),
    Format("hermes", None, "Let me look.", (WORDS,)),
)
