"""Conversations: made, read, listed, changed, deleted; by their owner only."""

from __future__ import annotations

import asyncio

import pytest

from server.store.base import FencedError, JournalEntry, NotFoundError


async def test_a_conversation_is_read_as_it_was_made(store, scene):
    """What create returns is what get returns; its first items are listed."""
    made = await store.create_conversation(scene.conversation(), [scene.item("hello")], None)
    assert made == await store.get_conversation("ann", "c")
    assert (made.created_at, made.head, made.running_response) == (100, None, None)
    assert await store.list_items("ann", "c", after=None, limit=9) == ([scene.item("hello")], False)


async def test_the_same_command_makes_one_conversation(store, scene):
    """A repeated command id returns the first conversation; another owner's is another command."""
    first = await store.create_conversation(scene.conversation("c1"), [], "k")
    again = await store.create_conversation(scene.conversation("c2"), [], "k")
    other = await store.create_conversation(scene.conversation("c3", owner="bob"), [], "k")
    assert (first.id, again.id, other.id) == ("c1", "c1", "c3")
    assert [c.id for c in (await store.list_conversations("ann", after=None, limit=9))[0]] == ["c1"]


async def test_command_ids_of_owners_never_meet(store, scene):
    """A colon in an owner's name cannot make its commands another owner's."""
    await store.create_conversation(scene.conversation("c1", owner="a:b"), [], "k")
    made = await store.create_conversation(scene.conversation("c2", owner="a"), [], "b:k")
    assert made.id == "c2"


async def test_repeating_a_create_changes_nothing(store, scene):
    """The reply was lost: the second call returns the conversation as it is by now."""
    await store.create_conversation(scene.conversation(), [scene.item("hello")], None)
    await store.update_conversation("ann", "c", {"title": "T"})
    assert (await store.create_conversation(scene.conversation(), [scene.item("hello")], None)).metadata == {
        "title": "T"
    }


async def test_update_replaces_the_metadata(store, scene):
    """Keys that are not named again are gone."""
    await store.create_conversation(scene.conversation(), [], None)
    await store.update_conversation("ann", "c", {"a": "1"})
    assert (await store.update_conversation("ann", "c", {"b": "ü"})).metadata == {"b": "ü"}


async def test_a_stranger_finds_nothing(store, scene):
    """Every command answers a stranger as if the id did not exist."""
    await store.create_conversation(scene.conversation(), [], None)
    await scene.answer(store, "r1")
    for attempt in (
        store.get_conversation("bob", "c"),
        store.update_conversation("bob", "c", {}),
        store.delete_conversation("bob", "c"),
        store.list_items("bob", "c", after=None, limit=1),
        store.history("bob", conversation="c", previous=None),
        store.get_response("bob", "r1"),
        store.begin(scene.turn("x", owner="bob")),
        store.begin(scene.turn("x", owner="bob", conversation=None, previous="r1")),
        store.history("bob", conversation=None, previous="r1"),
        store.list_conversations("bob", after="c", limit=1),
    ):
        with pytest.raises(NotFoundError):
            await attempt
    assert await store.list_conversations("bob", after=None, limit=9) == ([], False)


@pytest.mark.parametrize("name", ["", "c:events", "*", "c\r\nFLUSHALL", "ü" * 400])
async def test_strange_ids_are_only_ids_that_do_not_exist(store, scene, name):
    """No id names a key of another kind or breaks the protocol."""
    await store.create_conversation(scene.conversation(), [], None)
    with pytest.raises(NotFoundError):
        await store.get_conversation("ann", name)
    with pytest.raises(NotFoundError):
        await store.get_response("ann", name)


async def test_listing_pages_by_last_use(store, scene):
    """Most recently used first; each conversation once over all pages."""
    for number in range(5):
        await store.create_conversation(scene.conversation(f"c{number}"), [], None)
        await asyncio.sleep(0.002)  # order by last use has milliseconds
    await store.begin(scene.turn("r", conversation="c1"))
    seen, after, more = [], None, True
    while more:
        page, more = await store.list_conversations("ann", after=after, limit=2)
        seen += [conversation.id for conversation in page]
        after = seen[-1]
    assert seen == ["c1", "c4", "c3", "c2", "c0"]


async def test_listing_drops_what_has_expired(store, scene, shared_server, prefix):
    """A conversation older than the retention leaves the list, and pages stay full."""
    for number in range(4):
        await store.create_conversation(scene.conversation(f"c{number}"), [], None)
        await asyncio.sleep(0.002)  # order by last use has milliseconds
    shared_server.call("DEL", f"{prefix}:conversation:c2")
    page, more = await store.list_conversations("ann", after=None, limit=2)
    assert ([conversation.id for conversation in page], more) == (["c3", "c1"], True)
    assert shared_server.call("ZCARD", f"{prefix}:conversations:ann") == 3


async def test_items_page_from_oldest_to_newest(store, scene):
    """First items, then each turn's input and answer; waiting turns last; every item once."""
    await store.create_conversation(scene.conversation(), [scene.item("hello")], None)
    await scene.answer(store, "r1")
    await scene.answer(store, "r2")
    await store.begin(scene.turn("r3"))
    await store.begin(scene.turn("r4"))
    seen, after, more = [], None, True
    while more:
        page, more = await store.list_items("ann", "c", after=after, limit=3)
        seen += scene.texts(page)
        after = page[-1].id
    assert seen == ["hello", "ask-r1", "answer-r1", "ask-r2", "answer-r2", "ask-r3", "ask-r4"]
    assert await store.list_items("ann", "c", after="msg_nowhere", limit=3) == ([], False)


async def test_a_branch_hides_what_it_replaces(store, scene):
    """Regenerating moves the head: the shown branch goes through the new answer, the old one can still be read."""
    await store.create_conversation(scene.conversation(), [], None)
    await scene.answer(store, "r1")
    await scene.answer(store, "r2")
    await scene.answer(store, "r2b", previous="r1")
    items, _ = await store.list_items("ann", "c", after=None, limit=9)
    assert scene.texts(items) == ["ask-r1", "answer-r1", "ask-r2b", "answer-r2b"]
    assert (await store.get_conversation("ann", "c")).head == "r2b"
    assert (await store.get_response("ann", "r2")).previous == "r1"


async def test_delete_leaves_nothing(store, scene, shared_server, prefix):
    """Conversation, responses, journals, commands, branches outside: all keys go, except a short-lived tombstone."""
    await store.create_conversation(scene.conversation(), [scene.item("hello")], "make")
    await scene.answer(store, "r1", command_id="k1")
    await store.begin(scene.turn("r2", command_id="k2"))
    await scene.answer(store, "r3", conversation=None, previous="r1")
    await store.append([JournalEntry("r2", 1, 0, b"event")])
    await store.delete_conversation("ann", "c")
    left = set(shared_server.call("KEYS", f"{prefix}:*")) - {f"{prefix}:ping", f"{prefix}:deleted:c"}
    assert {key for key in left if not key.startswith(f"{prefix}:written")} == set()
    with pytest.raises(NotFoundError):
        await store.delete_conversation("ann", "c")


async def test_what_runs_in_a_deleted_conversation_ends_without_a_trace(store, scene, shared_server, prefix):
    """Events are refused, start finds nothing, finish is harmless and recreates nothing."""
    await store.create_conversation(scene.conversation(), [], None)
    await store.begin(scene.turn("r1"))
    await store.start("r1", 1)
    await store.delete_conversation("ann", "c")
    keys = set(shared_server.call("KEYS", f"{prefix}:*"))
    assert await store.append([JournalEntry("r1", 1, 0, b"event")]) == {"r1"}
    assert await store.finish(scene.end("r1", events=[(0, b"end")])) is None
    with pytest.raises(NotFoundError):
        await store.start("r1", 1)
    assert set(shared_server.call("KEYS", f"{prefix}:*")) == keys


async def test_a_thread_expires_as_one(store, scene, shared_server, prefix):
    """Each write gives all keys of a conversation the same, full time; an ended answer's log has its own."""
    await store.create_conversation(scene.conversation(), [], None)
    await scene.answer(store, "r1")
    await scene.answer(store, "r2")
    for write in (
        store.begin(scene.turn("r3")),
        store.finish(scene.end("r3")),
        store.update_conversation("ann", "c", {"a": "b"}),
    ):
        for key in shared_server.call("KEYS", f"{prefix}:*"):
            shared_server.call("EXPIRE", key, 1000)
        await write
        expiry = shared_server.expiry(f"{prefix}:*")
        kept = {
            key: at
            for key, at in expiry.items()
            if key.split(":")[1] in {"conversation", "queue", "thread", "response"}
        }
        assert len(set(kept.values())) == 1
        assert shared_server.call("TTL", f"{prefix}:conversation:c") > 1000
        assert shared_server.call("TTL", f"{prefix}:events:r1") <= 1000


async def test_a_chain_outside_conversations_expires_as_one(store, scene, shared_server, prefix):
    """A continued chain keeps all its responses, back to the first."""
    await scene.answer(store, "r1", conversation=None)
    for key in shared_server.call("KEYS", f"{prefix}:*"):
        shared_server.call("EXPIRE", key, 1000)
    await scene.answer(store, "r2", conversation=None, previous="r1")
    expiry = shared_server.expiry(f"{prefix}:response:*")
    expiry |= shared_server.expiry(f"{prefix}:thread:r1")
    assert len(expiry) == 3
    assert len(set(expiry.values())) == 1


async def test_new_turns_do_not_lengthen_a_fresh_thread(store, scene, shared_server, prefix):
    """While more than the retention is left, a new turn joins the expiry of its thread, and costs no more than that."""
    await store.create_conversation(scene.conversation(), [], None)
    await scene.answer(store, "r1")
    before = shared_server.call("PEXPIRETIME", f"{prefix}:thread:c")
    await scene.answer(store, "r2")
    assert {shared_server.call("PEXPIRETIME", f"{prefix}:response:{name}") for name in ("r1", "r2")} == {before}
    assert shared_server.call("TTL", f"{prefix}:thread:c") >= 30 * 86_400


async def test_a_conversation_past_its_retention_is_gone(store, scene, shared_server, prefix):
    """Continuing it says that it is not there, rather than answering without its history."""
    await store.create_conversation(scene.conversation(), [], None)
    await scene.answer(store, "r1")
    for key in shared_server.call("KEYS", f"{prefix}:*"):
        shared_server.call("DEL", key)
    with pytest.raises(NotFoundError, match="conversation c"):
        await store.begin(scene.turn("r2"))
    with pytest.raises(NotFoundError, match="previous_response r1"):
        await store.begin(scene.turn("r2", conversation=None, previous="r1"))


async def test_all_keys_have_an_end(store, scene, shared_server, prefix):
    """Nothing stays for ever, except the map of running responses and the count of writes."""
    await store.create_conversation(scene.conversation(), [], "make")
    await store.begin(scene.turn("r1", command_id="k"))
    await store.begin(scene.turn("r2", conversation=None))
    await store.heartbeat("g1", 5)
    with pytest.raises(FencedError):
        await store.start("r1", 0)
    forever = [key for key, at in shared_server.expiry(f"{prefix}:*").items() if at == -1]
    assert sorted(forever) == [f"{prefix}:running", f"{prefix}:written"]
