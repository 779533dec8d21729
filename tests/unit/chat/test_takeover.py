"""An answer outlives its gateway and its engine: it goes on elsewhere, from its text so far."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import replace

import pytest

from server.chat import generation as generations
from server.chat import takeover
from server.models.model import ModelState
from server.models.pool import LOCAL
from server.models.state import Phase
from server.store.base import StoreUnavailableError
from tests.support.memory import MemoryClient, until
from tests.support.scripted import ScriptedEngine


async def begun(gateway, text="Hello ", **fields):
    """A response that has said something and goes on."""
    generation = await gateway.create(**fields)
    gateway.engine.say(text)
    await gateway.client.until("response.output_text.delta")
    return generation


async def follower(gateway, response_id, after=None):
    client = MemoryClient()
    command = {"type": "response.retrieve", "response_id": response_id}
    await gateway.handle(client, **command, **({} if after is None else {"starting_after": after}))
    return client


def check_whole(events, text):
    """One answer: rising numbers, everything announced once, the text without a seam, one end."""
    numbers = [event["sequence_number"] for event in events]
    assert numbers == sorted(set(numbers))
    names = [event["type"] for event in events]
    for name in ("response.created", "response.output_item.added", "response.content_part.added"):
        assert names.count(name) == 1, name
    assert "".join(event.get("delta", "") for event in events) == text
    assert names[-1] == "response.completed"
    assert events[-1]["response"]["output"][0]["content"][0]["text"] == text


async def test_the_answer_goes_on_elsewhere(a, b, store):
    """Its client reconnects and has one whole answer; the engine is asked for the rest, not for all of it."""
    generation = await begun(a, max_output_tokens=100)
    await a.die()
    await b.takeover.adopt_orphans()
    there = await follower(b, generation.response_id, a.client.of()[-1]["sequence_number"])
    b.engine.say("world")
    b.engine.end()
    await there.until("response.completed")
    check_whole(a.client.of() + there.of(), "Hello world")
    (request,) = b.engine.requests
    assert request.prompt.continuation.text == "Hello "
    assert request.sampling.max_tokens == 100 - len("Hello ")
    assert store.responses[generation.response_id].epoch == 2


async def test_a_listener_elsewhere_sees_a_pause_only(a, b, make_gateway):
    """It follows on a gateway that lives: the adopting one or a third."""
    c = await make_gateway("c")
    generation = await begun(a)
    clients = [await follower(gateway, generation.response_id) for gateway in (b, c)]
    await a.die()
    await b.takeover.adopt_orphans()
    b.engine.say("world")
    b.engine.end()
    for client in clients:
        await client.until("response.completed")
        check_whole(client.of(), "Hello world")


@pytest.mark.parametrize("when", ["before anything was said", "while it waits", "before the first text"])
async def test_it_dies_early(a, b, store, conversation, when):
    """The answer is made from its beginning, announced once."""
    first = await a.create(conversation=conversation) if when == "while it waits" else None
    generation = await a.create(MemoryClient(), conversation=conversation)
    if when == "before anything was said":
        await a.die()
        store.journals.clear()
    else:
        await a.die()
    await b.takeover.adopt_orphans()
    if first is not None:
        b.engine.say("first")
        b.engine.end()
        client = await follower(b, first.response_id)
        await client.until("response.completed")
    client = await follower(b, generation.response_id)
    b.engine.say("all")
    b.engine.end()
    await client.until("response.completed")
    check_whole(client.of(), "all")


async def test_gateways_that_die_one_after_the_other(make_gateway, store, monkeypatch):
    """Up to a bound; then it fails with the text that clients have seen."""
    monkeypatch.setattr(takeover, "MAX_TAKEOVERS", 2)
    gateways = [await make_gateway(name) for name in "abcd"]
    generation = await begun(gateways[0], "0")
    for number, (old, new) in enumerate(itertools.pairwise(gateways[:3]), start=1):
        await old.die()
        await new.takeover.adopt_orphans()
        client = await follower(new, generation.response_id)
        new.engine.say(f"{number}")
        while client.text() != "012"[: number + 1]:
            await client.until("response.output_text.delta", client.types().count("response.output_text.delta") + 1)
    await gateways[2].die()
    await gateways[3].takeover.adopt_orphans()
    client = await follower(gateways[3], generation.response_id)
    end = await client.until("response.failed")
    assert client.text() == "012"
    assert end["response"]["output"][0]["content"][0]["text"] == "012"
    assert store.responses[generation.response_id].status == "failed"


async def test_a_model_that_is_elsewhere(a, b, make_gateway):
    """A gateway without the model leaves the answer to one that has it, also where it was the first to see it."""
    generation = await begun(a)
    c = await make_gateway("c")
    await a.die()
    b.pool.models.clear()
    for gateway in (b, c, b):
        await gateway.takeover.adopt_orphans()
    client = await follower(b, generation.response_id)
    c.engine.say("world")
    c.engine.end()
    await client.until("response.completed")
    assert client.text() == "Hello world"


async def test_a_model_that_is_not_here(a, b, monkeypatch):
    """It fails with its text where nobody goes on with it."""
    monkeypatch.setattr(takeover, "FOREIGN_S", 0)
    generation = await begun(a)
    await a.die()
    b.pool.models.clear()
    await b.takeover.adopt_orphans()
    client = await follower(b, generation.response_id)
    assert (await client.until("response.failed"))["response"]["error"]["code"] == "server_error"
    assert client.text() == "Hello "


@pytest.mark.parametrize("when", ["claim", "read_events"])
async def test_the_store_goes_away_during_a_takeover(a, b, store, when):
    """Also where the claim was taken and its reply lost: the next round goes on with it."""
    generation = await begun(a)
    await a.die()
    with store.pause(when) as gate:
        adopting = asyncio.create_task(b.takeover.adopt_orphans())
        await store.held(when)
        if when == "claim":  # taken, and its reply lost
            record = store.responses[generation.response_id]
            store.responses[generation.response_id] = replace(record, gateway="b", epoch=2)
        store.is_away = True
        gate.set()
        with pytest.raises(StoreUnavailableError):
            await adopting
    store.is_away = False
    assert await store.orphans() == {}
    await b.takeover.adopt_orphans()
    client = await follower(b, generation.response_id)
    b.engine.say("world")
    b.engine.end()
    await client.until("response.completed")
    check_whole(client.of(), "Hello world")


async def test_two_gateways_want_it(a, b, make_gateway, store):
    """One gets it."""
    c = await make_gateway("c")
    generation = await begun(a)
    await a.die()
    await asyncio.gather(b.takeover.adopt_orphans(), c.takeover.adopt_orphans())
    assert sorted([b.chat.running, c.chat.running]) == [0, 1]
    assert store.responses[generation.response_id].epoch == 2


async def test_claiming_what_runs_here_begins_no_second_answer(a, store):
    """Our own heartbeat had stopped for a while."""
    generation = await begun(a)
    store.kill("a")
    await a.takeover.adopt_orphans()
    assert a.chat.running == 1
    a.engine.end()
    await a.client.until("response.completed")
    check_whole(a.client.of(), "Hello ")
    assert len(a.engine.requests) == 1
    assert generation.is_ended


async def test_a_gateway_that_was_only_asleep(a, b, store):
    """It comes back when its response has been taken over: it writes nothing more, and its listeners go on there."""
    generation = await begun(a)
    store.kill("a")
    await b.takeover.adopt_orphans()
    a.engine.say("stale")
    b.engine.say("world")
    b.engine.end()
    await a.client.until("response.completed")
    check_whole(a.client.of(), "Hello world")
    assert a.engine.unfinished == 0
    assert generation.is_ended


async def test_it_comes_back(a, b, store):
    """Taken from us and given back while our old one still winds up."""
    generation = await begun(a)
    store.kill("a")
    await b.takeover.adopt_orphans()
    await b.die()
    await store.heartbeat("a", 5)
    await a.takeover.adopt_orphans()
    assert store.responses[generation.response_id].epoch == 3
    a.engine.say("stale")  # for the old request, which is refused; the new one asks for the rest
    await until(lambda: len({request.id for request in a.engine.requests}) == 2 and a.engine.unfinished == 1)
    a.engine.say("world")
    a.engine.end()
    await a.client.until("response.completed")
    numbers = [event["sequence_number"] for event in a.client.of()]
    assert numbers == sorted(set(numbers))
    assert a.client.of()[-1]["response"]["output"][0]["content"][0]["text"] == a.client.text()


async def test_who_stops_adopts_nothing(a, b, store):
    """What others leave is not failed, but left to those who stay."""
    generation = await begun(a)
    await a.die()
    with store.pause("read_events"):
        adopting = asyncio.create_task(b.takeover.adopt_orphans())
        await store.held("read_events")
        b.takeover.stop_adopting()
    await adopting
    await b.takeover.adopt_orphans()
    await b.takeover.retire()
    assert store.responses[generation.response_id].status == "in_progress"
    assert await store.orphans() == {generation.response_id: "m"}


async def test_many_orphans_do_not_stop_the_heart(a, b, store, monkeypatch):
    """It beats between them."""
    monkeypatch.setattr(takeover, "HEARTBEAT_S", 0.0)
    for _ in range(3):
        await a.create(MemoryClient())
    await a.die()
    before = store.calls.count("heartbeat")
    await b.takeover.adopt_orphans()
    assert store.calls.count("heartbeat") >= before + 3


async def test_a_standstill_is_not_a_death(a, b, store, monkeypatch):
    """Where our own beats were far apart, others get time to beat before they count as dead."""
    monkeypatch.setattr(takeover, "STANDSTILL_S", 0.02)
    monkeypatch.setattr(takeover, "GRACE_S", 0.05)
    generation = await begun(a)
    beating = asyncio.create_task(b.takeover.run())
    await until(lambda: "orphans" in store.calls)
    with store.pause("heartbeat"):
        await store.held("heartbeat")
        store.kill("a")
        await asyncio.wait([beating], timeout=0.03)
    looks = store.calls.count("orphans")
    await asyncio.wait([beating], timeout=0.03)
    assert store.calls.count("orphans") == looks
    await store.heartbeat("a", 5)
    await until(lambda: store.calls.count("orphans") > looks)
    beating.cancel()
    assert store.responses[generation.response_id].gateway == "a"


async def test_a_store_that_is_away_is_noted(a, store):
    """For readiness; and noted again when it is back."""
    beating = asyncio.create_task(a.takeover.run())
    store.is_away = True
    await until(lambda: not a.takeover.store_is_up)
    store.is_away = False
    await until(lambda: a.takeover.store_is_up)
    beating.cancel()


async def test_an_engine_that_dies(a):
    """Its answer waits for the next engine, and goes on from its text: numbers rise, nothing twice."""
    await begun(a)
    a.engine.die()
    await until(lambda: a.model.state is not ModelState.READY)
    engine = ScriptedEngine()
    a.replace_engine(engine)
    engine.say("world")
    engine.end()
    end = await a.client.until("response.completed")
    check_whole(a.client.of(), "Hello world")
    assert engine.requests[0].prompt.continuation.text == "Hello "
    assert end["response"]["usage"]["output_tokens"] == len("Hello world")


async def test_a_replica_that_dies(a):
    """Its answer goes on in another one at once; that one's own answers do not notice."""
    generation = await begun(a)
    other = a.model.new_replica((LOCAL,))
    other.engine = engine = ScriptedEngine()
    other.set(Phase.READY, "ready")
    a.engine.die()
    engine.say("world")
    engine.end()
    await a.client.until("response.completed")
    check_whole(a.client.of(generation.response_id), "Hello world")
    assert engine.requests[0].prompt.continuation.text == "Hello "
    assert other.leases == 0


async def test_a_conversation_keeps_its_replica(a, conversation):
    """Where its prefix is cached; other turns go to the one that is less busy."""
    other = a.model.new_replica((LOCAL,))
    other.engine = engine = ScriptedEngine()
    other.set(Phase.READY, "ready")
    a.model.resize()
    for _ in range(2):
        a.engine.say("mine")
        a.engine.end()
        await a.create(conversation=conversation)
        await a.client.until("response.completed")
    await a.create()  # as neither is busy, to the first one
    await until(lambda: len(a.engine.requests) == 3)
    await a.create()
    await until(lambda: len(engine.requests) == 1)
    await a.create(conversation=conversation)
    await until(lambda: len(a.engine.requests) == 4)


async def test_engines_that_die_one_after_the_other(a):
    """Up to a bound; then the response fails and keeps its text."""
    await begun(a)
    for _ in range(generations.MAX_ENGINES):
        a.engine.die()
        await until(lambda: a.model.ready_engine is None)
        a.replace_engine(ScriptedEngine())
    end = await a.client.until("response.failed")
    assert end["response"]["error"]["code"] == "engine_error"
    assert end["response"]["output"][0]["content"][0]["text"] == "Hello "


async def test_a_window_that_the_text_has_filled(a, b, store):
    """The rest has no room: the answer ends as it would have, with `max_output_tokens`."""
    generation = await begun(a, "x" * 50, max_output_tokens=50)
    await a.die()
    await b.takeover.adopt_orphans()
    client = await follower(b, generation.response_id)
    end = await client.until("response.incomplete")
    assert end["response"]["incomplete_details"]["reason"] == "max_output_tokens"
    assert client.text() == "x" * 50
    assert b.engine.requests == []
