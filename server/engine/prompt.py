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
import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Final, TypeAlias

from protocol.errors import excerpt
from protocol.events import Written
from protocol.images import Image
from protocol.items import FunctionCall, Message, mixed
from protocol.options import PLAIN, Options
from server.engine.base import EngineStartError, Prompt, PromptError
from server.engine.inert import InertEncoder, TokenCache
from server.engine.parsing import template_switches, template_tools
from server.engine.places import Filling, Places

# Text up to this long is tokenised on the event loop; 1 MB/s and more is usual, so this is some milliseconds.
INLINE_CHARS: Final = 4096

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
        self._words = str(tokenizer.chat_template)  # to see what the template knows

    async def render(self, messages: Sequence[Message], options: Options = PLAIN) -> Prompt:
        """Return the tokens that ask for the next assistant message.

        Raises PromptError where the template refuses or would lose a message.
        """
        parts, opening = self._parts(messages, options)
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
        opened_at = 0
        for index, part in enumerate(parts):
            if index == opening:
                opened_at = len(token_ids)
            token_ids += [part] if isinstance(part, int) else known[part]
        return Prompt(token_ids, len(token_ids), tuple(messages), opening=len(token_ids) - opened_at)

    def text(self, prompt: Prompt) -> str:
        """Return the prompt as text, for engines that take nothing else.

        They find control tokens in it, so those that a message spells are broken up with `inert.BREAK`. One that their
        tokenizer puts first by itself is left out.
        """
        first, *rest = self._parts(prompt.messages, PLAIN)[0] or [""]
        if isinstance(first, int) and self._encoder.adds(first):
            first = ""
        parts = (
            self._encoder.control_text(part) if isinstance(part, int) else self._encoder.disarm(part)
            for part in (first, *rest)
        )
        return "".join(parts) + self._encoder.disarm(prompt.continuation.text)

    async def extend(self, prompt: Prompt, written: Written) -> Prompt:
        """Return the prompt with the beginning of its answer: its own tokens, or else its text, without controls."""
        text, encode = written.text, self._encoder.encode
        more = list(written.token_ids)
        if not more:
            more = await asyncio.to_thread(encode, text) if len(text) > INLINE_CHARS else encode(text)
        token_ids = [*prompt.token_ids, *more]
        written = Written(text, tuple(more))
        return replace(prompt, token_ids=token_ids, token_count=len(token_ids), continuation=written)

    def _encode_all(self, texts: Iterable[str]) -> dict[str, list[int]]:
        return {text: self._encoder.encode(text) for text in texts}

    def _parts(self, messages: Sequence[Message], options: Options) -> tuple[list[Part], int]:
        """Return the prompt as control tokens and the texts between them, and where of them the answer's begin."""
        merged = merge_turns(messages)
        places = Places(self._encoder.has_control)
        rendered = self._apply([self._shown(message, places) for message in merged], options, places)
        parts: list[Part] = []
        opening = 0
        for piece in places.split(rendered):
            if isinstance(piece, Filling):
                _append_text(parts, piece.text)
                opening = len(parts) if piece.is_needed else opening
            else:
                for part in self._template_parts(piece):
                    _append_text(parts, part) if isinstance(part, str) else parts.append(part)
        for index in places.unseen():
            raise PromptError(
                f"the model's chat template leaves out message {index + 1} of {len(merged)} "
                f"(role {merged[index].role}); this model cannot take it there"
            )
        return parts, opening

    def _shown(self, message: Message, places: Places) -> dict[str, Any]:
        """Return a message as the template gets it."""
        content = message.content
        shown: dict[str, Any] = {"role": message.role}
        if message.calls and "tool_calls" not in self._words:
            # A template that knows no tools would lose them, and what they gave would come from nowhere.
            content = "\n".join(text for text in (content, *map(_call_as_text, message.calls)) if text)
        elif message.calls:
            shown["tool_calls"] = [_call(call, places) for call in message.calls]
        if message.reasoning and "reasoning_content" in self._words:
            shown["reasoning_content"] = places.put(message.reasoning)
        if message.call_id is not None:
            shown["tool_call_id"] = places.guarded(message.call_id)
        if message.images:
            return shown | {"content": self._shown_mixed(message, places)}
        return shown | {"content": places.put(content, is_needed=True)}

    def _shown_mixed(self, message: Message, places: Places) -> list[dict[str, Any]]:
        """Return text and images as templates of models that see take them: as parts."""
        if "image" not in self._words:
            raise PromptError("it knows no images")
        parts: list[dict[str, Any]] = []
        is_needed = True  # the message counts once
        for part in mixed(message.content, message.images):
            if isinstance(part, str):
                parts.append({"type": "text", "text": places.put(part, is_needed=is_needed)})
                is_needed = False
            else:
                parts.append({"type": "image"})
        if is_needed:
            places.put("", is_needed=True)
        return parts

    def _template_parts(self, piece: str) -> tuple[Part, ...]:
        """Return a piece of the template's own text as control tokens and texts; there are few different ones."""
        parts = self._pieces.get(piece)
        if parts is None:
            if len(self._pieces) >= _MAX_PIECES:
                self._pieces.clear()  # a template that prints the time makes new ones for ever
            parts = self._pieces[piece] = tuple(self._encoder.find_controls(piece))
        return parts

    def _apply(self, messages: list[dict[str, Any]], options: Options, places: Places) -> str:
        more = {name: value for name, value in template_switches(options.effort).items() if name in self._words}
        if options.tools:
            more["tools"] = places.guarded(template_tools(options))
        try:
            rendered = self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, **more)
            return str(rendered)
        except Exception as error:
            raise PromptError(f"the model's chat template refused: {excerpt(_first_line(error))}") from error


def _call(call: FunctionCall, places: Places) -> dict[str, Any]:
    """Return a call as templates want it: with its arguments as an object, where they are one."""
    shown: Any = call.arguments
    try:
        arguments = json.loads(call.arguments)
        if isinstance(arguments, dict):
            json.dumps(arguments, ensure_ascii=False).encode()  # half a surrogate pair can be written in JSON, alone
            shown = arguments
        shown = places.guarded(shown)
    except (ValueError, RecursionError):  # no JSON, or nested deeper than templates can follow
        shown = places.guarded(call.arguments)
    function = {"name": places.guarded(call.name), "arguments": shown}
    return {"type": "function", "id": places.guarded(call.call_id), "function": function}


def _call_as_text(call: FunctionCall) -> str:
    return json.dumps({"name": call.name, "arguments": call.arguments}, ensure_ascii=False)


def merge_turns(messages: Sequence[Message]) -> list[Message]:
    """Join neighbours of one role.

    Thoughts, words and calls of one turn are one message of a template. And after a turn that was cancelled before its
    answer, templates that demand alternating roles would refuse the next one.
    """
    merged: list[Message] = []
    for message in messages:
        last = merged[-1] if merged else None
        if last is None or last.role != message.role or message.role == "tool":
            merged.append(message)
            continue
        content = _both(last.content, message.content)
        moved = len(content) - len(message.content)
        merged[-1] = Message(
            message.role,
            content,
            _both(last.reasoning, message.reasoning),
            last.calls + message.calls,
            images=last.images + tuple(Image(image.url, image.at + moved) for image in message.images),
        )
    return merged


def _both(first: str, second: str) -> str:
    return "\n\n".join(text for text in (first, second) if text)


def _append_text(parts: list[Part], text: str) -> None:
    """Add text, joined with text that stands right before it."""
    if parts and isinstance(last := parts[-1], str):
        parts[-1] = last + text
    elif text:
        parts.append(text)


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
