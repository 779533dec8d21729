"""Embedding, reranking and classifying: commands that are answered once, when all of their texts are done.

A command takes one place at its model's engine, like a turn, and counts as one for its account's limits; its texts go
to the engine together.
"""

from __future__ import annotations

import asyncio
import base64
import math
import struct
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final
from weakref import WeakKeyDictionary

from protocol.commands import ClassifyCreate, Command, EmbeddingCreate, RerankCreate, ResponseCreate
from protocol.errors import ProtocolError
from protocol.events import Waiting, answer, error_event
from protocol.items import Message
from server.access.fair_queue import Demand, ServiceClass
from server.chat.client import Client
from server.chat.errors import translate
from server.chat.preparation import CHARS_PER_TOKEN
from server.chat.rights import may_use
from server.chat.runtime import Runtime
from server.chat.waiting import admitted
from server.engine.base import EngineDeadError, EngineError, PooledText, PoolingEngine
from server.models.model import Model
from server.models.pool import Pool
from server.store.base import StoreUnavailableError

ATTEMPTS: Final = 2  # engines that may die under one command
EMBED, CLASSIFY = "embed", "classify"

Asked = EmbeddingCreate | RerankCreate | ClassifyCreate
Heard = Callable[[], None]  # called with each vector: the engine is well
Work = Callable[[Any, PoolingEngine, Heard], Awaitable[dict[str, Any]]]


class Pooling:
    """handlers: one for each command, by its type."""

    def __init__(self, runtime: Runtime, pool: Pool) -> None:
        self._runtime = runtime
        self._pool = pool
        self._in_flight: WeakKeyDictionary[Client, set[asyncio.Task[None]]] = WeakKeyDictionary()
        self._work: dict[type[Command], tuple[str, Work]] = {
            EmbeddingCreate: ("embedding.created", _embed),
            RerankCreate: ("rerank.created", _rerank),
            ClassifyCreate: ("classify.created", _classify),
        }

    @property
    def handlers(self) -> dict[type[Command], Callable[[Client, Any], Awaitable[None]]]:
        return dict.fromkeys(self._work, self.handle)

    async def handle(self, client: Client, command: Asked) -> None:
        """Begin what the command asks for; the connection goes on with its other commands meanwhile.

        Raises ProtocolError, UnknownModelError.
        """
        model = self._pool.registry.get(command.model, lambda model: may_use(client.user, model))
        most = self._runtime.config.limits.max_in_flight
        tasks = self._in_flight.setdefault(client, set())
        if len(tasks) >= most:
            text = f"{most} such commands are in flight on this connection; wait for one to end"
            raise ProtocolError("rate_limit_exceeded", text, retry_after_ms=1000)
        task = self._runtime.spawn(self._answer(client, command, model), f"{command.TYPE} {model.name}")
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    def leave(self, client: Client) -> None:
        """Drop what a connection that is gone has asked for."""
        for task in self._in_flight.pop(client, ()):
            task.cancel()

    async def _answer(self, client: Client, command: Asked, model: Model) -> None:
        kind, work = self._work[type(command)]
        try:
            async with self._counted(client, command) as spent:
                fields = await self._done(client, command, model, work)
                spent.append(fields["usage"]["total_tokens"])
            client.send(answer(kind, command, model=model.name, **fields))
        except Exception as error:  # noqa: BLE001 translated for the wire; what nobody expected is logged there
            fault = translate(error)
            self._runtime.metrics.protocol_error(fault.code)
            client.send(error_event(fault, command))

    @asynccontextmanager
    async def _counted(self, client: Client, command: Asked) -> AsyncIterator[list[int]]:
        """Count the command as a turn of its account, with the tokens that are put into the list.

        Raises ProtocolError where a limit is reached, StoreUnavailableError.
        """
        limits, thing, spent = self._runtime.access.limits, f"pool_{uuid.uuid4().hex}", list[int]()
        messages = tuple(Message("user", text) for text in _texts(command))
        hold = await limits.begin_turn(client.user, thing, ResponseCreate(messages=messages, store=False))
        try:
            yield spent
        finally:
            settle = partial(limits.end_turn, hold, sum(spent), 0)
            try:
                await asyncio.shield(settle())
            except StoreUnavailableError:
                self._runtime.when_store_is_back(settle, thing)

    async def _done(self, client: Client, command: Asked, model: Model, work: Work) -> dict[str, Any]:
        demand = Demand(client.user.id, ServiceClass.STANDARD, sum(map(len, _texts(command))) // CHARS_PER_TOKEN)
        expected = model.admission.expect(demand)
        try:
            for attempt in range(1, ATTEMPTS + 1):
                async with admitted(model, demand, _Silent(), None, expected) as (lease, _ticket):
                    engine = lease.engine
                    if not isinstance(engine, PoolingEngine):
                        text = f"model '{model.name}' makes text; name one that {_VERBS[type(command)]}"
                        raise ProtocolError("invalid_request", text, param="model")
                    lease.asked()
                    try:
                        return await work(command, engine, lease.heard)
                    except EngineDeadError:
                        lease.report_dead()
                        if attempt == ATTEMPTS:
                            raise
        finally:
            expected.drop()
        raise AssertionError("unreachable")


class _Silent:
    """Such a command has no events of its own to say what it waits for."""

    def say(self, waiting: Waiting) -> None:
        pass


_VERBS: Final = {EmbeddingCreate: "embeds", RerankCreate: "embeds or scores", ClassifyCreate: "classifies"}


async def _embed(command: EmbeddingCreate, engine: PoolingEngine, heard: Heard) -> dict[str, Any]:
    _check_task(engine, command, EMBED)
    texts = await _encoded(engine, [(text, None) for text in _list(command.input)])
    _check_lengths(engine, texts, "input" if isinstance(command.input, str) else "input[{}]")
    vectors = await _vectors(engine, texts, heard, command.dimensions)
    pack = _base64 if command.encoding_format == "base64" else list
    data = [{"object": "embedding", "index": index, "embedding": pack(vector)} for index, vector in enumerate(vectors)]
    return {"data": data, "usage": _usage(texts)}


async def _rerank(command: RerankCreate, engine: PoolingEngine, heard: Heard) -> dict[str, Any]:
    """Score by (1) a model that was trained on pairs, (2) how near to each other the vectors are."""
    documents = command.documents
    if engine.task == CLASSIFY and len(engine.labels) == 1:  # 1
        texts = await _encoded(engine, [(command.query, document) for document in documents])
        _check_lengths(engine, texts, "documents[{}]")
        scores = [vector[0] for vector in await _vectors(engine, texts, heard)]
    else:  # 2
        _check_task(engine, command, EMBED)
        texts = await _encoded(engine, [(text, None) for text in (command.query, *documents)])
        _check_lengths(engine, texts[:1], "query")
        _check_lengths(engine, texts[1:], "documents[{}]")
        query, *vectors = await _vectors(engine, texts, heard)
        scores = await asyncio.to_thread(lambda: [_cosine(query, vector) for vector in vectors])
    order = sorted(range(len(scores)), key=lambda index: -scores[index])[: command.top_n]
    results: list[dict[str, Any]] = [{"index": index, "relevance_score": scores[index]} for index in order]
    if command.return_documents:
        results = [{**row, "document": {"text": documents[row["index"]]}} for row in results]
    return {"results": results, "usage": _usage(texts)}


async def _classify(command: ClassifyCreate, engine: PoolingEngine, heard: Heard) -> dict[str, Any]:
    _check_task(engine, command, CLASSIFY)
    texts = await _encoded(engine, [(text, None) for text in _list(command.input)])
    _check_lengths(engine, texts, "input" if isinstance(command.input, str) else "input[{}]")
    data = []
    for index, probabilities in enumerate(await _vectors(engine, texts, heard)):
        best = max(range(len(probabilities)), key=probabilities.__getitem__)
        label = engine.labels[best] if best < len(engine.labels) else str(best)
        row = {"index": index, "label": label, "probs": probabilities, "num_classes": len(probabilities)}
        data.append(row)
    return {"data": data, "usage": _usage(texts)}


async def _encoded(engine: PoolingEngine, texts: Sequence[tuple[str, str | None]]) -> list[PooledText]:
    """Tokenise texts, or pairs of them, with room for others in between."""
    encoded = []
    for text, second in texts:
        encoded.append(await engine.encode(text, second))
        await asyncio.sleep(0)
    return encoded


async def _vectors(
    engine: PoolingEngine, texts: Sequence[PooledText], heard: Heard, dimensions: int | None = None
) -> list[list[float]]:
    """Return one vector for each text; the first that fails takes the others back."""
    request_id = f"pool_{uuid.uuid4().hex}"

    async def vector(index: int, text: PooledText) -> list[float]:
        numbers = await engine.pool(f"{request_id}-{index}", text, dimensions)
        heard()
        if not all(map(math.isfinite, numbers)):
            raise EngineError("the model made numbers that are none (NaN or infinite), which JSON does not have")
        return numbers

    tasks = [asyncio.create_task(vector(index, text)) for index, text in enumerate(texts)]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


def _check_task(engine: PoolingEngine, command: Asked, task: str) -> None:
    if engine.task != task:
        can = {EMBED: "embeds texts", CLASSIFY: "classifies texts"}[engine.task]
        text = f"model '{command.model}' {can}; name one that {_VERBS[type(command)]}"
        raise ProtocolError("invalid_request", text, param="model")


def _check_lengths(engine: PoolingEngine, texts: Sequence[PooledText], param: str) -> None:
    """Refuse the first text that is too long for the model: cut off, its vector would be that of another text."""
    for index, text in enumerate(texts):
        if len(text.token_ids) > engine.context_length:
            where = param.format(index)
            what = f"{where} has {len(text.token_ids)} tokens, but the model takes {engine.context_length}; split it"
            raise ProtocolError("context_length_exceeded", what, param=where)


def _list(texts: str | list[str]) -> list[str]:
    return [texts] if isinstance(texts, str) else texts


def _texts(command: Asked) -> list[str]:
    return [command.query, *command.documents] if isinstance(command, RerankCreate) else _list(command.input)


def _usage(texts: Sequence[PooledText]) -> dict[str, int]:
    count = sum(len(text.token_ids) for text in texts)
    return {"prompt_tokens": count, "total_tokens": count}


def _cosine(one: Sequence[float], other: Sequence[float]) -> float:
    norm = math.sqrt(sum(a * a for a in one)) * math.sqrt(sum(b * b for b in other))
    return sum(a * b for a, b in zip(one, other, strict=True)) / norm if norm else 0.0


def _base64(vector: Sequence[float]) -> str:
    """Return a vector as OpenAI packs it: little-endian floats of 32 bits."""
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
