"""A streamed answer of an OpenAI-compatible server, sans I/O: bytes in, chunks out.

Both kinds are read: Chat Completions (`choices[0].delta.content`) and Completions (`choices[0].text`). Fields that are
not named here are passed over; servers add many.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec

from protocol.errors import excerpt
from protocol.events import Logprob
from protocol.fields import MAX_TOKENS
from server.engine.base import Chunk, EngineError, FinishReason, logprob
from server.engine.sse import SseDecoder, SseError

MAX_SHOWN_CHARS: Final = 120  # of what a server says, in error texts
# A server that does not keep to `max_tokens` is stopped. It may send tokens in pieces, down to their characters.
PIECES_PER_TOKEN: Final = 8

_DONE: Final = b"[DONE]"
_FINISH_REASONS: Final = {
    "stop": FinishReason.STOP,
    "eos": FinishReason.STOP,
    "tool_calls": FinishReason.STOP,
    "function_call": FinishReason.STOP,
    "length": FinishReason.LENGTH,
    "content_filter": FinishReason.CONTENT_FILTER,
}


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None


class _Token(msgspec.Struct):
    token: str
    logprob: float
    top_logprobs: list[_Token] = []


class _Delta(msgspec.Struct):
    """The thoughts, by either name, are not handed on: they only show that the server works."""

    content: str | None = None
    reasoning: Any = None
    reasoning_content: Any = None


class _Logprobs(msgspec.Struct):
    """Chat Completions have `content`, token by token as we have it; Completions a list of each."""

    content: list[_Token] | None = None
    tokens: list[str] | None = None
    token_logprobs: list[float | None] | None = None
    top_logprobs: list[dict[str, float] | None] | None = None


class _Choice(msgspec.Struct):
    index: int = 0
    delta: _Delta | None = None
    text: str | None = None
    logprobs: _Logprobs | None = None
    finish_reason: str | None = None


class _Event(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: Any = None


_decoder: Final = msgspec.json.Decoder(_Event)


class CompletionStream:
    """Gathers what comes into chunks.

    repeated: white space that the answer may begin with although it was said before; it is left out.
    top_logprobs: how many alternatives were asked for; None where no logprobs were.
    limit: tokens that the answer may have; None: any number.
    clean: takes out of what the server says of itself what nobody may read.

    is_over: whether the stream has said `[DONE]`, or far more than it may.
    """

    def __init__(
        self,
        repeated: str = "",
        top_logprobs: int | None = None,
        limit: int | None = None,
        clean: Callable[[str], str] = str,
    ) -> None:
        self.is_over = False
        self._clean = clean
        self._limit = math.inf if limit is None else limit
        self._sse = SseDecoder()
        self._repeated = repeated
        self._top_logprobs = top_logprobs
        self._logprobs: list[Logprob] = []  # of what came last
        self._counted = 0
        self._total: int | None = None  # as the server counts, where it does
        self._seen = 0  # events with text or thoughts: about as many as tokens
        self._cached = 0
        self._reason: str | None = None

    @property
    def has_reason(self) -> bool:
        """Whether all of the text has come: behind the reason there is only the usage."""
        return self._reason is not None

    def feed(self, data: bytes) -> Chunk | None:
        """Return what `data` brings, or None. The end is told by `finish` alone: the usage comes after the reason.

        Raises EngineError where the server reports an error, or speaks another language.
        """
        try:
            events = self._sse.feed(data)
            text = "".join(self._take(event) for event in events)
        except (SseError, ValueError) as error:  # msgspec's errors are of the second kind
            raise EngineError(f"the server's stream cannot be read: {_shown(error, self._clean)}") from None
        count = self._new_tokens()
        if self._reason is None and self._is_beyond_limit:
            self._reason, self.is_over = "length", True
        logprobs, self._logprobs = tuple(self._logprobs), []
        return Chunk(text, count, None, self._cached, logprobs=logprobs) if text or count else None

    def finish(self) -> Chunk | None:
        """Return the last chunk, or None where the stream broke off before it had said why it ends.

        Raises EngineError where the server broke it off.
        """
        if self._reason is None:
            return None
        reason = _FINISH_REASONS.get(self._reason)
        if reason is None:
            raise EngineError(f"the server broke this answer off ({_shown(self._reason, self._clean)})")
        return Chunk("", 0, reason, self._cached)

    @property
    def _is_beyond_limit(self) -> bool:
        told = 0 if self._total is None else self._total
        return told > self._limit or self._seen > self._limit * PIECES_PER_TOKEN

    def _take(self, event: bytes) -> str:
        self.is_over = self.is_over or event == _DONE
        if self.is_over:
            return ""
        message = _decoder.decode(event)
        if message.error is not None:
            raise EngineError(f"the server reports: {error_text(message.error, self._clean)}")
        if message.usage is not None:
            self._note(message.usage)
        text, has_thoughts = "", False
        for choice in message.choices or ():
            if choice.index:
                continue  # nobody has asked for several answers
            text += (choice.delta.content if choice.delta else choice.text) or ""
            has_thoughts = has_thoughts or bool(
                choice.delta and (choice.delta.reasoning or choice.delta.reasoning_content)
            )
            self._reason = choice.finish_reason or self._reason
            if choice.logprobs is not None and self._top_logprobs is not None:
                self._logprobs += _logprobs(choice.logprobs, self._top_logprobs)
        self._seen += bool(text or has_thoughts)
        if self._reason == "length":
            text = text.rstrip("\ufffd")  # half a character, cut off by max_tokens
        return self._unrepeated(text)

    def _note(self, usage: _Usage) -> None:
        if usage.completion_tokens is not None:
            self._total = _count(usage.completion_tokens)
        if usage.prompt_tokens_details is not None:
            self._cached = _count(usage.prompt_tokens_details.cached_tokens or self._cached)

    def _new_tokens(self) -> int:
        total = self._seen if self._total is None else min(self._total, max(self._limit, self._seen))
        new = max(0, int(total) - self._counted)
        self._counted += new
        return new

    def _unrepeated(self, text: str) -> str:
        """Leave out white space that stands at the end of the text so far, and that the server may say again."""
        while text and self._repeated:
            if text[0] != self._repeated[0]:
                self._repeated = ""
                break
            text, self._repeated = text[1:], self._repeated[1:]
        return text


def _count(told: int) -> int:
    """Return a server's count of tokens; what no window holds, and what is less than nothing, is a slip of its own."""
    return min(max(0, told), MAX_TOKENS)


def _logprobs(told: _Logprobs, top: int) -> Iterator[Logprob]:
    """Yield one for each token, from either kind."""
    tokens = told.content or []
    if told.tokens is not None:
        chosen = told.token_logprobs or []
        others = told.top_logprobs or [None] * len(chosen)
        tokens = [
            _Token(token, 0.0 if value is None else value, [_Token(*pair) for pair in (likeliest or {}).items()])
            for token, value, likeliest in zip(told.tokens, chosen, others, strict=True)
        ]
    for token in tokens:
        likeliest = sorted(token.top_logprobs, key=lambda one: -one.logprob)[:top]
        yield logprob(token.token, token.logprob, [logprob(one.token, one.logprob) for one in likeliest])


def error_text(error: Any, clean: Callable[[str], str]) -> str:
    """Return the message of a server's error object, in one line. clean: takes out what nobody may read."""
    if isinstance(error, dict):
        inner = error.get("error", error)
        error = inner.get("message", inner) if isinstance(inner, dict) else inner
    return _shown(error, clean)


def _shown(what: object, clean: Callable[[str], str]) -> str:
    return excerpt(" ".join(clean(str(what)).split()), MAX_SHOWN_CHARS)
