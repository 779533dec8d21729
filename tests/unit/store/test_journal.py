"""The write-ahead tick: first Redis, then clients; one batch at a time, and the bytes that Redis holds."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from protocol.events import Event
from server.config import StoreConfig
from server.observe.metrics import Metrics
from server.store import journal as journals
from server.store.base import FencedError, NewTurn, StoreError, StoreUnavailableError
from server.store.journal import Journal
from tests.support.memory import MemoryStore, until


class Source:
    """A response that says what a test tells it to. told: what came back, in order."""

    def __init__(self, name: str, *, is_stored: bool = True) -> None:
        self.response_id = name
        self.epoch = 1
        self.is_stored = is_stored
        self.pending: list[Event] = []
        self.told: list[Any] = []
        self.takes = 0
        self._number = 0

    def say(self, *texts: str) -> None:
        for text in texts:
            self.pending.append(Event(self._number, text.encode(), text))
            self._number += 1

    def take_events(self) -> list[Event]:
        self.takes += 1
        events, self.pending = self.pending, []
        return events

    def acknowledge(self, events: list[Event]) -> None:
        self.told.append([event.data.decode() for event in events])

    def store_is_away(self) -> None:
        self.told.append("away")

    def refuse(self, error: StoreError) -> None:
        self.told.append(error)


@pytest.fixture(autouse=True)
def scaled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits of seconds take milliseconds."""
    monkeypatch.setattr(journals, "RETRY_FIRST_S", 0.001)
    monkeypatch.setattr(journals, "RETRY_MAX_S", 0.004)


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


MakeJournal = Callable[..., Journal]


@pytest.fixture
async def make_journal(store: MemoryStore) -> AsyncIterator[MakeJournal]:
    """A journal with a tick of 1 ms, which waits 50 ms for Redis."""
    made: list[Journal] = []

    def make(**settings: Any) -> Journal:
        config = StoreConfig(**({"tick_ms": 1.0, "unavailable_timeout_s": 0.05} | settings))
        made.append(Journal(store, Metrics(), config))
        made[-1].start()
        return made[-1]

    yield make
    for journal in made:
        await journal.close()


async def begin(store: MemoryStore, *names: str) -> list[Source]:
    for name in names:
        await store.begin(NewTurn(name, "ann", None, None, None, "m", 1, (), b"{}", b"{}", "g"))
    return [Source(name) for name in names]


def texts(store: MemoryStore, name: str) -> list[str]:
    return [entry.data.decode() for entry in store.journals[name]]


async def test_first_the_store_then_the_clients(store, make_journal):
    """Nothing is told before Redis holds it; then exactly what was written is."""
    journal = make_journal()
    (source,) = await begin(store, "r")
    source.say("a", "b")
    with store.pause("append"):
        journal.notify(source)
        await store.held("append")
        assert source.told == []
    await until(lambda: source.told)
    assert source.told == [["a", "b"]]
    assert texts(store, "r") == ["a", "b"]
    assert [(entry.epoch, entry.sequence_number) for entry in store.journals["r"]] == [(1, 0), (1, 1)]


async def test_one_batch_at_a_time(store, make_journal):
    """A slow Redis stretches the tick: what comes meanwhile, from anybody, gathers in the next batch."""
    journal = make_journal()
    one, two = await begin(store, "one", "two")
    with store.pause("append"):
        one.say("a")
        journal.notify(one, urgent=True)
        await store.held("append")
        for text in "bcd":
            one.say(text)
            two.say(text)
            journal.notify(one, urgent=True)
            journal.notify(two, urgent=True)
            for _ in range(5):
                await asyncio.sleep(0)
        assert store.waiting["append"] == 1
    await until(lambda: len(one.told) == 2 and two.told)
    assert one.told == [["a"], ["b", "c", "d"]]
    assert two.told == [["b", "c", "d"]]
    assert store.calls.count("append") == 2


async def test_a_tick_serves_all(store, make_journal):
    """Many responses, one round trip for as many as make a slice."""
    journal = make_journal(tick_ms=20)
    first, *others = await begin(store, *[f"r{number}" for number in range(2 * journals.SLICE + 1)])
    first.say("x")
    journal.notify(first)
    await until(lambda: first.told)
    for source in others:
        source.say("x")
        journal.notify(source)
    await until(lambda: all(source.told for source in others))
    assert store.calls.count("append") == 3


async def test_what_is_urgent_goes_before_the_rest_of_a_tick(store, make_journal):
    """A first token that comes in the middle of a tick waits for one slice of it, and no more."""
    journal = make_journal()
    urgent, *others = await begin(store, *[f"r{number}" for number in range(3 * journals.SLICE + 1)])
    with store.pause("append"):
        for source in others:
            source.say("x")
            journal.notify(source)
        await store.held("append")
        urgent.say("x")
        journal.notify(urgent, urgent=True)
    told: list[int] = []

    def acknowledge(_events: list[Event]) -> None:
        told.append(sum(bool(source.told) for source in others))

    urgent.acknowledge = acknowledge  # type: ignore[method-assign,assignment]
    await until(lambda: all(source.told for source in others))
    assert told == [journals.SLICE]


async def test_a_tick_meets_a_silent_store(store, make_journal):
    """Every response of it hears that it waits, also those of later slices; then they all fail together."""
    journal = make_journal(unavailable_timeout_s=0.02)
    sources = await begin(store, *[f"r{number}" for number in range(3 * journals.SLICE)])
    store.is_away = True
    for source in sources:
        source.say("x")
        journal.notify(source)
    await until(lambda: all(source.told and source.told[-1] != "away" for source in sources))
    assert all(source.told[0] == "away" for source in sources)
    assert all(isinstance(source.told[-1], StoreUnavailableError) for source in sources)
    tries = store.calls.count("append")
    store.is_away = False
    for source in sources:
        source.say("y")
        journal.notify(source)
    await until(lambda: all(source.told[-1] == ["y"] for source in sources))
    assert store.calls.count("append") - tries <= 3


class Sleepy(Source):
    """A response whose clients take long to be told. Only an upper bound of time shows in the tick."""

    def acknowledge(self, events: list[Event]) -> None:
        time.sleep(0.01)  # the work of some hundred frames
        super().acknowledge(events)


def tick_of(metrics: Metrics) -> float:
    (line,) = [line for line in metrics.render().decode().splitlines() if line.startswith("tokenwire_journal_tick")]
    return float(line.split()[1])


@pytest.mark.parametrize(("kind", "shortest_s"), [(Source, 0.001), (Sleepy, 0.05)])
async def test_much_work_stretches_the_tick(store, kind, shortest_s):
    """Ten milliseconds of it: the next flush comes after fifty at the earliest, so text gathers meanwhile."""
    metrics = Metrics()
    journal = Journal(store, metrics, StoreConfig(tick_ms=1.0, max_tick_ms=10_000))
    journal.start()
    await begin(store, "r")
    source = kind("r")
    source.say("a")
    journal.notify(source)
    await until(lambda: source.told and tick_of(metrics) > 0)
    await journal.close()
    assert tick_of(metrics) >= shortest_s


async def test_text_gathers_where_it_is_not_seen(store, monkeypatch):
    """Work that is little stretches the tick by the gap between an answer's tokens, and by no more."""
    monkeypatch.setattr(journals, "WORK_SHARE", 1e-9)  # whatever it is, it wants to be less often
    metrics = Metrics()
    journal = Journal(store, metrics, StoreConfig(tick_ms=1.0, max_tick_ms=10_000))
    journal.start()
    one, two = sources = await begin(store, "one", "two")
    ticks: list[float] = []
    for round_ in range(1, 4):
        await asyncio.sleep(0.02)  # an answer's next token
        for source in sources:
            source.say("a")
            journal.count(1)
            journal.notify(source)
        await until(lambda n=round_: len(one.told) == n and len(two.told) == n)  # type: ignore[misc]
        await until(lambda: not ticks or tick_of(metrics) != ticks[-1])
        ticks.append(tick_of(metrics))
    await journal.close()
    assert 0.001 < ticks[0] < ticks[1] < ticks[2]


async def test_what_is_urgent_does_not_wait_for_the_tick(store, make_journal):
    """With a tick that never comes: a first token goes out, and leaves what others have to the tick."""
    journal = make_journal(tick_ms=1000, max_tick_ms=1000)
    one, two = await begin(store, "one", "two")
    one.say("a")
    journal.notify(one)  # the first one finds the tick due
    await until(lambda: one.told)
    one.say("b")
    journal.notify(one)
    for _ in range(20):
        await asyncio.sleep(0)
    assert one.told == [["a"]]
    two.say("c")
    journal.notify(two, urgent=True)
    await until(lambda: two.told)
    assert two.told == [["c"]]
    assert one.told == [["a"]]
    journal.notify(one, urgent=True)
    await until(lambda: len(one.told) == 2)
    assert one.told == [["a"], ["b"]]


async def test_what_was_taken_over_is_refused(store, make_journal):
    """The one that is fenced, and no other; so is one that was deleted."""
    journal = make_journal()
    stale, fine, gone = await begin(store, "stale", "fine", "gone")
    store.kill("g")
    await store.claim("stale", "other")
    del store.responses["gone"]
    for source in (stale, fine, gone):
        source.say("x")
        journal.notify(source)
    await until(lambda: stale.told and fine.told and gone.told)
    assert isinstance(stale.told[0], FencedError)
    assert isinstance(gone.told[0], FencedError)
    assert fine.told == [["x"]]
    assert texts(store, "stale") == []


async def test_a_store_that_comes_back_in_time(store, make_journal):
    """The batch is tried again until it is taken; clients are told to wait; nothing is lost or twice."""
    journal = make_journal(unavailable_timeout_s=30)
    (source,) = await begin(store, "r")
    store.is_away = True
    source.say("a")
    journal.notify(source)
    await until(lambda: source.told.count("away") >= 2)
    source.say("b")
    journal.notify(source)
    store.is_away = False
    await until(lambda: ["b"] in source.told)
    assert [told for told in source.told if told != "away"] == [["a"], ["b"]]
    assert texts(store, "r") == ["a", "b"]


async def test_a_store_that_stays_away(store, make_journal):
    """After its time the batch is refused; the next one is tried anew, and the journal goes on."""
    journal = make_journal(unavailable_timeout_s=0.01)
    one, two = await begin(store, "one", "two")
    store.is_away = True
    one.say("a")
    journal.notify(one)
    await until(lambda: one.told and one.told[-1] != "away")
    assert isinstance(one.told[-1], StoreUnavailableError)
    store.is_away = False
    two.say("b")
    journal.notify(two)
    await until(lambda: two.told)
    assert two.told == [["b"]]


async def test_a_store_that_refuses_the_batch(store, make_journal, monkeypatch):
    """An error that waiting does not help fails the batch, not the gateway."""
    journal = make_journal()
    one, two = await begin(store, "one", "two")
    append = store.append

    async def refuses(entries: Any) -> Any:
        raise StoreError("NOPERM")

    monkeypatch.setattr(store, "append", refuses)
    one.say("a")
    journal.notify(one)
    await until(lambda: one.told)
    assert isinstance(one.told[0], StoreUnavailableError)
    monkeypatch.setattr(store, "append", append)
    two.say("b")
    journal.notify(two)
    await until(lambda: two.told)
    assert two.told == [["b"]]


@pytest.mark.parametrize("is_away", [False, True])
async def test_unstored_responses_do_not_wait_for_the_store(store, make_journal, is_away):
    """Their events come back in the tick, and are nowhere written; also in one batch with stored ones."""
    journal = make_journal(unavailable_timeout_s=0.02)
    (stored,) = await begin(store, "stored")
    unstored = Source("unstored", is_stored=False)
    store.is_away = is_away
    with store.pause("append"):
        for source in (stored, unstored):
            source.say("x")
            journal.notify(source)
        await until(lambda: unstored.told)
        assert stored.told == []
    await until(lambda: stored.told)
    assert unstored.told == [["x"]]
    assert texts(store, "unstored") == []


async def test_without_write_ahead(store, make_journal):
    """Clients first, the store behind: the setting for those who want the last millisecond."""
    journal = make_journal(write_ahead=False)
    (source,) = await begin(store, "r")
    with store.pause("append"):
        source.say("x")
        journal.notify(source)
        await until(lambda: source.told)
        assert texts(store, "r") == []
    await until(lambda: texts(store, "r"))
    assert source.told == [["x"]]
    store.kill("g")
    await store.claim("r", "other")
    source.say("y")
    journal.notify(source)
    await until(lambda: isinstance(source.told[-1], FencedError))


async def test_settled(store, make_journal):
    """It waits for a batch on its way, and takes back what is not: an end is written behind all that was before."""
    journal = make_journal()
    source, other = await begin(store, "r", "other")
    await journal.settled(source)  # nothing is on its way
    with store.pause("append"):
        source.say("a")
        journal.notify(source)
        await store.held("append")
        source.say("b")
        journal.notify(source)
        settling = asyncio.create_task(journal.settled(source))
        other_settling = asyncio.create_task(journal.settled(other))
        await other_settling
        assert not settling.done()
    await settling
    assert source.told == [["a"]]
    other.say("x")
    journal.notify(other)
    await until(lambda: other.told)
    assert source.told == [["a"]]
    assert [event.delta for event in source.pending] == ["b"]


async def test_settled_behind_a_refusal(store, make_journal):
    """A batch that is refused has landed, too."""
    journal = make_journal(unavailable_timeout_s=0.01)
    (source,) = await begin(store, "r")
    store.is_away = True
    source.say("a")
    journal.notify(source)
    await until(lambda: source.takes)
    await journal.settled(source)
    assert isinstance(source.told[-1], StoreUnavailableError)


async def test_a_response_that_fails_to_listen(store, make_journal, caplog):
    """Its fault is logged; the others of its batch, and the journal, go on."""
    journal = make_journal()
    one, two = await begin(store, "one", "two")

    def breaks(_events: list[Event]) -> None:
        raise ZeroDivisionError

    one.acknowledge = breaks  # type: ignore[method-assign,assignment]
    for source in (one, two):
        source.say("a")
        journal.notify(source)
    await until(lambda: two.told)
    two.say("b")
    journal.notify(two)
    await until(lambda: len(two.told) == 2)
    assert "ZeroDivisionError" in caplog.text


async def test_an_unexpected_end_is_told(store, make_journal):
    """Who watches the journal hears what ended it; who waits for a batch is let go."""
    journal = make_journal()
    (source,) = await begin(store, "r")

    def breaks() -> list[Event]:
        raise ZeroDivisionError

    source.take_events = breaks  # type: ignore[method-assign]
    watching = asyncio.create_task(journal.wait())
    journal.notify(source)
    await asyncio.wait([watching])
    assert isinstance(watching.exception(), ZeroDivisionError)
    await journal.settled(source)


async def test_closing(store, make_journal):
    """Twice is once; who watches is let go."""
    journal = make_journal()
    watching = asyncio.create_task(journal.wait())
    await asyncio.sleep(0)
    await journal.close()
    await journal.close()
    await asyncio.wait([watching])
    assert watching.cancelled()
