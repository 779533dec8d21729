"""What a search finds in a text, and how far one command goes."""

from __future__ import annotations

import pytest

from protocol.items import Item
from server.chat import search as module
from server.chat.search import EXCERPT_CHARS, Query, search
from server.store.base import Conversation, NotFoundError
from tests.support.memory import MemoryStore


async def store_with(*texts: str) -> MemoryStore:
    """A store whose conversations c0, c1, … have one message each."""
    store = MemoryStore()
    for number, text in enumerate(texts):
        made = Conversation(f"c{number}", "ann", 1, 1)
        await store.create_conversation(made, [Item(f"m{number}", "user", text)], None)
    return store


async def found(store: MemoryStore, text: str, limit: int = 9) -> tuple[list[str], str | None, bool]:
    page = await search(store, "ann", text, after=None, limit=limit)
    return [row["item_id"] for row in page["data"]], page["last_id"], page["has_more"]


@pytest.mark.parametrize(
    ("query", "text", "excerpt"),
    [
        ("sea", "The SEA.", "The SEA."),
        ("keeper old", "An old lighthouse keeper", "An old lighthouse keeper"),
        ("灯塔", "海边的灯塔看守人", "海边的灯塔看守人"),
        ("ÉTÉ", "un été", "un été"),
        ("house", "light\nhouse", "light house"),
        ("[a-z]", "in [A-Z] is", "in [A-Z] is"),
        ("old sea", "the sea", None),
        ("x", "", None),
    ],
)
def test_all_words_in_one_text(query, text, excerpt):
    assert Query.of(query).excerpt(text) == excerpt


def test_an_excerpt_is_short_and_has_what_was_searched_for():
    text = "a " * 5000 + "needle " + "b " * 5000
    excerpt = Query.of("needle").excerpt(text)
    assert excerpt is not None
    assert "needle" in excerpt
    assert len(excerpt) <= EXCERPT_CHARS


async def test_one_command_goes_so_far_and_says_where_it_stopped(monkeypatch: pytest.MonkeyPatch):
    """By rows found and by characters read; where nothing is left, it says so."""
    store = await store_with("sea one", "nothing", "sea two")
    assert await found(store, "sea") == (["m0", "m2"], "c2", False)
    assert await found(store, "sea", limit=1) == (["m0"], "c0", True)
    assert await found(store, "two", limit=1) == (["m2"], "c2", False)
    monkeypatch.setattr(module, "MAX_CHARS", 10)
    assert await found(store, "two") == ([], "c1", True)
    assert await found(await store_with(), "sea") == ([], None, False)


async def test_what_is_deleted_meanwhile_is_passed_over(monkeypatch: pytest.MonkeyPatch):
    store = await store_with("sea one", "sea two")

    async def list_items(owner: str, conversation: str, **page: int) -> tuple[list[Item], bool]:
        if conversation == "c0":
            raise NotFoundError("conversation", conversation)
        return store.first_items[conversation], False

    monkeypatch.setattr(store, "list_items", list_items)
    assert await found(store, "sea") == (["m1"], "c1", False)
