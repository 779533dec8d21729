"""`task: summarize` on scripted gateways: parts, order, merging, usage, cancel, takeover."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest

from protocol.events import Usage
from server.access.auth import Right, User
from server.chat.document import GAP, LAST_TITLE, MERGE, PART, TITLE, WHOLE, Progress
from server.engine.base import AnswerLostError, Chunk, EngineDeadError, FinishReason, GenerationRequest
from tests.support.memory import MemoryClient, MemoryStore, until
from tests.support.scripted import ScriptedEngine
from tests.unit.chat.conftest import Gateway

PARAGRAPHS = [f"Paragraph {number} " + "x" * 150 for number in range(6)]
DOCUMENT = "\n\n".join(PARAGRAPHS)


class Summarizer(ScriptedEngine):
    """Answers a part with its first word and number, a merge with how many it got. One token a character.

    gate: answers wait for it after their first character.
    """

    def __init__(self, **options: int) -> None:
        super().__init__(**options)
        self.gate = asyncio.Event()
        self.gate.set()
        self.deaths = self.losses = 0

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[Chunk, None]:
        self.requests.append(request)
        self.unfinished += 1
        try:
            order = request.prompt.messages[-1].content
            text = answer(order)[len(request.prompt.continuation.text) :]
            if text:
                yield Chunk(text[0], 1)
            await self.gate.wait()
            if self.fault is not None:
                raise self.fault
            if self.deaths:
                self.deaths -= 1
                raise EngineDeadError("gone")
            if self.losses:
                self.losses -= 1
                raise AnswerLostError("lost")
            yield Chunk(text[1:], len(text[1:]), FinishReason.STOP)
        finally:
            self.unfinished -= 1


def answer(order: str) -> str:
    if order.startswith(MERGE):
        return f"{order.count('Paragraph')} parts."
    text = order.rpartition("only.\n\n")[2]
    return " ".join(text.split()[:2]) + "."


@pytest.fixture
async def engine(a: Gateway) -> Summarizer:
    engine = Summarizer(context_length=400)
    a.replace_engine(engine)
    return engine


def expected(count: int = 6) -> str:
    parts = [TITLE.format(number=n + 1, total=count) + f"Paragraph {n}." for n in range(count)]
    return GAP.join([*parts, LAST_TITLE + f"{count} parts."])


async def test_a_long_document_is_summarized_part_by_part(a: Gateway, engine: Summarizer):
    """All parts in their order, then the whole; the response says where each ends, and what all of it has cost."""
    generation = await a.create(input=DOCUMENT, task="summarize")
    done = await a.client.until("response.completed")
    response = done["response"]
    assert a.client.text() == expected()
    assert response["output"][0]["content"][0]["text"] == expected()
    noted = response["tokenwire"]["summarize"]
    assert (noted["parts"], noted["done"]) == (6, 6)
    assert [expected()[end - 12 : end] for end in noted["ends"]] == [f"Paragraph {n}." for n in range(6)]
    assert expected()[noted["ends"][-1] :] == GAP + LAST_TITLE + "6 parts."
    prompts = [request.prompt.token_count for request in engine.requests]
    assert len(prompts) == 7
    assert response["usage"]["input_tokens"] == sum(prompts)
    assert response["usage"]["output_tokens"] == 6 * 12 + len("6 parts.")
    assert {request.priority for request in engine.requests} == {2}
    assert len({request.id for request in engine.requests}) == 7
    assert all(request.sampling.max_tokens == 50 for request in engine.requests[:6])
    assert "".join(r.prompt.messages[-1].content.rpartition("only.\n\n")[2] for r in engine.requests[:6]) == DOCUMENT
    assert generation.is_ended


async def test_parts_run_side_by_side_and_progress_is_told(a: Gateway, engine: Summarizer):
    """Several at once; the first one's text comes while it grows, and the response says how far it is."""
    engine.gate.clear()
    await a.create(input=DOCUMENT, task="summarize")
    await until(lambda: engine.unfinished == 2)  # documents begin with two places
    await until(lambda: a.client.text() == TITLE.format(number=1, total=6) + "P")
    engine.gate.set()
    await a.client.until("response.completed")
    notes = [e["response"].get("tokenwire") for e in a.client.of() if e["type"] == "response.in_progress"]
    assert [note["summarize"]["done"] for note in notes] == list(range(7))


async def test_a_document_that_fits_is_one_order(a: Gateway, engine: Summarizer):
    """No titles, no parts; instructions and the client's own limit are heeded."""
    client = MemoryClient("ann")
    client.user = User("ann", frozenset({Right.INSTRUCTIONS}))
    await a.create(
        client, input="Paragraph 9 is short.", task="summarize", instructions="In French.", max_output_tokens=40
    )
    done = await client.until("response.completed")
    assert client.text() == "Paragraph 9."
    assert done["response"]["tokenwire"]["summarize"]["parts"] == 0
    (request,) = engine.requests
    assert [message.content for message in request.prompt.messages] == ["In French.", WHOLE + "Paragraph 9 is short."]
    assert request.sampling.max_tokens == 40


async def test_many_documents(a: Gateway, engine: Summarizer):
    """Each message is one; none is cut together with the next."""
    items = [{"role": "user", "content": text} for text in PARAGRAPHS[:4]]
    await a.create(input=items, task="summarize")
    await a.client.until("response.completed")
    orders = [request.prompt.messages[-1].content for request in engine.requests[:4]]
    assert orders == [PART.format(number=n + 1, total=4) + PARAGRAPHS[n] for n in range(4)]


async def test_small_documents_are_read_together(a: Gateway, engine: Summarizer):
    """A thousand notes are not a thousand orders; none of them is cut, and an empty one is none."""
    notes = [f"Note {number}" for number in range(40)]
    texts = [*notes[:20], "  ", PARAGRAPHS[0], *notes[20:]]
    await a.create(input=[{"role": "user", "content": text} for text in texts], task="summarize")
    await a.client.until("response.completed")
    orders = [request.prompt.messages[-1].content.rpartition("only.\n\n")[2] for request in engine.requests]
    read = "\n\n".join(orders[:-1]).split("\n\n")
    assert read == [*notes[:20], PARAGRAPHS[0], *notes[20:]]
    assert sum(PARAGRAPHS[0] in order for order in orders) == 1
    assert len(orders) < 10


async def test_summaries_that_do_not_fit_are_merged_in_groups(a: Gateway, engine: Summarizer):
    """Unseen, until one order can hold them; all of it counts in the usage."""
    engine.context_length = 300
    await a.create(input="\n\n".join(f"Paragraph {n} " + "y" * 100 for n in range(24)), task="summarize")
    done = await a.client.until("response.completed")
    merges = [r for r in engine.requests if r.prompt.messages[-1].content.startswith(MERGE)]
    assert len(merges) > 1
    assert done["response"]["usage"]["input_tokens"] == sum(r.prompt.token_count for r in engine.requests)
    assert a.client.text().count("### Summary") == 1


async def test_cancelling_stops_every_part(a: Gateway, engine: Summarizer):
    """What was told is kept; the engine is idle."""
    engine.gate.clear()
    generation = await a.create(input=DOCUMENT, task="summarize")
    await until(lambda: engine.unfinished == 2)
    generation.cancel()
    await a.client.until("response.incomplete")
    assert engine.unfinished == 0
    assert (a.model.admission.running, a.model.admission.waiting) == (0, 0)
    assert len(engine.requests) == 2


async def test_a_gateway_that_dies(a: Gateway, b: Gateway, engine: Summarizer, store: MemoryStore):
    """Another one goes on behind the last word: no part twice, no text twice, the cost of both together."""
    b.replace_engine(Summarizer(context_length=400))
    follower = MemoryClient()
    generation = await a.create(input=DOCUMENT, task="summarize")
    await until(lambda: (progress := Progress.of(generation.stream.notice)) is not None and len(progress.ends) >= 2)
    engine.gate.clear()
    await a.die()
    await b.takeover.adopt_orphans()
    await b.handle(follower, type="response.retrieve", response_id=generation.response_id)
    done = await follower.until("response.completed")
    assert done["response"]["output"][0]["content"][0]["text"] == expected()
    assert follower.text() == expected()
    assert done["response"]["usage"]["input_tokens"] >= sum(request.prompt.token_count for request in b.engine.requests)
    assert len(b.engine.requests) < 7


async def test_an_engine_that_dies(a: Gateway, engine: Summarizer):
    """The parts that it had are made again, behind their text so far."""
    engine.gate.clear()
    await a.create(input=DOCUMENT, task="summarize")
    await until(lambda: engine.unfinished == 2)
    engine.deaths = 1
    engine.gate.set()
    await until(lambda: a.model.ready_engine is None)
    a.replace_engine(engine)
    await a.client.until("response.completed")
    assert a.client.text() == expected()


async def test_a_part_that_is_lost(a: Gateway, engine: Summarizer):
    """It goes on from its text so far, in the same engine, which others use."""
    engine.losses = 2
    await a.create(input=DOCUMENT, task="summarize")
    await a.client.until("response.completed")
    assert a.client.text() == expected()
    assert len(engine.requests) == 9
    assert not engine.is_closed


async def test_a_part_that_fails(a: Gateway, engine: Summarizer):
    """So does the whole, with what was told of it; the other parts are stopped."""
    engine.gate.clear()
    await a.create(input=DOCUMENT, task="summarize")
    await until(lambda: engine.unfinished == 2)
    engine.fault = ValueError("broken")
    engine.gate.set()
    failed = await a.client.until("response.failed")
    assert failed["response"]["error"]["code"] == "server_error"
    assert engine.unfinished == 0


async def test_instructions_longer_than_the_window(a: Gateway, engine: Summarizer):
    """Are refused with the reason."""
    client = MemoryClient("ann")
    client.user = User("ann", frozenset({Right.INSTRUCTIONS}))
    await a.create(client, input=DOCUMENT, task="summarize", instructions="z" * 400)
    failed = await client.until("response.failed")
    assert failed["response"]["error"]["code"] == "context_length_exceeded"


def test_progress_is_read_back():
    """What one gateway notes, another one goes on from."""
    progress = Progress(3, [10, 20], Usage(1, 2, 3))
    assert Progress.of(progress.as_notice()) == progress
    assert Progress.of(None) is None
    assert Progress.of({"context": {}}) is None
