"""All contenders on one real vLLM: what a token costs, how fast and how evenly tokens come, what they weigh."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from server.config import StoreConfig
from tests.benchmarks.figures import Figure, Goal, Spread, at_least, at_most, compared, percentile
from tests.benchmarks.processes import Process, clients, cpu_s, free_port

RAW, OURS, AFTER, TUTORIAL, VLLM, VLLM_10 = (
    "raw AsyncLLM consumer",
    "Tokenwire",
    "Tokenwire, write_ahead off",
    "FastAPI + uvicorn tutorial",
    "vLLM's server (SSE)",
    "vLLM's server, stream_interval 10",
)
CONTENDERS: Final = (RAW, OURS, AFTER, TUTORIAL, VLLM)  # VLLM_10 where its frame rate is compared
ONCE: Final = {AFTER}  # at the first level only: the others take minutes
SLOW: Final = "Tokenwire, tick 100 ms"  # ten tokens a frame where an answer makes 100 a second
TOKENWIRES: Final = {OURS, AFTER, SLOW}
PROMPT: Final = "Tell me a story about a small wire that carried words."
TICK_MS: Final = StoreConfig().tick_ms
STEADY: Final = 128  # streams of the rows about time
CANCELLED: Final = 64
IDLE_S: Final = 1.0  # of looking at what nobody causes
LOOKS: Final = 4  # the first of them still sees what the last answers left to do
LEVEL_S: Final = 130.0  # at one level: then no round is begun any more, but for the least
LEAST_ROUNDS: Final = 2


@dataclass(frozen=True, slots=True)
class Plan:
    """How much to measure. levels: answers side by side, and the tokens of each. alone: tokens at 100 a second."""

    levels: dict[int, int]
    rounds: int
    alone: int

    @property
    def steady(self) -> int:
        """The level of the rows about time: 128 streams or the most there are."""
        return STEADY if STEADY in self.levels else max(self.levels)


@dataclass(slots=True)
class Runs:
    """What one contender did at one level, a value a round."""

    cpu_us: list[float] = field(default_factory=list)  # of the gateway, per token
    client_us: list[float] = field(default_factory=list)  # of the load generator, per token
    store_us: list[float] = field(default_factory=list)  # of Valkey, per token
    rate: list[float] = field(default_factory=list)  # tokens per second of wall time
    frames: list[float] = field(default_factory=list)  # per token
    bytes: list[float] = field(default_factory=list)  # per token
    gap_p99_ms: list[float] = field(default_factory=list)


class Arena:
    """The running contenders, and the rounds they go."""

    def __init__(self, host: Process, ports: dict[str, int]) -> None:
        self._host = host
        self._ports = ports
        self._valkeys = [pid for pid, name in host.children().items() if "valkey" in name]
        self._idle = (0.0, 0.0)  # cores that the host and the Valkeys use with nobody asking
        self.runs: dict[tuple[str, int], Runs] = defaultdict(Runs)

    def job(self, contender: str, streams: int, tokens: int, spread_s: float = 0.0) -> dict[str, Any]:
        """Return the load generator's job."""
        jobs: dict[str, tuple[str, str, dict[str, Any]]] = {
            OURS: ("tokenwire", "tokenwire", {"path": "/v1/responses"}),
            AFTER: ("tokenwire", "tokenwire-after", {"path": "/v1/responses"}),
            SLOW: ("tokenwire", "tokenwire-slow", {"path": "/v1/responses"}),
            TUTORIAL: ("tutorial", "tutorial", {"path": "/ws"}),
            VLLM: ("sse", "vllm", {"model": "m"}),
            VLLM_10: ("sse", "vllm", {"model": "m", "body": {"stream_interval": 10}}),
        }
        kind, port, more = jobs[contender]
        common = {"prompt": PROMPT, "tokens": tokens, "spread_s": spread_s}
        return {"kind": kind, "port": self._ports[port], "streams": streams, **common, **more}

    def warm(self) -> None:
        """Let everybody answer once: first requests pay for imports and caches, and an idle engine stalls."""
        for contender in CONTENDERS:
            self.go(contender, 8, 8)
        looks = [self._look() for _ in range(LOOKS)]
        gateway, store = (min(cores) for cores in zip(*looks, strict=True))
        self._idle = (gateway, store)
        print(f"  with nobody asking: gateway {gateway:.2%} of a core, all Valkeys {store:.2%}", flush=True)
        self.go(RAW, 8, 8)  # the engine has been idle

    def _look(self) -> tuple[float, float]:
        before = self._used()
        time.sleep(IDLE_S)
        gateway_s, store_s, wall_s = (b - a for a, b in zip(before, self._used(), strict=True))
        return gateway_s / wall_s, store_s / wall_s

    def go(self, contender: str, streams: int, tokens: int, spread_s: float = 0.0) -> dict[str, Any]:
        """Let a contender answer; return what was seen and what the gateway and Valkey used.

        What they use all the time, with nobody asking, is taken off: it would weigh on whoever takes longest.
        """
        self._host.do("read", lean=contender in TOKENWIRES)
        if contender == RAW:
            before = self._used()
            seen = self._host.do("raw", streams=streams, tokens=tokens, prompt=PROMPT, spread_s=spread_s)
        else:
            with clients(**self.job(contender, streams, tokens, spread_s)) as load:
                before = self._used()
                seen = load.ask("go")
        gateway_s, store_s, wall_s = (b - a for a, b in zip(before, self._used(), strict=True))
        return {
            **seen,
            "gateway_s": gateway_s - self._idle[0] * wall_s,
            "store_s": store_s - self._idle[1] * wall_s,
        }

    def _used(self) -> tuple[float, float, float]:
        """Return CPU seconds of the host and of the Valkeys, and the time."""
        gateway_s = self._host.do("usage")["cpu_s"]
        return gateway_s, sum(cpu_s(pid) for pid in self._valkeys), time.monotonic()

    def round(self, contenders: Sequence[str], streams: int, tokens: int) -> None:
        """Let each contender have its turn, one right after the other."""
        for contender in contenders:
            seen = self.go(contender, streams, tokens)
            runs = self.runs[contender, streams]
            made = streams * tokens
            answers = seen["answers"]
            runs.cpu_us.append(seen["gateway_s"] / made * 1e6)
            runs.client_us.append(seen["cpu_s"] / made * 1e6)
            runs.store_us.append(seen["store_s"] / made * 1e6)
            runs.rate.append(made / seen["wall_s"])
            runs.frames.append(sum(answer["frames"] for answer in answers) / made)
            runs.bytes.append(sum(answer["bytes"] for answer in answers) / made)
            runs.gap_p99_ms.append(percentile([gap for answer in answers for gap in answer["gaps"]], 0.99) * 1000)
            print(
                f"  {streams:4} streams  {contender:34} {runs.cpu_us[-1]:7.1f} µs/token"
                f" (load {runs.client_us[-1]:5.1f}, Valkey {runs.store_us[-1]:4.1f}) {runs.rate[-1]:6.0f} tokens/s"
                f" {runs.frames[-1]:5.2f} frames, {runs.bytes[-1]:4.0f} bytes/token, gap {runs.gap_p99_ms[-1]:4.0f} ms",
                flush=True,
            )

    def added_ms(self, streams: int, tokens: int, spread_s: float) -> list[float]:
        """Return for each answer what Tokenwire added to its time to first token.

        Answers begin one after another, spread over some time, while others run. Of the client's time the engine's own,
        from taking the request to its first token, is taken off, answer by answer: both are on one clock.
        """
        self._host.do("marks")
        seen = self.go(OURS, streams, tokens, spread_s)
        marks = self._host.do("marks")
        engine = {_response(name): first - marks["asked"][name] for name, first in marks["first"].items()}
        return [(answer["first"] - answer["sent"] - engine[answer["id"]]) * 1000 for answer in seen["answers"]]

    def cancel_ms(self, contender: str, streams: int) -> list[float]:
        """Return for each of so many answers, all cancelled at once, how long EngineCore went on with it."""
        self._host.do("read", lean=contender in TOKENWIRES)
        if contender == RAW:
            seen = self._host.do("cancelled", streams=streams, tokens=1024, prompt=PROMPT)
            return [late_s * 1000 for late_s in seen["late_s"]]
        self._host.do("marks")
        with clients(**self.job(OURS, streams, 1024) | {"kind": "cancelling"}) as load:
            seen = load.ask("go")
        idle = {_response(name): at for name, at in self._host.do("marks")["idle"].items()}
        return [(idle[answer["id"]] - answer["sent"]) * 1000 for answer in seen["answers"]]


def _response(request: str) -> str:
    """Return the response that an engine's request belongs to: its id, an epoch, and what vLLM adds."""
    return request.partition("-")[0]


def measure(host: Process, ports: dict[str, int], plan: Plan) -> tuple[list[Figure], dict[str, Any]]:
    """Go the rounds; return the figures, and the raw numbers for the plots."""
    arena = Arena(host, ports)
    arena.warm()
    for streams, tokens in plan.levels.items():
        contenders = [name for name in CONTENDERS if name not in ONCE or streams == next(iter(plan.levels))]
        began = time.monotonic()
        for number in range(plan.rounds):
            if number < LEAST_ROUNDS or time.monotonic() - began < LEVEL_S:
                arena.round(contenders, streams, tokens)
    levels = list(plan.levels)
    figures = [*_costs(arena, levels), *_beside(arena, levels), *_throughput(arena, levels), *_times(arena, plan)]
    figures += [*_weight(arena, plan), *_cancel(arena, plan)]
    raw = {
        contender: {
            streams: _runs_as_json(arena.runs[contender, streams])
            for streams in plan.levels
            if (contender, streams) in arena.runs
        }
        for contender in CONTENDERS
    }
    return figures, raw


def _runs_as_json(runs: Runs) -> dict[str, list[float]]:
    return {name: getattr(runs, name) for name in Runs.__slots__}


def _costs(arena: Arena, levels: Sequence[int]) -> list[Figure]:
    group = "gateway CPU per token, Redis journal on"
    figures = []
    against = ((VLLM, 0.5), (TUTORIAL, 0.85), (RAW, 1.6))
    for streams in levels:
        ours = arena.runs[OURS, streams]
        figures.append(Figure(group, f"{streams} streams", "µs", Spread.of(ours.cpu_us)))
        for other, limit in against:
            theirs = arena.runs[other, streams]
            figures.append(compared(group, f"{streams} streams, ÷ {other}", ours.cpu_us, theirs.cpu_us, at_most(limit)))
        if (AFTER, streams) in arena.runs:
            after, raw = arena.runs[AFTER, streams].cpu_us, arena.runs[RAW, streams].cpu_us
            name = f"{streams} streams, write_ahead off, ÷ {RAW}"
            figures.append(replace(compared(group, name, after, raw), is_shown=True))
    return figures


def _beside(arena: Arena, levels: Sequence[int]) -> list[Figure]:
    """What is not the gateway's: no contender but Tokenwire has a store."""
    group = f"other processes' CPU per token, {OURS}"
    figures = []
    for streams in levels:
        runs = arena.runs[OURS, streams]
        for name, used in (("Valkey", runs.store_us), ("load generator", runs.client_us)):
            figures.append(Figure(group, f"{streams} streams, {name}", "µs", Spread.of(used), is_shown=True))
    return figures


def _throughput(arena: Arena, levels: Sequence[int]) -> list[Figure]:
    group = "throughput"
    figures = []
    for streams in levels:
        ours = arena.runs[OURS, streams].rate
        figures.append(Figure(group, f"{streams} streams", "tokens/s", Spread.of(ours)))
        for other, limit in ((RAW, 0.95), (VLLM, 1.05)):
            theirs = arena.runs[other, streams].rate
            figures.append(compared(group, f"{streams} streams, ÷ {other}", ours, theirs, at_least(limit)))
    return figures


def _times(arena: Arena, plan: Plan) -> list[Figure]:
    """The rows about time."""
    streams = plan.steady
    group = f"time, {streams} streams"
    medians, lates = [], []
    for _ in range(plan.rounds):
        tokens = plan.levels[streams]
        # As long as an answer takes: then half of them run at any time, and the last begins as the first ends.
        spread_s = streams * tokens / arena.runs[OURS, streams].rate[0]
        added = arena.added_ms(streams, tokens, spread_s)
        medians.append(percentile(added, 0.5))
        lates.append(percentile(added, 0.99))
    ours, raw = arena.runs[OURS, streams].gap_p99_ms, arena.runs[RAW, streams].gap_p99_ms
    more = [a - b for a, b in zip(ours, raw, strict=True)]
    tick = f"≤ {TICK_MS:.0f} (a tick)"
    return [
        Figure(group, "time to first token added to the engine's, p50", "ms", Spread.of(medians), at_most(3)),
        Figure(group, "time to first token added to the engine's, p99", "ms", Spread.of(lates), at_most(15)),
        Figure(group, "gap between tokens, p99", "ms", Spread.of(ours)),
        Figure(group, f"gap between tokens, p99, over {RAW}", "ms", Spread.of(more), Goal(TICK_MS, words=tick)),
    ]


def _weight(arena: Arena, plan: Plan) -> list[Figure]:
    """Bytes, and the cost at the frame rate of stream_interval 10, where each answer makes about 100 tokens/s."""
    streams = _streams_at(arena, 100)
    tokens = plan.alone
    rows: dict[tuple[str, str], list[float]] = defaultdict(list)
    for _ in range(plan.rounds):
        for contender in (OURS, SLOW, VLLM, VLLM_10):
            seen = arena.go(contender, streams, tokens)
            made = streams * tokens
            rows[contender, "bytes"].append(sum(answer["bytes"] for answer in seen["answers"]) / made)
            rows[contender, "rate"].append(made / seen["wall_s"] / streams)
            rows[contender, "cpu"].append(seen["gateway_s"] / made * 1e6)
            rows[contender, "frames"].append(sum(answer["frames"] for answer in seen["answers"]) / made)
    group = f"on the wire, {streams} streams"
    rate = Spread.of(rows[OURS, "rate"])
    figures = [Figure(group, "tokens/s of each answer", "", rate)]
    for contender in (OURS, SLOW, VLLM, VLLM_10):
        figures.append(Figure(group, f"bytes per token, {contender}", "", Spread.of(rows[contender, "bytes"])))
        figures.append(Figure(group, f"frames per token, {contender}", "", Spread.of(rows[contender, "frames"])))
    bytes_ = f"bytes per token, ÷ {VLLM}"
    figures.append(compared(group, bytes_, rows[OURS, "bytes"], rows[VLLM, "bytes"], at_most(0.5)))
    cost = f"gateway CPU per token, {SLOW}, ÷ {VLLM_10}"
    figures.append(compared(group, cost, rows[SLOW, "cpu"], rows[VLLM_10, "cpu"], at_most(1.0)))
    return figures


def _cancel(arena: Arena, plan: Plan) -> list[Figure]:
    """Abort at once. EngineCore hears of it between two steps only, so that the raw consumer's figure is the limit."""
    late: dict[str, list[float]] = defaultdict(list)
    for _ in range(plan.rounds):
        for contender in (OURS, RAW):
            late[contender].append(percentile(arena.cancel_ms(contender, CANCELLED), 0.99))
    name = f"cancel → engine idle, p99 of {CANCELLED} at once"
    return [
        Figure("cancel", name, "ms", Spread.of(late[OURS]), at_most(50)),
        Figure("cancel", f"the same, {RAW}", "ms", Spread.of(late[RAW]), is_shown=True),
    ]


def _streams_at(arena: Arena, rate: float) -> int:
    """Return how many streams run at about so many tokens/s each."""
    most = 1
    for streams in (2, 4, 8, 12, 16, 24, 32):
        seen = arena.go(RAW, streams, 32)
        if 32 / seen["wall_s"] < rate * 0.95:
            break
        most = streams
    return most


STORES: Final[dict[str, dict[str, Any]]] = {  # of each Tokenwire in the host, `[store]`
    "tokenwire": {},
    "tokenwire-after": {"write_ahead": False},
    "tokenwire-slow": {"tick_ms": 100},
}


def contenders_ports() -> dict[str, int]:
    """Return a free port for each server."""
    return {name: free_port() for name in (*STORES, "tutorial", "vllm")}
