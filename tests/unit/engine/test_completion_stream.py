"""Bytes of an OpenAI-compatible server become chunks, however they are cut."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.fields import MAX_TOKENS
from server.engine.base import EngineError, FinishReason
from server.engine.completion_stream import CompletionStream
from server.engine.sse import MAX_EVENT_BYTES, SseDecoder, SseError


def data(**fields: object) -> bytes:
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


def delta(text: str | None, reason: str | None = None, **more: object) -> bytes:
    return data(choices=[{"index": 0, "delta": {"content": text}, "finish_reason": reason}], **more)


WHOLE = (
    data(choices=[{"delta": {"role": "assistant", "content": ""}}])
    + b": a comment\r\n\r\n"
    + delta("Grüße ")
    + delta("aus 日本")
    + delta(None, "stop")
    + data(choices=[], usage={"completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 3}})
    + b"data: [DONE]\n\n"
)


@given(st.lists(st.integers(0, len(WHOLE)), max_size=8).map(sorted))
def test_it_does_not_matter_where_the_bytes_are_cut(cuts):
    """The text, the tokens and the end are the same."""
    stream = CompletionStream()
    edges = [0, *cuts, len(WHOLE)]
    chunks = [stream.feed(WHOLE[a:b]) for a, b in pairwise(edges)]
    assert "".join(chunk.text for chunk in chunks if chunk) == "Grüße aus 日本"
    assert sum(chunk.token_count for chunk in chunks if chunk) == 7
    assert stream.is_over
    last = stream.finish()
    assert last is not None
    assert (last.finish_reason, last.cached_tokens) == (FinishReason.STOP, 3)


def test_thoughts_show_that_the_server_works():
    """They are no part of the answer, and count as tokens where the server does not count."""
    for name in ("reasoning", "reasoning_content"):
        stream = CompletionStream()
        chunk = stream.feed(data(choices=[{"delta": {name: "Hm."}}]))
        assert chunk is not None
        assert (chunk.text, chunk.token_count) == ("", 1)


@pytest.mark.parametrize(("told", "counted"), [(-9, 0), (10**30, MAX_TOKENS)])
def test_counts_that_cannot_be_are_made_such_as_can(told, counted):
    """Else a slip of the server's becomes an end of ours that cannot be written."""
    stream = CompletionStream()
    stream.feed(delta("x", "stop", usage={"completion_tokens": told, "prompt_tokens_details": {"cached_tokens": told}}))
    last = stream.finish()
    assert last is not None
    assert last.cached_tokens == counted


def test_logprobs_that_do_not_fit_their_tokens_are_a_fault_of_the_server():
    """More tokens than logprobs."""
    stream = CompletionStream(top_logprobs=1)
    with pytest.raises(EngineError, match="cannot be read"):
        stream.feed(data(choices=[{"text": "ab", "logprobs": {"tokens": ["a", "b"], "token_logprobs": [-1.0]}}]))


def test_tokens_are_counted_by_pieces_where_the_server_does_not():
    """A piece with text is about a token; empty ones are none."""
    stream = CompletionStream()
    chunks = [stream.feed(delta(text)) for text in ("a", "", "b", None)]
    assert [chunk.token_count if chunk else 0 for chunk in chunks] == [1, 0, 1, 0]


def test_usage_that_comes_all_the_time_is_believed():
    """Pieces of several tokens count as what they are."""
    stream = CompletionStream()
    chunks = [stream.feed(delta("a b", usage={"completion_tokens": n})) for n in (2, 5, 5)]
    assert [chunk.token_count if chunk else 0 for chunk in chunks] == [2, 3, 0]


def test_completions_have_text_without_a_delta():
    """The other kind of stream."""
    stream = CompletionStream()
    chunk = stream.feed(data(choices=[{"text": "Paris", "finish_reason": "length"}]))
    assert chunk is not None
    assert chunk.text == "Paris"
    last = stream.finish()
    assert last is not None
    assert last.finish_reason is FinishReason.LENGTH


def test_half_a_character_at_the_length_limit_is_left_out():
    """No U+FFFD reaches a client."""
    stream = CompletionStream()
    chunk = stream.feed(delta("ab\ufffd", "length"))
    assert chunk is not None
    assert chunk.text == "ab"


@pytest.mark.parametrize(
    ("repeated", "pieces", "text"),
    [(" ", [" world"], "world"), ("\n\n", ["\n", "\nx"], "x"), (" ", ["world"], "world"), ("  ", [" ", "x"], "x")],
)
def test_white_space_that_was_said_before_is_not_said_again(repeated, pieces, text):
    """A continuation may begin with the white space that the text so far ends with."""
    stream = CompletionStream(repeated)
    chunks = [stream.feed(delta(piece)) for piece in pieces]
    assert "".join(chunk.text for chunk in chunks if chunk) == text


@pytest.mark.parametrize(
    "frame", [b"data: {\n\n", b"data: []\n\n", b'data: {"choices":[{"delta":7}]}\n\n', b"data: \xff\n\n"]
)
def test_nonsense_is_an_error_in_one_line(frame):
    """EngineError, for this answer alone."""
    with pytest.raises(EngineError, match="cannot be read") as caught:
        CompletionStream().feed(frame)
    assert "\n" not in str(caught.value)


def test_an_event_without_end_is_refused():
    """Memory is bounded."""
    decoder = SseDecoder()
    piece = b"data: " + b"x" * (MAX_EVENT_BYTES // 2)
    decoder.feed(piece)
    with pytest.raises(SseError):
        decoder.feed(piece)


def test_an_event_of_several_lines_is_joined():
    """As the specification says."""
    assert SseDecoder().feed(b"event: x\nid: 1\ndata: a\ndata:b\n\n\n") == [b"a\nb"]


def test_behind_done_nothing_counts():
    """Also where it comes in the same bytes."""
    stream = CompletionStream()
    chunk = stream.feed(delta("a", "stop") + b"data: [DONE]\n\n" + delta("b"))
    assert chunk is not None
    assert (chunk.text, chunk.token_count, stream.is_over) == ("a", 1, True)


def test_of_several_answers_one_is_taken():
    """Nobody asked for more."""
    stream = CompletionStream()
    chunk = stream.feed(
        data(choices=[{"index": 1, "delta": {"content": "b"}}, {"index": 0, "delta": {"content": "a"}}])
    )
    assert chunk is not None
    assert chunk.text == "a"


@pytest.mark.parametrize(("pieces", "usage", "tokens"), [(9, {}, 9), (2, {"usage": {"completion_tokens": 10**30}}, 3)])
def test_an_answer_ends_where_the_server_does_not_keep_to_the_limit(pieces, usage, tokens):
    """As one that was cut off. Pieces may be smaller than tokens; a number from the moon is no number of tokens."""
    limit = 1 if not usage else 3
    stream = CompletionStream(limit=limit)
    chunks = [stream.feed(delta("x", **usage)) for _ in range(pieces - 1)]
    assert stream.is_over is bool(usage)
    chunks.append(stream.feed(delta("x", **usage)))
    last = stream.finish()
    assert last is not None
    assert last.finish_reason is FinishReason.LENGTH
    assert sum(chunk.token_count for chunk in chunks if chunk) == tokens


def test_a_server_that_ends_by_itself_has_the_word():
    """Although its usage says that it said more than it might."""
    stream = CompletionStream(limit=3)
    stream.feed(delta("x", "stop", usage={"completion_tokens": 4}))
    last = stream.finish()
    assert last is not None
    assert last.finish_reason is FinishReason.STOP
