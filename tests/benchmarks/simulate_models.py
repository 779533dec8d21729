"""`make simulate`: Zipf traffic over a thousand models on a few devices, against the optimum that knows the future.

What is decided is decided by `server.models.placement`; loads, answers and the clock are simulated.
"""

from __future__ import annotations

import argparse

from server.models.state import GIB, Needs, Policy
from tests.support.fleet import Fleet, devices, optimum, zipf

MODELS = 1000
DEVICE_GIB = 100.0  # of which 80 may be taken
MODEL_GIB = 20.0  # four on a device
HOT = 4  # models that the preset `latency` pins

HEAD = ("preset", "devices", "places", "Zipf", "ready", "loads", "optimum", "ratio", "evictions", "p50", "p99")


def row(preset: str, count: int, exponent: float, requests: int, seed: int) -> tuple[str, ...]:
    """Run one setting and return its line of the table."""
    rate = 0.06 * count  # loads keep the devices about half busy
    traffic = zipf(MODELS, requests, rate=rate, exponent=exponent, answer_s=5.0, seed=seed)
    pinned = HOT if preset == "latency" else 0
    needs = {f"m{n}": Needs(MODEL_GIB * GIB, pinned=n < pinned) for n in range(MODELS)}
    policy = Policy(own_devices=preset == "latency")
    result = Fleet(needs, devices(count, DEVICE_GIB), policy).run(traffic)
    assert result.refused == 0
    places = count * int(DEVICE_GIB * policy.threshold / MODEL_GIB)
    best = optimum(traffic, places)
    hit, best_hit = 1 - result.loads / requests, 1 - best / requests
    return (
        preset,
        str(count),
        str(places),
        f"{exponent:g}",
        f"{result.ready / requests:.1%}",
        f"{hit:.1%}",
        f"{best_hit:.1%}",
        f"{hit / best_hit:.2f}",
        str(result.evictions),
        f"{result.wait(0.5):.0f} s",
        f"{result.wait(0.99):.0f} s",
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=3_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    print(f"{MODELS} models of {MODEL_GIB:g} GiB, {options.requests} requests, loads of 15 s; seed {options.seed}")
    print("ready: found its model ready. loads: needed no load of its own. p50, p99: waits of those that did not.")
    rows: list[tuple[str, ...]] = [HEAD]
    for preset in ("cost", "latency"):
        for count, exponent in ((4, 1.0), (8, 0.8), (8, 1.0), (8, 1.2), (16, 1.0)):
            rows.append(row(preset, count, exponent, options.requests, options.seed))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for line in rows:
        print("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)))


if __name__ == "__main__":
    main()
