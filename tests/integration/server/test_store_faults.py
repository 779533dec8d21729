"""The private Valkey dies, or hangs, in the middle of an answer."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator

import pytest

from tests.integration.server.conftest import run_checked
from tests.integration.server.wire import DELTA, TERMINAL, Answer, Client, client
from tests.support.server import ServerProcess

LONG = " ".join(f"w{number}" for number in range(60))
SHORT_HANG_S = 1.0  # below unavailable_timeout_s
CONFIG = """
[store]
unavailable_timeout_s = 3
operation_timeout_s = 1
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Gives Redis up after 3 s."""
    yield from run_checked(ServerProcess(tmp_path_factory.mktemp("data"), "--echo-rate", "40", config=CONFIG))


async def _until_ready(server: ServerProcess, status: int) -> None:
    await asyncio.to_thread(server.until_ready, status)


async def _begun(c: Client, **fields: str) -> list[dict]:
    """Send a long turn and return its events up to some text."""
    await c.create(LONG, **fields)
    return [*(await c.until(DELTA)), await c.event(), await c.event()]


async def test_valkey_killed_in_the_middle(server: ServerProcess):
    """It is started again; the answer goes on, complete; nothing acknowledged is lost."""
    async with client(server) as c:
        conversation = await c.conversation()
        before = await c.ask("before", conversation=conversation)
        seen = await _begun(c, conversation=conversation)
        old = server.valkey_pid()
        os.kill(old, signal.SIGKILL)
        answer = Answer(seen + await c.until(*TERMINAL)).check()
        assert (answer.type, answer.text) == ("response.completed", LONG)
        assert server.valkey_pid() != old
        said = [("user", "before"), ("assistant", "before"), ("user", LONG), ("assistant", LONG)]
        assert await c.items(conversation) == said
        await c.send("response.retrieve", response_id=before.id)
        assert (await c.answer()).events == before.events
        assert (await c.ask("after", conversation=conversation)).input_tokens == 2 + 120 + 1
    await _until_ready(server, 200)


async def test_valkey_hangs_for_a_moment(server: ServerProcess):
    """The stream pauses, then goes on, complete; nobody is told of a failure."""
    async with client(server) as c:
        seen = await _begun(c)
        valkey = server.valkey_pid()
        os.kill(valkey, signal.SIGSTOP)
        await asyncio.sleep(SHORT_HANG_S)  # the hang itself: there is nothing to wait for
        os.kill(valkey, signal.SIGCONT)
        answer = Answer(seen + await c.until(*TERMINAL)).check()
        assert (answer.type, answer.text) == ("response.completed", LONG)
        await c.send("response.retrieve", response_id=answer.id)
        assert (await c.answer()).text == LONG
    await _until_ready(server, 200)


async def test_valkey_hangs_for_too_long(server: ServerProcess):
    """The answer ends visibly, new turns are refused with a hint, /readyz says no; then all is well."""
    async with client(server) as c:
        conversation = await c.conversation()
        seen = await _begun(c, conversation=conversation)
        valkey = server.valkey_pid()
        os.kill(valkey, signal.SIGSTOP)
        try:
            events = seen + await c.until(*TERMINAL)
            failed = Answer(events)
            assert failed.type == "response.failed"
            assert failed.response["error"]["code"] == "store_unavailable"
            assert failed.text == failed.final_text != ""
            assert failed.numbers == sorted(set(failed.numbers))
            error = await c.refused("response.create", input="x", conversation=conversation)
            assert error["code"] == "store_unavailable"
            assert error["retry_after_ms"] > 0
            await _until_ready(server, 503)
            assert server.metric("store_up") == 0
            assert server.metric("responses_running") == 0
        finally:
            os.kill(valkey, signal.SIGCONT)
        await _until_ready(server, 200)
        answer = await c.ask("again", conversation=conversation)
        assert answer.text == "again"
        await c.send("response.retrieve", response_id=failed.id)
        kept = await c.answer()
        # Redis may have taken events whose reply was lost: what is kept may be a little more than what was seen.
        assert (kept.type, kept.text[: len(failed.text)]) == ("response.failed", failed.text)
        assert kept.end["sequence_number"] == failed.end["sequence_number"]
        assert server.get(f"/v1/responses/{failed.id}") == (200, kept.response)
        assert (await c.items(conversation))[1] == ("assistant", kept.text)
