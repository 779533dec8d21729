"""What the terminal client understands, without a terminal and without a server."""

from __future__ import annotations

import pytest

from server.terminal.screen import clean
from server.terminal.talk import Ended, Said, TalkError, Turn, Waits, address, find_model


@pytest.mark.parametrize(
    ("meant", "url"),
    [
        ("localhost:8000", "ws://localhost:8000/v1/responses"),
        ("ws://localhost:8000", "ws://localhost:8000/v1/responses"),
        ("http://[::1]:8000/", "ws://[::1]:8000/v1/responses"),
        ("https://chat.example.com", "wss://chat.example.com/v1/responses"),
        ("wss://example.com/team/v1/responses?a=b#c", "wss://example.com/team/v1/responses?a=b"),
    ],
)
def test_what_a_person_types_as_an_address(meant: str, url: str):
    assert address(meant) == url


@pytest.mark.parametrize("meant", ["", "ws://", "ftp://x", "localhost:port", "http://x:99999"])
def test_what_is_no_address(meant: str):
    with pytest.raises(TalkError, match="is no address"):
        address(meant)


def test_clean_keeps_text_and_nothing_that_steers():
    assert clean("héllo 👩‍👩‍👧 नमस्ते\n\tx") == "héllo 👩‍👩‍👧 नमस्ते\n\tx"
    assert clean("\x1b]0;title\x07\x9b2J\r\x00") == "�]0;title��2J��"


def test_a_model_is_found_by_its_aliases_too():
    models = [{"id": "chat@2", "aliases": []}, {"id": "chat@3", "aliases": ["chat", "best"]}]
    assert [find_model(models, name) for name in ("chat@2", "chat", "none", None)] == [*models, None, None]


def event(kind: str, number: int, **fields):
    return {"type": kind, "sequence_number": number, **fields}


def test_a_turn_takes_each_event_once_and_asks_for_the_rest():
    turn = Turn({"type": "response.create", "id": "k"})
    assert turn.again() == turn.frame
    assert turn.take(event("response.completed", 9, response={"id": "resp_0", "status": "completed"})) is None
    waiting = {"reason": "model_loading", "progress": 0.4}
    assert turn.take(event("response.created", 0, response={"id": "resp_1"})) is None
    assert turn.take(event("response.queued", 1, tokenwire=waiting)) == Waits("the model is loading, 40%")
    assert turn.take(event("response.reasoning_text.delta", 2, delta="hm")) == Waits("thinking")
    assert turn.take(event("response.output_text.delta", 3, delta="a")) == Said("a")
    assert turn.take(event("response.output_text.delta", 3, delta="a")) is None
    assert turn.again() == {"type": "response.retrieve", "response_id": "resp_1", "starting_after": 3}
    cut = {"id": "resp_1", "status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
    assert turn.take(event("response.incomplete", 4, response=cut)) == Ended("cut off: it is too long")
