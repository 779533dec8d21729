"""What the Python drivers share: how they are told what to do and how they tell what came of it.

A driver is a program that runs in its client's own environment: `python -m tests.interop.drivers.NAME URL CASE…`.
It must not import anything but its client and this file. Lines beginning with `@` are for the suite (world.py):
`@pass CASE`, `@fail CASE`, and `@cut`, which asks it to cut the connections and to write a line when that is done.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
import traceback
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

MODEL = "echo"
AGENT = "agent"  # calls tools by a script: world.py
QUESTION = "What is the weather in Paris?"  # calls get_weather
WEATHER = "sunny, 21 degrees"
ANSWER = f"It says: {WEATHER}"
LONG = " ".join(f"w{number}" for number in range(60))
CASE_S = 60

Case = Callable[[str], None] | Callable[[str], Coroutine[Any, Any, None]]


def run(cases: dict[str, Case]) -> None:
    """Run the cases that the command line names."""
    url, *names = sys.argv[1:]
    for name in names:
        try:
            _do(cases[name], url)
        except Exception:  # noqa: BLE001 whatever a client raises fails its case, and the others go on
            traceback.print_exc()
            print(f"@fail {name}", flush=True)
        else:
            print(f"@pass {name}", flush=True)


def cut() -> None:
    """Have the suite cut all connections; return when they are cut."""
    print("@cut", flush=True)
    sys.stdin.readline()


@contextmanager
def raises(kind: type[Exception], text: str) -> Iterator[None]:
    """Check that the block raises such an exception with `text` in it; pytest is not in every environment."""
    try:
        yield
    except kind as error:
        if text not in str(error):
            raise AssertionError(f"{text!r} is not in {error!r}") from error
    else:
        raise AssertionError(f"no {kind.__name__}")


def _do(case: Case, url: str) -> None:
    if not inspect.iscoroutinefunction(case):
        case(url)
        return

    async def bounded() -> None:
        async with asyncio.timeout(CASE_S):
            await case(url)

    asyncio.run(bounded())
