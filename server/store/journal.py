"""The write-ahead tick: first Redis, then clients.

All running responses share one loop. Each tick it takes what every dirty source has, writes it in one round trip, and
only then tells the sources, which publish the very same bytes. One batch is in flight at a time. A flush that takes
longer than its share, or more of our work than its share, stretches the next tick, so that the sources' text gathers
into fewer, longer deltas: as long as no text comes later than a token and a tick after the one before, and under load
longer. What is urgent goes out between ticks, alone: many new answers must not cut the
deltas of all others short. A tick of many sources goes out in slices, urgent ones before each: who waits for a first
token, and everything else on the event loop, waits for one slice at most.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from protocol.events import Event
from server.config import StoreConfig
from server.observe.metrics import Metrics
from server.store.base import FencedError, JournalEntry, Store, StoreError, StoreUnavailableError

logger = logging.getLogger(__name__)

RETRY_FIRST_S = 0.05  # back-off while Redis is away: doubled up to
RETRY_MAX_S = 1.0
FLUSH_SHARE = 0.5  # of the time that flushing may take before ticks stretch
# Of the time, what our own work on flushes may take, without waiting for Redis, where text can gather unseen. An
# answer's frame costs 20 to 50 µs: vLLM's text, the journal, and much of it in the kernel, sending.
WORK_SHARE = 0.01
BUSY_SHARE = 0.2  # what it may take where it would be seen; then ticks stretch all the same
GAP_WEIGHT = 0.2  # of the newest tick in the average gap between an answer's tokens
SLICE = 32  # sources flushed at once: two to three milliseconds of our work, of which a round trip is a twentieth


class Source(Protocol):
    """A running response, as the journal sees it.

    is_stored: False for `store:false`; its events go straight back.
    """

    response_id: str
    epoch: int
    is_stored: bool

    def take_events(self) -> list[Event]: ...

    def acknowledge(self, events: list[Event]) -> None:
        """Redis holds these events: publish them."""
        ...

    def store_is_away(self) -> None:
        """The events wait for Redis, and will for some time: tell the clients."""
        ...

    def refuse(self, error: StoreError) -> None:
        """The events could not be stored: FencedError or StoreUnavailableError. Stop."""
        ...


class Journal:
    """Flush the events of all running responses, tick by tick, as `config` says."""

    def __init__(self, store: Store, metrics: Metrics, config: StoreConfig) -> None:
        self._store = store
        self._metrics = metrics
        self._config = config
        self._dirty: dict[Source, None] = {}
        self._has_work = asyncio.Event()
        self._urgent: dict[Source, None] = {}  # of the dirty ones
        self._hurry = asyncio.Event()
        self._in_flight: dict[Source, None] = {}
        self._landed = asyncio.Event()
        self._waited_s = 0.0  # for Redis, in this tick
        self._is_away = False  # Redis did not take the last batch
        self._tokens = 0  # that came since the last tick
        self._gap_s = 0.0  # between an answer's tokens, on average
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to tick. `wait()` tells of an unexpected end."""
        self._task = asyncio.create_task(self._run(), name="journal")

    async def wait(self) -> None:
        """Return only when the journal has been closed; raise what ended it otherwise."""
        if self._task is not None:
            await asyncio.shield(self._task)

    async def close(self) -> None:
        """Stop ticking; idempotent. Sources must have ended before."""
        if self._task is None:
            return
        task, self._task = self._task, None
        task.cancel()
        await asyncio.wait([task])

    def notify(self, source: Source, *, urgent: bool = False) -> None:
        """`source` has events. urgent: flush at once (a first token, an end), not at the next tick."""
        self._dirty[source] = None
        self._has_work.set()
        if urgent:
            self._urgent[source] = None
            self._hurry.set()

    def count(self, tokens: int) -> None:
        """So many tokens have come: the gaps between them tell how long text may gather."""
        self._tokens += tokens

    async def settled(self, source: Source) -> None:
        """Return when no batch with events of `source` is on its way; none will be until it notifies again."""
        self._dirty.pop(source, None)
        self._urgent.pop(source, None)
        while source in self._in_flight:
            await self._landed.wait()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        last = next_tick = loop.time()
        while True:
            await self._has_work.wait()
            if not await self._wait_until(next_tick):
                await self._flush(self._taken(()))
                continue
            started, self._waited_s = loop.time(), 0.0
            sources = await self._flush_all()
            self._note_gap(started - last, sources)
            last, next_tick = started, started + self._tick_s(loop.time() - started)

    async def _flush_all(self) -> int:
        """Flush all that have something, and return how many they were.

        In slices; in one while Redis is away, or each would wait its whole time.
        """
        due = tuple(self._dirty)
        size = max(1, len(due)) if self._is_away else SLICE
        for start in range(0, max(1, len(due)), size):
            await self._flush(self._taken(due[start : start + size]))
            if self._is_away:
                break
        return len(due)

    def _note_gap(self, since_s: float, sources: int) -> None:
        """Note how far apart an answer's tokens come, from those of so many answers since the last tick."""
        tokens, self._tokens = self._tokens, 0
        if tokens:
            gap_s = min(since_s * sources / tokens, self._config.max_tick_ms / 1000)
            self._gap_s += GAP_WEIGHT * (gap_s - self._gap_s)

    def _taken(self, due: Sequence[Source]) -> dict[Source, None]:
        """Return the sources to flush now, and count them as clean: those in a hurry, then those whose time it is."""
        batch = self._urgent
        batch.update((source, None) for source in due if source in self._dirty)
        self._urgent = {}
        self._hurry.clear()
        for source in batch:
            self._dirty.pop(source, None)
        if not self._dirty:
            self._has_work.clear()
        return batch

    def _tick_s(self, flush_s: float) -> float:
        """Return the time from one flush to the next, given how long the last one took."""
        work_s, least_s = flush_s - self._waited_s, self._config.tick_ms / 1000
        unseen_s = min(work_s / WORK_SHARE, self._gap_s + least_s)
        wanted_s = max(least_s, flush_s / FLUSH_SHARE, unseen_s, work_s / BUSY_SHARE)
        tick_s = min(wanted_s, self._config.max_tick_ms / 1000)
        self._metrics.journal_tick(tick_s)
        return tick_s

    async def _wait_until(self, deadline: float) -> bool:
        """Return True at the deadline (a loop time), or False sooner, when something is urgent."""
        try:
            async with asyncio.timeout_at(deadline):
                await self._hurry.wait()
        except TimeoutError:
            return True
        return asyncio.get_running_loop().time() >= deadline

    async def _flush(self, batch: dict[Source, None]) -> None:
        self._in_flight = batch
        self._landed.clear()
        try:
            await self._write([(source, source.take_events()) for source in self._in_flight])
        finally:
            self._in_flight = {}
            self._landed.set()

    async def _write(self, batches: list[tuple[Source, list[Event]]]) -> None:
        """Store the batch and settle each source; what need not wait for Redis does not."""
        stored = [(source, events) for source, events in batches if source.is_stored]
        self._settle([batch for batch in batches if not batch[0].is_stored], _no_error)
        if not self._config.write_ahead:
            self._settle(stored, _no_error)
        entries = [
            JournalEntry(source.response_id, source.epoch, event.sequence_number, event.journaled)
            for source, events in stored
            for event in events
        ]
        try:
            refused = await self._append(entries) if entries else frozenset()
        except StoreError as refusal:
            error = _unavailable(refusal)
            self._settle(stored, lambda _source: error)
            return
        fenced = FencedError("another gateway has taken this response over")
        if not self._config.write_ahead:
            stored = [(source, events) for source, events in stored if source.response_id in refused]
        self._settle(stored, lambda source: fenced if source.response_id in refused else None)

    async def _append(self, entries: list[JournalEntry]) -> frozenset[str]:
        """Write the batch, again and again until Redis takes it or the time is up."""
        loop = asyncio.get_running_loop()
        started = loop.time()
        delay = RETRY_FIRST_S
        while True:
            try:
                refused = await self._store.append(entries)
            except StoreUnavailableError:
                self._is_away = True
                if loop.time() + delay - started > self._config.unavailable_timeout_s:
                    raise
                for source in (*self._in_flight, *self._dirty):
                    if source.is_stored:
                        source.store_is_away()
                await asyncio.sleep(delay)
                delay = min(delay * 2, RETRY_MAX_S)
            else:
                self._is_away = False
                waited_s = loop.time() - started
                self._waited_s += waited_s
                self._metrics.journal_flushed(waited_s, len(entries))
                return refused

    def _settle(
        self, batches: list[tuple[Source, list[Event]]], error_of: Callable[[Source], StoreError | None]
    ) -> None:
        for source, events in batches:
            error = error_of(source)
            try:
                if error is None:
                    source.acknowledge(events)
                else:
                    source.refuse(error)
            except Exception:  # one response's fault must not end the journal of all others
                logger.exception("%r could not take what became of its events", source)


def _unavailable(error: StoreError) -> StoreUnavailableError:
    """Return what a batch fails with. A refusal that waiting does not help must not end the journal of all others."""
    if isinstance(error, StoreUnavailableError):
        return error
    logger.error("the store refused a batch of events: %s", error)
    return StoreUnavailableError(str(error))


def _no_error(_source: Source) -> None:
    return None
