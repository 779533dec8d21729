"""Prompts in which user text cannot become a control token.

The chat template never sees a message: it is rendered with a placeholder in each message's stead, so the literal
text around the placeholders is the template's own. Only there are control tokens looked for. What lies between two
control tokens, message text and template text alike, is then tokenised as it is in a normal prompt, by a copy of
the tokenizer that knows no control tokens. So ordinary text gives the very token ids that the template was trained
with, and text such as `<|im_end|>` gives the tokens of its characters.

A template is the sole authority on the beginning-of-sequence token, as in transformers' `apply_chat_template`:
none is added here.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final, TypeAlias

from protocol.errors import excerpt
from protocol.items import Message
from server.engine.base import EngineStartError, Prompt, PromptError
from server.engine.inert import InertEncoder, TokenCache

# Text up to this long is tokenised on the event loop; 1 MB/s and more is usual, so this is some milliseconds.
INLINE_CHARS: Final = 4096

# A message's place is this many decimal digits, twice around its number. Digits pass unchanged through what
# templates do to content (trim, upper, tojson), and 2**64 of them cannot be guessed by who writes a message.
_NONCE_DIGITS: Final = 20
_INDEX_DIGITS: Final = 6

_MAX_PIECES: Final = 256  # of template text remembered; a template has about ten

Part: TypeAlias = int | str  # a control token of the template, or text to be tokenised without any


class PromptRenderer:
    """Applies one model's chat template.

    tokenizer: a transformers tokenizer backed by the `tokenizers` library; it is copied, never changed.

    Raises EngineStartError when it has no chat template or is not of that kind.
    """

    def __init__(self, tokenizer: Any) -> None:
        if getattr(tokenizer, "backend_tokenizer", None) is None:
            raise EngineStartError(
                f"{type(tokenizer).__name__} is not a fast tokenizer: give a model that has a tokenizer.json"
            )
        if not getattr(tokenizer, "chat_template", None):
            raise EngineStartError(
                "the model's tokenizer has no chat template: give an instruction-tuned model, "
                "or put a chat_template.jinja into the model's folder"
            )
        self._tokenizer = tokenizer
        self._encoder = InertEncoder(tokenizer)
        self._cache = TokenCache()
        self._pieces: dict[str, tuple[Part, ...]] = {}

    async def render(self, messages: Sequence[Message]) -> Prompt:
        """Return the tokens that ask for the next assistant message.

        Raises PromptError where the template refuses or would lose a message.
        """
        parts = self._parts(messages)
        texts = {part for part in parts if isinstance(part, str)}
        # Taken out before the await: meanwhile, another prompt may push them out of the cache.
        known = {text: self._cache[text] for text in texts if text in self._cache}
        missing = texts - known.keys()
        if sum(map(len, missing)) > INLINE_CHARS:
            fresh = await asyncio.to_thread(self._encode_all, missing)
        else:
            fresh = self._encode_all(missing)
        for text, ids in fresh.items():
            self._cache.add(text, ids)
        known |= fresh
        token_ids: list[int] = []
        for part in parts:
            token_ids += [part] if isinstance(part, int) else known[part]
        return Prompt(token_ids, len(token_ids), tuple(messages))

    def text(self, prompt: Prompt) -> str:
        """Return the prompt as text, for engines that take nothing else.

        They find control tokens in it, so those that a message spells are broken up with `inert.BREAK`. One that their
        tokenizer puts first by itself is left out.
        """
        first, *rest = self._parts(prompt.messages) or [""]
        if isinstance(first, int) and self._encoder.adds(first):
            first = ""
        parts = (
            self._encoder.control_text(part) if isinstance(part, int) else self._encoder.disarm(part)
            for part in (first, *rest)
        )
        return "".join(parts) + self._encoder.disarm(prompt.continuation)

    async def extend(self, prompt: Prompt, text: str) -> Prompt:
        """Return the prompt with the beginning of its answer; that is text too, and holds no control token."""
        encode = self._encoder.encode
        more = await asyncio.to_thread(encode, text) if len(text) > INLINE_CHARS else encode(text)
        token_ids = [*prompt.token_ids, *more]
        return replace(prompt, token_ids=token_ids, token_count=len(token_ids), continuation=text)

    def _encode_all(self, texts: Iterable[str]) -> dict[str, list[int]]:
        return {text: self._encoder.encode(text) for text in texts}

    def _parts(self, messages: Sequence[Message]) -> list[Part]:
        """Return the prompt as control tokens and the texts between them."""
        merged = merge_turns(messages)
        places = _Places(len(merged))
        rendered = self._apply([places.put(index, message) for index, message in enumerate(merged)])
        parts: list[Part] = []
        seen: set[int] = set()
        for piece in places.split(rendered):
            if isinstance(piece, int):
                seen.add(piece)
                _append_text(parts, merged[piece].content.strip())
            else:
                for part in self._template_parts(piece):
                    _append_text(parts, part) if isinstance(part, str) else parts.append(part)
        for index, message in enumerate(merged):
            if message.content.strip() and index not in seen:
                raise PromptError(
                    f"the model's chat template leaves out message {index + 1} of {len(merged)} "
                    f"(role {message.role}); this model cannot take it there"
                )
        return parts

    def _template_parts(self, piece: str) -> tuple[Part, ...]:
        """Return a piece of the template's own text as control tokens and texts; there are few different ones."""
        parts = self._pieces.get(piece)
        if parts is None:
            if len(self._pieces) >= _MAX_PIECES:
                self._pieces.clear()  # a template that prints the time makes new ones for ever
            parts = self._pieces[piece] = tuple(self._encoder.find_controls(piece))
        return parts

    def _apply(self, messages: list[dict[str, Any]]) -> str:
        try:
            return str(self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))
        except Exception as error:
            raise PromptError(f"the model's chat template refused: {excerpt(_first_line(error))}") from error


class _Places:
    """The placeholders of one rendering; new random digits each time."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._left, self._right = (f"{secrets.randbelow(10**_NONCE_DIGITS):0{_NONCE_DIGITS}d}" for _ in range(2))
        self._pattern = re.compile(f"{self._left}([0-9]{{{_INDEX_DIGITS}}}){self._right}")

    def put(self, index: int, message: Message) -> dict[str, str]:
        """Return the message as the template gets it.

        White space around the text stays outside the placeholder, and empty text stays empty: templates trim
        content and ask whether there is any.
        """
        content = message.content
        core = content.strip()
        if core:
            start = content.index(core)
            place = f"{self._left}{index:0{_INDEX_DIGITS}d}{self._right}"
            content = content[:start] + place + content[start + len(core) :]
        return {"role": message.role, "content": content}

    def split(self, rendered: str) -> Iterator[int | str]:
        """Yield the template's own text, and the number of a message where it stands."""
        for index, piece in enumerate(self._pattern.split(rendered)):
            if index % 2:
                yield int(piece)
            elif piece:
                yield piece


def merge_turns(messages: Sequence[Message]) -> list[Message]:
    """Join neighbours of one role: after a turn that was cancelled before its answer, templates that demand
    alternating roles would refuse the next one.
    """
    merged: list[Message] = []
    for message in messages:
        if merged and merged[-1].role == message.role:
            both = "\n\n".join(text for text in (merged[-1].content, message.content) if text)
            merged[-1] = Message(message.role, both)
        else:
            merged.append(message)
    return merged


def _append_text(parts: list[Part], text: str) -> None:
    """Add text, joined with text that stands right before it."""
    if parts and isinstance(last := parts[-1], str):
        parts[-1] = last + text
    elif text:
        parts.append(text)


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
