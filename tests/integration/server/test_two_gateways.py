"""Two gateways on one Redis: what runs on one is served by the other."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from urllib.parse import quote

import pytest

from tests.integration.server.conftest import run_checked
from tests.integration.server.wire import DELTA, client
from tests.support.server import ServerProcess

LONG = " ".join(f"w{number}" for number in range(60))


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory, slow: ServerProcess) -> Iterator[ServerProcess]:
    """A second gateway on the first one's Valkey."""
    url = f"unix://{quote(str(slow.data_dir / 'valkey' / 'socket'))}"
    data = tmp_path_factory.mktemp("other")
    yield from run_checked(ServerProcess(data, "--echo-rate", "30", "--redis-url", url))


async def test_many_come_back_at_once_on_another_gateway(slow: ServerProcess, other: ServerProcess):
    """Each hears exactly what follows its number, live to the end, also when all ask at the same moment."""
    async with client(slow) as c, client(other) as away:
        await c.create(LONG)
        seen = await c.until(DELTA)
        seen += [await c.event() for _ in range(10)]
        response = seen[0]["response"]["id"]
        numbers = [event["sequence_number"] for event in seen]
        requests = [
            {"type": "response.retrieve", "response_id": response, "starting_after": number, "stream_id": f"n{number}"}
            for number in numbers
        ]
        away.write_together(*requests)
        async with client(other) as third:
            await third.send("response.retrieve", response_id=response, starting_after=numbers[-1])
            rests = {number: await away.answer(f"n{number}", whole=False) for number in numbers}
            rests[-1] = await third.answer(whole=False)
        whole = await c.answer(whole=False)
        for number, rest in rests.items():
            after = numbers[-1] if number == -1 else number
            known = "".join(event.get("delta", "") for event in seen if event["sequence_number"] <= after)
            assert rest.numbers[0] > after
            assert known + rest.text == LONG
            assert rest.response == whole.response


async def test_turns_of_one_conversation_on_two_gateways(slow: ServerProcess, other: ServerProcess):
    """One order everywhere, each gets its own answer."""
    async with client(slow) as here, client(other) as there:
        conversation = await here.conversation()
        for number in range(3):
            left, right = await asyncio.gather(
                here.ask(f"left {number}", conversation=conversation),
                there.ask(f"right {number}", conversation=conversation),
            )
            assert (left.text, right.text) == (f"left {number}", f"right {number}")
            assert sorted((left.input_tokens, right.input_tokens)) == [8 * number + 2, 8 * number + 6]
        assert await here.items(conversation) == await there.items(conversation)


async def test_cancel_and_delete_from_another_gateway(slow: ServerProcess, other: ServerProcess):
    """Both sides hear the end."""
    async with client(slow) as here, client(other) as there:
        response = await here.begin(LONG)
        await there.send("response.cancel", response_id=response)
        answer = await here.answer()
        assert answer.response["incomplete_details"] == {"reason": "cancelled"}
        end = await there.answer(whole=False)
        assert end.response == answer.response
        conversation = await here.conversation()
        await here.begin(LONG, conversation=conversation)
        await there.do("conversation.delete", conversation=conversation)
        assert (await here.answer(whole=False)).type == "response.failed"


async def test_the_same_id_on_two_gateways(slow: ServerProcess, other: ServerProcess):
    """One turn, the same answer."""
    async with client(slow) as here, client(other) as there:
        turn = {"text": "one turn only", "id": "across"}
        first, second = await asyncio.gather(here.ask(**turn), there.ask(**turn))
        assert first.id == second.id
        assert first.text == second.text == "one turn only"
