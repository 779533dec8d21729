"""The official `openai` package for Python."""

from __future__ import annotations

import contextlib
import io
import re
from typing import Any

import pytest
from openai import AsyncOpenAI, OpenAI

from tests.support.server import ServerProcess

# As the SDK's users write it; only the URL and the model are the test's.
SNIPPET = """
from openai import OpenAI
client = OpenAI(api_key="k", base_url="http://localhost:8000/v1")
with client.responses.connect() as connection:
    connection.response.create(model="m", input="hi")
    for event in connection:
        if event.type == "response.output_text.delta": print(event.delta, end="")
        if event.type == "response.completed": break
"""
# The SDK calls websockets 17's connect() the older way; that is between the two of them.
pytestmark = pytest.mark.filterwarnings("ignore:connect.. must be used as a context manager:DeprecationWarning")

LONG = " ".join(f"w{number}" for number in range(60))


def _sync(server: ServerProcess) -> OpenAI:
    return OpenAI(api_key="k", base_url=f"{server.url}/v1")


def _completed(connection) -> tuple[str, Any]:
    """Read one answer; return its text and the response."""
    text = ""
    for event in connection:
        if event.type == "response.output_text.delta":
            text += event.delta
        if event.type in {"response.completed", "response.incomplete", "response.failed"}:
            return text, event.response
    raise AssertionError("the connection ended before the answer did")


def test_the_snippet(server: ServerProcess):
    """The documented snippet runs unchanged."""
    code = SNIPPET.replace("http://localhost:8000", server.url).replace('model="m"', 'model="echo"')
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(code, "snippet", "exec"), {})  # noqa: S102 our own text, as a reader would run it
    assert out.getvalue() == "hi"


def test_turns_by_previous_response_id(server: ServerProcess):
    """The model sees the first turn; the prefix cache is hit."""
    with _sync(server) as client, client.responses.connect() as connection:
        connection.response.create(model="echo", input="my name is Ada")
        text, first = _completed(connection)
        assert text == first.output_text == "my name is Ada"
        connection.response.create(model="echo", input="who am I", previous_response_id=first.id)
        text, second = _completed(connection)
        assert text == "who am I"
        assert second.usage.input_tokens == 4 + 4 + 3
        assert second.usage.input_tokens_details.cached_tokens > 0
        assert second.previous_response_id == first.id


def test_an_error_is_an_event_and_the_connection_lives(server: ServerProcess):
    """The SDK parses our error event; the next turn works."""
    with _sync(server) as client, client.responses.connect() as connection:
        connection.response.create(model="no-such", input="x")
        event = next(iter(connection))
        assert event.type == "error"
        assert event.error.code == "model_not_found"
        connection.response.create(model="echo", input="fine")
        assert _completed(connection)[0] == "fine"


async def test_async_turns_by_conversation(server: ServerProcess):
    """The asynchronous client; one conversation over two connections, made by our own command."""
    async with AsyncOpenAI(api_key="k", base_url=f"{server.url}/v1") as client:
        sizes = []
        async with client.responses.connect() as connection:
            await connection.send_raw('{"type":"conversation.create","id":"c"}')
            made = re.search(rb"conv_[0-9a-f]+", await connection.recv_bytes())
            assert made is not None
            conversation = made[0].decode()
        for text in ("first turn", "second"):
            async with client.responses.connect() as connection:
                await connection.response.create(model="echo", input=text, conversation=conversation)
                async for event in connection:
                    if event.type == "response.completed":
                        assert event.response.output_text == text
                        assert event.response.conversation is not None
                        assert event.response.conversation.id == conversation
                        assert event.response.usage is not None
                        sizes.append(event.response.usage.input_tokens)
                        break
    assert sizes == [2, 5]


async def test_async_cancel(server: ServerProcess):
    """A cancel in the middle ends as incomplete; the next turn on the connection works."""
    async with (
        AsyncOpenAI(api_key="k", base_url=f"{server.url}/v1") as client,
        client.responses.connect() as connection,
    ):
        await connection.response.create(model="echo", input=LONG)
        seen = ""
        async for event in connection:
            if event.type == "response.output_text.delta":
                if not seen:
                    await connection.send_raw('{"type":"response.cancel"}')
                seen += event.delta
            if event.type == "response.incomplete":
                details = event.response.model_dump()["incomplete_details"]  # its type does not know our reason
                assert details == {"reason": "cancelled"}
                assert event.response.output_text == seen
                break
        assert 0 < len(seen) < len(LONG)
        await connection.response.create(model="echo", input="next")
        async for event in connection:
            if event.type == "response.completed":
                assert event.response.output_text == "next"
                break
