"""Regular expressions in schemas from clients: what one costs the engine, as far as its text tells."""

from __future__ import annotations

import re
from typing import Final

# Possessive where they repeat, so that no text takes more than one look at each character.
_LITERALS: Final = re.compile(r"\\(.)|\[(\^?)(?:\\.|[^\]\\])*+\]?", re.DOTALL)  # what stands for one character
_KINDS_OF_GROUP: Final = re.compile(r"\(\?(?:[:=!]|<[=!])")
_MARKS: Final = re.compile(r"\{(\d*+)(,?+)(\d*+)\}|([()*+?])|([^()*+?{]++|\{)")
_MAX_DIGITS: Final = 9  # of a count; more are as bad


class _Span:
    """Some of a pattern.

    size: characters, once counts are written out. ways: places where it can go on in two ways. written_out: such places
    where a group around it has a count.
    """

    __slots__ = ("is_group", "is_wide", "size", "ways", "written_out")

    def __init__(self, size: int = 0, *, is_group: bool = False, is_wide: bool = False) -> None:
        self.size = size
        self.ways = 0
        self.written_out = 0
        self.is_group = is_group
        self.is_wide = is_wide

    def add(self, size: int, ways: int, written_out: int) -> None:
        self.size += size
        self.ways += ways
        self.written_out += written_out


def pattern_cost(pattern: str) -> tuple[int, int]:
    """Return how many characters are repeated by counts, and in how many places the pattern can go on in two ways.

    Counts inside each other multiply: a grammar writes a group out as often as it may come. Outside groups it keeps a
    count of one character as it is; inside it does not, and where that character is nearly any (`.`, `[^a]`), each
    costs much. A pattern that is none has a cost, too; to refuse it is the engine's part.
    """
    whole, last = _Span(), _Span()
    around: list[_Span] = []
    repeated = 0
    for least, comma, most, mark, plain in _MARKS.findall(_LITERALS.sub(_character, _KINDS_OF_GROUP.sub("(", pattern))):
        if mark == "(":
            around.append(whole)
            whole = _Span()
        elif mark == ")":
            last, whole = whole, around.pop() if around else _Span()
            last.is_group = True
            whole.add(last.size, last.ways, last.written_out)
        elif mark:  # * + ?
            whole.add(0, 1, 1)
            last.add(0, 1, 1)
        elif plain:  # what follows is about its last character
            last = _Span(1, is_wide=plain[-1] == ".")
            whole.add(len(plain), 0, 0)
        else:
            low, high = int(least[:_MAX_DIGITS] or 0), int(most[:_MAX_DIGITS] or 0)
            times, spread = max(1, low, high), max(bool(comma), high - low if comma else 0)
            repeated += last.size * times
            if last.is_group:
                ways = last.written_out * times + spread
                more = (last.size * (times - 1), ways - last.ways, ways - last.written_out)
            else:
                more = (last.size * (times - 1), int(spread > 0), spread if last.is_wide else int(spread > 0))
            whole.add(*more)
            last.add(*more)
            last.is_group = True
    return repeated, whole.ways + sum(span.ways for span in around)


def _character(found: re.Match[str]) -> str:
    """Return what stands for one character as `.` or `x`: nearly any, or some."""
    escaped, negated = found.groups()
    return "." if negated or (escaped and escaped in "SWD") else "x"
