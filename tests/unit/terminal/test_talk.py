"""What the terminal client understands, without a terminal and without a server."""

from __future__ import annotations

import pytest

from server.terminal.screen import clean
from server.terminal.talk import TalkError, address


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
