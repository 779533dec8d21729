"""Why many users are cheap: SmolLM2 on real vLLM, one user after another, in fixed batches, and as vLLM does it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from tests.benchmarks.figures import Figure, Spread, aligned, number, percentile
from tests.benchmarks.processes import Process, host

FIXED: Final = 8  # users in a fixed batch
MOST_SEQS: Final = 32
LENGTHS: Final = (3, 9, 5, 7)  # tokens of an answer, by turns: a fixed batch waits for its longest
WAYS: Final = ("one after another", f"fixed batches of {FIXED}", "continuous (vLLM)")
QUESTION: Final = "What is the capital of country number {}?"


def measure(model: str, data_dir: str, users: Sequence[int]) -> tuple[list[Figure], dict[str, Any]]:
    """All users ask at the same moment; return tokens per second and time to first token for each number of users."""
    results: dict[str, Any] = {way: {} for way in WAYS}
    settings = {"model": model, "max_num_seqs": MOST_SEQS, "data_dir": data_dir, "ports": {}}
    with host(settings) as engine:
        _ask(engine, 2, 2)  # warm
        for count in users:
            for way, size in zip(WAYS, (1, FIXED, count), strict=True):
                seen = _ask(engine, count, size)
                results[way][count] = {
                    "tokens_per_s": seen["tokens"] / seen["wall_s"],
                    "first_median_s": percentile(seen["first_s"], 0.5),
                    "first_worst_s": max(seen["first_s"]),
                }
    figures = []
    for way in WAYS:
        for count, seen in results[way].items():
            group = f"SmolLM2 on real vLLM: {way}"
            name = f"{count} users"
            figures.append(Figure(group, f"{name}, throughput", "tokens/s", Spread.of([seen["tokens_per_s"]])))
            figures.append(Figure(group, f"{name}, median first token", "s", Spread.of([seen["first_median_s"]])))
    return figures, results


def summary(results: Mapping[str, Any]) -> str:
    """Return a Markdown table: a line for each number of users, a column for each way."""
    counts = list(next(iter(results.values())))
    rows = [("users", *(f"{way}: tokens/s, first token" for way in results))]
    for count in counts:
        seen = [runs[count] for runs in results.values()]
        cells = (f"{number(one['tokens_per_s'])}, {number(one['first_median_s'])} s" for one in seen)
        rows.append((str(count), *cells))
    return aligned(rows)


def _ask(engine: Process, users: int, size: int) -> dict[str, Any]:
    prompts = [QUESTION.format(number) for number in range(users)]
    lengths = [LENGTHS[number % len(LENGTHS)] for number in range(users)]
    return engine.do("batched", prompts=prompts, lengths=lengths, size=size)
