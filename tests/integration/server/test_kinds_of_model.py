"""LoRA adapters, and models that make no text, on real vLLM behind one server."""

from __future__ import annotations

import base64
import math
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.server import wire
from tests.integration.server.wire import Answer, Client, client
from tests.support.asyncapi import Described
from tests.support.pooling_models import minilm, with_head
from tests.support.random_adapter import make_random_adapter
from tests.support.server import ServerProcess

LOAD_S = 300  # on a busy machine; a model is loaded while its first command waits
CONFIG = """
default_model = "echo"
[vllm]
max_num_seqs = 16
[models.base]
source = "{base}"
max_loras = 2
max_lora_rank = 16
min_replicas = 0
[models.first]
base = "base"
source = "{folder}/first"
[models.second]
base = "base"
source = "{folder}/second"
[models.minilm]
source = "{minilm}"
runner = "pooling"
min_replicas = 0
aliases = ["embedder"]
[models.cross]
source = "{folder}/cross"
runner = "pooling"
min_replicas = 0
[models.echo]
source = "echo"
backend = "echo"
"""
pytestmark = pytest.mark.timeout(600)
GREEDY: dict[str, Any] = {"temperature": 0, "max_output_tokens": 12, "ignore_eos": True, "store": False}
DESCRIBED = Described()
PARIS, CATS = "Paris is the capital of France.", "Cats purr when they are content."


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    make_random_adapter(folder / "first", seed=1)
    make_random_adapter(folder / "second", seed=2, rank=16)
    with_head(folder / "cross", ("good",))
    return folder


@pytest.fixture(scope="module")
def gateway(random_model_dir: Path, folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    config = CONFIG.format(base=random_model_dir, folder=folder, minilm=minilm())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wire, "PATIENCE_S", LOAD_S)
        server = ServerProcess(tmp_path_factory.mktemp("data"), config=config, engine="vllm")
        with server.start(timeout_s=LOAD_S):
            yield server
    assert server.faults() == []


async def states(user: Client) -> dict[str, str]:
    return {row["id"]: row["state"] for row in (await user.do("model.list"))["data"]}


async def asked(user: Client, model: str) -> Answer:
    return await user.ask("Hello", model=model, stream_id=model, **GREEDY)


async def test_one_engine_answers_as_three_models(gateway: ServerProcess) -> None:
    """Greedy, base and adapters differ, and each says the same again, also at once."""
    names = ["first", "second", "base"]
    async with client(gateway) as user:
        before = await states(user)
        assert [before[name] for name in names] == ["unloaded"] * 3
        before_them = (await asked(user, "base")).text
        alone = {name: (await asked(user, name)).text for name in names}
        assert len(set(alone.values())) == 3
        assert alone["base"] == before_them  # vLLM's own kernels for CPUs would answer with the last adapter
        for name in names:
            await user.create("Hello", model=name, stream_id=name, **GREEDY)
        assert {name: (await user.answer(name)).text for name in names} == alone
        after = await states(user)
        assert [after[name] for name in names] == ["ready"] * 3
    assert gateway.metric("model_state", model="minilm", state="unloaded") == 1
    engines = [name for name in gateway.children().values() if "VLLM" in name or "Engine" in name]
    assert len(engines) == 1, gateway.children()


async def test_an_unloaded_adapter_is_gone_and_comes_back(gateway: ServerProcess, folder: Path) -> None:
    """Its base stays; what is in its folder by then is what is loaded the next time, and no cache knows the old one."""
    async with client(gateway) as user:
        before = (await asked(user, "first")).text
        await user.do("model.unload", model="first")
        now = await states(user)
        assert (now["base"], now["first"]) == ("ready", "unloaded")
        shutil.rmtree(folder / "first")
        make_random_adapter(folder / "first", seed=3)
        assert (await asked(user, "first")).text != before


async def test_adapters_that_do_not_fit_are_refused_by_name(gateway: ServerProcess, tmp_path: Path) -> None:
    """At load, with what does not fit, which vLLM itself would take; base and adapters go on."""
    wrong: dict[str, tuple[dict[str, Any], str]] = {
        "narrow": ({"hidden": 64}, "self_attn.o_proj is 64 by 64, and the model's 128 by 128"),
        "deep": ({"layers": 3}, "changes model.layers.2.self_attn.o_proj, which the model does not have"),
        "high": ({"rank": 32}, "its rank is 32, and the base model takes 16; set the base model's max_lora_rank"),
    }
    async with client(gateway) as user:
        good = (await asked(user, "second")).text
        for name, (shape, text) in wrong.items():
            source = str(make_random_adapter(tmp_path / name, seed=4, **shape))
            added = await user.do("model.add", model=name, settings={"source": source, "base": "base"})
            assert added["type"] == "model.added", added
            answer = await asked(user, name)
            assert (answer.type, answer.response["error"]["code"]) == ("response.failed", "model_unavailable")
            assert "does not fit its base model" in answer.response["error"]["message"]
            assert text in answer.response["error"]["message"]
        assert (await states(user))["base"] == "ready"
        assert (await asked(user, "second")).text == good


async def test_adapters_that_cannot_be_are_refused_when_they_are_added(gateway: ServerProcess, tmp_path: Path) -> None:
    """No folder, half a file, a base that is not there, an adapter's adapter."""
    half = make_random_adapter(tmp_path / "half", seed=5)
    weights = half / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    whole = str(make_random_adapter(tmp_path / "whole", seed=6))
    async with client(gateway) as user:
        for source, base, text in (
            (str(tmp_path / "nowhere"), "base", "holds no adapter_config.json"),
            (str(half), "base", "adapter_model.safetensors is cut off"),
            (whole, "bsae", "there is no model 'bsae' for the adapter 'x'"),
            (whole, "first", "'first' is an adapter itself; name its base model 'base'"),
        ):
            error = await user.refused("model.add", model="x", settings={"source": source, "base": base})
            assert text in error["message"]
        assert "pin its base model" in (await user.refused("model.pin", model="first", pinned=True))["message"]


def cosine(one: list[float], other: list[float]) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True)) / math.hypot(*one) / math.hypot(*other)


async def embeddings(user: Client, texts: str | list[str], **fields: object) -> list[list[float]]:
    event = await user.do("embedding.create", model="minilm", input=texts, **fields)
    assert event["type"] == "embedding.created", event
    DESCRIBED.check_sent(event)
    assert [row["index"] for row in event["data"]] == list(range(len(event["data"])))
    return [row["embedding"] for row in event["data"]]


async def test_near_in_meaning_is_near_in_space(gateway: ServerProcess) -> None:
    """384 numbers for each text, the same alone and together, of length 1; usage counts their tokens."""
    async with client(gateway) as user:
        paris, cats, question = await embeddings(user, [PARIS, CATS, "What is France's capital city?"])
        assert [len(vector) for vector in (paris, cats)] == [384, 384]
        assert cosine(question, paris) > 0.6
        assert cosine(question, cats) < 0.2
        assert math.hypot(*paris) == pytest.approx(1, abs=1e-3)
        assert cosine((await embeddings(user, PARIS))[0], paris) == pytest.approx(1, abs=1e-4)
        event = await user.do("embedding.create", model="embedder", input=PARIS, id="k", stream_id="s")
        assert (event["id"], event["stream_id"], event["model"]) == ("k", "s", "minilm")
        assert event["usage"] == {"prompt_tokens": 9, "total_tokens": 9}


async def test_base64_is_the_same_vector(gateway: ServerProcess) -> None:
    """As OpenAI's clients unpack it."""
    async with client(gateway) as user:
        event = await user.do("embedding.create", model="minilm", input=PARIS, encoding_format="base64")
        packed = base64.b64decode(event["data"][0]["embedding"])
        plain = (await embeddings(user, PARIS))[0]
    assert struct.unpack("<384f", packed) == pytest.approx(plain, abs=1e-5)


async def test_an_embedding_model_reranks(gateway: ServerProcess) -> None:
    """The document that answers the query comes first."""
    async with client(gateway) as user:
        documents = [CATS, PARIS, "Berlin is a city."]
        asked = {"model": "minilm", "query": "capital of France", "documents": documents}
        event = await user.do("rerank.create", **asked, return_documents=True)
        assert event["results"][0]["index"] == 1
        assert event["results"][0]["document"] == {"text": PARIS}
        scores = [row["relevance_score"] for row in event["results"]]
        assert scores == sorted(scores, reverse=True)
        top = await user.do("rerank.create", **asked, top_n=1)
        assert [row["index"] for row in top["results"]] == [1]


async def test_a_text_is_only_ever_text(gateway: ServerProcess) -> None:
    """`[SEP]` in a text is some characters, and no separator."""
    async with client(gateway) as user:
        event = await user.do("embedding.create", model="minilm", input="[SEP]")
        assert event["usage"]["prompt_tokens"] > 3


async def test_a_cross_encoder_scores_pairs(gateway: ServerProcess) -> None:
    """It is loaded when it is asked for; its score is one of the pair, from 0 to 1, the same alone and together."""
    async with client(gateway) as user:
        event = await user.do("rerank.create", model="cross", query="capital?", documents=[CATS, PARIS])
        assert event["type"] == "rerank.created", event
        DESCRIBED.check_sent(event)
        scores = {row["index"]: row["relevance_score"] for row in event["results"]}
        assert all(0 <= score <= 1 for score in scores.values())
        assert scores[0] != scores[1]
        alone = await user.do("rerank.create", model="cross", query="capital?", documents=[PARIS])
        assert alone["results"][0]["relevance_score"] == pytest.approx(scores[1], abs=1e-4)


async def test_a_classifier_names_its_labels(gateway: ServerProcess) -> None:
    """The likeliest one, and how likely each is; this one has a single label."""
    async with client(gateway) as user:
        event = await user.do("classify.create", model="cross", input=[PARIS, CATS])
        assert event["type"] == "classify.created", event
        DESCRIBED.check_sent(event)
        first, second = event["data"]
        assert (first["index"], first["label"], first["num_classes"], len(first["probs"])) == (0, "good", 1, 1)
        assert 0 <= first["probs"][0] <= 1
        assert first["probs"] != second["probs"]


async def test_what_cannot_be_done_is_refused(gateway: ServerProcess) -> None:
    """Too long, the wrong kind of model, no such model, a chat with one that makes no text; the socket goes on."""
    async with client(gateway) as user:
        error = await user.refused("embedding.create", model="minilm", input=["short", "word " * 600])
        assert (error["code"], error["param"]) == ("context_length_exceeded", "input[1]")
        assert "has 602 tokens, but the model takes 256" in error["message"]
        error = await user.refused("classify.create", model="minilm", input="x")
        assert (error["param"], error["message"]) == (
            "model",
            "model 'minilm' embeds texts; name one that classifies",
        )
        error = await user.refused("embedding.create", model="echo", input="x")
        assert error["message"] == "model 'echo' makes text; name one that embeds"
        error = await user.refused("embedding.create", model="minilmm", input="x")
        assert error["code"] == "model_not_found"
        assert "minilm" in error["message"]
        error = await user.refused("embedding.create", model="minilm", input="x", dimensions=64)
        assert (error["code"], error["param"]) == ("invalid_request", "dimensions")
        assert error["message"] == "this model's vectors cannot be cut to 64 numbers; leave dimensions out"
        error = await user.refused("response.create", model="minilm", input="hello")
        assert error["code"] == "invalid_request"
        assert "makes no text" in error["message"]
        assert len((await embeddings(user, "still there"))[0]) == 384
