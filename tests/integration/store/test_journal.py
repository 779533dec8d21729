"""Journals and gateways: events written once, fenced, read back; answers that change hands."""

from __future__ import annotations

import asyncio

import pytest

from server.store.base import FencedError, History, JournalEntry, StoreError


def events(name: str, numbers: range, *, epoch: int = 1) -> list[JournalEntry]:
    return [JournalEntry(name, epoch, number, b"event %d of epoch %d" % (number, epoch)) for number in numbers]


@pytest.fixture
async def running(store, scene):
    await store.create_conversation(scene.conversation(), [], None)
    await store.begin(scene.turn("r1"))
    await store.start("r1", 1)
    return store


async def test_events_come_back_as_written(running):
    """Any bytes, in order, from any number on, as many as asked for."""
    data = [b"", b"\r\n$3\r\nfoo\r\n", bytes(range(256)), "häß🫠".encode(), b"x" * 300_000]
    assert await running.append([JournalEntry("r1", 1, n, d) for n, d in enumerate(data)]) == frozenset()
    assert await running.read_events("r1", after=-1, count=99) == list(enumerate(data))
    assert await running.read_events("r1", after=1, count=2) == [(2, data[2]), (3, data[3])]
    assert await running.read_events("r1", after=4, count=2) == []
    assert (await running.get_response("ann", "r1")).last_sequence_number == 4


async def test_one_batch_serves_many_responses(store, scene):
    """A batch of a thousand events for fifty responses: each gets its own, those that are gone are named."""
    for number in range(50):
        await store.begin(scene.turn(f"r{number}", conversation=None))
    batch = [JournalEntry(f"r{n % 50}", 1, n // 50, b"%d" % n) for n in range(1000)]
    batch[10:10] = events("gone", range(2))
    assert await store.append(batch) == {"gone"}
    for number in range(50):
        read = await store.read_events(f"r{number}", after=-1, count=99)
        assert read == [(n // 50, b"%d" % n) for n in range(number, 1000, 50)]


async def test_an_empty_batch_is_nothing(store):
    """No events, no round trip, nothing refused."""
    assert await store.append([]) == frozenset()


async def test_repeating_a_batch_is_harmless(running):
    """The reply was lost: the same batch again, or a longer one, leaves each event once."""
    await running.append(events("r1", range(5)))
    assert await running.append(events("r1", range(5))) == frozenset()
    assert await running.append(events("r1", range(8))) == frozenset()
    assert [number for number, _ in await running.read_events("r1", after=-1, count=99)] == list(range(8))


async def test_finish_completes_the_log_and_lets_it_expire(running, scene, shared_server, prefix):
    """Events that were appended already are not repeated; the log then goes before the response does."""
    await running.append(events("r1", range(3)))
    await running.finish(scene.end("r1", events=[(2, b"again"), (3, b"end")]))
    read = await running.read_events("r1", after=-1, count=99)
    assert [number for number, _ in read] == [0, 1, 2, 3]
    assert read[3] == (3, b"end")
    assert 0 < shared_server.call("TTL", f"{prefix}:events:r1") <= 600
    shared_server.call("DEL", f"{prefix}:events:r1")
    assert await running.read_events("r1", after=-1, count=99) == []
    assert (await running.get_response("ann", "r1")).last_sequence_number == 3


async def test_another_gateway_takes_over(running, scene):
    """An orphan gets a new owner and epoch; from then on, not only from its first event on, the old one is fenced."""
    await running.append(events("r1", range(3)))
    assert await running.orphans() == {"r1": "m"}
    taken = await running.claim("r1", "g2")
    assert (taken.takeovers, taken.gateway, taken.last_sequence_number) == (1, "g2", 2)
    assert await running.append(events("r1", range(3, 5))) == {"r1"}
    with pytest.raises(FencedError):
        await running.finish(scene.end("r1"))
    with pytest.raises(FencedError):
        await running.start("r1", 1)
    assert isinstance(await running.start("r1", taken.epoch), History)
    assert await running.append(events("r1", range(3, 6), epoch=taken.epoch)) == frozenset()
    assert await running.append(events("r1", range(3, 6), epoch=taken.epoch)) == frozenset()
    assert await running.append(events("r1", range(6, 7))) == {"r1"}
    read = await running.read_events("r1", after=1, count=3)
    assert read == [(2, b"event 2 of epoch 1"), *((n, b"event %d of epoch %d" % (n, taken.epoch)) for n in (3, 4))]
    await running.finish(scene.end("r1", epoch=taken.epoch, events=[(6, b"end")]))
    assert await running.orphans() == {}


async def test_a_takeover_before_the_first_event_starts_at_zero(running):
    """The new owner's first event may have number 0 when the old one wrote none."""
    taken = await running.claim("r1", "g2")
    assert await running.append(events("r1", range(1))) == {"r1"}
    assert await running.append(events("r1", range(1), epoch=taken.epoch)) == frozenset()


async def test_only_orphans_are_claimed(running, scene):
    """A gateway that lives keeps its responses; ended and unknown ones are nobody's."""
    await running.heartbeat("g1", 60)
    assert await running.orphans() == {}
    assert await running.claim("r1", "g2") is None
    assert await running.claim("nowhere", "g2") is None
    await running.finish(scene.end("r1"))
    assert await running.claim("r1", "g2") is None


async def test_one_of_many_claims_wins(running):
    """Ten gateways see the same orphan: one gets it; its own repeat gets the same again."""
    for number in range(10):
        await running.heartbeat(f"h{number}", 60)
    claims = await asyncio.gather(*(running.claim("r1", f"h{number}") for number in range(10)))
    won = [claim for claim in claims if claim is not None]
    assert len(won) == 1
    assert await running.claim("r1", won[0].gateway) == won[0]


async def test_waiting_turns_are_orphans_too(running, scene):
    """A turn that waits at a gateway that died is adopted as a running one is, and keeps its place."""
    await running.begin(scene.turn("r2", gateway="g9"))
    await running.heartbeat("g1", 60)
    assert await running.orphans() == {"r2": "m"}
    taken = await running.claim("r2", "g1")
    assert taken.status == "queued"
    assert await running.start("r2", taken.epoch) == 1


async def test_a_refused_command_is_an_error_and_the_connection_lives(running, shared_server, prefix):
    """A key of a wrong type is a fault of ours, plainly said; the journal goes on."""
    shared_server.call("SET", f"{prefix}:events:odd", 1)
    with pytest.raises(StoreError, match="WRONGTYPE"):
        await running.append(events("odd", range(1)))
    assert await running.append(events("r1", range(2))) == frozenset()
