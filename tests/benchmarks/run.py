"""`make bench`: what the gateway itself costs, measured with the echo engine on this machine.

    make bench ARGS="--clients 100 --words 200"

Only ratios within one run mean anything: a machine's speed drifts. The clients run in this process and share its cores.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from websockets.asyncio.client import connect

from tests.support.server import ServerProcess

DELTA = "response.output_text.delta"
DONE = "response.completed"


@dataclass(frozen=True, slots=True)
class Answer:
    """What one client saw: times in seconds, counted from when it asked."""

    first_token_s: float
    total_s: float
    frames: int
    bytes: int
    whole: bool


async def ask(url: str, text: str) -> Answer:
    """Ask once, after a turn that is not counted, and read the answer."""
    async with connect(url, max_size=None, compression=None) as socket:
        await read(socket, "warm up", time.perf_counter())
        return await read(socket, text, time.perf_counter())


async def read(socket, text: str, asked: float) -> Answer:
    """One turn, sent and read to its end."""
    await socket.send(json.dumps({"input": text, "store": True}))
    first, frames, size, parts = 0.0, 0, 0, []
    async for frame in socket:
        frames, size = frames + 1, size + len(frame)
        event = json.loads(frame)
        if event["type"] == DELTA:
            first = first or time.perf_counter()
            parts.append(event["delta"])
        elif event["type"] == DONE:
            now = time.perf_counter()
            return Answer((first or now) - asked, now - asked, frames, size, "".join(parts) == text)
        elif event["type"] in {"error", "response.failed", "response.incomplete"}:
            raise RuntimeError(frame)
    raise RuntimeError("the connection ended before the answer did")


def cpu_s(pid: int) -> float:
    """CPU time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def measure(server: ServerProcess, clients: int, words: int) -> None:
    """One row of the table."""
    text = " ".join(f"w{number}" for number in range(words))
    before, valkey_before, started = cpu_s(server.pid), cpu_s(server.valkey_pid()), time.perf_counter()
    answers = await asyncio.gather(*(ask(f"{server.ws_url}/v1/responses", text) for _ in range(clients)))
    wall = time.perf_counter() - started
    tokens = clients * words
    first = [answer.first_token_s * 1000 for answer in answers]
    late = statistics.quantiles(first, n=100)[98] if len(first) > 1 else first[0]
    print(
        f"{clients:8} {words:6} {tokens / wall:10.0f} {statistics.median(first):10.1f} {late:10.1f}"
        f" {(cpu_s(server.pid) - before) / tokens * 1e6:12.1f}"
        f" {(cpu_s(server.valkey_pid()) - valkey_before) / tokens * 1e6:12.1f}"
        f" {sum(answer.bytes for answer in answers) / tokens:10.0f}"
        f" {'' if all(answer.whole for answer in answers) else 'ANSWERS DAMAGED'}"
    )


def main() -> None:
    """Start a server, print a row for each number of clients."""
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__.partition("\n")[0])
    parser.add_argument("--clients", type=int, nargs="*", default=[1, 10, 100], help="how many at once")
    parser.add_argument("--words", type=int, default=200, help="length of each answer")
    parser.add_argument("--rate", type=float, default=50, help="tokens per second of each; 0: as fast as can be")
    options = parser.parse_args()
    print(f"echo engine at {options.rate:g} tokens/s per answer; a warm-up turn of two words is in the CPU figures")
    print("                              first token, ms       CPU, µs per token    bytes per")
    print(" clients  words   tokens/s     median        p99      gateway       valkey      token")
    with tempfile.TemporaryDirectory() as data, ServerProcess(Path(data), "--echo-rate", f"{options.rate:g}") as server:
        for clients in options.clients:
            asyncio.run(measure(server, clients, options.words))


if __name__ == "__main__":
    main()
