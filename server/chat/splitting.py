"""Text in pieces that are not too long, cut where it is cut least: at headings, paragraphs, lines, sentences, words."""

from __future__ import annotations

import re
from typing import Final

# From where a cut hurts least to where it hurts most; each matches the place behind which a piece may end.
_SEAMS: Final = (
    re.compile(r"\n(?=#{1,6} |\f|[=\-*_]{3,}\n)"),  # before a heading, a page, a rule
    re.compile(r"\n[ \t]*\n"),
    re.compile(r"\n"),
    re.compile(r"[.!?。！？…][\"')\]”’»]*\s+"),  # noqa: RUF001 these are the marks of Chinese and Japanese sentences
    re.compile(r"\s+"),
)
FILLED: Final = 0.5  # a seam counts when the piece before it is at least so full: else pieces would be many and small


def split(text: str, limit: int) -> list[str]:
    """Return the text in pieces of at most `limit` characters, none blank; joined they are the text.

    A seam is taken as late as it can be, of the best kind that there is in the second half of a piece.
    """
    pieces = []
    start = 0
    while len(text) - start > limit:
        end = _cut(text, start, start + limit)
        pieces.append(text[start:end])
        start = end
    pieces.append(text[start:])
    return _without_blank(pieces)


def _cut(text: str, start: int, end: int) -> int:
    least = start + int((end - start) * FILLED)
    for seam in _SEAMS:
        cuts = [match.end() for match in seam.finditer(text, least, end) if match.end() > start]
        if cuts:
            return cuts[-1]
    return end


def _without_blank(pieces: list[str]) -> list[str]:
    """Join pieces of nothing but white space to those before them."""
    kept: list[str] = []
    for piece in pieces:
        if kept and not (piece.strip() and kept[-1].strip()):
            kept[-1] += piece
        else:
            kept.append(piece)
    return kept
