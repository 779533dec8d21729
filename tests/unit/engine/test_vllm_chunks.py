"""What vLLM gives of an answer, without vLLM."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from server.engine.base import EngineError, FinishReason
from server.engine.vllm_chunks import chunk_of


def likely(text: str | None, value: float, rank: int) -> Any:
    return SimpleNamespace(decoded_token=text, logprob=value, rank=rank)


def output(text: str = "Paris", reason: str | None = None, stop_reason: Any = None) -> Any:
    logprobs = [
        {1: likely("Par", -0.1, 1), 5: likely("The", -3.0, 2)},
        {2: likely("is", -9.0, 3), 6: likely("x", -1, 1)},
    ]
    completion = SimpleNamespace(
        text=text, finish_reason=reason, stop_reason=stop_reason, token_ids=[1, 2], logprobs=logprobs
    )
    return SimpleNamespace(outputs=[completion])


def test_unasked_for_nothing_is_looked_at():
    """The usual case costs nothing."""
    completion = SimpleNamespace(text="x", finish_reason=None, token_ids=[1])
    assert chunk_of(SimpleNamespace(outputs=[completion]), 0).logprobs == ()


def test_a_token_has_its_own_and_the_likeliest():
    """As many as were asked for, the likeliest first; its own also where it is not among them."""
    first, second = chunk_of(output(), 0, 1).logprobs
    assert (first["token"], first["bytes"], first["logprob"]) == ("Par", [80, 97, 114], -0.1)
    assert [one["token"] for one in first["top_logprobs"]] == ["Par"]
    assert (second["token"], second["top_logprobs"][0]["token"]) == ("is", "x")
    assert [one["top_logprobs"] for one in chunk_of(output(), 0, 0).logprobs] == [[], []]


def test_the_token_that_ends_the_answer_is_none_of_it():
    """Where the model ends by itself; a stop string and a cut-off have no such token."""
    assert len(chunk_of(output(reason="stop"), 0, 0).logprobs) == 1
    assert len(chunk_of(output(reason="stop", stop_reason="!"), 0, 0).logprobs) == 2
    assert len(chunk_of(output(reason="length"), 0, 0).logprobs) == 2


def test_what_json_cannot_carry():
    """Minus infinity is a very small number, half a character an empty one."""
    made = output()
    made.outputs[0].logprobs = [{1: likely(None, float("-inf"), 9)}]
    (one,) = chunk_of(made, 0, 0).logprobs
    assert (one["token"], one["bytes"], one["logprob"]) == ("", [], -9999.0)


def test_how_it_ends():
    """Half a character that was cut off is not shown; what broke off is an error."""
    assert chunk_of(output("a\ufffd", "length"), 0).text == "a"
    assert chunk_of(output(reason="stop"), 0).finish_reason is FinishReason.STOP
    with pytest.raises(EngineError, match="abort"):
        chunk_of(output(reason="abort"), 0)
