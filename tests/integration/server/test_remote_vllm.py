"""A gateway that runs no model: its model is on vLLM's own server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.server.wire import DELTA, client
from tests.support.server import ServerProcess
from tests.support.vllm_server import KEY, MODEL, VllmServer

CONFIG = """
[models.chat]
backend = "openai"
source = "{model}"
remote = {{ url = "{url}", api_key_env = "TEST_REMOTE_KEY", silence_timeout_s = 60 }}
"""


@pytest.fixture(scope="module")
def gateway(vllm_server: VllmServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TEST_REMOTE_KEY", KEY)
        config = CONFIG.format(model=MODEL, url=vllm_server.url)
        with ServerProcess(tmp_path_factory.mktemp("remote"), config=config, engine="vllm") as server:
            yield server
        assert server.faults() == []


async def test_a_conversation_is_answered_by_the_other_server(gateway: ServerProcess) -> None:
    """Turn by turn, with usage; the process has no PyTorch in it."""
    async with client(gateway) as user:
        first = await user.ask("What is the capital of France?", temperature=0, max_output_tokens=32)
        second = await user.ask("And of Italy?", previous_response_id=first.id, temperature=0, max_output_tokens=32)
    assert "Paris" in first.check().text
    assert "Rome" in second.check().text
    assert first.response["usage"]["output_tokens"] > 3
    assert second.input_tokens > first.input_tokens > 30
    assert "libtorch" not in libraries(gateway.pid)


def libraries(pid: int) -> str:
    """Return what a process has mapped into its memory."""
    return Path(f"/proc/{pid}/maps").read_text()


async def test_a_cancel_stops_the_other_server(gateway: ServerProcess, vllm_server: VllmServer) -> None:
    """What is left of the answer is not made."""
    async with client(gateway) as user:
        await user.create("Tell me a long story.", max_output_tokens=4000, ignore_eos=True)
        await user.until(DELTA)
        await user.send({"type": "response.cancel"})
        end = (await user.until("response.incomplete"))[-1]
    assert end["response"]["incomplete_details"] == {"reason": "cancelled"}
    await asyncio.to_thread(vllm_server.until_running, 0)
