"""One gateway process alone: how many tokens pass through it, what many streams cost, how quickly answers resume."""

from __future__ import annotations

import time
from collections.abc import Sequence

from tests.benchmarks.figures import Figure, Spread, at_least, at_most, compared, percentile
from tests.benchmarks.processes import clients, cpu_s
from tests.benchmarks.sockets import PATH, echo_server

WARM_STREAMS = 16
IDLE_S = 5.0  # of looking at what nobody causes


def text_of(words: int) -> str:
    """Return a question that the echo engine answers in so many tokens."""
    return " ".join(f"word{number}" for number in range(words))


def throughput(streams: int, rate: int, words: int, rounds: int) -> list[Figure]:
    """Tokens per second through one gateway, every one of them in the journal first."""
    rates, cores, per_core, frames = [], [], [], []
    with echo_server("--echo-rate", str(rate)) as server:
        job = {"path": PATH, "prompt": text_of(words), "tokens": words}
        with clients("tokenwire", server.port, streams, **job) as load:
            for _ in range(rounds):
                before = cpu_s(server.pid)
                # The engine's pace would end every answer at the same moment, and the ends would be what is measured.
                seen = load.ask("go")
                used = cpu_s(server.pid) - before
                made = streams * words
                rates.append(made / seen["wall_s"])
                cores.append(used / seen["wall_s"])
                per_core.append(made / used)
                frames.append(sum(answer["frames"] for answer in seen["answers"]) / made)
    group = f"echo engine, {streams:,} streams of {rate} tokens/s, journal on"
    return [
        Figure(group, "tokens/s through one gateway process", "", Spread.of(rates), at_least(30_000)),
        Figure(group, "cores that it used", "", Spread.of(cores), at_most(1.0)),
        Figure(group, "tokens per CPU second", "", Spread.of(per_core)),
        Figure(group, "frames per token", "", Spread.of(frames)),
    ]


def growth(levels: Sequence[int], rate: int, words: int) -> tuple[list[Figure], dict[int, float]]:
    """CPU per token of few and of many streams, each at the same pace.

    What the server uses while nobody asks is taken off: it would weigh most on the fewest.
    """
    costs = {}
    with echo_server("--echo-rate", str(rate)) as server:
        job = {"path": PATH, "prompt": text_of(words), "tokens": words}
        with clients("tokenwire", server.port, WARM_STREAMS, **job | {"prompt": text_of(8), "tokens": 8}) as load:
            load.ask("go")
        before = cpu_s(server.pid)
        time.sleep(IDLE_S)
        idle = (cpu_s(server.pid) - before) / IDLE_S
        for streams in levels:
            # Spread over a second: answers that begin at one moment are not what many users look like.
            with clients("tokenwire", server.port, streams, **job, spread_s=1.0) as load:
                before = cpu_s(server.pid)
                took_s = load.ask("go")["wall_s"]
                costs[streams] = (cpu_s(server.pid) - before - idle * took_s) / (streams * words) * 1e6
    group = "growth"
    first, last = levels[0], levels[-1]
    figures = [
        Figure(group, f"CPU per token, {streams:,} streams of {rate} tokens/s", "µs", Spread.of([cost]))
        for streams, cost in costs.items()
    ]
    figures.append(
        compared(group, f"CPU per token, {last:,} ÷ {first} streams", [costs[last]], [costs[first]], at_most(1.2))
    )
    return figures, costs


def resume(count: int, words: int, background: int) -> list[Figure]:
    """Time from asking for the rest of an answer to its first byte, on new connections, while others stream."""
    with echo_server("--echo-rate", "50") as server:
        job = {"path": PATH, "prompt": text_of(words), "tokens": words}
        with clients("tokenwire", server.port, 1, **job) as load:
            (answer,) = load.ask("go")["answers"]
        more = {"path": PATH, "prompt": text_of(1000), "tokens": 1000}
        with (
            clients("tokenwire", server.port, background, **more) as others,
            clients(
                "resuming", server.port, count, path=PATH, response=answer["id"], after=answer["frames"] // 2
            ) as load,
        ):
            others.tell("go")
            time.sleep(1)  # until all of them run
            answers = load.ask("go")["answers"]
            others.kill()
    waits = [(answer["first"] - answer["sent"]) * 1000 for answer in answers]
    group = f"resume, {background} others streaming"
    return [
        Figure(group, f"first replayed byte, p50 of {count}", "ms", Spread.of([percentile(waits, 0.5)])),
        Figure(group, f"first replayed byte, p99 of {count}", "ms", Spread.of([percentile(waits, 0.99)]), at_most(20)),
    ]
