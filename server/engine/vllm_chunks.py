"""What vLLM gives of one answer, as a chunk. It is not imported for that: its objects come in."""

from __future__ import annotations

from typing import Any, Final

from protocol.events import Logprob
from server.engine.base import Chunk, EngineError, FinishReason, logprob

_FINISH_REASONS: Final = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH}


def chunk_of(output: Any, cached_tokens: int, top_logprobs: int | None = None) -> Chunk:
    """Return what a `RequestOutput` brings. top_logprobs: as in `Options`. Raises EngineError where it broke off."""
    completion = output.outputs[0]
    text, reason = completion.text, completion.finish_reason
    logprobs = () if top_logprobs is None else _logprobs(completion, top_logprobs)
    if reason is None:
        return Chunk(text, len(completion.token_ids), None, cached_tokens, logprobs=logprobs)
    if reason not in _FINISH_REASONS:
        raise EngineError(f"the engine broke this answer off ({reason})")
    finish_reason = _FINISH_REASONS[reason]
    if finish_reason is FinishReason.LENGTH:
        text = text.rstrip("\ufffd")  # half a character, cut off by max_tokens
    return Chunk(text, len(completion.token_ids), finish_reason, cached_tokens, logprobs=logprobs)


def _logprobs(completion: Any, top: int) -> tuple[Logprob, ...]:
    token_ids = list(completion.token_ids)
    if completion.finish_reason == "stop" and not isinstance(completion.stop_reason, str):
        del token_ids[-1:]  # the token that ends the answer says nothing in it
    found = completion.logprobs or ()
    return tuple(_logprob(index, known, top) for index, known in zip(token_ids, found, strict=False))


def _logprob(token_id: int, known: dict[int, Any], top: int) -> Logprob:
    """Return one token's. known: its own and the likeliest, by token."""
    likeliest = sorted((one for one in known.values() if one.rank <= top), key=lambda one: one.rank)
    own = known[token_id]
    return logprob(_text(own), own.logprob, [logprob(_text(one), one.logprob) for one in likeliest])


def _text(one: Any) -> str:
    """Empty for what is half a character."""
    return one.decoded_token or ""
