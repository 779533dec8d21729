"""`make simulate`: admission beside first come first served, on seeded traces and a simulated engine.

    make simulate SEED=7

The engine works in steps, as vLLM does: each step makes one token of every answer under way and reads a piece of the
prompts that are new, within a budget. The costs are those measured of a 135-million-parameter model on two CPU cores.
Only time is simulated: the queue and the limits are the server's own code.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Protocol

from server.access.admission import Admission, Expected
from server.access.fair_queue import Demand, ServiceClass
from server.config import AdmissionConfig

STEP_S: Final = 0.055  # a step, before any work
DECODE_S: Final = 0.0085  # one answer's token
PREFILL_S: Final = 0.0004  # one token of a prompt
BUDGET: Final = 2048  # tokens of one step
LONG_PIECE: Final = 256  # of a prompt, in one step, where others run, too


class Place(Protocol):
    """What the simulation needs of a ticket."""

    @property
    def is_admitted(self) -> bool: ...

    def first_token(self, tokens: int, wait_s: float) -> None: ...
    def tokens(self, count: int, gap_s: float) -> None: ...
    def release(self) -> None: ...


class Door(Protocol):
    """What it needs of an admission."""

    def enter(self, demand: Demand) -> Place: ...


class FifoTicket:
    """A place in `Fifo`."""

    def __init__(self, door: Fifo, demand: Demand) -> None:
        self._door = door
        self.demand = demand
        self.is_admitted = False
        self.position = 1
        self.estimated_wait_ms: int | None = None
        self.changed = asyncio.Event()

    def first_token(self, tokens: int, wait_s: float) -> None:
        """Take no notice."""

    def tokens(self, count: int, gap_s: float) -> None:
        """Take no notice."""

    def release(self) -> None:
        self._door.leave(self)


class Fifo:
    """First come, first served, as many at once as the engine takes: to compare with."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._waiting: deque[FifoTicket] = deque()
        self.running = 0

    def enter(self, demand: Demand, *, is_expected: bool = False) -> FifoTicket:
        ticket = FifoTicket(self, demand)
        self._waiting.append(ticket)
        self.let_in()
        return ticket

    def leave(self, ticket: FifoTicket) -> None:
        if ticket.is_admitted:
            self.running -= 1
        else:
            self._waiting.remove(ticket)
        self.let_in()

    def let_in(self) -> None:
        while self._waiting and self.running < self._capacity:
            self.running += 1
            ticket = self._waiting.popleft()
            ticket.is_admitted = True
            ticket.changed.set()

    # What a gateway asks besides

    def is_full(self, demand: Demand) -> bool:
        return self.running >= self._capacity

    def expect(self, demand: Demand) -> Expected:
        return Expected({}, demand)

    def resize(self, limit: int) -> None:
        """Stay as it is."""


@dataclass
class Turn:
    """One turn of a trace, and what became of it. Times in seconds from the trace's start."""

    at: float
    demand: Demand
    output: int
    ticket: Place | None = None
    started: float | None = None
    unread: int = 0
    said: int = 0
    last_at: float = 0.0
    first_at: float | None = None
    ended: float | None = None
    gaps: list[float] = field(default_factory=list)

    @property
    def first_token_s(self) -> float:
        assert self.first_at is not None
        return self.first_at - self.at


class Simulation:
    """Run a trace through an admission."""

    def __init__(self, trace: list[Turn], make_door: Callable[[Callable[[], float]], Door], piece: int) -> None:
        self.now = 0.0
        self._coming = deque(sorted(trace, key=lambda turn: turn.at))
        self._waiting: list[Turn] = []
        self._running: list[Turn] = []
        self._door = make_door(lambda: self.now)
        self._piece = piece

    def run(self) -> None:
        """Until every turn has ended."""
        while self._coming or self._waiting or self._running:
            if not self._running and not self._waiting:
                self.now = max(self.now, self._coming[0].at)
            self._arrive()
            self._step()

    def _arrive(self) -> None:
        while self._coming and self._coming[0].at <= self.now:
            turn = self._coming.popleft()
            turn.ticket = self._door.enter(turn.demand)
            self._waiting.append(turn)
        for turn in [turn for turn in self._waiting if turn.ticket is not None and turn.ticket.is_admitted]:
            self._waiting.remove(turn)
            turn.started, turn.unread = self.now, turn.demand.tokens
            self._running.append(turn)

    def _step(self) -> None:
        """Read pieces of prompts and make tokens, in the order of coming, within the budget."""
        budget, read = BUDGET, 0
        speaking: list[Turn] = []
        for turn in self._running:
            piece = min(turn.unread or 1, budget, self._piece if len(self._running) > 1 else BUDGET)
            budget -= piece
            if turn.unread:
                turn.unread -= piece
                read += piece
            if not turn.unread and piece:
                speaking.append(turn)
        self.now += STEP_S + DECODE_S * len(speaking) + PREFILL_S * read
        for turn in speaking:
            self._speak(turn)

    def _speak(self, turn: Turn) -> None:
        assert turn.ticket is not None
        assert turn.started is not None
        turn.said += 1
        if turn.first_at is None:
            turn.first_at = self.now
            turn.ticket.first_token(1, self.now - turn.started)
        else:
            turn.gaps.append(self.now - turn.last_at)
            turn.ticket.tokens(1, self.now - turn.last_at)
        turn.last_at = self.now
        if turn.said >= turn.output:
            turn.ended = self.now
            self._running.remove(turn)
            turn.ticket.release()


# Traces


def chats_beside_documents(seed: int) -> list[Turn]:
    """Eight people who chat for three minutes; 20 long documents that come at once after 20 s."""
    draw = random.Random(seed)
    trace = []
    for person in range(8):
        at = draw.uniform(0, 8)
        while at < 180:
            demand = Demand(f"person {person}", ServiceClass.INTERACTIVE, draw.randint(20, 300))
            trace.append(Turn(at, demand, draw.randint(20, 100)))
            at += draw.uniform(8, 24)
    documents = (Demand("library", ServiceClass.BATCH, draw.randint(4000, 7500)) for _ in range(20))
    return trace + [Turn(20, demand, 200) for demand in documents]


def flood_beside_quiet(seed: int) -> list[Turn]:
    """One user with 50 long turns at once; another who asks something short every half minute."""
    draw = random.Random(seed)
    flood = Demand("flood", ServiceClass.INTERACTIVE, 100)
    trace = [Turn(0, flood, draw.randint(150, 250)) for _ in range(50)]
    quiet = Demand("quiet", ServiceClass.INTERACTIVE, 50)
    return trace + [Turn(at + draw.uniform(0, 5), quiet, 40) for at in range(5, 96, 30)]


# Results


@dataclass(frozen=True)
class Figures:
    """p50 and p99 in seconds. service_times: the worst wait for a first token, in mean times of a flooding turn."""

    first_p50: float
    first_p99: float
    gap_p99: float
    others_end: float
    service_times: float = 0.0


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, round(share * (len(ordered) - 1)))]


def simulate(trace: list[Turn], watched: str, door: Callable[[Callable[[], float]], Door], piece: int) -> Figures:
    """Run a trace and return what users whose name begins with `watched` saw."""
    Simulation(trace, door, piece).run()
    seen = [turn for turn in trace if turn.demand.user.startswith(watched)]
    others = [turn for turn in trace if turn not in seen]
    service = statistics.mean((turn.ended or 0) - (turn.started or 0) for turn in others)
    waits = [turn.first_token_s for turn in seen]
    return Figures(
        first_p50=percentile(waits, 0.5),
        first_p99=percentile(waits, 0.99),
        gap_p99=percentile([gap for turn in seen for gap in turn.gaps], 0.99),
        others_end=max(turn.ended or 0 for turn in others),
        service_times=max(waits) / service,
    )


def fair(capacity: int) -> Callable[[Callable[[], float]], Door]:
    return lambda clock: Admission(capacity, 1024, AdmissionConfig(), clock=clock)


def fifo(capacity: int) -> Callable[[Callable[[], float]], Door]:
    return lambda _clock: Fifo(capacity)


async def compare(seed: int) -> dict[str, tuple[Figures, Figures]]:
    """Return for each trace what ours does and what first come first served does."""
    return {
        "8 chats beside 20 documents": (
            simulate(chats_beside_documents(seed), "person", fair(64), LONG_PIECE),
            simulate(chats_beside_documents(seed), "person", fifo(64), BUDGET),
        ),
        "the same, 8 at once": (
            simulate(chats_beside_documents(seed), "person", fair(8), LONG_PIECE),
            simulate(chats_beside_documents(seed), "person", fifo(8), BUDGET),
        ),
        "one quiet user beside 50 turns of another, 4 at once": (
            simulate(flood_beside_quiet(seed), "quiet", fair(4), LONG_PIECE),
            simulate(flood_beside_quiet(seed), "quiet", fifo(4), BUDGET),
        ),
    }


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(prog="make simulate", description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    print("| trace | queue | first token p50, s | p99, s | token gap p99, ms | others end, s | wait in service times |")
    print("|---|---|---|---|---|---|---|")
    for name, both in asyncio.run(compare(options.seed)).items():
        for queue, figures in zip(("ours", "FIFO"), both, strict=True):
            print(
                f"| {name} | {queue} | {figures.first_p50:.2f} | {figures.first_p99:.2f} | {figures.gap_p99 * 1000:.0f}"
                f" | {figures.others_end:.0f} | {figures.service_times:.2f} |"
            )


if __name__ == "__main__":
    main()
