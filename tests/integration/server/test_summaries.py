"""Documents longer than the window through a real server: told part by part, resumed, cancelled."""

from __future__ import annotations

from tests.integration.server.wire import DELTA, client
from tests.support.server import ServerProcess

# 200 kB: 40,000 words and more, of a window of 8192.
DOCUMENT = "\n\n".join(f"## Chapter {n}\n\n" + " ".join(f"c{n}w{w}." for w in range(1000)) for n in range(27))


async def test_a_document_of_200_kb(server: ServerProcess):
    """All parts in order, then the whole; the usage has every word; who comes later gets the same."""
    assert len(DOCUMENT) > 200_000
    async with client(server) as c:
        answer = await c.ask(DOCUMENT, task="summarize", conversation=await c.conversation(), max_output_tokens=50)
        parts = answer.response["tokenwire"]["summarize"]["parts"]
        assert parts >= 20
        titles = [f"### Part {n} of {parts}" for n in range(1, parts + 1)]
        places = [answer.text.find(title) for title in (*titles, "### Summary")]
        assert places == sorted(places)
        assert -1 not in places
        assert answer.input_tokens > len(DOCUMENT.split())
        assert (
            await c.ask("and now?", conversation=answer.response["conversation"], truncation="auto")
        ).text == "and now?"
        middle = answer.numbers[len(answer.numbers) // 2]
        await c.send("response.retrieve", response_id=answer.id, starting_after=middle)
        rest = await c.answer(whole=False)
        assert rest.events == [event for event in answer.events if event["sequence_number"] > middle]


async def test_cancelling_a_document(slow: ServerProcess):
    """In the middle of its parts: what was told is kept, every part is stopped, the next turn is answered."""
    async with client(slow) as c:
        await c.create(DOCUMENT, task="summarize", stream_id="doc")
        first = await c.until(DELTA, stream_id="doc")
        await c.send("response.cancel", stream_id="doc")
        answer = await c.answer("doc", whole=False)
        assert answer.response["incomplete_details"] == {"reason": "cancelled"}
        assert answer.final_text.startswith(first[-1]["delta"])
        assert answer.response["usage"]["output_tokens"] > 0
        models = await c.do("model.list")
        assert (models["data"][0]["running"], models["data"][0]["waiting"]) == (0, 0)
        assert (await c.ask("next")).text == "next"
