"""Stopping, coming back, and doing the same thing twice."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

import pytest

from tests.integration.server.conftest import run_checked
from tests.integration.server.wire import DELTA, TERMINAL, Answer, client
from tests.support.server import ServerProcess

LONG = " ".join(f"w{number}" for number in range(60))


@pytest.fixture(scope="module")
def silent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A minute to the first token."""
    yield from run_checked(ServerProcess(tmp_path_factory.mktemp("silent"), "--echo-ttft", "60000"))


def _is_cancelled(answer: Answer) -> bool:
    return (answer.type, answer.response["incomplete_details"]) == ("response.incomplete", {"reason": "cancelled"})


# Logprobs


async def test_logprobs_are_kept_with_the_answer(server: ServerProcess):
    """Told with each word and at the end, the same again for whoever resumes or reads what is stored; else nowhere."""
    async with client(server) as c:
        answer = await c.ask("one two three", top_logprobs=1, include=["message.output_text.logprobs"])
        told = [one for event in answer.events if event["type"] == DELTA for one in event["logprobs"]]
        assert [one["token"] for one in told] == ["one ", "two ", "three"]
        assert told[0]["top_logprobs"] == [{"token": "one ", "bytes": list(b"one "), "logprob": 0.0}]
        assert answer.response["output"][0]["content"][0]["logprobs"] == told
        await c.send("response.retrieve", response_id=answer.id)
        assert (await c.answer()).events == answer.events
        assert server.get(f"/v1/responses/{answer.id}")[1]["output"] == answer.response["output"]
        plain = await c.ask("one", previous_response_id=answer.id)
        assert "logprobs" not in plain.response["output"][0]["content"][0]
        error = await c.refused("response.create", input="x", top_logprobs=21)
        assert (error["code"], error["param"]) == ("invalid_request", "top_logprobs")


# Cancel


async def test_cancel_keeps_the_partial_text(slow: ServerProcess):
    """Mid-answer, with and without response_id: incomplete, cancelled; stored text is what was seen; the next works."""
    async with client(slow) as c:
        conversation = await c.conversation()
        for with_id in (True, False):
            response = await c.begin(LONG, conversation=conversation)
            await c.send("response.cancel", **({"response_id": response} if with_id else {"id": "k"}))
            answer = await c.answer()
            assert _is_cancelled(answer)
            assert LONG.startswith(answer.text)
            assert answer.text
            assert (await c.items(conversation))[-1] == ("assistant", answer.text)
            assert slow.get(f"/v1/responses/{response}")[1]["status"] == "incomplete"
        assert (await c.ask("next", conversation=conversation)).text == "next"


async def test_cancel_before_the_first_token(silent: ServerProcess):
    """During prefill: ended at once, with no output; stored and unstored."""
    async with client(silent) as c:
        for store in (True, False):
            await c.create("never said", store=store)
            started = await c.until("response.in_progress")
            await c.send("response.cancel", response_id=started[0]["response"]["id"])
            answer = Answer([*started, *(await c.until(*TERMINAL))]).check()
            assert _is_cancelled(answer)
            assert answer.response["output"] == []


async def test_cancel_twice_and_after_the_end(slow: ServerProcess):
    """The first wins; later ones get the end that there is, and change nothing."""
    async with client(slow) as c:
        response = await c.begin(LONG)
        c.write_together(*[{"type": "response.cancel", "response_id": response}] * 2)
        first = await c.answer()
        assert _is_cancelled(first)
        await c.do("model.list", stream_id="fence")
        c.forget()  # the second of the two may have come after the end, which answers it again
        await c.send("response.cancel", response_id=response)
        assert await c.event() == first.end
        done = await c.ask("done")
        await c.send("response.cancel", response_id=done.id)
        assert await c.event() == done.end
        await c.send({"type": "response.cancel"})
        assert (await c.event()) == done.end


async def test_cancel_of_an_unstored_answer_after_its_end(slow: ServerProcess):
    """It is known on its connection still."""
    async with client(slow) as c:
        done = await c.ask("done", store=False)
        await c.send("response.cancel", response_id=done.id)
        assert (await c.event()) == done.end


async def test_cancel_of_nothing(server: ServerProcess):
    """Nothing ran on the lane, or the id is unknown: response_not_found."""
    async with client(server) as c:
        assert (await c.refused("response.cancel", id="a"))["code"] == "response_not_found"
        assert (await c.refused("response.cancel", response_id="resp_none"))["code"] == "response_not_found"


async def test_cancel_from_another_connection(slow: ServerProcess):
    """Both hear the end."""
    async with client(slow) as c, client(slow) as other:
        response = await c.begin(LONG)
        await other.send("response.cancel", response_id=response)
        end = (await other.until(*TERMINAL))[-1]
        answer = await c.answer()
        assert _is_cancelled(answer)
        assert answer.end == end


async def test_cancel_of_a_waiting_turn(slow: ServerProcess):
    """It ends without having run; the one before and the one behind are answered."""
    async with client(slow) as c:
        conversation = await c.conversation()
        await c.begin(LONG, conversation=conversation, stream_id="a")
        await c.create("not wanted", conversation=conversation, stream_id="b")
        waiting = await c.until("response.queued", stream_id="b")
        await c.create("behind", conversation=conversation, stream_id="c")
        await c.send("response.cancel", response_id=waiting[0]["response"]["id"], stream_id="x")
        cancelled = Answer([*waiting, *(await c.until(*TERMINAL, stream_id="b"))]).check()
        assert _is_cancelled(cancelled)
        assert (await c.answer("a")).text == LONG
        assert (await c.answer("c")).text == "behind"


async def test_cancel_at_every_moment(slow: ServerProcess):
    """Whenever the cancel comes, there is one end, and the next turn of the conversation works."""
    async with client(slow) as c:
        conversation = await c.conversation()
        for after in range(9):
            await c.create("a b c d e", conversation=conversation)
            seen = []
            for _ in range(after):
                seen.append(await c.event())
                if seen[-1]["type"] in TERMINAL:
                    break
            await c.send({"type": "response.cancel"})
            if not seen or seen[-1]["type"] not in TERMINAL:
                seen += await c.until(*TERMINAL)
            Answer(seen).check()
            listed = await c.do("model.list", stream_id="fence")
            assert listed["type"] == "model.listed"
            c.forget()  # a late cancel was answered by the end again
            assert (await c.ask("ok", conversation=conversation)).text == "ok"


# Resume


async def test_retrieve_gives_the_rest_from_any_number(server: ServerProcess):
    """For an ended response: from every number on, continuing numbers, the same text."""
    async with client(server) as c:
        whole = await c.ask("one two three four five")
    async with client(server) as c:
        await c.send("response.retrieve", response_id=whole.id)
        assert (await c.answer()).events[-1] == whole.end
        for index, event in enumerate(whole.events[:-1]):
            await c.send("response.retrieve", response_id=whole.id, starting_after=event["sequence_number"])
            rest = await c.answer(whole=False)
            assert rest.events == whole.events[index + 1 :]
        assert (await c.refused("response.retrieve", response_id="resp_none"))["code"] == "response_not_found"


async def test_retrieve_of_a_running_response(slow: ServerProcess):
    """From every number so far, live to the end: the same events for all."""
    text = " ".join(f"w{number}" for number in range(25))
    async with client(slow) as c, client(slow) as other:
        await c.create(text)
        seen: list[dict] = []
        lanes: list[int] = []
        response = None
        while not seen or seen[-1]["type"] not in TERMINAL:
            seen.append(event := await c.lane_event(None))
            response = response or event["response"]["id"]
            if len(lanes) < 30:
                number = event["sequence_number"]
                lanes.append(number)
                await other.send(
                    "response.retrieve", response_id=response, starting_after=number, stream_id=f"n{number}"
                )
        whole = Answer(seen).check()
        assert whole.text == text
        for index, number in enumerate(lanes[:-1]):
            rest = await other.answer(f"n{number}", whole=False)
            assert "".join(e.get("delta", "") for e in seen[: index + 1]) + rest.text == text
            assert rest.numbers[0] > number
            assert {k: v for k, v in rest.end.items() if k != "stream_id"} == whole.end


@pytest.mark.parametrize("abort", [True, False])
async def test_reconnect_late_in_an_answer_from_two_tabs(slow: ServerProcess, abort: bool):
    """Drop (1006 or 1000) mid-answer, come back twice: each has one complete copy."""
    async with client(slow) as c:
        await c.create(LONG)
        first = await c.until(DELTA)
        for _ in range(15):
            first.append(await c.event())
        response = first[0]["response"]["id"]
        if abort:
            c.abort()
    async with client(slow) as one, client(slow) as two:
        for c in (one, two):
            await c.send("response.retrieve", response_id=response, starting_after=first[-1]["sequence_number"])
        for c in (one, two):
            rest = await c.answer(whole=False)
            assert Answer(first + rest.events).check().text == LONG
            # Deltas that gathered come as one, with the last one's number: the text says that none is missing.
            assert rest.numbers[0] > first[-1]["sequence_number"]


async def test_coming_back_after_the_end(slow: ServerProcess):
    """The answer went on without a listener and is complete."""
    async with client(slow) as c:
        conversation = await c.conversation()
        response = await c.begin("a b c d e f g h", conversation=conversation)
        c.abort()
    slow.until_metric("responses_running", 0)
    async with client(slow) as c:
        await c.send("response.retrieve", response_id=response)
        answer = await c.answer()
    assert (answer.type, answer.text) == ("response.completed", "a b c d e f g h")


# Twice the same


async def test_the_same_id_is_one_turn(slow: ServerProcess):
    """Repeated at once, on another connection, and after the end: one turn, the same answer."""
    async with client(slow) as c, client(slow) as other:
        conversation = await c.conversation()
        turn = {"text": "only once please", "conversation": conversation, "id": "key-1"}
        await c.create(**turn)
        await c.create(**turn, stream_id="again")
        answers = [await c.answer(), await c.answer("again"), await other.ask(**turn)]
        c.abort()
        async with client(slow) as back:
            answers.append(await back.ask(**turn))
            assert {answer.id for answer in answers} == {answers[0].id}
            assert {answer.text for answer in answers} == {"only once please"}
            assert len(await back.items(conversation)) == 2


async def test_twenty_at_once_are_one_turn(slow: ServerProcess):
    """From twenty connections at the same moment."""
    async with contextlib.AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(client(slow)) for _ in range(20)]
        conversation = await clients[0].conversation()
        answers = await asyncio.gather(*(c.ask("just one", conversation=conversation, id="k20") for c in clients))
        assert {answer.id for answer in answers} == {answers[0].id}
        assert {answer.text for answer in answers} == {"just one"}
        assert len(await clients[0].items(conversation)) == 2


async def test_a_repetition_is_not_judged_again(server: ServerProcess):
    """The conversation has grown by the first answer: the same id still returns it, though it would not fit now."""
    text = "w " * 4090
    async with client(server) as c:
        conversation = await c.conversation()
        first = await c.ask(text, conversation=conversation, id="big")
        again = await c.ask(text, conversation=conversation, id="big")
        assert again.id == first.id
        error = await c.refused("response.create", input=text, conversation=conversation, id="big-2")
        assert error["code"] == "context_length_exceeded"


# Unstored answers


async def test_unstored_answers_live_on_their_connection(server: ServerProcess):
    """They chain there; elsewhere, in GET and in retrieve they do not exist; the same id gives the same answer."""
    async with client(server) as c, client(server) as other:
        first = await c.ask("a b", store=False, id="u1")
        second = await c.ask("c", store=False, previous_response_id=first.id)
        assert second.input_tokens == 5
        stored = await c.ask("d", previous_response_id=second.id)
        assert stored.input_tokens == 7
        assert (await c.ask("a b", store=False, id="u1")).id == first.id
        error = await other.refused("response.create", input="x", previous_response_id=first.id)
        assert (error["code"], error["param"]) == ("previous_response_not_found", "previous_response_id")
        assert (await other.refused("response.retrieve", response_id=first.id))["code"] == "response_not_found"
        assert server.get(f"/v1/responses/{first.id}")[0] == 404
        assert (await other.ask("e", previous_response_id=stored.id)).input_tokens == 9


async def test_a_failed_continuation_evicts(server: ServerProcess):
    """As OpenAI's: after a refused continuation the unstored response is gone."""
    async with client(server) as c:
        first = await c.ask("a", store=False)
        await c.refused("response.create", input="x " * 9000, store=False, previous_response_id=first.id)
        error = await c.refused("response.create", input="x", store=False, previous_response_id=first.id)
        assert error["code"] == "previous_response_not_found"


@pytest.mark.parametrize("prefill", [True, False])
async def test_who_leaves_an_unstored_answer_frees_the_engine(
    slow: ServerProcess, silent: ServerProcess, prefill: bool
):
    """Mid-answer and before the first token; the server is idle again and serves others."""
    server = silent if prefill else slow
    async with client(server) as c:
        await c.create(LONG, store=False, max_output_tokens=2048)
        await c.until("response.in_progress" if prefill else DELTA)
        c.abort()
    server.until_metric("responses_running", 0)
    async with client(server) as c:
        await c.send("model.list", id="x")
        assert (await c.event())["data"][0]["running"] == 0
