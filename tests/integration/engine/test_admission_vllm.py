"""Admission and summaries over real vLLM."""

from __future__ import annotations

import pytest

from server.chat import document
from server.engine.vllm import VllmEngine
from tests.benchmarks.admission_vllm import DOORS, FLOOD, FLOOD_PLACES, World, flood
from tests.support.memory import MemoryClient

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_a_quiet_user_beside_a_flood(vllm_engine: VllmEngine) -> None:
    """Fifty turns of another user are queued: two rounds of places at most go by, and not all of the flood."""
    turns = {}
    for kind, make in DOORS.items():
        world = await World.open(vllm_engine, make(FLOOD_PLACES))
        turns[kind] = (await flood(world, FLOOD, 8))["turns_before"]
        await world.gateway.close()
    assert turns["ours"] <= 2 * FLOOD_PLACES
    assert turns["FIFO"] > FLOOD - 3 * FLOOD_PLACES


async def test_a_document_longer_than_the_window(vllm_engine: VllmEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """All parts are read and told in order, and the whole cost is in the usage."""
    monkeypatch.setattr(document, "SUMMARY_TOKENS", 8)
    world = await World.open(vllm_engine, DOORS["ours"](8))
    text = "\n\n".join(f"# Chapter {n}\n\n" + "The ship sailed on and on over the calm sea. " * 180 for n in range(5))
    client = MemoryClient("ann")
    generation = await world.gateway.create(client, input=text, task="summarize", max_output_tokens=16)
    await generation.ended.wait()
    await world.gateway.close()
    response = client.frames[-1]["response"]
    assert response["status"] in {"completed", "incomplete"}
    notice = response["tokenwire"]["summarize"]
    assert notice["done"] == notice["parts"] >= 5
    told = [client.text().find(f"### Part {n} of {notice['parts']}") for n in range(1, notice["parts"] + 1)]
    assert told == sorted(told)
    assert -1 not in told
    assert client.text().count("### Summary") == 1
    assert response["usage"]["input_tokens"] > vllm_engine.context_length
    assert vllm_engine.unfinished == 0
