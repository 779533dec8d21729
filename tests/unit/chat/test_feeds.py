"""Live conversations: every subscribed connection hears of every turn, once, in order, and of nobody else's."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from protocol.errors import ProtocolError
from tests.support.memory import MemoryClient, until


async def subscribe(gateway, client, conversation, **fields):
    await gateway.handle(client, type="conversation.subscribe", conversation=conversation, **fields)


async def test_two_devices_see_a_turn_of_a_third(a, b, conversation):
    """On the gateway that answers and on another one: the items, then every event, with the subscription's lane."""
    here, there = MemoryClient(), MemoryClient()
    await subscribe(a, here, conversation, stream_id="live", id="s1")
    await subscribe(b, there, conversation)
    await a.create(conversation=conversation)
    a.engine.say("Hel")
    a.engine.say("lo")
    a.engine.end()
    for client in (here, there):
        await client.until("response.completed")
        assert client.text() == "Hello"
        assert client.types()[:2] == ["conversation.subscribed", "conversation.item.added"]
        numbers = [event["sequence_number"] for event in client.of()]
        assert numbers == sorted(set(numbers))
    assert here.frames[0]["id"] == "s1"
    assert {frame.get("stream_id") for frame in here.frames} == {"live"}
    assert {frame.get("stream_id") for frame in there.frames} == {None}


async def test_a_late_joiner_has_it_all(a, b, conversation):
    """Text so far in the snapshot, the rest as events, without a gap; its answer comes before everything else."""
    await a.create(conversation=conversation)
    a.engine.say("Hello ")
    await a.client.until("response.output_text.delta")
    for gateway in (a, b):
        late = MemoryClient()
        await subscribe(gateway, late, conversation)
        (running,) = late.frames[0]["responses"]
        assert running["text"] == "Hello "
        gateway.late = late
    a.engine.say("world")
    a.engine.end()
    for gateway in (a, b):
        late = gateway.late
        await late.until("response.completed")
        assert late.types()[0] == "conversation.subscribed"
        assert late.text() == "world"
        assert late.of()[0]["sequence_number"] > late.frames[0]["responses"][0]["sequence_number"]


async def test_events_during_a_join_come_after_its_answer(a, store, conversation):
    """Tokens go on while the snapshot is made; the first frame is the snapshot all the same, and no text is lost."""
    await a.create(conversation=conversation)
    await a.client.until("response.in_progress")
    late = MemoryClient()
    with store.pause("get_response"):
        joining = asyncio.create_task(subscribe(a, late, conversation))
        await store.held("get_response")
        a.engine.say("early ")
        await a.client.until("response.output_text.delta")
        assert late.frames == []
    await joining
    a.engine.say("late")
    a.engine.end()
    await late.until("response.completed")
    assert late.types()[0] == "conversation.subscribed"
    assert late.frames[0]["responses"][0]["text"] + late.text() == "early late"


@pytest.mark.parametrize("method", ["list_items", "get_response"])
async def test_an_end_during_a_join_is_told_after_its_answer(a, b, store, conversation, method):
    """What the snapshot shows as running, ends with an event, on the gateway that answers and on another one."""
    await a.create(conversation=conversation)
    a.engine.say("all of it")
    await a.client.until("response.output_text.delta")
    here, there = MemoryClient(), MemoryClient()
    with store.pause(method):
        joining = [
            asyncio.create_task(subscribe(gateway, late, conversation)) for gateway, late in ((a, here), (b, there))
        ]
        await store.held(method, 2)
        a.engine.end()
        await a.client.until("response.completed")
    await asyncio.gather(*joining)
    for late in (here, there):
        await late.until("response.completed")
        snapshot = late.frames[0]
        assert snapshot["type"] == "conversation.subscribed"
        for running in snapshot["responses"]:
            assert running["text"] == "all of it"
            assert running["sequence_number"] < late.of()[-1]["sequence_number"]


async def test_who_was_there_before_a_join_hears_of_the_turn_too(a, bus, conversation):
    """A turn that a joiner finds in its snapshot, before its news has come, is still news to the others."""
    first, second = MemoryClient(), MemoryClient()
    await subscribe(a, first, conversation)
    bus.is_cut = True
    generation = await a.create(conversation=conversation)
    await subscribe(a, second, conversation)
    bus.is_cut = False
    bus.publish("conversation:conv_1", {"begun": generation.response_id})
    a.engine.say("x")
    a.engine.end()
    await first.until("response.completed")
    await second.until("response.completed")
    assert first.types().count("conversation.item.added") == 1
    assert second.types().count("conversation.item.added") == 0
    assert first.types().count("response.created") == 1


async def test_late_news_of_a_turn_of_its_own(a, bus, conversation):
    """A connection has had its own turn's events on its lane, also when the news comes after their end."""
    client = MemoryClient()
    await subscribe(a, client, conversation, stream_id="live")
    bus.is_cut = True
    generation = await a.create(client, conversation=conversation)
    a.engine.say("x")
    a.engine.end()
    await client.until("response.completed")
    client.subscriptions.clear()  # as a connection lets go of what has ended
    bus.is_cut = False
    bus.deliver("conversation:conv_1", {"begun": generation.response_id})
    bus.deliver("conversation:conv_1", {"updated": True})
    await client.until("conversation.updated")
    assert client.types().count("conversation.item.added") == 1
    assert client.types().count("response.created") == 1


async def test_a_turn_that_ends_while_the_news_is_read(a, store, bus, conversation):
    """It is told, and before the one behind it."""
    client, other = MemoryClient(), MemoryClient()
    await subscribe(a, client, conversation)
    bus.is_cut = True
    first = await a.create(conversation=conversation, input="one")
    second = await a.create(other, conversation=conversation, input="two")
    with store.pause("turns"):
        bus.deliver("conversation:conv_1", {"begun": second.response_id})
        await store.held("turns")
        a.engine.end()
        await a.client.until("response.completed")
    await client.until("conversation.item.added")
    a.engine.end()
    bus.is_cut = False
    bus.deliver("conversation:conv_1", {"ended": first.response_id})
    await other.until("response.completed")
    bus.deliver("conversation:conv_1", {"ended": second.response_id})
    await client.until("response.completed", 2)
    added = [frame for frame in client.frames if frame["type"] == "conversation.item.added"]
    said = [frame["item"]["content"][0]["text"] for frame in added]
    assert said == ["one", "two"]


async def test_a_gap_repairs_and_repeats_nothing(a, bus, conversation):
    """After lost messages the missed turn is told; what was known, in the snapshot or since, is not told again."""
    await a.create(conversation=conversation)
    a.engine.say("old")
    a.engine.end()
    await a.client.until("response.completed")
    client = MemoryClient()
    await subscribe(a, client, conversation)
    bus.deliver("conversation:conv_1", {"gap": True})
    bus.is_cut = True
    await a.create(conversation=conversation)
    bus.is_cut = False
    bus.deliver("conversation:conv_1", {"gap": True})
    bus.deliver("conversation:conv_1", {"gap": True})
    a.engine.say("new")
    a.engine.end()
    await client.until("response.completed")
    assert client.text() == "new"
    assert client.types().count("conversation.item.added") == 1


async def test_a_turn_that_begins_during_a_join(a, store, conversation):
    """Between the reads that the snapshot is made of: its events come."""
    client = MemoryClient()
    with store.pause("list_items"):
        joining = asyncio.create_task(subscribe(a, client, conversation))
        await store.held("list_items")
        await a.create(conversation=conversation)
    await joining
    a.engine.say("x")
    a.engine.end()
    await client.until("response.completed")
    assert client.types()[0] == "conversation.subscribed"
    assert client.text() == "x"


async def test_a_turn_that_ends_during_a_join(a, store, conversation):
    """Between the reads that the snapshot is made of: its answer is in the snapshot."""
    await a.create(conversation=conversation)
    client = MemoryClient()
    with store.pause("list_items"):
        joining = asyncio.create_task(subscribe(a, client, conversation))
        await store.held("list_items")
        a.engine.say("x")
        a.engine.end()
        await a.client.until("response.completed")
    await joining
    assert client.frames[0]["responses"][0]["text"] == "x"
    assert client.frames[0]["items"][-1]["content"][0]["text"] == "x"


async def test_own_turns_come_once(a, conversation):
    """Who began the turn gets its events on the turn's lane, not on the subscription's as well."""
    await subscribe(a, a.client, conversation, stream_id="live")
    await a.create(conversation=conversation, stream_id="turn")
    a.engine.say("x")
    a.engine.end()
    await a.client.until("response.completed")
    await a.client.until("conversation.item.added")
    assert {event["stream_id"] for event in a.client.of()} == {"turn"}
    assert a.client.types().count("response.created") == 1


async def test_strangers_see_nothing(a, conversation):
    """Another account's conversation is not there, also while its owner's feed is open; nor does asking do harm."""
    owner, stranger = MemoryClient("ann"), MemoryClient("eve")
    await subscribe(a, owner, conversation)
    with pytest.raises(ProtocolError) as caught:
        await subscribe(a, stranger, conversation)
    assert caught.value.code == "conversation_not_found"
    await a.create(MemoryClient("ann"), conversation=conversation)
    a.engine.end()
    await owner.until("response.completed")
    assert stranger.frames == []


async def test_a_stranger_that_was_first_is_not_in_the_way(a, store, conversation):
    """The owner joins while a stranger's attempt is still being judged."""
    owner, stranger = MemoryClient("ann"), MemoryClient("eve")
    with store.pause("turns"):
        attempt = asyncio.create_task(subscribe(a, stranger, conversation))
        await store.held("turns")
        joining = asyncio.create_task(subscribe(a, owner, conversation))
    await joining
    with pytest.raises(ProtocolError):
        await attempt
    assert owner.types() == ["conversation.subscribed"]


async def test_unsubscribing_ends_the_events_of_what_runs(a, conversation):
    """After the answer to `conversation.unsubscribe` nothing of the conversation comes, and nothing is left over."""
    client = MemoryClient()
    await subscribe(a, client, conversation)
    await a.create(conversation=conversation)
    a.engine.say("one")
    await client.until("response.output_text.delta")
    await a.handle(client, type="conversation.unsubscribe", conversation=conversation)
    a.engine.say("two")
    a.engine.end()
    await a.client.until("response.completed")
    assert client.types()[-1] == "conversation.unsubscribed"
    assert client.text() == "one"


async def test_a_second_subscription_replaces_the_first(a, conversation):
    """On another lane: from there on all comes on that lane, once."""
    client = MemoryClient()
    await subscribe(a, client, conversation, stream_id="one")
    await a.create(conversation=conversation)
    a.engine.say("x")
    await client.until("response.output_text.delta")
    await subscribe(a, client, conversation, stream_id="two")
    a.engine.say("y")
    a.engine.end()
    end = await client.until("response.completed")
    assert end["stream_id"] == "two"
    assert client.types().count("response.completed") == 1
    second = [frame for frame in client.frames if frame["type"] == "conversation.subscribed"][1]
    assert second["responses"][0]["text"] == "x"
    assert client.text() == "xy"


async def test_changes_are_told(a, b, conversation):
    """Metadata and the end of the conversation, to subscribers on either gateway."""
    client = MemoryClient()
    await subscribe(a, client, conversation)
    await b.handle(type="conversation.update", conversation=conversation, metadata={"title": "t"})
    updated = await client.until("conversation.updated")
    assert updated["conversation"]["metadata"] == {"title": "t"}
    await b.handle(type="conversation.delete", conversation=conversation)
    deleted = await client.until("conversation.deleted")
    assert deleted["conversation"] == {"id": conversation, "object": "conversation.deleted", "deleted": True}


async def test_news_that_meets_a_silent_store_is_told_later(a, store, bus, conversation):
    """The feed tries again until Redis is back."""
    client = MemoryClient()
    await subscribe(a, client, conversation)
    store.is_away = True
    bus.deliver("conversation:conv_1", {"updated": True})
    failed = store.calls.count("get_conversation")
    await until(lambda: store.calls.count("get_conversation") >= failed + 2)
    store.is_away = False
    await client.until("conversation.updated")


async def test_one_bad_piece_of_news_does_not_end_a_feed(a, store, bus, conversation, caplog, monkeypatch):
    """It is logged, and the next one is told."""
    client = MemoryClient()
    await subscribe(a, client, conversation)
    with monkeypatch.context() as broken:
        broken.setattr(store, "turns", None)
        bus.deliver("conversation:conv_1", {"begun": "resp_1"})
        await until(lambda: "could not be told" in caplog.text)
    bus.deliver("conversation:conv_1", {"updated": True})
    await client.until("conversation.updated")


async def test_late_news_keeps_the_order(a, bus, conversation, monkeypatch):
    """A turn that is over when its news comes is told before the one behind it, whichever was heard of first."""
    client = MemoryClient()
    await subscribe(a, client, conversation)
    with monkeypatch.context() as held:
        held.setattr(bus, "publish", lambda *_: None)
        first = await a.create(conversation=conversation, input="one")
        second = await a.create(MemoryClient(), conversation=conversation, input="two")
        a.engine.say("1")
        a.engine.end()
        await first.ended.wait()
    bus.deliver("conversation:conv_1", {"begun": second.response_id})
    bus.deliver("conversation:conv_1", {"begun": first.response_id})
    await until(lambda: client.types().count("conversation.item.added") == 2)
    added = [frame["item"] for frame in client.frames if frame["type"] == "conversation.item.added"]
    assert [item["response_id"] for item in added] == [first.response_id, second.response_id]


@pytest.mark.parametrize("how", ["leaves", "is cancelled", "meets a silent store", "names nothing"])
async def test_nothing_is_left_of_a_subscription(a, store, bus, conversation, how):
    """However it ends, no handler and no task of the feed remains."""
    before = bus.listeners
    client = MemoryClient()
    if how == "leaves":
        await subscribe(a, client, conversation)
        assert bus.listeners == before + 1
        await a.chat.leave(client)
    elif how == "is cancelled":
        with store.pause("turns"):
            joining = asyncio.create_task(subscribe(a, client, conversation))
            await store.held("turns")
            joining.cancel()
            with pytest.raises(asyncio.CancelledError):
                await joining
    elif how == "meets a silent store":
        store.is_away = True
        with pytest.raises(ProtocolError):
            await subscribe(a, client, conversation)
        store.is_away = False
    else:
        with pytest.raises(ProtocolError):
            await subscribe(a, client, "conv_none")
    assert bus.listeners == before
    assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("feed") and not task.cancelling()]
    await subscribe(a, client, conversation)
    assert client.types()[-1] == "conversation.subscribed"


async def test_a_silent_bus_holds_up_one_feed_at_a_time(a, store, bus, conversation, monkeypatch):
    """Whoever opens a feed while Redis is away waits for that one alone, and nobody waits in order to leave."""
    store.conversations["conv_2"] = replace(store.conversations[conversation], id="conv_2")
    here, there = MemoryClient(), MemoryClient()
    await subscribe(a, here, "conv_2")
    asked, is_back, ask = asyncio.Event(), asyncio.Event(), bus.subscribe

    async def slowly(channel, handler):
        if channel == f"conversation:{conversation}":
            asked.set()
            await is_back.wait()
        await ask(channel, handler)

    monkeypatch.setattr(bus, "subscribe", slowly)
    waiting = asyncio.create_task(subscribe(a, MemoryClient(), conversation))
    await asked.wait()
    async with asyncio.timeout(5):
        await subscribe(a, there, "conv_2")
        await a.chat.leave(here)
    is_back.set()
    await waiting
    assert not here.subscriptions
    assert there.types() == ["conversation.subscribed"]
