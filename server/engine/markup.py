"""Text of a model cut into the steps in which a parser is to see it: the same ones however the text arrives.

Parsers are written for one token at a time. vLLM joins tokens that gather, and not every parser bears that: arguments
come out damaged, or a thought is taken for the answer. So text is cut anew: each piece of markup that the tokenizer
knows (`<think>`, `<tool_call>`) is a step of its own, also where it came in halves or was spelled out by ordinary
tokens, and so is each character besides letters, digits and spaces.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any, Final

_ORDINARY: Final = r"[\w ]+|."
_REMEMBERED_STEPS: Final = 8192


class Markup:
    """One model's markup. tokenizer: a transformers tokenizer with `backend_tokenizer`."""

    def __init__(self, tokenizer: Any) -> None:
        self._encode = tokenizer.backend_tokenizer.encode
        added = tokenizer.backend_tokenizer.get_added_tokens_decoder()
        self._ids = {token.content: index for index, token in added.items() if token.content.strip(" \t\r\n\u2581")}
        self._beginnings = frozenset(text[:size] for text in self._ids for size in range(1, len(text)))
        self._longest = max(map(len, self._ids), default=0)
        longest_first = sorted(self._ids, key=len, reverse=True)
        self._step = re.compile("|".join([*map(re.escape, longest_first), _ORDINARY]), re.DOTALL)
        self._ordinary_ids = lru_cache(_REMEMBERED_STEPS)(self._encoded)

    def steps(self, text: str) -> Iterator[tuple[str, list[int]]]:
        """Yield the steps of a text, each with its tokens."""
        for step in self._step.findall(text):
            index = self._ids.get(step)
            yield step, list(self._ordinary_ids(step)) if index is None else [index]

    def unfinished(self, text: str) -> int:
        """Return how many characters at the end may be the beginning of markup."""
        for size in range(min(len(text), self._longest - 1), 0, -1):
            if text[-size:] in self._beginnings:
                return size
        return 0

    def _encoded(self, step: str) -> tuple[int, ...]:
        return tuple(self._encode(step, add_special_tokens=False).ids)


class Cutter:
    """Cuts one answer, piece by piece."""

    def __init__(self, markup: Markup) -> None:
        self._markup = markup
        self._held = ""

    def feed(self, text: str) -> Iterable[tuple[str, list[int]]]:
        """Return the steps that are complete; what may go on to be markup is held back."""
        text = self._held + text
        end = len(text) - self._markup.unfinished(text)
        self._held = text[end:]
        return self._markup.steps(text[:end])

    def flush(self) -> Iterable[tuple[str, list[int]]]:
        """Return the steps of what was held back: the answer is at its end."""
        text, self._held = self._held, ""
        return self._markup.steps(text)
