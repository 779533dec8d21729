"""A response of another gateway: streamed as one of our own, for as long as somebody listens here."""

from __future__ import annotations

import asyncio

import pytest

from protocol.errors import ProtocolError
from server.chat import following, service
from tests.support.memory import MemoryClient, until


async def begun(gateway, text="Hello ", **fields):
    """A response that has said something and goes on."""
    generation = await gateway.create(**fields)
    gateway.engine.say(text)
    await gateway.client.until("response.output_text.delta")
    return generation


async def retrieve(gateway, client, response_id, **fields):
    await gateway.handle(client, type="response.retrieve", response_id=response_id, **fields)


def finish(gateway, text="world"):
    gateway.engine.say(text)
    gateway.engine.end()


def numbers(client):
    return [event["sequence_number"] for event in client.of()]


async def gone(gateway):
    """Return when no follower of a gateway runs any more."""
    while running := [task for task in asyncio.all_tasks() if task.get_name().startswith("follow ")]:
        await asyncio.wait(running)


async def test_it_streams_there_as_here(a, b):
    """All events, the same bytes, in order, while they come and not at the end."""
    generation = await begun(a)
    there = MemoryClient()
    await retrieve(b, there, generation.response_id, stream_id="lane")
    assert there.text() == "Hello "
    finish(a)
    await there.until("response.completed")
    await a.client.until("response.completed")
    assert [{**event, "stream_id": "lane"} for event in a.client.of()] == [
        {**event, "stream_id": "lane"} for event in there.of()
    ]
    assert {event["stream_id"] for event in there.of()} == {"lane"}


async def test_resuming_there(a, b):
    """From the number on that the client had here: no gap, no repetition."""
    generation = await begun(a)
    had = a.client.of()[-1]["sequence_number"]
    there = MemoryClient()
    await retrieve(b, there, generation.response_id, starting_after=had)
    assert there.of() == []
    finish(a)
    await there.until("response.completed")
    assert there.text() == "world"
    assert numbers(there)[0] == had + 1


async def test_two_at_once_share_one_follower(a, b, store):
    """Both have all of it; the journal is read for both together."""
    generation = await begun(a)
    clients = [MemoryClient(), MemoryClient()]
    with store.pause("read_events"):
        asking = [asyncio.create_task(retrieve(b, client, generation.response_id)) for client in clients]
        await store.held("read_events")
        assert len([task for task in asyncio.all_tasks() if task.get_name().startswith("follow ")]) == 1
    await asyncio.gather(*asking)
    finish(a)
    for client in clients:
        await client.until("response.completed")
        assert client.text() == "Hello world"
        assert numbers(client) == sorted(set(numbers(client)))


async def test_it_ends_while_we_look(a, b, store):
    """Between the record that says it runs and the first read of the journal: the end is there all the same."""
    generation = await begun(a)
    whole, terminal = MemoryClient(), MemoryClient()
    with store.pause("read_events"):
        asking = [
            asyncio.create_task(retrieve(b, whole, generation.response_id)),
            asyncio.create_task(b.handle(terminal, type="response.cancel", response_id=generation.response_id)),
        ]
        await store.held("read_events")
        finish(a)
        await a.client.until("response.completed")
    await asyncio.gather(*asking)
    assert whole.text() == "Hello world"
    assert terminal.types() == ["response.completed"]


async def test_a_silent_store_leaves_nothing_behind(a, b, store):
    """The client is told to try again; when it does, it gets everything."""
    generation = await begun(a)
    there = MemoryClient()
    with store.pause("read_events") as gate:
        asking = asyncio.create_task(retrieve(b, there, generation.response_id))
        await store.held("read_events")
        store.is_away = True
        gate.set()
        with pytest.raises(ProtocolError) as caught:
            await asking
    assert caught.value.code == "store_unavailable"
    store.is_away = False
    await retrieve(b, there, generation.response_id)
    finish(a)
    await there.until("response.completed")
    assert there.text() == "Hello world"


async def test_a_client_that_leaves_while_we_look_leaves_nothing_behind(a, b, store):
    """Its follower ends by itself; the next client is served."""
    generation = await begun(a)
    with store.pause("read_events"):
        asking = asyncio.create_task(retrieve(b, MemoryClient(), generation.response_id))
        await store.held("read_events")
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
    await gone(b)
    there = MemoryClient()
    await retrieve(b, there, generation.response_id)
    finish(a)
    await there.until("response.completed")
    assert there.text() == "Hello world"


async def test_following_ends_with_the_last_listener(a, b, bus):
    """Some time after it: no task, no handler; and who comes back in between finds it going."""
    generation = await begun(a)
    before = bus.listeners
    first, second = MemoryClient(), MemoryClient()
    await retrieve(b, first, generation.response_id)
    first.leave()
    await retrieve(b, second, generation.response_id)
    a.engine.say("wor")
    await second.until("response.output_text.delta", 2)
    second.leave()
    await gone(b)
    assert bus.listeners == before
    third = MemoryClient()
    await retrieve(b, third, generation.response_id)
    finish(a, "ld")
    await third.until("response.completed")
    assert third.text() == "Hello world"


async def test_who_comes_while_a_follower_ends_gets_another(a, b, bus, monkeypatch):
    """A follower that takes its leave of the bus is not given to anybody."""
    generation = await begun(a)
    first, second = MemoryClient(), MemoryClient()
    leaving, may_leave = asyncio.Event(), asyncio.Event()
    unsubscribe = bus.unsubscribe

    async def slowly(channel, handler):
        leaving.set()
        await may_leave.wait()
        await unsubscribe(channel, handler)

    await retrieve(b, first, generation.response_id)
    monkeypatch.setattr(bus, "unsubscribe", slowly)
    first.leave()
    await leaving.wait()
    await retrieve(b, second, generation.response_id)
    may_leave.set()
    finish(a)
    await second.until("response.completed")
    assert second.text() == "Hello world"


async def test_lost_wakes_are_repaired(a, b, bus):
    """Pub/sub is down: the stream is looked at from time to time."""
    generation = await begun(a)
    there = MemoryClient()
    await retrieve(b, there, generation.response_id)
    bus.is_cut = True
    finish(a)
    await there.until("response.completed")
    assert there.text() == "Hello world"


async def test_a_store_that_comes_back(a, b, store):
    """A follower waits for it and goes on."""
    generation = await begun(a)
    there = MemoryClient()
    await retrieve(b, there, generation.response_id)
    store.is_away = True
    calls = store.calls.count("read_events")
    await b.handle(MemoryClient(), type="response.processed")
    for follower in b.chat._following._followers.values():
        follower._wake({})
    await until(lambda: store.calls.count("read_events") >= calls + 2)
    store.is_away = False
    finish(a)
    await there.until("response.completed")
    assert there.text() == "Hello world"


async def test_cancelling_from_there(a, b):
    """It stops here, keeps its text, and both hear one end."""
    generation = await begun(a)
    there = MemoryClient()
    await b.handle(there, type="response.cancel", response_id=generation.response_id)
    for client in (there, a.client):
        end = await client.until("response.incomplete")
        assert end["response"]["incomplete_details"] == {"reason": "cancelled"}
    assert there.types()[-1:] == ["response.incomplete"]
    assert there.text() == ""
    assert generation.is_ended


async def test_cancelling_what_is_followed_already(a, b):
    """Nothing is heard twice: a cancel is no second subscription."""
    generation = await begun(a)
    there = MemoryClient()
    await b.handle(there, type="response.retrieve", response_id=generation.response_id)
    await b.handle(there, type="response.cancel", response_id=generation.response_id)
    await there.until("response.incomplete")
    numbers = [event["sequence_number"] for event in there.of()]
    assert numbers == sorted(set(numbers))


async def test_a_cancel_that_is_lost_is_asked_again(a, b, bus):
    """Until the response has ended."""
    generation = await begun(a)
    there = MemoryClient()
    bus.is_cut = True
    await b.handle(there, type="response.cancel", response_id=generation.response_id)
    sent = len(bus.sent)
    await until(lambda: len(bus.sent) > sent)
    assert not generation.is_ended
    bus.is_cut = False
    await there.until("response.incomplete")


async def test_a_cancel_outlives_the_gateway_and_who_asked(a, b, store, bus):
    """Stopped in the seconds before a dead gateway's answer is taken over, by a client that leaves: it is stopped."""
    generation = await begun(a)
    await a.die()
    there = MemoryClient()
    await b.handle(there, type="response.cancel", response_id=generation.response_id)
    there.leave()
    await asyncio.wait([asyncio.create_task(gone(b))], timeout=2 * following.LINGER_S)
    await b.takeover.adopt_orphans()
    await until(lambda: store.responses[generation.response_id].status != "in_progress")
    assert store.responses[generation.response_id].status == "incomplete"


async def test_listeners_there_keep_it_alive(make_gateway, store, bus):
    """Nobody listens here any more; the answer goes on for the client of the other gateway."""
    a = await make_gateway("a", orphan_grace_s=0.02)
    b = await make_gateway("b", orphan_grace_s=0.02)
    generation = await begun(a)
    there = MemoryClient()
    await retrieve(b, there, generation.response_id)
    a.client.leave()
    for _ in range(5):
        a.engine.say(".")
        await asyncio.wait([asyncio.create_task(generation.ended.wait())], timeout=0.02)
    finish(a)
    assert (await there.until("response.completed"))["response"]["status"] == "completed"


async def test_a_deleted_conversation_ends_what_is_followed(a, b, store, conversation):
    """The listener there hears of an end, with the text so far, although no journal tells it."""
    generation = await begun(a, conversation=conversation)
    there = MemoryClient()
    await retrieve(b, there, generation.response_id)
    await store.delete_conversation("ann", conversation)
    end = await there.until("response.failed")
    assert end["response"]["error"]["code"] == "conversation_not_found"
    assert end["response"]["output"][0]["content"][0]["text"] == "Hello "
    assert numbers(there) == sorted(set(numbers(there)))


async def test_a_journal_that_has_expired(a, b, store):
    """What ended and is stored without its events answers with its end alone, whole."""
    generation = await begun(a)
    there = MemoryClient()
    await retrieve(b, there, generation.response_id)
    finish(a)
    await a.client.until("response.completed")
    store.journals.clear()
    late = MemoryClient()
    await retrieve(b, late, generation.response_id)
    assert late.types() == ["response.completed"]
    assert late.frames[0]["response"]["output"][0]["content"][0]["text"] == "Hello world"


@pytest.mark.parametrize("is_stored", [True, False])
@pytest.mark.parametrize("beyond", [0, 1, 2**53])
async def test_nothing_is_left_to_read(a, is_stored, beyond):
    """Whoever has had all of an ended response, or asks for what comes after its end, is told its end again."""
    generation = await begun(a, store=is_stored)
    finish(a)
    end = await a.client.until("response.completed")
    heard = len(a.client.frames)
    after = min(end["sequence_number"] + beyond, 2**53 - 1)
    await retrieve(a, a.client, generation.response_id, starting_after=after)
    assert a.client.frames[heard:] == [end]


async def test_a_journal_that_expires_while_it_is_read(a, b, store, monkeypatch):
    """The client hears of the end all the same, whole, after the events that it got."""
    monkeypatch.setattr(service, "REPLAY_PAGE", 3)
    generation = await begun(a)
    finish(a)
    await a.client.until("response.completed")
    late = MemoryClient()
    write = late.write

    async def slowly(frame):
        await write(frame)
        store.journals.clear()

    monkeypatch.setattr(late, "write", slowly)
    await retrieve(b, late, generation.response_id)
    assert late.types()[:2] == ["response.created", "response.in_progress"]
    assert late.types().count("response.completed") == 1
    assert late.frames[-1]["response"]["output"][0]["content"][0]["text"] == "Hello world"
    assert numbers(late) == sorted(set(numbers(late)))


async def test_strangers(a, b):
    """Another account's response is not there, to follow or to cancel."""
    generation = await begun(a)
    for command in ("response.retrieve", "response.cancel"):
        for gateway in (a, b):
            with pytest.raises(ProtocolError) as caught:
                await gateway.handle(MemoryClient("eve"), type=command, response_id=generation.response_id)
            assert caught.value.code == "response_not_found"
    assert not generation.is_ended


async def test_repeating_a_command_there(a, b):
    """The same `id` on another gateway follows the first one's answer."""
    generation = await begun(a, id="k")
    there = MemoryClient()
    asked = await b.chat.create(there, generation.turn.command)
    assert asked is None
    finish(a)
    await there.until("response.completed")
    assert there.text() == "Hello world"


async def test_pages(a, b, monkeypatch):
    """A journal longer than one read is read to its end."""
    monkeypatch.setattr(following, "PAGE", 3)
    generation = await begun(a)
    for count in range(10):
        a.engine.say(f"{count}")
        await a.client.until("response.output_text.delta", count + 2)
    there = MemoryClient()
    await retrieve(b, there, generation.response_id)
    assert there.text() == "Hello 0123456789"
