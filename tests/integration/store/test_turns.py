"""Turns: acknowledged once, answered in order, ended once."""

from __future__ import annotations

import asyncio

import pytest

from server.store.base import (
    Begun,
    FencedError,
    History,
    NotFoundError,
    NotInConversationError,
    ResponseRunningError,
    TurnQueueFullError,
)


@pytest.fixture
async def conversation(store, scene):
    return await store.create_conversation(scene.conversation(), [], None)


async def test_a_turn_goes_from_begin_to_finish(store, scene, conversation):
    """Begin acknowledges and gives the history, where no turn is before; finish keeps the answer, moves the head."""
    assert await store.begin(scene.turn("r1")) == Begun("r1", duplicate=False, position=0, history=History((), None))
    assert (await store.get_response("ann", "r1")).status == "in_progress"
    assert (await store.get_conversation("ann", "c")).running_response == "r1"
    assert await store.finish(scene.end("r1", events=[(0, b"a"), (1, b"b")])) is None
    stored = await store.get_response("ann", "r1")
    assert (stored.status, stored.snapshot, stored.last_sequence_number) == ("completed", b'{"status":"completed"}', 1)
    assert (scene.texts(stored.items), scene.texts(stored.output)) == (["ask-r1"], ["answer-r1"])
    assert (stored.model, stored.request, stored.epoch, stored.gateway) == ("m", b'{"request":1}', 1, "g1")
    after = await store.get_conversation("ann", "c")
    assert (after.head, after.running_response) == ("r1", None)


async def test_the_next_turn_sees_what_was_said(store, scene, conversation):
    """Begin, start and history return the chain from the root: inputs and answers in order."""
    await scene.answer(store, "r1")
    await scene.answer(store, "r2")
    begun = await store.begin(scene.turn("r3"))
    said = await store.start("r3", 1)
    assert begun.history == said
    assert isinstance(said, History)
    assert scene.texts(said.items) == ["ask-r1", "answer-r1", "ask-r2", "answer-r2"]
    assert said.head == "r2"
    assert await store.history("ann", conversation="c", previous=None) == said
    branch = await store.history("ann", conversation="c", previous="r1")
    assert scene.texts(branch.items) == ["ask-r1", "answer-r1"]


async def test_a_chain_can_leave_a_conversation(store, scene, conversation):
    """previous_response_id without the conversation continues from it and leaves its head alone."""
    await scene.answer(store, "r1")
    await scene.answer(store, "side", conversation=None, previous="r1")
    assert (await store.get_conversation("ann", "c")).head == "r1"
    said = await store.history("ann", conversation=None, previous="side")
    assert scene.texts(said.items) == ["ask-r1", "answer-r1", "ask-side", "answer-side"]


async def test_first_items_come_before_the_first_turn(store, scene):
    """The items a conversation was made with are part of every history."""
    await store.create_conversation(scene.conversation(), [scene.item("rules", "system")], None)
    assert scene.texts((await store.history("ann", conversation="c", previous=None)).items) == ["rules"]
    await scene.answer(store, "r1")
    said = await store.history("ann", conversation="c", previous=None)
    assert scene.texts(said.items) == ["rules", "ask-r1", "answer-r1"]


async def test_twenty_sends_of_one_command_make_one_turn(store, scene, conversation):
    """Racing repeats with one command id: one is the turn, nineteen are told which."""
    begun = await asyncio.gather(*(store.begin(scene.turn(f"r{n}", command_id="k")) for n in range(20)))
    assert len({answer.response_id for answer in begun}) == 1
    assert sum(not answer.duplicate for answer in begun) == 1
    items, _ = await store.list_items("ann", "c", after=None, limit=99)
    assert len(items) == 1
    assert await store.find_command("ann", "k") == begun[0].response_id
    assert await store.find_command("bob", "k") is None


async def test_a_command_stays_known_after_its_turn_ended(store, scene, conversation):
    """The second send comes after a reconnect, the answer is there already: no second turn."""
    await scene.answer(store, "r1", command_id="k")
    assert await store.begin(scene.turn("r2", command_id="k")) == Begun("r1", duplicate=True, position=0)


async def test_repeating_a_begin_is_harmless(store, scene, conversation):
    """A lost reply: the same turn again is the same turn, in its place, not a duplicate; its start has to be asked."""
    await store.begin(scene.turn("r1"))
    assert await store.begin(scene.turn("r1")) == Begun("r1", duplicate=False, position=0)
    assert await store.start("r1", 1) == History((), None)
    for _ in range(3):
        assert await store.begin(scene.turn("r2", command_id="k")) == Begun("r2", duplicate=False, position=1)


async def test_turns_begun_at_once_have_one_order(store, scene, conversation):
    """Two devices at the same moment: none lost, the positions are the order in which they are answered."""
    begun = await asyncio.gather(*(store.begin(scene.turn(f"r{n}")) for n in range(10)))
    order = [b.response_id for b in sorted(begun, key=lambda b: b.position)]
    assert sorted(b.position for b in begun) == list(range(10))
    for index, name in enumerate(order):
        later = order[index + 1] if index + 1 < len(order) else None
        if later is not None:
            assert await store.start(later, 1) == 1
        said = await store.start(name, 1)
        assert isinstance(said, History)
        assert len(said.items) == 2 * index
        assert await store.finish(scene.end(name)) == later


async def test_a_turn_cancelled_while_it_waits_keeps_its_place(store, scene, conversation):
    """It ends at once, wherever it stands; what it asked stays in the conversation, in the order of begin."""
    for name in ("r1", "r2", "r3"):
        await store.begin(scene.turn(name))
    await store.start("r1", 1)
    assert await store.finish(scene.end("r2", status="incomplete")) is None
    assert (await store.get_response("ann", "r2")).status == "incomplete"
    assert await store.start("r3", 1) == 1
    with pytest.raises(FencedError):
        await store.start("r2", 1)
    with pytest.raises(ResponseRunningError):
        await store.begin(scene.turn("x", previous="r2"))
    assert await store.finish(scene.end("r1")) == "r3"
    said = await store.start("r3", 1)
    assert isinstance(said, History)
    assert scene.texts(said.items) == ["ask-r1", "answer-r1", "ask-r2", "answer-r2"]
    await store.finish(scene.end("r3"))
    items, _ = await store.list_items("ann", "c", after=None, limit=99)
    assert scene.texts(items) == [f"{kind}-r{n}" for n in (1, 2, 3) for kind in ("ask", "answer")]


async def test_the_first_end_wins(store, scene, conversation):
    """Stop twice, stop after the end: the second changes nothing and returns the same."""
    await store.begin(scene.turn("r1"))
    await store.begin(scene.turn("r2"))
    await store.start("r1", 1)
    end = scene.end("r1", events=[(0, b"only")])
    assert await store.finish(end) == "r2"
    assert await store.finish(end) == "r2"
    assert await store.finish(scene.end("r1", status="failed", text="other")) == "r2"
    stored = await store.get_response("ann", "r1")
    assert (stored.status, scene.texts(stored.output)) == ("completed", ["answer-r1"])
    assert await store.read_events("r1", after=-1, count=9) == [(0, b"only")]


async def test_start_may_be_repeated(store, scene, conversation):
    """A lost reply, or a takeover: the same history, although the head may have moved by then."""
    await scene.answer(store, "r1")
    await store.begin(scene.turn("r2"))
    first = await store.start("r2", 1)
    assert await store.start("r2", 1) == first
    assert (await store.get_response("ann", "r2")).previous == "r1"


async def test_a_full_queue_is_refused(open_store, shared_server, prefix, scene):
    """One runs, two may wait, the fourth hears that the queue is full; the place is free after an end."""
    store = await open_store(shared_server.url, key_prefix=prefix, max_waiting=2)
    await store.create_conversation(scene.conversation(), [], None)
    for name in ("r1", "r2", "r3"):
        await store.begin(scene.turn(name))
    with pytest.raises(TurnQueueFullError, match="2 turns wait"):
        await store.begin(scene.turn("r4", command_id="k"))
    assert await store.find_command("ann", "k") is None
    await store.finish(scene.end("r1"))
    assert (await store.begin(scene.turn("r4", command_id="k"))).position == 2


async def test_wrong_parents_are_refused(store, scene, conversation):
    """A parent in another conversation, one that runs, one that does not exist: each by its own error."""
    await store.create_conversation(scene.conversation("d"), [], None)
    await scene.answer(store, "in-d", conversation="d")
    await store.begin(scene.turn("runs"))
    with pytest.raises(NotInConversationError, match="in-d"):
        await store.begin(scene.turn("x", previous="in-d"))
    with pytest.raises(NotInConversationError):
        await store.history("ann", conversation="c", previous="in-d")
    with pytest.raises(ResponseRunningError, match="runs"):
        await store.begin(scene.turn("x", previous="runs"))
    with pytest.raises(ResponseRunningError):
        await store.history("ann", conversation="c", previous="runs")
    with pytest.raises(NotFoundError) as missing:
        await store.begin(scene.turn("x", previous="nowhere"))
    assert (missing.value.kind, missing.value.id) == ("previous_response", "nowhere")
    with pytest.raises(NotFoundError):
        await store.get_response("ann", "x")


async def test_a_failed_turn_stays_in_the_history(store, scene, conversation):
    """Its partial text was seen: the next turn follows it."""
    await store.begin(scene.turn("r1"))
    await store.finish(scene.end("r1", status="failed", text="par"))
    assert scene.texts((await store.history("ann", conversation="c", previous=None)).items) == ["ask-r1", "par"]


@pytest.mark.parametrize("inside", [True, False])
async def test_a_chain_of_a_thousand_turns(store, scene, conversation, inside):
    """History comes whole and in order, in one round trip."""
    previous = None
    for number in range(1000):
        where = {} if inside else {"conversation": None, "previous": previous}
        await store.begin(scene.turn(f"r{number}", **where))
        previous = f"r{number}"
        await store.finish(scene.end(previous))
    said = await store.history("ann", conversation="c" if inside else None, previous=None if inside else previous)
    assert scene.texts(said.items) == [f"{kind}-r{n}" for n in range(1000) for kind in ("ask", "answer")]
