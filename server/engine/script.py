r"""A script for the echo engine: what a model would write, in the chunks in which it would come.

A TOML file of `[[answers]]`, tried in their order:

    [[answers]]
    role = "user"        # who spoke last: "user" or "tool"; unset: anybody
    match = "weather"    # a regular expression that is found in what was said last; unset: anything
    chunks = ["<tool_call>{\"name\": \"weather\", ", "\"arguments\": {}}</tool", "_call>"]

In a chunk, `{{input}}` stands for what was said last, `{{tools}}` for the names of the tools that the model is shown.
Markup is what the parsers that the model is configured with find, as in a real model's output.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from protocol.items import Message
from protocol.options import Options
from server.engine.base import EngineStartError

_KEYS: Final = frozenset({"role", "match", "chunks"})
_ROLES: Final = ("user", "tool", "system", "assistant")

# What the tokenizers of models with vLLM's parsers know as one token each. DeepSeek's have a wide bar and a low block.
_DEEPSEEK: Final = ("calls\u2581begin", "calls\u2581end", "call\u2581begin", "call\u2581end", "sep")
MARKUP: Final = (
    *("<think>", "</think>", "[THINK]", "[/THINK]", "<seed:think>", "</seed:think>", "<|im_start|>", "<|im_end|>"),
    *("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "[TOOL_CALLS]", "<tools>", "</tools>"),
    *("<|python_tag|>", "<|eom_id|>", "<|tool_call|>", "<|tool_calls|>", "<|tool_list|>", "<function_calls>"),
    *(f"<\uff5ctool\u2581{word}\uff5c>" for word in _DEEPSEEK),
    *("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>", "<|tool_call_end|>"),
    *("<|tool_call_argument_begin|>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
    *("<minimax:tool_call>", "</minimax:tool_call>", "<seed:tool_call>", "</seed:tool_call>", "<|START_THINKING|>"),
    *("<|END_THINKING|>", "<tool_calls>", "</tool_calls>", "<response>", "</response>"),
)


@dataclass(frozen=True, slots=True)
class Line:
    """One answer of a script. role: None for anybody's words."""

    role: str | None
    match: re.Pattern[str]
    chunks: tuple[str, ...]


class Script:
    """The answers of a script, in their order."""

    def __init__(self, lines: Sequence[Line]) -> None:
        self._lines = tuple(lines)

    def answer(self, messages: Sequence[Message], options: Options) -> tuple[str, ...] | None:
        """Return the chunks of the first answer that fits what was said last, or None."""
        said = next((message for message in reversed(messages) if message.role in ("user", "tool")), None)
        if said is None:
            return None
        for line in self._lines:
            if line.role in (None, said.role) and line.match.search(said.content):
                names = ", ".join(tool.name for tool in options.tools)
                return tuple(
                    chunk.replace("{{input}}", said.content).replace("{{tools}}", names) for chunk in line.chunks
                )
        return None


def load_script(path: Path) -> Script:
    """Read a script. Raises EngineStartError naming what is wrong with it."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise EngineStartError(f"the script {path} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise EngineStartError(f"the script {path} is not valid TOML: {error}") from error
    answers = content.get("answers")
    if not isinstance(answers, list) or not answers or content.keys() != {"answers"}:
        raise EngineStartError(f"the script {path} must have [[answers]], and nothing else")
    return Script([_line(answer, f"answer {index} of the script {path}") for index, answer in enumerate(answers, 1)])


def _line(answer: dict[str, Any], where: str) -> Line:
    if unknown := answer.keys() - _KEYS:
        raise EngineStartError(f"{where}: unknown {', '.join(sorted(unknown))}; it may have {', '.join(sorted(_KEYS))}")
    role, match, chunks = answer.get("role"), answer.get("match", ""), answer.get("chunks")
    if role is not None and role not in _ROLES:
        raise EngineStartError(f"{where}: role must be one of {', '.join(_ROLES)}")
    if not isinstance(chunks, list) or not all(isinstance(chunk, str) for chunk in chunks):
        raise EngineStartError(f"{where}: chunks must be a list of strings")
    try:
        return Line(role, re.compile(match), tuple(chunks))
    except (re.error, TypeError) as error:
        raise EngineStartError(f"{where}: match must be a regular expression: {error}") from error


def byte_tokenizer() -> Any:
    """Return a transformers tokenizer of 256 bytes and the MARKUP, for parsers where there is no model."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers  # noqa: PLC0415 - with parsers only
    from transformers import PreTrainedTokenizerFast  # noqa: PLC0415 - as above

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: index for index, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens([AddedToken(markup, normalized=False, special=False) for markup in MARKUP])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)
