"""Clients that misbehave in every way at once; afterwards nothing is left and everything still works.

The seeds are fixed, the moments are not: what a run finds is in the server's log, which is shown when it fails.
"""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from tests.integration.server.conftest import run_checked
from tests.integration.server.wire import TERMINAL, client
from tests.support.server import ServerProcess

LONG = " ".join(f"w{number}" for number in range(40))
CONFIG = """
[limits]
orphan_grace_s = 1
max_in_flight = 4
send_timeout_s = 2
"""
GARBAGE = [
    "{",
    "null",
    "[]",
    b"\x00\xff",
    '{"type":null}',
    '{"type":"response.cancel"}',
    '{"input":{}}',
    " ",
    "}" * 999,
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """300 tokens a second."""
    yield from run_checked(ServerProcess(tmp_path_factory.mktemp("data"), "--echo-rate", "300", config=CONFIG))


@pytest.fixture(scope="module", autouse=True)
def _nothing_is_left(server: ServerProcess) -> Iterator[None]:
    """Every place in the engine is free again, and an ordinary client is served."""
    yield
    server.until_metric("connections", 0)
    server.until_metric("responses_running", 0)
    model = server.get("/v1/models")[1]["data"][0]
    assert (model["running"], model["waiting"]) == (0, 0)
    assert server.get("/readyz")[0] == 200


async def test_cancels_at_random_moments(server: ServerProcess):
    """Stored, unstored, in a conversation; once or several times: one end each, and the next turn works."""

    async def one(seed: int) -> None:
        chance = random.Random(seed)
        async with client(server) as c:
            conversation = await c.conversation()
            for _ in range(25):
                options: list[dict[str, Any]] = [{"conversation": conversation}, {"store": False}, {"store": True}]
                fields = chance.choice(options)
                await c.create("a b c d e f g h i j k l", **fields)
                await asyncio.sleep(chance.random() * 0.1)  # the moment is what is tried
                for _ in range(chance.choice([1, 1, 2, 3])):
                    await c.send({"type": "response.cancel"})
                await c.answer()
                await c.do("model.list", stream_id="fence")
                c.forget()
                assert (await c.ask("ok", **fields)).text == "ok"

    await asyncio.gather(*(one(seed) for seed in range(4)))


async def test_two_hundred_aborts(server: ServerProcess):
    """Sockets dropped at random points, on lanes, in plain text, in commands, between garbage."""

    async def some(seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(25):
            async with client(server) as c:
                for lane in range(chance.randrange(1, 4)):
                    await c.create(LONG, store=chance.random() < 0.5, stream_id=f"l{lane}")
                for frame in chance.sample(GARBAGE, 2):
                    await c.send(frame)
                if chance.random() < 0.3:
                    await c.send({"type": "conversation.create"})
                for _ in range(chance.randrange(12)):
                    await c.event()
                c.abort()

    await asyncio.gather(*(some(seed) for seed in range(8)))


async def test_deletions_at_random_moments(server: ServerProcess):
    """A running and a waiting turn of two clients, deleted by a third: both hear an end or an error."""

    async def end(c, stream_id: str | None) -> None:
        while (await c.lane_event(stream_id))["type"] not in TERMINAL | {"error"}:
            pass

    chance = random.Random(1)
    async with client(server) as one, client(server) as two, client(server) as three:
        for _ in range(25):
            conversation = await three.conversation()
            await one.create(LONG, conversation=conversation)
            await two.create("waits", conversation=conversation)
            await asyncio.sleep(chance.random() * 0.1)  # the moment is what is tried
            deleted = await three.do("conversation.delete", conversation=conversation)
            assert deleted["type"] == "conversation.deleted"
            await end(one, None)
            await end(two, None)


async def test_repetitions_at_random_moments(server: ServerProcess):
    """The same id while the first is being taken in, answered, or has ended: the same answer."""
    chance = random.Random(1)
    async with client(server) as one, client(server) as two:
        conversation = await one.conversation()
        for number in range(25):
            turn: dict[str, Any] = {
                "text": f"only once {number}",
                "conversation": conversation,
                "id": f"repeat-{number}",
            }
            await one.create(**turn)
            await asyncio.sleep(chance.random() * 0.06)  # the moment is what is tried
            again, first = await two.ask(**turn), await one.answer()
            assert (again.id, again.text) == (first.id, turn["text"])
        assert len(await one.items(conversation)) == 50


async def test_a_flood_of_commands_from_a_client_that_leaves(server: ServerProcess):
    """Hundreds of commands with big answers in one packet, nothing read, then gone: its handler ends."""
    async with client(server) as c:
        conversation = await c.conversation(items=[{"role": "user", "content": "x" * 200_000}])
    deaf = socket.socket()
    deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    deaf.connect(("127.0.0.1", server.port))
    async with client(server, sock=deaf, max_queue=1, close_timeout=0.1) as c:
        c.write_together(*[{"type": "conversation.items.list", "conversation": conversation}] * 300)
        await c.event()
        c.abort()
    server.until_metric("connections", 0)
