"""Use cases that need no second gateway: what a silent store does to them."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from protocol.commands import ConversationCreate
from protocol.errors import ProtocolError
from protocol.events import Written
from server.access.admission import Admission
from server.chat.generation import Generation
from server.engine.base import Chunk
from server.models.state import Phase
from server.store.base import StoreError
from tests.support.memory import MemoryClient
from tests.unit.chat.conftest import settle


async def test_a_plain_text_conversation_without_a_store(a, store):
    """The first line of a connection makes its conversation: the fault is one that the client is told."""
    store.is_away = True
    with pytest.raises(ProtocolError) as caught:
        await a.chat.new_conversation(a.client.user, ConversationCreate())
    assert caught.value.code == "store_unavailable"
    assert caught.value.retry_after_ms
    store.is_away = False


@pytest.mark.parametrize("method", ["append", "finish"])
async def test_a_store_that_refuses_to_write(a, store, monkeypatch, method):
    """Whatever the store's reason, the listener hears of an end, and the gateway goes on."""

    async def refuses(_what: Any) -> Any:
        raise StoreError("NOPERM")

    generation = await a.create()
    a.engine.say("Hello")
    await a.client.until("response.output_text.delta")
    with monkeypatch.context() as patch:
        patch.setattr(store, method, refuses)
        a.engine.say(" world")
        if method == "finish":
            a.engine.end()
        end = await a.client.until("response.failed")
    assert end["response"]["error"]["code"] == "store_unavailable"
    assert end["response"]["output"][0]["content"][0]["text"] == a.client.text()
    assert generation.is_ended
    await a.create()
    a.engine.end()
    await a.client.until("response.completed")


async def test_a_cold_start_is_told(a):
    """Why the turn waits, and how far the load is, until it is answered."""
    (replica,) = a.model.replicas
    replica.set(Phase.LOADING, "loading weights", 0.25)
    await a.create()
    for number, progress in enumerate((0.25, 0.5, 0.75), start=1):
        replica.set(Phase.LOADING, "loading weights", progress)
        waiting = (await a.client.until("response.queued", number))["tokenwire"]
        assert waiting == {"reason": "model_loading", "progress": progress, "detail": "loading weights"}
    replica.set(Phase.READY, "ready")
    a.engine.end()
    await a.client.until("response.completed")


async def test_a_turn_whose_model_was_removed_while_it_waited(a, conversation):
    """It stood behind another one in its conversation: it fails with a reason, and does not wait for ever."""
    await a.create(conversation=conversation)
    late = await a.create(conversation=conversation)
    a.model.is_removed = True
    a.model.replicas[0].drain("unloading")
    a.engine.end()
    await a.client.until("response.completed")
    end = await a.client.until("response.failed")
    assert late.is_ended
    assert end["response"]["error"] == {"code": "model_not_found", "message": "the model 'm' was removed"}


async def test_a_stopping_gateway_writes_the_end_that_it_told_first(a, store):
    """The client has heard `failed`: an answer left without that end would be continued by another gateway."""
    generation = await a.create()
    a.engine.say("Hello")
    await a.client.until("response.output_text.delta")
    store.is_away = True
    a.engine.say(" world")
    await a.client.until("response.failed")
    stopping = asyncio.create_task(a.chat.drain(10))
    await settle()
    assert not stopping.done()
    store.is_away = False
    await stopping
    assert store.responses[generation.response_id].status == "failed"


async def test_chunks_that_meet_in_a_tick_are_one_event(a, store):
    """While a batch is on its way to Redis, what the engine hands over gathers."""
    a.engine.hands_over = True
    await a.create()
    a.engine.say("a")
    await a.client.until("response.output_text.delta")
    with store.pause("append"):
        a.engine.say("b")
        await store.held("append")
        for letter in "cde":
            a.engine.say(letter)
            await settle()
    a.engine.end()
    end = await a.client.until("response.completed")
    deltas = [frame["delta"] for frame in a.client.frames if frame["type"] == "response.output_text.delta"]
    assert deltas == ["a", "b", "cde"]
    assert end["response"]["usage"]["output_tokens"] == 5


async def test_a_chunk_that_comes_after_the_end_changes_nothing(a):
    """An engine hears of an abort only after the stream has ended."""
    generation = await a.create()
    a.engine.say("Hello")
    await a.client.until("response.output_text.delta")
    generation.cancel()
    end = await a.client.until("response.incomplete")
    generation._receive(Chunk(" world", 1))
    await settle()
    assert a.client.text() == "Hello"
    assert end["response"]["usage"]["output_tokens"] == 5


async def test_going_on_never_asks_for_more_than_the_window(a, b, store):
    """The text so far may have more tokens than the engine counted when it made it."""
    a.engine.context_length = b.engine.context_length = 100
    generation = await a.create()
    a.engine.say("x" * 10)
    await a.client.until("response.output_text.delta")
    await a.die()

    async def extend(prompt: Any, written: Written) -> Any:
        return type(prompt)((), prompt.token_count + 2 * len(written.text), prompt.messages, written)

    b.engine.extend = extend
    b.engine.end()
    await b.takeover.adopt_orphans()
    await b.handle(type="response.retrieve", response_id=generation.response_id)
    await b.client.until("response.completed")
    (request,) = b.engine.requests
    assert request.prompt.token_count + request.sampling.max_tokens <= 100
    assert request.sampling.max_tokens > 0


async def test_going_on_asks_for_no_more_tokens_than_were_left(a, b, store):
    """`min_tokens` counts what was said before, else it may be more than the rest that is allowed."""
    generation = await a.create(min_tokens=8, max_output_tokens=10)
    a.engine.say("x" * 6)
    await a.client.until("response.output_text.delta")
    await a.die()
    b.engine.end()
    await b.takeover.adopt_orphans()
    await b.handle(type="response.retrieve", response_id=generation.response_id)
    await b.client.until("response.completed")
    (first,), (second,) = a.engine.requests, b.engine.requests
    said = first.sampling.max_tokens - second.sampling.max_tokens
    assert 0 < said < 8
    assert first.sampling.min_tokens == 8
    assert second.sampling.min_tokens == 8 - said


@pytest.mark.parametrize("fields", [{}, {"truncation": "auto", "max_output_tokens": 1000}], ids=str)
async def test_more_tokens_than_there_is_room_for(a, fields):
    """A `min_tokens` that can never be reached is the client's fault, and is said before the turn begins."""
    a.engine.context_length = 100
    with pytest.raises(ProtocolError, match="room for") as caught:
        await a.create(min_tokens=200, **fields)
    assert (caught.value.code, caught.value.param) == ("invalid_request", "min_tokens")


@pytest.fixture
def no_collections() -> Iterator[None]:
    """Only what nobody refers to is freed."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collections")
@pytest.mark.parametrize("fields", [{}, {"store": False}, {"generate": False}], ids=str)
async def test_an_ended_response_is_freed_at_once(a, fields):
    """It holds a whole history, which may be megabytes: too much to wait for a collection of cycles."""
    generation = await a.create(**fields)
    a.engine.say("Hello")
    a.engine.end()
    await a.client.until("response.completed")
    await generation.ended.wait()
    await settle()
    left = weakref.ref(generation)
    del generation
    assert left() is None


@pytest.mark.usefixtures("no_collections")
async def test_a_refused_turn_is_freed_at_once(a):
    """Its prompt did not fit: it is a large one."""
    a.engine.context_length = 0
    with pytest.raises(ProtocolError, match="window is 0 tokens"):
        await a.create()
    await settle()
    # Not isinstance: torch, where a test before has imported it, has objects that warn when they are asked.
    assert not [made for made in gc.get_objects() if type(made) is Generation]


@pytest.mark.parametrize("is_loaded", [True, False])
async def test_of_many_turns_at_once_no_more_begin_than_may_wait(a, is_loaded):
    """The others are refused at once, with a hint, and not begun to fail; who leaves makes room."""
    a.model.admission = Admission(1 if is_loaded else 0, 3 if is_loaded else 4)
    if not is_loaded:
        a.model.replicas.clear()
    clients = [MemoryClient(f"user {number}") for number in range(12)]
    begun = await asyncio.gather(*(a.create(client) for client in clients), return_exceptions=True)
    errors = [error for error in begun if isinstance(error, ProtocolError)]
    assert (len(errors), {error.code for error in errors}) == (8, {"server_is_overloaded"})
    assert all(error.retry_after_ms for error in errors)
    generations = [generation for generation in begun if isinstance(generation, Generation)]
    assert not any(generation.is_ended for generation in generations)
    generations[-1].cancel()
    await generations[-1].ended.wait()
    await settle()
    await a.create(clients[-1])
