"""Quotas as clients see them, over two gateways on one Redis."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack
from typing import Any
from urllib.parse import quote

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from tests.integration.server.conftest import run_checked
from tests.integration.server.wire import TERMINAL, Client, client
from tests.support.keyed import bearer, make_key
from tests.support.server import ServerProcess

CONFIG = """
[auth]
methods = ["keys"]
"""
SOCKETS, TURNS = 40, 15


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    made = ServerProcess(tmp_path_factory.mktemp("first"), "--echo-rate", "300", config=CONFIG).start()
    made.key = asyncio.run(make_key(made.data_dir, "prometheus", "metrics"))
    yield from run_checked(made)


@pytest.fixture(scope="module")
def second(tmp_path_factory: pytest.TempPathFactory, first: ServerProcess) -> Iterator[ServerProcess]:
    url = f"unix://{quote(str(first.data_dir / 'valkey' / 'socket'))}"
    made = ServerProcess(tmp_path_factory.mktemp("second"), "--redis-url", url, config=CONFIG)
    made.key = first.key
    yield from run_checked(made)


async def keyed(server: ServerProcess, user: str, **limits: int) -> dict[str, Any]:
    """Return what signs a connection in with a key that has these limits."""
    return {"additional_headers": bearer(await make_key(server.data_dir, user, limits=limits))}


async def left(c: Client) -> dict[str, int]:
    """Return what is left of each limit."""
    return {row["name"]: row["remaining"] for row in (await c.do("limits.retrieve"))["data"]}


async def test_six_hundred_at_once_over_two_gateways(first: ServerProcess, second: ServerProcess):
    """A key for 100 turns a minute: 100 are answered, 500 hear when to come again, nobody else is disturbed."""
    options = await keyed(first, "flood", turns_per_minute=100)

    async def flood(c: Client) -> tuple[int, list[dict[str, Any]]]:
        c.write_together(
            *({"type": "response.create", "input": "hi", "stream_id": f"l{n}", "store": False} for n in range(TURNS))
        )
        ended = 0
        errors: list[dict[str, Any]] = []
        while ended + len(errors) < TURNS:
            event = await c.event()
            if event["type"] == "error":
                errors.append(event["error"])
            ended += event["type"] in TERMINAL
        return ended, errors

    async with AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(client(first if n % 2 else second, **options)) for n in range(SOCKETS)
        ]
        results = await asyncio.gather(*map(flood, clients))
        assert sum(ended for ended, _ in results) == 100
        errors = [error for _, errors in results for error in errors]
        assert len(errors) == 500
        assert {error["code"] for error in errors} == {"rate_limit_exceeded"}
        assert all(0 < error["retry_after_ms"] <= 60_000 for error in errors)
        assert await left(clients[0]) == {"turns_per_minute": 0}
        async with client(second, **await keyed(first, "quiet", turns_per_minute=100)) as other:
            assert (await other.ask("hi")).text == "hi"


async def test_what_is_left_can_be_read(first: ServerProcess):
    """By command and by GET, with what every answer has cost."""
    options = await keyed(first, "reader", turns_per_minute=10, input_tokens_per_day=1000, output_tokens_per_day=50)
    async with client(first, **options) as c:
        assert (await c.ask("one two three")).response["usage"]["output_tokens"] == 3
        async with asyncio.timeout(10):
            while (now := await left(c))["output_tokens_per_day"] == 50:  # written down right after the end
                pass
        assert now == {"turns_per_minute": 9, "input_tokens_per_day": 997, "output_tokens_per_day": 47}
        listed = (await c.do("limits.retrieve"))["data"]
    key = options["additional_headers"]["Authorization"].removeprefix("Bearer ")
    status, got = first.get("/v1/limits", key)
    assert status == 200
    assert [row | {"resets_in_ms": None} for row in got["data"]] == [row | {"resets_in_ms": None} for row in listed]


async def test_tokens_that_are_used_up(first: ServerProcess, second: ServerProcess):
    """The next turn is refused until midnight, on the other gateway as well; what is repeated is not a new turn."""
    options = await keyed(first, "spender", output_tokens_per_day=3)
    async with client(first, **options) as c:
        answer = await c.ask("one two three", id="turn")
    async with client(second, **options) as c:
        async with asyncio.timeout(10):
            while (await left(c))["output_tokens_per_day"]:
                pass
        error = await c.refused("response.create", input="more")
        assert (error["code"], 0 < error["retry_after_ms"] <= 86_400_000) == ("rate_limit_exceeded", True)
        again = await c.ask("one two three", id="turn")
        assert again.id == answer.id


async def test_responses_at_once(first: ServerProcess, second: ServerProcess):
    """A place is free again when an answer has ended, also when it was cancelled or refused."""
    options = await keyed(first, "busy", concurrent_responses=1)
    async with client(first, **options) as c, client(second, **options) as away:
        await c.begin("word " * 3000)
        assert (await away.refused("response.create", input="hi"))["code"] == "rate_limit_exceeded"
        await c.send({"type": "response.cancel"})
        await c.until(*TERMINAL)
        async with asyncio.timeout(10):
            while not (await left(away))["concurrent_responses"]:
                pass
        assert (await away.refused("response.create", input="x", previous_response_id="resp_no"))["code"] == (
            "previous_response_not_found"
        )
        async with asyncio.timeout(10):
            while not (await left(away))["concurrent_responses"]:
                pass
        assert (await away.ask("hi")).text == "hi"


async def test_connections(first: ServerProcess, second: ServerProcess):
    """Over the limit the handshake gets 429, and a first frame an error and 1013; a closed one makes room."""
    options = await keyed(first, "many", connections=2)
    key = options["additional_headers"]["Authorization"].removeprefix("Bearer ")
    async with client(first, **options), client(second, **options) as c:
        with pytest.raises(InvalidStatus) as refused:
            await connect(f"{first.ws_url}/v1/responses", **options)
        assert refused.value.response.status_code == 429
        assert int(refused.value.response.headers["Retry-After"]) > 0
        async with client(second) as late:
            assert (await late.refused("session.update", token=key))["code"] == "rate_limit_exceeded"
            await late.until_closed()
            assert late.websocket.close_code == 1013
        await c.websocket.close()
        async with asyncio.timeout(10):
            while True:
                try:
                    async with client(first, **options) as again:
                        assert await left(again) == {"connections": 0}
                        break
                except InvalidStatus:
                    pass


async def test_conversations(first: ServerProcess):
    """A user may keep so many; deleting makes room. Typed text, which needs a conversation, hears of it, too."""
    options = await keyed(first, "keeper", conversations=2, conversation_turns=1, input_chars=20)
    async with client(first, **options) as c:
        one, _ = await c.conversation(), await c.conversation()
        assert (await c.refused("conversation.create"))["code"] == "invalid_request"
        await c.send("typed")
        assert "may have 2 conversations" in (await c.error())["message"]
        await c.ask("hi", conversation=one)
        assert "1 turns" in (await c.refused("response.create", input="more", conversation=one))["message"]
        assert "20 in one turn" in (await c.refused("response.create", input="x" * 21))["message"]
        await c.do("conversation.delete", conversation=one)
        await c.conversation()
