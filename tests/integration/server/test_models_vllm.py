"""Real vLLM on a machine's memory that does not hold all models: loaded in turns, unloaded for real."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.integration.server.wire import DELTA, TERMINAL, Answer, Client, client
from tests.support.server import ServerProcess, is_alive, until_gone

ROUNDS = int(os.environ.get("TOKENWIRE_TEST_ROUNDS", "1"))
LEAK_BYTES = 24 * 2**20  # a round may leave no more than this; the process has 1 GiB
LOAD_S = 300  # on a busy machine
LONG = 1200  # tokens: more than a second
ASKED = "Tell me a story."
GREEDY: dict[str, Any] = {"temperature": 0, "max_output_tokens": 12, "ignore_eos": True}
# c is at home on one of the devices, twice; a and b take turns on the other one.
SETTINGS = """
default_model = "c"
[vllm]
max_model_len = 2048
[placement]
preset = "latency"
memory_threshold = 1.0
swap_after_s = 1
[devices.one]
memory_gib = 3
[devices.two]
memory_gib = 3
[models.a]
source = "{source}"
system_prompt = "You are a lighthouse keeper."
memory_gib = 2
[models.b]
source = "{source}"
system_prompt = "List three colours."
memory_gib = 2
[models.c]
source = "{source}"
memory_gib = 1.5
pin = true
min_replicas = 2
max_replicas = 2
"""


def engines(server: ServerProcess) -> set[int]:
    """Return the engines' processes: they alone have a group of their own and are no Valkey."""
    found = {pid for pid, name in server.children().items() if "VLLM" in name or "python" in name.lower()}
    return {pid for pid in found if is_alive(pid) and os.getpgid(pid) == pid}


async def turn(wire: Client, model: str) -> Answer:
    answer = await wire.ask(ASKED, model=model, **GREEDY)
    assert answer.response["model"] == model
    return answer


async def replicas(wire: Client) -> list[tuple[str, str, int]]:
    """Return those of c, with what runs in each."""
    listed = (await wire.do("model.list", stream_id="list"))["data"]
    found = next(model for model in listed if model["id"] == "c")["replicas"]
    return sorted((replica["id"], replica["state"], replica["running"]) for replica in found)


async def until_both_idle(wire: Client) -> None:
    async with asyncio.timeout(LOAD_S):
        while await replicas(wire) != [("c#1", "ready", 0), ("c#2", "ready", 0)]:  # noqa: ASYNC110 nothing tells of it
            await asyncio.sleep(0.1)


@pytest.mark.timeout(900)
async def test_models_that_do_not_fit_together(random_model_dir: Path, tmp_path: Path):
    """Each is answered, the other one's process and memory are gone by then, round after round without a leak.

    A stream of one is not broken off for the other. Of two replicas one is killed: its answers go on in the other one,
    which is not touched, and it comes back.
    """
    server = ServerProcess(tmp_path, config=SETTINGS.format(source=random_model_dir), engine="vllm")
    with server.start(timeout_s=LOAD_S):
        async with client(server) as wire:
            await until_both_idle(wire)
            pinned = engines(server)
            assert len(pinned) == 2
            texts: dict[str, str] = {}
            sizes = []
            for number in range(2 * ROUNDS - 1):
                name = "ab"[number % 2]
                answer = await turn(wire, name)
                assert answer.text == texts.setdefault(name, answer.text)
                assert len(engines(server)) == 3  # and no fourth one, of the other model
                reasons = [e["tokenwire"]["reason"] for e in answer.events if e["type"] == "response.queued"]
                assert set(reasons) == {"model_loading"}
                assert server.metric("device_taken_bytes") == (2 + 2 * 1.5) * 2**30
                if name == "a":
                    sizes.append(server.rss_bytes())
            assert sizes[-1] - sizes[0] <= LEAK_BYTES * (ROUNDS - 1), sizes
            print("resident MiB after each round:", *(size // 2**20 for size in sizes))

            # A streams, B is asked for, and C's replicas stream when one of them is killed: all are right.
            long = {**GREEDY, "max_output_tokens": LONG}
            await wire.create(ASKED, model="a", stream_id="a", **long)
            begun = {"a": await wire.until(DELTA, stream_id="a")}
            await wire.create(ASKED, model="b", stream_id="b", **GREEDY)
            for lane in ("c1", "c2"):
                await wire.create(ASKED, model="c", stream_id=lane, **long)
                begun[lane] = await wire.until(DELTA, stream_id=lane)
            assert await replicas(wire) == [("c#1", "ready", 1), ("c#2", "ready", 1)]
            os.kill(min(pinned), signal.SIGKILL)
            for lane, events in begun.items():
                answer = Answer([*events, *await wire.until(*TERMINAL, stream_id=lane)]).check()
                assert answer.response["usage"]["output_tokens"] == LONG
                assert lane != "a" or answer.text.startswith(texts["a"])
            answer = await wire.answer("b")
            assert answer.text == texts.setdefault("b", answer.text) != texts["a"]
            assert server.metric("model_evictions_total") == 2 * ROUNDS - 1
            until_gone(min(pinned))
            assert is_alive(max(pinned))
            await until_both_idle(wire)
    assert server.wait() == 0
