"""What an event costs our CPU on its way to Redis: `append` beside its alternatives, in one run.

    .venv/bin/python -m tests.integration.store.benchmark_append

Not a test: nothing is asserted. Each batch goes to as many running responses as it has events (up to 200), 160 bytes
an event, to a private Valkey; best of three. CPU is this process's alone; wall time includes the server's work.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import hiredis
import uvloop
from redis.asyncio import Redis

from server.config import LimitsConfig, StoreConfig
from server.store.base import JournalEntry, NewTurn
from server.store.embedded import EmbeddedValkey
from server.store.redis import RedisStore

RESPONSES = 200
EVENTS = 3000
DATA = b'{"type":"response.output_text.delta","sequence_number":1234,"item_id":"msg_0123456789abcdef",' + b" " * 66
SCRIPT = "for i = 1, #ARGV, 3 do redis.call('XADD', ARGV[i], ARGV[i + 1], 'e', ARGV[i + 2]) end return 1"

Batch = list[JournalEntry]
Way = Callable[[Batch], Awaitable[object]]


def arguments(batch: Batch) -> list[str | bytes]:
    parts: list[str | bytes] = []
    for entry in batch:
        parts += [f"tw:events:{entry.response_id}", f"{entry.epoch}-{entry.sequence_number}", entry.data]
    return parts


def ways(store: RedisStore, client: Redis) -> dict[str, Way]:
    async def pipeline(batch: Batch) -> None:
        pipe = client.pipeline(transaction=False)
        for entry in batch:
            pipe.execute_command("XADD", *arguments([entry])[:2], "e", entry.data)
        await pipe.execute()

    async def script(batch: Batch) -> None:
        await client.execute_command("EVAL", SCRIPT, 0, *arguments(batch))

    pack: Any = hiredis.pack_command  # annotated for tuples of one

    async def script_by_hiredis(batch: Batch) -> None:
        packed = pack(("EVAL", SCRIPT, "0", *arguments(batch)))
        await store._journals.send(packed)

    async def commands_by_hiredis(batch: Batch) -> None:
        packed = [pack(("XADD", *arguments([e])[:2], "e", e.data)) for e in batch]
        await store._journals.send(b"".join(packed), len(batch))

    return {
        "append": store.append,
        "commands packed by hiredis": commands_by_hiredis,
        "one script packed by hiredis": script_by_hiredis,
        "one script through redis-py": script,
        "pipeline of redis-py": pipeline,
    }


async def measure(way: Way, size: int, first: int) -> tuple[float, float]:
    """Return microseconds of CPU and of wall time per event."""
    each = 1 + (size - 1) // RESPONSES  # events of one response in a batch
    batches = [
        [JournalEntry(f"r{n % RESPONSES}", 1, first + number * each + n // RESPONSES, DATA) for n in range(size)]
        for number in range(EVENTS // size)
    ]
    cpu, wall = time.process_time(), time.perf_counter()
    for batch in batches:
        await way(batch)
    return (time.process_time() - cpu) / EVENTS * 1e6, (time.perf_counter() - wall) / EVENTS * 1e6


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        valkey = EmbeddedValkey(Path(folder))
        url = await valkey.start()
        store, client = RedisStore(url, StoreConfig(), LimitsConfig()), Redis.from_url(url, protocol=2)
        for n in range(RESPONSES):
            await store.begin(NewTurn(f"r{n}", "o", None, None, None, "m", 1, (), b"", b"", "g"))
        first = 0
        for size in (1, 10, 100, 1000):
            for name, way in ways(store, client).items():
                results = []
                for _ in range(3):
                    results.append(await measure(way, size, first))
                    first += EVENTS
                cpu, wall = min(results)
                print(f"batch of {size:4}  {name:28}  {cpu:6.1f} µs CPU  {wall:6.1f} µs wall", file=sys.stdout)
        await client.aclose()
        await store.close()
        await valkey.stop()


if __name__ == "__main__":
    uvloop.run(main())
