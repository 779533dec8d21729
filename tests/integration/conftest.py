"""What integration tests share: the default model, and one running vLLM for all of them."""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from server.engine.base import ProgressCallback, VllmSettings
from server.engine.vllm import VllmEngine
from server.models.sources import resolve
from tests.support.random_model import make_random_model, make_seeing_model
from tests.support.vllm_server import VllmServer

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # read when transformers is imported: nothing here asks a hub


def say(*_: object) -> None:
    """Take progress and say nothing."""


@pytest.fixture(scope="session")
def default_model_dir() -> str:
    """The folder of the default chat model; made on first use, then cached."""
    return resolve("smollm2-135m-instruct", progress=say)


@pytest.fixture(scope="session")
def random_model_dir() -> Iterator[Path]:
    """The folder of a tiny model with random weights: real vLLM, senseless text."""
    with tempfile.TemporaryDirectory(prefix="tokenwire-random-model-") as folder:
        yield make_random_model(Path(folder) / "model")


async def start(engine: VllmEngine, progress: ProgressCallback = say) -> VllmEngine:
    """Start an engine in spite of `filterwarnings = error`: vLLM, torch and triton warn while they are imported."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        await engine.start(progress)
    return engine


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def vllm_engine(default_model_dir: str) -> AsyncIterator[VllmEngine]:
    """The one engine of the run, with the default model. It lives in the session's event loop: tests that use it
    are marked `asyncio(loop_scope="session")`.
    """
    engine = await start(VllmEngine("default", default_model_dir))
    yield engine
    engine.close()
    await engine.wait_closed()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def vllm_seeing(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[VllmEngine]:
    """An engine with a tiny model of random weights that takes images."""
    folder = make_seeing_model(tmp_path_factory.mktemp("seeing") / "model")
    settings = VllmSettings(max_num_seqs=4, cpu_kvcache_gib=0.25, extra={"limit_mm_per_prompt": {"image": 2}})
    engine = await start(VllmEngine("seeing", str(folder), settings))
    yield engine
    engine.close()
    await engine.wait_closed()


@pytest.fixture(scope="session")
def vllm_server(default_model_dir: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmServer]:
    """The OpenAI server of vLLM itself with the default model: what remote backends talk to."""
    server = VllmServer(Path(default_model_dir), tmp_path_factory.mktemp("vllm") / "server.log")
    try:
        server.wait_ready()
        yield server
    finally:
        server.stop()
