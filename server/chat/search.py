"""Finding conversations by what was said in them.

There is no index: conversations are read one after another, newest first, as far as one command may go. What a person
has said and been told in a year is some megabytes, which takes a second; an index would be written for every turn, and
kept right through deletions and retention, for a question that is asked now and then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from protocol.items import Item
from server.chat.reads import wire_conversation
from server.store.base import Conversation, NotFoundError, Store

# What one command looks at, at most: other commands of the connection wait for it. About 50 ms on a small machine.
MAX_CONVERSATIONS: Final = 100
MAX_CHARS: Final = 2_000_000

EXCERPT_CHARS: Final = 160
_BEFORE_CHARS: Final = 40  # of an excerpt, before what was searched for


@dataclass(frozen=True, slots=True)
class Query:
    """What is searched for: texts that have all of these words, or parts of words, in any order. words: in
    small letters; at least one (`SearchQuery`).
    """

    words: tuple[str, ...]

    @classmethod
    def of(cls, text: str) -> Query:
        return cls(tuple(text.lower().split()))

    def excerpt(self, text: str) -> str | None:
        """Return the place in a text where the first word is, on one line; None where a word is missing."""
        lower = text.lower()
        if not all(word in lower for word in self.words):
            return None
        # Lower case may be longer than what it was made of (İ): the place is then a little off.
        start = max(0, lower.index(self.words[0]) - _BEFORE_CHARS)
        return " ".join(text[start : start + EXCERPT_CHARS].split())


async def search(store: Store, owner: str, text: str, *, after: str | None, limit: int) -> dict[str, Any]:
    """Return the fields of `conversation.searched`.

    after: id of the conversation that was looked at last. limit: rows at most.
    Raises NotFoundError where `after` is not there (any more), and what the store raises.
    """
    query = Query.of(text)
    rows, has_more = await store.list_conversations(owner, after=after, limit=MAX_CONVERSATIONS)
    found: list[dict[str, Any]] = []
    chars = 0
    for index, row in enumerate(rows):
        items = await _items(store, row)
        chars += sum(len(item.text) for item in items)
        hit = _look(query, row, items)
        if hit is not None:
            found.append(hit)
        if len(found) == limit or chars > MAX_CHARS:
            return {"data": found, "last_id": row.id, "has_more": has_more or index + 1 < len(rows)}
    return {"data": found, "last_id": rows[-1].id if rows else None, "has_more": has_more}


async def _items(store: Store, row: Conversation) -> Sequence[Item]:
    try:
        items, _ = await store.list_items(row.owner, row.id, after=None, limit=MAX_CHARS)
    except NotFoundError:
        return ()  # deleted since it was listed
    return [item for item in items if item.type == "message"]


def _look(query: Query, row: Conversation, items: Sequence[Item]) -> dict[str, Any] | None:
    """Look into one conversation; the newest message counts."""
    for item in reversed(items):
        excerpt = query.excerpt(item.text)
        if excerpt is not None:
            return {"conversation": wire_conversation(row), "item_id": item.id, "excerpt": excerpt}
    title = row.metadata.get("title", "")
    if query.excerpt(title) is None:
        return None
    return {"conversation": wire_conversation(row), "item_id": None, "excerpt": title}
