"""Embedding, reranking and classifying models on real vLLM, beside each other behind one server."""

from __future__ import annotations

import base64
import math
import struct
from collections.abc import Iterator

import pytest

from tests.integration.server import wire
from tests.integration.server.wire import Client, client
from tests.support.pooling_models import LABELS, minilm, with_head
from tests.support.server import ServerProcess

CONFIG = """
default_model = "minilm"
[models.minilm]
source = "{minilm}"
runner = "pooling"
min_replicas = 0
aliases = ["embedder"]
[models.mood]
source = "{mood}"
runner = "pooling"
min_replicas = 0
[models.cross]
source = "{cross}"
runner = "pooling"
min_replicas = 0
[models.echo]
source = "echo"
backend = "echo"
"""
PARIS, CATS = "Paris is the capital of France.", "Cats purr when they are content."


@pytest.fixture(scope="module")
def vllm_gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("heads")
    mood, cross = with_head(folder / "mood", LABELS), with_head(folder / "cross", ("score",))
    config = CONFIG.format(minilm=minilm(), mood=mood, cross=cross)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wire, "PATIENCE_S", 150)  # a model is loaded while its first command waits
        with ServerProcess(tmp_path_factory.mktemp("data"), config=config, engine="vllm") as server:
            yield server
    assert server.faults() == []


def cosine(one: list[float], other: list[float]) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True)) / math.hypot(*one) / math.hypot(*other)


async def embeddings(user: Client, texts: str | list[str], **fields: object) -> list[list[float]]:
    event = await user.do("embedding.create", model="minilm", input=texts, **fields)
    assert event["type"] == "embedding.created", event
    assert [row["index"] for row in event["data"]] == list(range(len(event["data"])))
    return [row["embedding"] for row in event["data"]]


async def test_near_in_meaning_is_near_in_space(vllm_gateway: ServerProcess) -> None:
    """384 numbers for each text, the same alone and together, of length 1; usage counts their tokens."""
    async with client(vllm_gateway) as user:
        paris, cats, question = await embeddings(user, [PARIS, CATS, "What is France's capital city?"])
        assert [len(vector) for vector in (paris, cats)] == [384, 384]
        assert cosine(question, paris) > 0.6
        assert cosine(question, cats) < 0.2
        assert math.hypot(*paris) == pytest.approx(1, abs=1e-3)
        assert cosine((await embeddings(user, PARIS))[0], paris) == pytest.approx(1, abs=1e-4)
        event = await user.do("embedding.create", model="embedder", input=PARIS, id="k", stream_id="s")
        assert (event["id"], event["stream_id"], event["model"]) == ("k", "s", "minilm")
        assert event["usage"] == {"prompt_tokens": 9, "total_tokens": 9}


async def test_base64_is_the_same_vector(vllm_gateway: ServerProcess) -> None:
    """As OpenAI's clients unpack it."""
    async with client(vllm_gateway) as user:
        event = await user.do("embedding.create", model="minilm", input=PARIS, encoding_format="base64")
        packed = base64.b64decode(event["data"][0]["embedding"])
        plain = (await embeddings(user, PARIS))[0]
    assert struct.unpack("<384f", packed) == pytest.approx(plain, abs=1e-5)


async def test_an_embedding_model_reranks(vllm_gateway: ServerProcess) -> None:
    """The document that answers the query comes first."""
    async with client(vllm_gateway) as user:
        documents = [CATS, PARIS, "Berlin is a city."]
        asked = {"model": "minilm", "query": "capital of France", "documents": documents}
        event = await user.do("rerank.create", **asked, return_documents=True)
        assert event["results"][0]["index"] == 1
        assert event["results"][0]["document"] == {"text": PARIS}
        scores = [row["relevance_score"] for row in event["results"]]
        assert scores == sorted(scores, reverse=True)
        top = await user.do("rerank.create", **asked, top_n=1)
        assert [row["index"] for row in top["results"]] == [1]


async def test_a_text_is_only_ever_text(vllm_gateway: ServerProcess) -> None:
    """`[SEP]` in a text is some characters, and no separator."""
    async with client(vllm_gateway) as user:
        event = await user.do("embedding.create", model="minilm", input="[SEP]")
        assert event["usage"]["prompt_tokens"] > 3


async def test_a_cross_encoder_scores_pairs(vllm_gateway: ServerProcess) -> None:
    """It is loaded when it is asked for; its score is one of the pair, from 0 to 1, the same alone and together."""
    async with client(vllm_gateway) as user:
        event = await user.do("rerank.create", model="cross", query="capital?", documents=[CATS, PARIS])
        assert event["type"] == "rerank.created", event
        scores = {row["index"]: row["relevance_score"] for row in event["results"]}
        assert all(0 <= score <= 1 for score in scores.values())
        assert scores[0] != scores[1]
        alone = await user.do("rerank.create", model="cross", query="capital?", documents=[PARIS])
        assert alone["results"][0]["relevance_score"] == pytest.approx(scores[1], abs=1e-4)


async def test_a_classifier_names_its_labels(vllm_gateway: ServerProcess) -> None:
    """The likeliest one, and how likely each is."""
    async with client(vllm_gateway) as user:
        event = await user.do("classify.create", model="mood", input=[PARIS, CATS])
        assert event["type"] == "classify.created", event
        for row in event["data"]:
            assert row["num_classes"] == len(row["probs"]) == 3
            assert sum(row["probs"]) == pytest.approx(1, abs=1e-3)
            assert row["label"] == LABELS[row["probs"].index(max(row["probs"]))]


async def test_what_cannot_be_done_is_refused(vllm_gateway: ServerProcess) -> None:
    """Too long, the wrong kind of model, no such model, a chat with one that makes no text; the socket goes on."""
    async with client(vllm_gateway) as user:
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
        assert error["code"] == "invalid_request"
        error = await user.refused("response.create", model="minilm", input="hello")
        assert error["code"] == "invalid_request"
        assert "makes no text" in error["message"]
        assert len((await embeddings(user, "still there"))[0]) == 384
