"""Real vLLM on a machine's memory that does not hold all models: loaded in turns, unloaded for real."""

from __future__ import annotations

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
ASKED = "Tell me a story."
GREEDY: dict[str, Any] = {"temperature": 0, "max_output_tokens": 12, "ignore_eos": True}
# a and b take turns on `one`; c is at home on `two`.
SETTINGS = """
default_model = "c"
[vllm]
max_model_len = 512
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
memory_gib = 2
pin = true
"""


def engines(server: ServerProcess) -> set[int]:
    """Return the engines' processes: they alone have a group of their own and are no Valkey."""
    found = {pid for pid, name in server.children().items() if "VLLM" in name or "python" in name.lower()}
    return {pid for pid in found if is_alive(pid) and os.getpgid(pid) == pid}


async def turn(wire: Client, model: str) -> Answer:
    answer = await wire.ask(ASKED, model=model, **GREEDY)
    assert answer.response["model"] == model
    return answer


@pytest.mark.timeout(900)
async def test_models_that_do_not_fit_together(random_model_dir: Path, tmp_path: Path):
    """Each is answered, the other one's process and memory are gone by then, round after round without a leak.

    A stream of one is not broken off for the other; a killed engine touches no other one, and comes back.
    """
    server = ServerProcess(tmp_path, config=SETTINGS.format(source=random_model_dir), engine="vllm")
    with server.start(timeout_s=LOAD_S):
        async with client(server) as wire:
            (pinned,) = engines(server)
            texts: dict[str, str] = {}
            sizes = []
            for _ in range(ROUNDS):
                for name in "ab":
                    answer = await turn(wire, name)
                    assert answer.text == texts.setdefault(name, answer.text)
                    assert len(engines(server)) == 2  # and no third one, of the other model
                    reasons = [e["tokenwire"]["reason"] for e in answer.events if e["type"] == "response.queued"]
                    assert set(reasons) == {"model_loading"}
                    assert server.metric("device_taken_bytes", device="one") == 2 * 2**30
                sizes.append(server.rss_bytes())
            assert texts["a"] != texts["b"]
            assert server.metric("model_evictions_total") == 2 * ROUNDS - 1
            assert sizes[-1] - sizes[0] <= LEAK_BYTES * (ROUNDS - 1), sizes

            # A streams, B is asked for, C's engine is killed: all three are right.
            await wire.create(ASKED, model="a", stream_id="a", **{**GREEDY, "max_output_tokens": 300})
            begun = await wire.until(DELTA, stream_id="a")
            await wire.create(ASKED, model="b", stream_id="b", **GREEDY)
            os.kill(pinned, signal.SIGKILL)
            long = Answer([*begun, *await wire.until(*TERMINAL, stream_id="a")]).check()
            assert long.text.startswith(texts["a"])
            assert long.response["usage"]["output_tokens"] == 300
            assert (await wire.answer("b")).text == texts["b"]
            until_gone(pinned)
            assert (await turn(wire, "c")).response["usage"]["output_tokens"] == GREEDY["max_output_tokens"]
    assert server.wait() == 0
