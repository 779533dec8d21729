"""What connections cost: idle ones, new ones, and many that hear the same answer. The echo engine answers."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import orjson
from websockets.sync.client import ClientConnection, connect

from tests.benchmarks.figures import Figure, Spread, at_least, at_most, compared
from tests.benchmarks.processes import Process, clients, cpu_s, free_port, rss_bytes
from tests.support.server import ServerProcess

SUBSCRIBERS: Final = 1000
PATH: Final = "/v1/responses"
SETTINGS: Final = "drain_timeout_s = 0\n[admission]\nadaptive = false\n"
SETTLE_S: Final = 1.0  # for what a burst of handshakes leaves behind to be done


@contextmanager
def echo_server(*options: str) -> Iterator[ServerProcess]:
    """A fresh Tokenwire with the echo engine and a Valkey of its own."""
    with (
        tempfile.TemporaryDirectory() as data,
        ServerProcess(Path(data), "--log-level", "warning", *options, config=SETTINGS) as server,
    ):
        yield server


def command(socket: ClientConnection, **fields: Any) -> dict[str, Any]:
    """Send a command and return the next event."""
    socket.send(orjson.dumps(fields).decode())
    event: dict[str, Any] = orjson.loads(socket.recv())
    return event


def idle(sizes: Sequence[int]) -> list[Figure]:
    """Memory of connections that do nothing, on a fresh server for each number."""
    group = "memory per idle connection"
    figures, costs = [], []
    for size in sizes:
        with echo_server() as server:
            with clients("idle", server.port, 20, path=PATH):  # what the first ones bring in stays
                pass
            time.sleep(SETTLE_S)
            before = rss_bytes(server.pid)
            with clients("idle", server.port, size, path=PATH):
                time.sleep(SETTLE_S)
                costs.append((rss_bytes(server.pid) - before) / size / 1024)
        figures.append(Figure(group, f"{size:,} connections", "KiB", Spread.of([costs[-1]]), at_most(20)))
    name = f"memory per connection, {sizes[-1]:,} ÷ {sizes[0]:,}"
    figures.append(compared("growth", name, costs[-1:], costs[:1], at_most(1.2)))
    return figures


def handshakes(count: int, rounds: int) -> list[Figure]:
    """Handshakes per second of the server's CPU time, beside those of `websockets` alone."""
    ours, bare = [], []
    with echo_server() as server, _bare() as (other, port):
        for number in range(rounds + 1):
            mine = _handshakes(server.pid, server.port, count)
            theirs = _handshakes(other.pid, port, count)
            if number:  # the first round fills caches
                ours.append(mine)
                bare.append(theirs)
    group = "handshakes"
    return [
        Figure(group, "per CPU second", "", Spread.of(ours), is_shown=True),
        compared(group, "÷ websockets alone", ours, bare, at_least(0.9)),
    ]


def _handshakes(pid: int, port: int, count: int) -> float:
    before = cpu_s(pid)
    with clients("idle", port, count, path=PATH):
        used = cpu_s(pid) - before
    time.sleep(SETTLE_S)
    return count / used


@contextmanager
def _bare() -> Iterator[tuple[Process, int]]:
    port = free_port()
    with Process("tests.benchmarks.bare", {"port": port}) as process:
        yield process, port


def fan_out(rounds: int, words: int, rate: int) -> list[Figure]:
    """One answer to many subscribers, beside `websockets.broadcast` of as many frames at the same rate."""
    ours, bare = [], []
    with (
        echo_server("--echo-rate", str(rate)) as server,
        connect(f"{server.ws_url}{PATH}", compression=None, max_size=None) as asker,
        _bare() as (other, port),
    ):
        conversation = command(asker, type="conversation.create")["conversation"]["id"]
        join = {"type": "conversation.subscribe", "conversation": conversation}
        with (
            clients("subscribed", server.port, SUBSCRIBERS, path=PATH, command=join) as many,
            clients("subscribed", port, SUBSCRIBERS, path=PATH, command={}) as others,
        ):
            for _ in range(rounds):
                before = cpu_s(server.pid)
                many.tell("go")
                _ask(asker, conversation, words)
                answers = many.hear()["answers"]
                used = cpu_s(server.pid) - before
                frames = sum(answer["frames"] for answer in answers)
                ours.append(used / frames * 1e6)
                size = sum(answer["bytes"] for answer in answers) // frames
                others.tell("go")
                sent = other.ask(orjson.dumps({"frames": frames // SUBSCRIBERS, "size": size, "rate": rate}).decode())
                heard = sum(answer["frames"] for answer in others.hear()["answers"])
                bare.append(sent["cpu_s"] / heard * 1e6)
    group = f"one answer to {SUBSCRIBERS:,} subscribers"
    return [
        Figure(group, "CPU per delivered frame", "µs", Spread.of(ours)),
        compared(group, "÷ websockets.broadcast", ours, bare, at_most(1.3)),
    ]


def _ask(asker: ClientConnection, conversation: str, words: int) -> None:
    text = " ".join(f"word{number}" for number in range(words))
    asker.send(orjson.dumps({"type": "response.create", "input": text, "conversation": conversation}).decode())
    for frame in asker:
        if '"response.completed"' in frame[:40]:
            return
