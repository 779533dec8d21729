"""A Redis that loses the newest part of what it had acknowledged gets it again, in its order, before all else."""

from __future__ import annotations

import asyncio
import logging
import signal

import pytest

from server.store.base import FencedError, History, JournalEntry, NotFoundError, StoreUnavailableError
from tests.support.valkey_log import LogEnd, forget_since, log_end


@pytest.fixture
async def begun(own_server, open_store, scene):
    """A store on a server that will forget; conversation c, r1 running with its first event."""
    store = await open_store(own_server.url)
    await store.create_conversation(scene.conversation(), [], None)
    await store.begin(scene.turn("r1"))
    await store.start("r1", 1)
    await store.append([JournalEntry("r1", 1, 0, b"zero")])
    return store


def forget(own_server, end: LogEnd) -> None:
    """Kill it, and start it without what came after `end`."""
    own_server.stop(signal.SIGKILL)
    forget_since(end)
    own_server.start()


async def numbers(store, response: str) -> list[int]:
    return [number for number, _ in await store.read_events(response, after=-1, count=99)]


async def test_a_journal_has_no_hole(own_server, begun):
    """Events that were acknowledged and lost come back before the next ones."""
    end = log_end(own_server.folder)
    for number in range(1, 5):
        await begun.append([JournalEntry("r1", 1, number, b"%d" % number)])
    forget(own_server, end)
    assert await begun.append([JournalEntry("r1", 1, 5, b"5")]) == frozenset()
    assert await numbers(begun, "r1") == [0, 1, 2, 3, 4, 5]


async def test_a_whole_turn_comes_back(own_server, begun, scene):
    """A conversation, a turn, its start, its events and its end: the first question finds all of it."""
    end = log_end(own_server.folder)
    await begun.create_conversation(scene.conversation("d"), [], None)
    await begun.begin(scene.turn("r2", conversation="d"))
    await begun.start("r2", 1)
    await begun.append([JournalEntry("r2", 1, 0, b"zero")])
    await begun.finish(scene.end("r2", events=[(1, b"end")]))
    await begun.update_conversation("ann", "d", {"title": "new"})
    forget(own_server, end)
    assert (await begun.get_response("ann", "r2")).status == "completed"
    conversation = await begun.get_conversation("ann", "d")
    assert (conversation.head, conversation.metadata) == ("r2", {"title": "new"})
    assert await numbers(begun, "r2") == [0, 1]


async def test_questions_asked_at_once_all_wait_for_it(own_server, begun, scene):
    """Many connections open at the same time, and none sees what is missing."""
    end = log_end(own_server.folder)
    await begun.finish(scene.end("r1"))
    forget(own_server, end)
    found = await asyncio.gather(*(begun.get_response("ann", "r1") for _ in range(30)))
    assert {response.status for response in found} == {"completed"}


async def test_a_server_may_forget_again_what_it_was_told_again(own_server, begun):
    """Twice lost, twice written."""
    end = log_end(own_server.folder)
    await begun.append([JournalEntry("r1", 1, 1, b"one")])
    for _ in range(2):
        forget(own_server, end)
        assert await numbers(begun, "r1") == [0, 1]


async def test_each_gateway_brings_its_own(own_server, begun, open_store, scene):
    """Two gateways, each with writes of its own: all come back, whoever asks first."""
    other = await open_store(own_server.url)
    await other.begin(scene.turn("r2", conversation=None, gateway="g2"))
    await other.start("r2", 1)
    end = log_end(own_server.folder)
    await begun.append([JournalEntry("r1", 1, 1, b"one")])
    await other.append([JournalEntry("r2", 1, 0, b"zero")])
    forget(own_server, end)
    assert await numbers(begun, "r1") == [0, 1]
    await other.append([JournalEntry("r2", 1, 1, b"one")])
    assert await numbers(begun, "r2") == [0, 1]


async def test_what_was_not_lost_is_not_written_again(own_server, begun, open_store, caplog):
    """A plain restart: a title that another gateway has changed since stays as it is."""
    await begun.update_conversation("ann", "c", {"title": "ours"})
    other = await open_store(own_server.url)
    await other.update_conversation("ann", "c", {"title": "theirs"})
    with caplog.at_level(logging.WARNING):
        own_server.stop()  # killed, it might lose what waits for a disk that is still busy with what was before
        own_server.start()
        assert (await begun.get_conversation("ann", "c")).metadata == {"title": "theirs"}
    assert "had lost" not in caplog.text


async def test_what_others_have_deleted_stays_deleted(own_server, begun, open_store):
    """Our lost events find no response any more, and bring none back."""
    end = log_end(own_server.folder)
    await begun.append([JournalEntry("r1", 1, 1, b"one")])
    forget(own_server, end)
    other = await open_store(own_server.url)
    await other.delete_conversation("ann", "c")
    assert await begun.append([JournalEntry("r1", 1, 2, b"two")]) == {"r1"}
    with pytest.raises(NotFoundError):
        await begun.get_conversation("ann", "c")
    assert own_server.call("KEYS", "tw:events:*") == []


async def test_a_server_that_wakes_up_does_not_do_what_was_given_up(own_server, begun, open_store, scene):
    """Hung, it has the command already; its writer has said that it failed, so it must not be done."""
    hasty = await open_store(own_server.url, operation_timeout_s=1)
    await hasty.ping()
    own_server.send(signal.SIGSTOP)
    writes = [
        asyncio.create_task(write)
        for write in (
            hasty.begin(scene.turn("r2")),
            hasty.finish(scene.end("r1")),
            hasty.update_conversation("ann", "c", {"title": "late"}),
        )
    ]
    for write in writes:
        with pytest.raises(StoreUnavailableError):
            await write
    own_server.send(signal.SIGCONT)
    await hasty.ping()
    assert (await begun.get_response("ann", "r1")).status == "in_progress"
    assert (await begun.get_conversation("ann", "c")).metadata == {}
    with pytest.raises(NotFoundError):
        await begun.get_response("ann", "r2")


async def test_a_new_turn_waits_for_those_that_were_lost(own_server, begun, open_store, scene):
    """The gateway that is back first does not come before the turns that another one has yet to bring back."""
    other = await open_store(own_server.url)
    await other.begin(scene.turn("r2", conversation=None, gateway="g2"))
    await asyncio.sleep(1.5)  # a server tells its age in whole seconds
    end = log_end(own_server.folder)
    await other.begin(scene.turn("r3", gateway="g2"))
    forget(own_server, end)
    early = asyncio.create_task(begun.begin(scene.turn("r4")))
    await asyncio.sleep(0.3)
    await other.ping()
    assert (await early).position == 2
    assert await begun.turns("c") == ["r1", "r3", "r4"]


@pytest.fixture
def fail_over(own_server):
    """Lose what came after `end` as a failover to a replica that lags does: the server that is there is no new one."""

    def lose(end: LogEnd, *stores) -> None:
        forget(own_server, end)
        for store in stores:
            store._client.redo.since_us = 2**52  # the server's age tells them nothing

    return lose


async def test_a_takeover_that_was_lost_comes_before_another(begun, open_store, own_server, scene, fail_over):
    """Whoever is back first does not take what another gateway has taken already, and has yet to bring back."""
    first, second = [await open_store(own_server.url) for _ in "12"]
    end = log_end(own_server.folder)
    for name, store in (("g2", first), ("g3", second)):
        await store.heartbeat(name, 60)
    taken = await first.claim("r1", "g2")
    await first.append([JournalEntry("r1", taken.epoch, 1, b"one")])
    await second.begin(scene.turn("r2", gateway="g3"))
    fail_over(end, first, second)
    early = asyncio.create_task(second.claim("r1", "g3"))
    await asyncio.sleep(0.3)
    await first.heartbeat("g2", 60)
    assert await early is None
    assert await first.append([JournalEntry("r1", taken.epoch, 2, b"two")]) == frozenset()
    assert await numbers(second, "r1") == [0, 1, 2]


async def test_a_takeover_that_was_lost_and_made_by_another_is_fenced(begun, open_store, own_server, scene):
    """The one whose claim was lost, and that is back too late, writes no event among those of the other."""
    first = await open_store(own_server.url)
    end = log_end(own_server.folder)
    taken = await first.claim("r1", "g2")
    await first.append([JournalEntry("r1", taken.epoch, 1, b"lost")])
    forget(own_server, end)
    second = await open_store(own_server.url)
    await second.heartbeat("g3", 60)
    again = await second.claim("r1", "g3")
    await second.append([JournalEntry("r1", again.epoch, 1, b"one")])
    assert await first.append([JournalEntry("r1", taken.epoch, 2, b"two")]) == {"r1"}
    with pytest.raises(FencedError):
        await first.finish(scene.end("r1", epoch=taken.epoch, events=[(3, b"end")]))
    assert await second.append([JournalEntry("r1", again.epoch, 2, b"two")]) == frozenset()
    assert await second.read_events("r1", after=0, count=9) == [(1, b"one"), (2, b"two")]


async def test_a_false_alarm_repeats_nothing(begun, caplog):
    """Many connections are opened while others write: nothing was lost, and nothing is said to be."""
    with caplog.at_level(logging.WARNING):
        await asyncio.gather(
            *(begun.update_conversation("ann", "c", {"n": str(number)}) for number in range(200)),
            *(begun.append([JournalEntry("r1", 1, number, b"e")]) for number in range(1, 50)),
        )
    assert "had lost" not in caplog.text


async def test_what_is_missing_may_yet_come(own_server, begun, open_store, scene):
    """Who asks first for what another gateway has yet to bring back waits for it, and is not told that it is gone."""
    other = await open_store(own_server.url)
    await other.ping()
    await asyncio.sleep(1.5)  # a server tells its age in whole seconds
    end = log_end(own_server.folder)
    await begun.begin(scene.turn("r5", conversation=None))
    forget(own_server, end)
    early = asyncio.create_task(other.get_response("ann", "r5"))
    await asyncio.sleep(0.3)
    await begun.ping()
    assert (await early).id == "r5"
    with pytest.raises(NotFoundError):
        await other.get_response("ann", "r6")


@pytest.mark.parametrize("how", ["crash", "failover"])
async def test_turns_of_several_gateways_come_back_in_their_order(own_server, begun, open_store, scene, fail_over, how):
    """Each writes its own again, whoever is back first: the one order is the one that clients have seen."""
    other = await open_store(own_server.url)
    if how == "crash":
        await asyncio.sleep(1.5)  # a server tells its age in whole seconds
    end = log_end(own_server.folder)
    await begun.finish(scene.end("r1"))
    for number in range(2, 8):
        gateway, name = (begun, "g1") if number % 2 else (other, "g2")
        await gateway.begin(scene.turn(f"r{number}", gateway=name))
    assert isinstance(await other.start("r2", 1), History)
    await other.finish(scene.end("r2"))
    fail_over(end, *((begun, other) if how == "failover" else ()))
    back = asyncio.create_task(begun.ping())
    await asyncio.sleep(0.3)
    await asyncio.gather(back, other.ping())
    assert await begun.turns("c") == ["r3", "r4", "r5", "r6", "r7"]
    assert (await other.get_conversation("ann", "c")).head == "r2"
    assert (await other.get_response("ann", "r2")).previous == "r1"


async def test_what_is_long_written_is_never_written_again(own_server, open_store, scene, caplog):
    """A gateway that has had nothing to write for so long that its count has expired takes back no newer title."""
    ours, theirs = await open_store(own_server.url, redo_s=0.2), await open_store(own_server.url)
    await ours.create_conversation(scene.conversation(), [], None)
    await ours.update_conversation("ann", "c", {"title": "ours"})
    await asyncio.sleep(0.3)
    await ours.heartbeat("g1", 5)
    await theirs.update_conversation("ann", "c", {"title": "theirs"})
    own_server.call("DEL", *own_server.call("KEYS", "tw:written:*"))
    own_server.stop()
    own_server.start()
    with caplog.at_level(logging.WARNING):
        assert (await ours.get_conversation("ann", "c")).metadata == {"title": "theirs"}
    assert "had lost" not in caplog.text


async def test_one_write_that_is_refused_for_good_stops_no_other(own_server, begun, scene, caplog):
    """What cannot be written again is left out and told; the gateway is not cut off from its store for it."""
    end = log_end(own_server.folder)
    await begun.append([JournalEntry("r1", 1, 1, b"one")])
    await begun.update_conversation("ann", "c", {"title": "new"})
    forget(own_server, end)
    own_server.call("SET", "tw:events:r1", "no stream")
    assert (await begun.get_conversation("ann", "c")).metadata == {"title": "new"}
    assert "is refused now: WRONGTYPE" in caplog.text


async def test_a_clock_that_jumps(begun, scene):
    """Redis's clock is put forward by an hour: no write is given up for it."""
    begun._client.redo._clock_ahead_us -= 3_600_000_000  # as if it had been told the time an hour ago
    assert (await begun.begin(scene.turn("r2"))).position == 1
    assert await begun.finish(scene.end("r1")) == "r2"
