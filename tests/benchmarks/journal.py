"""What an event costs our CPU on its way to Redis (tests/integration/store/benchmark_append.py has alternatives)."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Final

import uvloop

from server.config import LimitsConfig, StoreConfig
from server.store.base import JournalEntry, NewTurn
from server.store.embedded import EmbeddedValkey
from server.store.redis import RedisStore
from tests.benchmarks.figures import Figure, Spread, at_most
from tests.benchmarks.load import cpu_s

RESPONSES: Final = 128
BATCHES: Final = 40
AHEAD: Final = 3  # events that each answer has more than the one before it
DATA: Final = (
    b'{"type":"response.output_text.delta","sequence_number":1234,"item_id":"msg_0123456789abcdef",' + b" " * 66
)


def measure(sizes: tuple[int, ...], rounds: int) -> list[Figure]:
    """Batches of so many events, each of another response."""
    return uvloop.run(_measure(sizes, rounds))


async def _measure(sizes: tuple[int, ...], rounds: int) -> list[Figure]:
    figures = []
    with tempfile.TemporaryDirectory() as folder:
        valkey = EmbeddedValkey(Path(folder))
        store = RedisStore(await valkey.start(), StoreConfig(), LimitsConfig())
        await store.connect()
        for number in range(RESPONSES):
            await store.begin(NewTurn(f"r{number}", "o", None, None, None, "m", 1, (), b"", b"", "g"))
        for size in sizes:
            costs = [await _cost(store, size, first=run * BATCHES + 1) for run in range(rounds)]
            goal = at_most(3) if size > 1 else None
            figures.append(Figure("journal", f"client CPU per event, {size} a batch", "µs", Spread.of(costs), goal))
        await store.close()
        await valkey.stop()
    return figures


async def _cost(store: RedisStore, size: int, first: int) -> float:
    batches = [
        [_entry((batch * size + n) % RESPONSES, size, first + batch) for n in range(size)] for batch in range(BATCHES)
    ]
    used = cpu_s()
    for batch in batches:
        await store.append(batch)
    return (cpu_s() - used) / (BATCHES * size) * 1e6


def _entry(response: int, epoch: int, number: int) -> JournalEntry:
    """Return an event of an answer; each of them is somewhere else in its own."""
    return JournalEntry(f"r{response}", epoch, AHEAD * response + number, DATA)
