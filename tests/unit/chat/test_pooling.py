"""What is made of a pooling model's vectors: rows, orders, labels, and refusals."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from protocol.commands import ClassifyCreate, EmbeddingCreate, RerankCreate
from protocol.errors import ProtocolError
from server.chat.pooling import _classify, _embed, _rerank
from server.engine.base import EngineError, PooledText, RequestError


class Scripted:
    """Makes the vector that is planned for a text; tokens are characters."""

    context_length = 10

    def __init__(self, task: str, vectors: dict[str, list[float]], labels: tuple[str, ...] = ()) -> None:
        self.task, self.labels = task, labels
        self._vectors = vectors
        self.running = 0

    async def encode(self, text: str, second: str | None = None) -> PooledText:
        both = text + (f"|{second}" if second is not None else "")
        return PooledText([ord(character) for character in both], None)

    async def pool(self, request_id: str, text: PooledText, dimensions: int | None = None) -> list[float]:
        self.running += 1
        try:
            await asyncio.sleep(0)
            words = "".join(map(chr, text.token_ids))
            if words == "hang":
                await asyncio.Event().wait()
            if words == "fail":
                raise RequestError("no")
            return self._vectors[words]
        finally:
            self.running -= 1


def nobody() -> None:
    """Nobody wants to hear that the engine is well."""


def engine(task: str, labels: tuple[str, ...] = (), **vectors: list[float]) -> Any:
    return Scripted(task, vectors, labels)


async def test_embeddings_keep_the_order() -> None:
    """Also where one text is given twice."""
    made = await _embed(EmbeddingCreate(model="m", input=["b", "a", "b"]), engine("embed", a=[1.0], b=[2.0]), nobody)
    assert [row["embedding"] for row in made["data"]] == [[2.0], [1.0], [2.0]]
    assert made["usage"] == {"prompt_tokens": 3, "total_tokens": 3}


async def test_reranking_by_vectors_is_by_their_angle() -> None:
    """Not by their length; a vector of zeros is near to nothing."""
    vectors: Any = {"q": [1.0, 0.0], "near": [9.0, 1.0], "far": [0.0, 1.0], "none": [0.0, 0.0]}
    command = RerankCreate(model="m", query="q", documents=["none", "far", "near"])
    made = await _rerank(command, engine("embed", **vectors), nobody)
    assert [row["index"] for row in made["results"]] == [2, 0, 1]
    assert made["results"][0]["relevance_score"] == pytest.approx(0.994, abs=0.001)


async def test_reranking_by_a_cross_encoder_asks_for_pairs() -> None:
    """One score for query and document together."""
    pairs: Any = {"q|a": [0.1], "q|b": [0.9]}
    command = RerankCreate(model="m", query="q", documents=["a", "b"], top_n=1, return_documents=True)
    made = await _rerank(command, engine("classify", ("score",), **pairs), nobody)
    assert made["results"] == [{"index": 1, "relevance_score": 0.9, "document": {"text": "b"}}]


async def test_a_label_without_a_name_is_its_number() -> None:
    """Some models name none."""
    made = await _classify(ClassifyCreate(model="m", input="x"), engine("classify", ("a",), x=[0.2, 0.8]), nobody)
    assert made["data"] == [{"index": 0, "label": "1", "probs": [0.2, 0.8], "num_classes": 2}]


async def test_the_wrong_kind_of_model_is_told() -> None:
    """With what it can do, and what is wanted."""
    with pytest.raises(ProtocolError, match="classifies texts; name one that embeds") as caught:
        await _embed(EmbeddingCreate(model="m", input="x"), engine("classify"), nobody)
    assert caught.value.param == "model"


@pytest.mark.parametrize(
    ("query", "documents", "param"), [("x" * 11, ["a"], "query"), ("q", ["a", "x" * 11], "documents[1]")]
)
async def test_a_text_that_is_too_long_is_named(query: str, documents: list[str], param: str) -> None:
    """None of the texts is asked for then."""
    with pytest.raises(ProtocolError, match="11 tokens, but the model takes 10") as caught:
        await _rerank(RerankCreate(model="m", query=query, documents=documents), engine("embed"), nobody)
    assert caught.value.param == param


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
async def test_numbers_that_json_does_not_have_are_the_model_s_fault(number: float) -> None:
    """It is said, whatever was asked for, instead of null or an order by nothing."""
    vectors: Any = {"a": [1.0, 0.0], "b": [0.5, number]}
    embeds, classifies = engine("embed", **vectors), engine("classify", ("x", "y"), **vectors)
    for made in (
        _embed(EmbeddingCreate(model="m", input=["a", "b"], encoding_format="base64"), embeds, nobody),
        _rerank(RerankCreate(model="m", query="a", documents=["b"]), embeds, nobody),
        _classify(ClassifyCreate(model="m", input="b"), classifies, nobody),
    ):
        with pytest.raises(EngineError, match="NaN or infinite"):
            await made


async def test_one_text_that_fails_takes_the_others_back() -> None:
    """Nothing goes on for an answer that will not come."""
    scripted = engine("embed")
    with pytest.raises(RequestError):
        await _embed(EmbeddingCreate(model="m", input=["hang", "fail"]), scripted, nobody)
    assert scripted.running == 0
