"""Real vLLM, two gateways, one Valkey: an answer outlives its engine process, and its gateway."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

import pytest

from tests.chaos.checker import output_text
from tests.chaos.test_chaos import Scene
from tests.chaos.world import World

ASKED = "Tell me a long story about an old lighthouse keeper and the sea."
# Greedy: whoever goes on behind the same text says the same.
GREEDY: dict[str, Any] = {"temperature": 0, "max_output_tokens": 120, "ignore_eos": True}


@pytest.mark.timeout(420)
async def test_an_answer_outlives_its_engine_and_its_gateway():
    """Each time the client ends with one whole, continuous answer: the one that undisturbed engines give.

    The engine's client stays on its connection; the gateway's goes on at the other one with `starting_after`.
    """
    async with World(engine="vllm", options=("--model", "smollm2-135m-instruct")) as world:
        scene = Scene(world)
        undisturbed = await scene.client().say(ASKED, None, **GREEDY)
        whole = output_text(undisturbed["response"])
        assert len(whole.split()) > 50

        talker = scene.client(pings=False)
        answer = scene.begin(talker, ASKED, await scene.conversation(), **GREEDY)
        await scene.seen(talker, 20)
        for pid in world.gateways[0].engine_pids():
            os.kill(pid, signal.SIGKILL)
        end = await answer
        assert end["type"] == "response.incomplete"  # by max_output_tokens
        assert output_text(end["response"]) == whole
        assert talker.reconnects == 0

        await asyncio.to_thread(world.gateways[0].until_ready)
        answer = scene.begin(talker, ASKED, await scene.conversation(), **GREEDY)
        await scene.seen(talker, 40)
        world.gateways[0].kill()
        end = await answer
        assert end["type"] == "response.incomplete"
        assert output_text(end["response"]) == whole
        assert end["response"]["usage"]["output_tokens"] == GREEDY["max_output_tokens"]
        assert talker.at == 1
        await talker.leave()
        await scene.judge(echo=False)
