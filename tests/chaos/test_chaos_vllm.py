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


@pytest.mark.timeout(600)  # three times two engines load
async def test_an_answer_outlives_its_engine_and_its_gateway():
    """Each time the client ends with one whole, continuous answer: the one that undisturbed engines give.

    An engine's client stays on its connection, whether the engine is killed or hangs; the gateway's goes on at the
    other one with `starting_after`.
    """
    options = ("--model", "smollm2-135m-instruct", "--engine-stall-timeout", "20")
    async with World(engine="vllm", options=options) as world:
        scene = Scene(world)
        undisturbed = await scene.client().say(ASKED, None, **GREEDY)
        whole = output_text(undisturbed["response"])
        assert len(whole.split()) > 50

        # One engine is killed, the other one hangs.
        talkers = [scene.client(first=index, pings=False) for index in range(2)]
        answers = [scene.begin(talker, ASKED, await scene.conversation(), **GREEDY) for talker in talkers]
        for talker, gateway, harm in zip(talkers, world.gateways, (signal.SIGKILL, signal.SIGSTOP), strict=True):
            await scene.seen(talker, 20)
            for pid in gateway.engine_pids():
                os.kill(pid, harm)
        for gateway in world.gateways:
            await asyncio.to_thread(gateway.until_ready, 503)
        for talker, answer in zip(talkers, answers, strict=True):
            end = await answer
            assert end["type"] == "response.incomplete"  # by max_output_tokens
            assert output_text(end["response"]) == whole
            assert talker.reconnects == 0
            await asyncio.to_thread(world.gateways[talker.at].until_ready)
        await talkers.pop().leave()

        (talker,) = talkers
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
