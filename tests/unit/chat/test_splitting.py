"""Cutting text: whole, not too long, at seams."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from server.chat.splitting import split


@given(st.text(alphabet=" ab.\n#", max_size=300), st.integers(1, 40))
def test_nothing_is_lost_and_nothing_is_blank(text, limit):
    """Joined, the pieces are the text; each but for its white space is as short as asked."""
    pieces = split(text, limit)
    assert "".join(pieces) == text
    assert all(len(piece.strip()) <= limit for piece in pieces)
    assert len(pieces) == 1 or all(piece.strip() for piece in pieces)


def test_headings_before_paragraphs_before_sentences():
    """The best seam in a piece's second half is taken, also where a worse one comes later."""
    text = "One two three. Four five.\n\nSix seven.\n# Head\nEight nine. Ten eleven. Twelve thirteen fourteen"
    assert split(text, 60)[0] == "One two three. Four five.\n\nSix seven.\n"
    assert split(text, 36)[0] == "One two three. Four five.\n\n"
    assert split(text, 24)[0] == "One two three. "
    assert split("wordswithoutend" * 3, 10) == ["wordswitho", "utendwords", "withoutend", "wordswitho", "utend"]


def test_what_fits_is_one_piece():
    """Whatever is in it."""
    assert split("a\n\n# b", 6) == ["a\n\n# b"]
    assert split("", 5) == [""]
