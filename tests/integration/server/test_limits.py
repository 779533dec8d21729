"""What does not fit: the window, the queue, a client that does not read, five hundred at once."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator

import pytest
from websockets.asyncio.client import connect

from tests.integration.server.conftest import run_checked
from tests.integration.server.wire import DELTA, TERMINAL, Answer, client
from tests.support.server import ServerProcess

LONG = " ".join(f"w{number}" for number in range(60))
TEN = "one two three four five six seven eight nine ten"

SMALL = """
[echo]
context_length = 64
[limits]
default_max_output_tokens = 16
"""
NARROW = """
[echo]
max_concurrency = 1
rate = 30
[limits]
max_queue = 2
"""
IMPATIENT = """
[echo]
rate = 50000
[limits]
send_timeout_s = 1
"""


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A window of 64 tokens."""
    yield from run_checked(ServerProcess(tmp_path_factory.mktemp("small"), "--echo-rate", "50000", config=SMALL))


# The window


async def test_a_full_window_is_refused_with_the_numbers(small: ServerProcess):
    """`disabled`: neither history nor answer is cut without a word; the conversation is as before."""
    async with client(small) as c:
        conversation = await c.conversation()
        for _ in range(3):
            await c.ask(TEN, conversation=conversation)
        for options in ({}, {"truncation": "disabled"}):
            error = await c.refused("response.create", input=TEN, conversation=conversation, **options)
            assert (error["code"], error["param"]) == ("context_length_exceeded", "input")
            assert "70 tokens" in error["message"]
            assert "64 tokens" in error["message"]
        assert len(await c.items(conversation)) == 6


async def test_auto_drops_whole_oldest_turns_and_says_so(small: ServerProcess):
    """`auto`: the fewest turns that make room; the response tells how many."""
    async with client(small) as c:
        conversation = await c.conversation()
        for _ in range(3):
            await c.ask(TEN, conversation=conversation)
        answer = await c.ask(TEN, conversation=conversation, truncation="auto")
    assert answer.text == TEN
    assert answer.response["tokenwire"] == {"context": {"dropped_turns": 2, "context_length": 64}}
    assert answer.input_tokens == 30


async def test_max_output_tokens_beyond_the_window(small: ServerProcess):
    """Refused with both numbers, or cut to what there is room for; never negative, never stuck."""
    async with client(small) as c:
        error = await c.refused("response.create", input=TEN, max_output_tokens=1000)
        assert error["code"] == "context_length_exceeded"
        for number in ("10 tokens", "1000", "64 tokens"):
            assert number in error["message"]
        assert (await c.ask(TEN, max_output_tokens=1000, truncation="auto")).text == TEN
        assert (await c.ask(TEN, max_output_tokens=2**31, truncation="auto")).text == TEN
        fits = await c.ask(TEN, max_output_tokens=54)
        assert fits.type == "response.completed"
        full = await c.ask(TEN, ignore_eos=True)
        assert (full.type, full.response["usage"]["output_tokens"]) == ("response.incomplete", 54)


async def test_one_message_longer_than_the_window(small: ServerProcess):
    """Not even auto can help; bare text gets the same error."""
    async with client(small) as c:
        for options in ({}, {"truncation": "auto"}):
            error = await c.refused("response.create", input="w " * 70, **options)
            assert error["code"] == "context_length_exceeded"
            assert "70 tokens" in error["message"]
        await c.send("w " * 64)
        assert (await c.error())["code"] == "context_length_exceeded"
        await c.send("short again")
        assert (await c.answer()).text == "short again"


# The queue


async def test_the_queue_is_fair_and_shown_and_bounded(tmp_path_factory: pytest.TempPathFactory):
    """One at a time: others wait with their position, are served in order, may leave; the queue's end refuses."""
    for server in run_checked(ServerProcess(tmp_path_factory.mktemp("narrow"), config=NARROW)):
        async with client(server) as c:
            await c.begin(LONG, stream_id="running")
            seen = {}
            for place in (1, 2):
                lane = f"q{place}"
                await c.create(f"waited {place}", stream_id=lane)
                seen[lane] = await c.until("response.queued", stream_id=lane)
                assert seen[lane][0]["response"]["status"] == "queued"
                assert seen[lane][-1]["tokenwire"] == {"reason": "admission", "position": place}
            conversation = await c.conversation()
            error = await c.refused("response.create", input="x", conversation=conversation, stream_id="q3")
            assert error["code"] == "server_is_overloaded"
            assert error["retry_after_ms"] > 0
            assert await c.items(conversation) == []
            models = await c.do("model.list")
            assert (models["data"][0]["running"], models["data"][0]["waiting"]) == (1, 2)
            await c.send("response.cancel", stream_id="q1")
            left = Answer(seen["q1"] + await c.until(*TERMINAL, stream_id="q1")).check()
            assert left.type == "response.incomplete"
            moved = await c.until("response.queued", stream_id="q2")
            assert moved[-1]["tokenwire"] == {"reason": "admission", "position": 1}
            await c.send("response.cancel", stream_id="running")
            await c.answer("running")
            served = Answer(seen["q2"] + moved + await c.until(*TERMINAL, stream_id="q2")).check()
            assert served.text == "waited 2"


# Clients that do not read


async def test_a_client_that_never_reads_is_cut(tmp_path_factory: pytest.TempPathFactory):
    """100 kB pieces to a client that never reads: bounded memory, cut after send_timeout, others unharmed."""
    text = " ".join("x" * 100_000 for _ in range(8))
    for server in run_checked(ServerProcess(tmp_path_factory.mktemp("impatient"), config=IMPATIENT)):
        before = server.rss_bytes()
        quiet = socket.socket()
        quiet.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 * 1024)
        quiet.connect(("127.0.0.1", server.port))
        async with (
            client(server) as other,
            connect(
                f"{server.ws_url}/v1/responses", sock=quiet, compression=None, max_queue=1, close_timeout=0.1
            ) as deaf,
        ):
            lazy = client_of(deaf)
            for lane in range(8):
                await lazy.create(text, stream_id=f"l{lane}", store=False)
            while server.metric("connections") == 2:
                assert (await other.ask("not disturbed")).text == "not disturbed"
            deaf.transport.abort()
        assert any("reads too slowly" in line for line in server.log)
        assert server.rss_bytes() - before < 250 * 2**20


def client_of(websocket):
    """Return a client on a connection made elsewhere."""
    from tests.integration.server.wire import Client

    return Client(websocket)


async def test_a_slow_reader_misses_nothing(server: ServerProcess):
    """A client that reads late gets the events it missed, merged, complete and in order."""
    text = " ".join(f"{'y' * 2000}{number}" for number in range(400))
    async with client(server, max_queue=1) as c, client(server) as other:
        await c.create(text)
        assert (await other.ask("meanwhile")).text == "meanwhile"
        server.until_metric("responses_running", 0)
        answer = await c.answer()
    assert answer.text == text


# Load


async def test_a_very_long_answer_costs_its_length(server: ServerProcess):
    """7,500 tokens, piece by piece: no frame costs more than the one before, and others are answered meanwhile."""
    text = " ".join(f"w{number}" for number in range(500))
    async with client(server) as c, client(server) as other:
        await c.create(text, ignore_eos=True, max_output_tokens=7500)
        first = await c.until(DELTA)
        assert (await other.ask("meanwhile")).text == "meanwhile"
        answer = Answer([*first, *(await c.until(*TERMINAL))]).check()
    assert answer.text.startswith(text)
    assert answer.response["usage"]["output_tokens"] == 7500
    pieces = [event for event in answer.events if event["type"] == DELTA]
    assert len(pieces) > 2
    assert max(len(json.dumps(piece)) - len(piece["delta"]) for piece in pieces) < 300  # a frame beside its own text


async def test_five_hundred_at_once(server: ServerProcess):
    """All complete, each with its own text, none mixed up."""

    async def one(number: int) -> Answer:
        async with client(server, open_timeout=60) as c:
            return await c.ask(f"client {number} says {number * 7919}", metadata={"n": str(number)})

    answers = await asyncio.gather(*(one(number) for number in range(500)))
    for number, answer in enumerate(answers):
        assert answer.text == f"client {number} says {number * 7919}"
        assert answer.response["metadata"] == {"n": str(number)}
    assert len({answer.id for answer in answers}) == 500


async def test_frames_that_are_long_to_read_leave_the_others_their_turn(server: ServerProcess):
    """Another client is answered between two of them, and not after several."""
    frame = '{"input":[' + "[]," * 300_000 + "[]]}"
    count = 8

    async def refuse_all() -> None:
        for _ in range(count):
            assert (await c.event())["error"]["param"] == "input"

    async with client(server) as c, client(server) as other:
        for _ in range(count):
            await c.send(frame)
        refusing = asyncio.create_task(refuse_all())
        answered = 0
        while not refusing.done():
            await other.do("model.list")
            answered += 1
        await refusing
    assert answered >= count
