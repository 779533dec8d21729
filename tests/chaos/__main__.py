"""`python -m tests.chaos`: break things for as long as you like, and say whether every promise was kept."""

from __future__ import annotations

import argparse
import asyncio
import random
import sys

from tests.chaos.storm import storm


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=None, help="of the faults and of what is said (default: any)")
    parser.add_argument("--minutes", type=float, default=1.0, help="of faults; then everything may end")
    parser.add_argument("--gateways", type=int, default=2)
    parser.add_argument("--engine", choices=["echo", "vllm"], default="echo")
    parser.add_argument("--model", default=None, help="with --engine vllm: a folder, or a known name")
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else random.randrange(1_000_000)
    print(f"seed {seed}: {options.minutes:g} minutes, {options.gateways} gateways, {options.engine}", flush=True)
    verdict = asyncio.run(
        storm(
            seed,
            options.minutes * 60,
            gateways=options.gateways,
            engine=options.engine,
            options=("--model", options.model) if options.model else (),
            say=lambda text: print(text, flush=True),
        )
    )
    print(verdict)
    return 1 if verdict.violations else 0


if __name__ == "__main__":
    sys.exit(main())
