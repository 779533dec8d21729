"""Placeholders: what stands in a template's stead of every text that a template must not make control tokens of."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

# A text's place is this many decimal digits, twice around its number. Digits pass unchanged through what
# templates do to content (trim, upper, tojson), and 2**64 of them cannot be guessed by who writes a message.
_NONCE_DIGITS: Final = 20
_INDEX_DIGITS: Final = 6


@dataclass(frozen=True, slots=True)
class Filling:
    """A text where it stands in the rendered template. is_needed: it is what a message says."""

    text: str
    is_needed: bool


class Places:
    """The placeholders of one rendering; new random digits each time.

    has_control: whether a text would become a control token in a template.
    """

    def __init__(self, has_control: Callable[[str], bool]) -> None:
        self._has_control = has_control
        self._fillings: list[Filling] = []
        self._needed: dict[int, int] = {}  # number of a filling that is needed -> that of its message
        self._messages = 0
        self._left, self._right = (f"{secrets.randbelow(10**_NONCE_DIGITS):0{_NONCE_DIGITS}d}" for _ in range(2))

    def put(self, text: str, *, is_needed: bool = False) -> str:
        """Return what stands for a text. is_needed: it is the next message's, and must not get lost.

        White space around the text stays outside the placeholder, and empty text stays empty: templates trim
        content and ask whether there is any.
        """
        message = self._messages
        self._messages += is_needed
        core = text.strip()
        if not core:
            return text
        start = text.index(core)
        if is_needed:
            self._needed[len(self._fillings)] = message
        return text[:start] + self._place(Filling(core, is_needed)) + text[start + len(core) :]

    def guarded(self, value: Any) -> Any:
        """Return a JSON value with every string in it replaced that a template would make a control token of.

        The others stay: templates look into tools and arguments, and write them in their own ways.
        """
        match value:
            case str():
                return self._place(Filling(value, is_needed=False)) if self._has_control(value) else value
            case list():
                return [self.guarded(inner) for inner in value]
            case dict():
                return {self.guarded(key): self.guarded(inner) for key, inner in value.items()}
            case _:
                return value

    def _place(self, filling: Filling) -> str:
        index = len(self._fillings)
        self._fillings.append(filling)
        return f"{self._left}{index:0{_INDEX_DIGITS}d}{self._right}"

    def _cut(self, rendered: str) -> list[str]:
        """Return the template's own text and the numbers of fillings, in turn. To compile a pattern takes longer."""
        first, *rest = rendered.split(self._left)
        pieces = [first]
        for piece in rest:
            number, right, text = piece.partition(self._right)
            if right and len(number) == _INDEX_DIGITS and number.isascii() and number.isdecimal():
                pieces += [number, text]
            else:  # the template has changed it, and the filling is lost
                pieces[-1] += self._left + piece
        return pieces

    def split(self, rendered: str) -> Iterator[Filling | str]:
        """Yield the template's own text, and the fillings where they stand; then `unseen` knows those that do not."""
        pieces = self._cut(rendered)
        for index, piece in enumerate(pieces):
            if index % 2:
                filling = self._fillings[int(piece)]
                self._needed.pop(int(piece), None)
                # Between quotation marks it is a string of JSON, which the template would have escaped.
                is_json = pieces[index - 1].endswith('"') and pieces[index + 1].startswith('"')
                text = json.dumps(filling.text, ensure_ascii=False)[1:-1] if is_json and not filling.is_needed else None
                yield filling if text is None else Filling(text, is_needed=False)
            elif piece:
                yield piece

    def unseen(self) -> Iterator[int]:
        """Yield the numbers of the messages whose words the template left out."""
        yield from sorted(self._needed.values())
