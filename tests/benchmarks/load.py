"""The load generator: a job as a line of JSON on standard input, then `go` for each round.

Run as `python -m tests.benchmarks.load`: it says on standard output when its clients are connected, and after each
round what they saw and what CPU time it has used itself.
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
import time
from typing import Any, Final

import uvloop

from tests.benchmarks.clients import KINDS, Client

CONNECTING: Final = 64  # handshakes at once


async def connect_all(job: dict[str, Any], kind: type[Client]) -> list[Any]:
    """Open the job's connections, some at a time."""
    loop = asyncio.get_running_loop()
    room = asyncio.Semaphore(CONNECTING)

    async def connect(number: int) -> Client:
        async with room:
            _, client = await loop.create_connection(lambda: kind(job, number), "127.0.0.1", job["port"])
            await client.connected
        return client

    return await asyncio.gather(*(connect(number) for number in range(job["streams"])))


async def ask_all(clients: list[Any], spread_s: float) -> None:
    """Let every client ask once, spread evenly over some time, and wait for all the answers."""
    loop = asyncio.get_running_loop()
    for number, client in enumerate(clients):
        loop.call_later(spread_s * number / len(clients), client.ask)
    await asyncio.sleep(spread_s)
    await asyncio.gather(*(client.answered for client in clients))


async def cancel_all(clients: list[Any]) -> None:
    """Let every client ask, and when all have their first token, cancel."""
    for client in clients:
        client.ask()
    await asyncio.gather(*(client.begun for client in clients))
    for client in clients:
        client.cancel()
    await asyncio.gather(*(client.answered for client in clients))


async def ask_in_turn(clients: list[Any]) -> None:
    """Let one client after the other ask."""
    for client in clients:
        client.ask()
        await client.answered


async def subscribe_all(clients: list[Any], command: dict[str, Any]) -> None:
    """Let every client join what the others will say."""
    for client in clients:
        client.send(**command)
    await asyncio.gather(*(client.joined for client in clients))


def cpu_s() -> float:
    """Return this process's CPU time so far."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def say(**what: Any) -> None:
    """Write a line of JSON to whoever started us."""
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


async def main() -> None:
    """Do the job: `go`, as often as it is told."""
    job = json.loads(sys.stdin.readline())
    kind = job["kind"]
    began, used = time.monotonic(), cpu_s()
    clients = await connect_all(job, KINDS[kind])
    if kind == "subscribed":
        await subscribe_all(clients, job["command"])
    say(ready=True, wall_s=time.monotonic() - began, cpu_s=cpu_s() - used)
    while (await asyncio.to_thread(sys.stdin.readline)).strip() == "go":
        used, began = cpu_s(), time.monotonic()
        if kind == "cancelling":
            await cancel_all(clients)
        elif kind == "resuming":
            await ask_in_turn(clients)
        else:
            await ask_all(clients, job.get("spread_s", 0.0))
        say(
            answers=[client.seen() for client in clients],
            wall_s=time.monotonic() - began,
            cpu_s=cpu_s() - used,
        )


if __name__ == "__main__":
    uvloop.run(main())
