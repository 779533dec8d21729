"""LoRA adapters as models: one real vLLM, one base model, and what its adapters make of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.server import wire
from tests.integration.server.wire import client
from tests.support.random_adapter import make_random_adapter
from tests.support.server import ServerProcess

CONFIG = """
default_model = "base"
[models.base]
source = "{base}"
max_num_seqs = 16
min_replicas = 0
[models.first]
base = "base"
source = "{folder}/first"
[models.second]
base = "base"
source = "{folder}/second"
[models.misfit]
base = "base"
source = "{folder}/misfit"
"""


@pytest.fixture(scope="module")
def vllm_gateway(random_model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("adapters")
    make_random_adapter(folder / "first", seed=1)
    make_random_adapter(folder / "second", seed=2, rank=16)
    make_random_adapter(folder / "misfit", seed=3, hidden=64)
    config = CONFIG.format(base=random_model_dir, folder=folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wire, "PATIENCE_S", 150)  # the first turn waits while the base is loaded
        with ServerProcess(tmp_path_factory.mktemp("data"), config=config, engine="vllm") as server:
            yield server
    assert server.faults() == []


async def test_one_engine_answers_as_three_models(vllm_gateway: ServerProcess) -> None:
    """Greedy, base and adapters differ, each says the same again, also at once; the adapters came when asked for."""
    greedy = {"temperature": 0, "max_output_tokens": 16, "ignore_eos": True, "store": False}
    async with client(vllm_gateway) as user:
        before = {row["id"]: row["state"] for row in (await user.do("model.list"))["data"]}
        assert {before[name] for name in ("first", "second", "misfit")} == {"unloaded"}
        names = ["first", "second", "base"]
        alone = {name: (await user.ask("Hello", model=name, **greedy)).text for name in names}
        assert len(set(alone.values())) == 3
        for name in names:
            await user.create("Hello", model=name, stream_id=name, **greedy)
        together = {name: (await user.answer(name)).text for name in names}
        assert together == alone
        after = {row["id"]: row["state"] for row in (await user.do("model.list"))["data"]}
        assert [after[name] for name in names] == ["ready"] * 3
    cores = [name for name in vllm_gateway.children().values() if "valkey" not in name]
    assert sum("Engine" in name for name in cores) <= 1


async def test_an_adapter_that_does_not_fit_is_told_and_costs_the_others_nothing(vllm_gateway: ServerProcess) -> None:
    """The response fails with what is wrong; base and adapters go on."""
    async with client(vllm_gateway) as user:
        answer = await user.ask("Hello", model="misfit", max_output_tokens=4)
        assert answer.type == "response.failed"
        assert answer.response["error"]["code"] == "model_unavailable"
        assert "does not fit model base" in answer.response["error"]["message"]
        assert (await user.ask("Hello", model="first", max_output_tokens=4)).type != "response.failed"


async def test_an_unloaded_adapter_comes_back(vllm_gateway: ServerProcess) -> None:
    """Unloading one leaves the base loaded; asking for it loads it again."""
    async with client(vllm_gateway) as user:
        await user.do("model.unload", model="first")
        states = {row["id"]: row["state"] for row in (await user.do("model.list"))["data"]}
        assert (states["base"], states["first"]) == ("ready", "unloaded")
        assert (await user.ask("Hello", model="first", max_output_tokens=4)).text
