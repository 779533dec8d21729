"""What a summary is made of: the parts of long documents, the prompts for them, and how far the text has come."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from protocol.errors import ProtocolError
from protocol.events import Usage
from protocol.items import Message
from server.chat.splitting import split
from server.engine.base import Engine, Prompt

PART_TOKENS: Final = 2048  # of a document, read at once; smaller where the window is: side by side they are quicker
PART_WINDOW: Final = 2  # a part takes at most the window's half
SUMMARY_TOKENS: Final = 256  # of one part's summary, at most
SUMMARY_WINDOW: Final = 8  # and at most the window's eighth
SHRINK: Final = 0.7  # a part that has more tokens than its length let expect is cut again, so much shorter

WHOLE: Final = "Summarize the following document in a few sentences. Answer with the summary only.\n\n"
PART: Final = "Summarize part {number} of {total} of a text in a few sentences. Answer with the summary only.\n\n"
MERGE: Final = (
    "Below are the summaries of all parts of a text, in order. Write one summary of the whole text from them. "
    "Answer with the summary only.\n\n"
)
TITLE: Final = "### Part {number} of {total}\n\n"
LAST_TITLE: Final = "### Summary\n\n"
GAP: Final = "\n\n"


@dataclass(slots=True)
class Progress:
    """How far a summary has come; the response object shows it, and a takeover goes on from it.

    parts: how many there are; 0 where the document fits as it is. ends: where in the answer's text, in characters, the
    summaries of the parts end that are done. usage: of the whole so far.
    """

    parts: int
    ends: list[int] = field(default_factory=list)
    usage: Usage = field(default_factory=Usage)

    @classmethod
    def of(cls, notice: dict[str, Any] | None) -> Progress | None:
        """Read what a gateway that is gone has noted; None where it did not come so far."""
        noted = (notice or {}).get("summarize")
        if noted is None:
            return None
        return cls(noted["parts"], list(noted["ends"]), Usage(**noted["usage"]))

    def as_notice(self) -> dict[str, Any]:
        usage = self.usage
        counts = {
            "input_tokens": usage.input_tokens,
            "cached_tokens": usage.cached_tokens,
            "output_tokens": usage.output_tokens,
        }
        return {"summarize": {"parts": self.parts, "done": len(self.ends), "ends": list(self.ends), "usage": counts}}

    def lead(self, number: int) -> str:
        """Return what stands before the summary of part `number` (from 0), or before the last one."""
        if not self.parts:
            return ""
        title = TITLE.format(number=number + 1, total=self.parts) if number < self.parts else LAST_TITLE
        return (GAP if number else "") + title

    def texts(self, text: str) -> list[str]:
        """Return the summaries of the parts that are done, without their titles."""
        bounds = enumerate(zip([0, *self.ends], self.ends, strict=False))
        return [text[start + len(self.lead(number)) : end] for number, (start, end) in bounds]

    def rest(self, text: str) -> str:
        """Return what is there of the summary that is not done, with its title; empty where it was not begun."""
        return text[self.ends[-1] if self.ends else 0 :]


class Document:
    """The texts to summarize. Each is cut by itself; small ones that follow each other are read together.

    system: instructions that stand before every order.
    """

    def __init__(self, texts: Sequence[str], system: str | None) -> None:
        self._texts = texts
        self._system = (Message("system", system),) if system else ()
        self.summary_tokens = SUMMARY_TOKENS
        self.parts: list[str] = []

    @property
    def whole(self) -> str:
        return GAP.join(self._texts)

    def order(self, number: int) -> str:
        """Return what the model is told of part `number` (from 0)."""
        return PART.format(number=number + 1, total=len(self.parts)) + self.parts[number]

    async def prompt(self, engine: Engine, text: str) -> Prompt:
        return await engine.render((*self._system, Message("user", text)))

    async def cut(self, engine: Engine, room: int) -> None:
        """Find the parts; none where the whole fits beside an answer of `room` tokens. The same text gives the same."""
        window = engine.context_length
        self.summary_tokens = max(1, min(SUMMARY_TOKENS, window // SUMMARY_WINDOW))
        self.parts = []
        whole = (await self.prompt(engine, WHOLE + self.whole)).token_count
        if whole + room <= window:
            return
        frame = (await self.prompt(engine, PART.format(number=1000, total=1000))).token_count
        most = min(PART_TOKENS, window // PART_WINDOW, window - frame - self.summary_tokens)
        if most < 1:
            text = f"the instructions leave no room for a document in the window of {window} tokens; shorten them"
            raise ProtocolError("context_length_exceeded", text, param="instructions")
        limit = max(1, int(most * len(self.whole) / whole))
        for text in joined(self._texts, limit):
            self.parts += await self._cut(engine, text, limit, most + frame)

    async def _cut(self, engine: Engine, text: str, limit: int, most: int) -> list[str]:
        """Cut by characters; cut again what has too many tokens for its length, as tables and foreign scripts have."""
        found = []
        for piece in split(text, limit):
            if len(piece) > 1 and (await self.prompt(engine, piece)).token_count > most:
                found += await self._cut(engine, piece, max(1, int(len(piece) * SHRINK)), most)
            else:
                found.append(piece)
        return found

    async def groups(self, engine: Engine, summaries: Sequence[str], room: int) -> list[list[str]]:
        """Return summaries in groups that each fit an order beside an answer of `room` tokens; two a group at least."""
        left = engine.context_length - room - (await self.prompt(engine, MERGE)).token_count
        groups: list[list[str]] = []
        filled = 0
        for summary in summaries:
            count = (await engine.render((Message("user", summary + GAP),))).token_count
            if not groups or (filled + count > left and len(groups[-1]) > 1):
                groups.append([])
                filled = 0
            groups[-1].append(summary)
            filled += count
        return groups


def joined(texts: Sequence[str], limit: int) -> list[str]:
    """Return texts with those joined that follow each other and have room in `limit` characters together.

    A thousand notes are a handful of orders, and not a thousand.
    """
    found: list[str] = []
    for text in texts:
        if found and len(found[-1]) + len(GAP) + len(text) <= limit:
            found[-1] += GAP + text
        else:
            found.append(text)
    return found


def merge_text(summaries: Sequence[str]) -> str:
    """Return the order to make one summary of several."""
    return MERGE + GAP.join(summaries)
