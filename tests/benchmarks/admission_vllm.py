"""Admission on real vLLM beside first come, first served, on one engine in one run.

    python -m tests.benchmarks.admission_vllm [documents] [flood]

`documents`: eight people chat while twenty long documents come at once. `flood`: one user has fifty turns queued when
another one asks. Times are what clients see; only those of one run compare.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

from server.access.admission import Admission
from server.chat.generation import Generation
from server.config import Config
from server.engine.base import VllmSettings
from server.engine.vllm import VllmEngine
from server.models.sources import DEFAULT_MODEL, resolve
from tests.benchmarks.simulate_admission import Fifo, percentile
from tests.support.memory import MemoryBus, MemoryClient, MemoryStore, until
from tests.unit.chat.conftest import Gateway

CHATS, DOCUMENTS, FLOOD = 8, 20, 50
CHAT_TOKENS, DOCUMENT_WORDS, DOCUMENT_TOKENS = 40, 150, 40  # about 1,000 tokens a document
FLOOD_TOKENS, FLOOD_PLACES = 24, 4
STEP_TOKENS = 128  # of `max_num_batched_tokens`: what is read in one step holds everybody up; a second on two cores
TURN_S = 1800  # fifty turns, or twenty documents, in a line, on a machine of any speed

Doors = dict[str, Callable[[int], "Admission | Fifo"]]
DOORS: Doors = {"ours": lambda places: Admission(places, 1024), "FIFO": Fifo}


class Reader(MemoryClient):
    """Notes when text comes. asked: of each turn; first: its first text; gaps: between two texts of a turn."""

    def __init__(self, user: str) -> None:
        super().__init__(user)
        self.waits: list[float] = []
        self.gaps: list[float] = []
        self.ran_s: float | None = None  # the last turn, from when the engine got it
        self._asked = self._started = 0.0
        self._last: float | None = None
        self._generation: Generation | None = None

    async def ask(self, gateway: Gateway, **fields: object) -> None:
        """One turn, to its end."""
        self._asked, self._last = time.perf_counter(), None
        self.frames.clear()
        self._generation = await gateway.create(self, **fields)
        await self.until("response.incomplete", timeout_s=TURN_S)

    def cancel(self) -> None:
        """Stop the turn; harmless when it has ended."""
        if self._generation is not None:
            self._generation.cancel()

    def send(self, frame: bytes) -> None:
        super().send(frame)
        now, kind = time.perf_counter(), self.frames[-1]["type"]
        if kind == "response.in_progress":
            self._started = now
        elif kind == "response.incomplete":
            self.ran_s = now - self._started
        if kind != "response.output_text.delta":
            return
        if self._last is None:
            self.waits.append(now - self._asked)
        else:
            self.gaps.append(now - self._last)
        self._last = now


@dataclass
class World:
    """One gateway over the engine, with one kind of admission. kind: its name, in texts: no cache must know them."""

    gateway: Gateway
    kind: str

    @classmethod
    async def open(cls, engine: VllmEngine, kind: str, places: int) -> World:
        gateway = Gateway("gw", MemoryStore(), MemoryBus(), Config(engine="echo"))
        gateway.replace_engine(engine)  # type: ignore[arg-type]  # it is the real one
        gateway.model.admission = DOORS[kind](places)  # type: ignore[assignment]  # it has what is used of one
        await gateway.open()
        return cls(gateway, kind)


async def documents(world: World) -> dict[str, float]:
    """Chats' gaps and waits from when the documents come until they are read."""
    people = [Reader(f"person {number}") for number in range(CHATS)]
    done = asyncio.Event()

    async def chat(person: Reader, number: int) -> None:
        turn = 0
        while not done.is_set():
            turn += 1
            text = f"{world.kind}, person {number} asks question {turn} about the sea."
            await person.ask(world.gateway, input=text, max_output_tokens=CHAT_TOKENS, ignore_eos=True)

    chats = [asyncio.create_task(chat(person, number)) for number, person in enumerate(people)]
    await asyncio.sleep(3)
    for person in people:
        person.waits.clear()
        person.gaps.clear()
    began = time.perf_counter()
    readers = [Reader("library") for _ in range(DOCUMENTS)]
    await asyncio.gather(
        *(
            reader.ask(
                world.gateway,
                input=" ".join(f"{world.kind}{number}w{word}" for word in range(DOCUMENT_WORDS)),
                max_output_tokens=DOCUMENT_TOKENS,
                ignore_eos=True,
                service_tier="flex",
            )
            for number, reader in enumerate(readers)
        )
    )
    took = time.perf_counter() - began
    done.set()
    await asyncio.gather(*chats)
    gaps = [gap for person in people for gap in person.gaps]
    waits = [wait for person in people for wait in person.waits]
    return {
        "gap_p50_ms": percentile(gaps, 0.5) * 1000,
        "gap_p99_ms": percentile(gaps, 0.99) * 1000,
        "first_p50_s": percentile(waits, 0.5),
        "first_p99_s": percentile(waits, 0.99),
        "chat_turns": len(waits),
        "documents_s": took,
    }


async def flood(world: World, turns: int = FLOOD, tokens: int = FLOOD_TOKENS) -> dict[str, float]:
    """How long the quiet user waits: in seconds, in turns of the flood that ended before, in times that one takes."""
    gateway = world.gateway
    noisy = [Reader("flood") for _ in range(turns)]
    tasks = [
        asyncio.create_task(reader.ask(gateway, input=f"Tell {number}", max_output_tokens=tokens, ignore_eos=True))
        for number, reader in enumerate(noisy)
    ]
    await until(lambda: sum(bool(reader.waits) for reader in noisy) >= FLOOD_PLACES)
    ended_before = sum(task.done() for task in tasks)
    quiet = Reader("quiet")
    asking = asyncio.create_task(quiet.ask(gateway, input="Hello", max_output_tokens=2, ignore_eos=True))
    while not quiet.waits:  # noqa: ASYNC110 nothing tells of it
        await asyncio.sleep(0.01)
    ended = sum(task.done() for task in tasks) - ended_before
    await asking
    services = [reader.ran_s for reader in noisy if reader.ran_s is not None]
    for reader in noisy:
        reader.cancel()
    await asyncio.gather(*tasks)
    service = sum(services) / len(services)
    return {"first_s": quiet.waits[0], "service_times": quiet.waits[0] / service, "turns_before": ended}


RUNS: dict[str, tuple[int, Callable[[World], Awaitable[dict[str, float]]]]] = {
    "documents": (64, documents),
    "flood": (FLOOD_PLACES, flood),
}


async def measure(engine: VllmEngine, name: str) -> AsyncIterator[tuple[str, dict[str, float]]]:
    """Run one trace with each kind of admission; say what was found of each."""
    places, run = RUNS[name]
    for kind in DOORS:
        world = await World.open(engine, kind, places)
        yield kind, {key: round(value, 2) for key, value in (await run(world)).items()}
        await world.gateway.close()


async def main(names: list[str]) -> None:
    """Print a line for each trace and kind."""
    warnings.simplefilter("ignore")
    settings = VllmSettings(max_num_batched_tokens=STEP_TOKENS, max_num_seqs=64)
    engine = VllmEngine("bench", resolve(DEFAULT_MODEL, progress=lambda *_: None), settings)
    await engine.start(lambda *_: None)
    try:
        for name in names:
            async for kind, figures in measure(engine, name):
                print(name, kind, json.dumps(figures), flush=True)
    finally:
        engine.close()
        await engine.wait_closed()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:] or list(RUNS)))
