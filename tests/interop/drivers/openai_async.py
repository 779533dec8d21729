"""The official `openai` package for Python, asynchronous."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from openai import AsyncOpenAI

from tests.interop.drivers.case import AGENT, ANSWER, LONG, MODEL, QUESTION, WEATHER, cut, run

TERMINAL = {"response.completed", "response.incomplete", "response.failed"}


@asynccontextmanager
async def connected(url: str, **options: Any) -> AsyncIterator[Any]:
    async with AsyncOpenAI(api_key="k", base_url=f"{url}/v1") as client, client.responses.connect(**options) as made:
        yield made


async def answer(connection: Any) -> tuple[str, Any]:
    """Read one answer; return its text as it came and the terminal event's response."""
    text = ""
    async for event in connection:
        assert event.type != "error", event
        if event.type == "response.output_text.delta":
            text += event.delta
        if event.type in TERMINAL:
            assert event.response.output_text == text
            return text, event.response
    raise AssertionError("the connection ended before the answer did")


async def happy(url: str) -> None:
    async with connected(url) as connection:
        await connection.response.create(model=MODEL, input="hello from the SDK")
        text, response = await answer(connection)
        assert text == "hello from the SDK"
        assert response.status == "completed"


async def turns(url: str) -> None:
    """One conversation over two connections, made by our own command."""
    async with connected(url) as connection:
        await connection.send_raw(json.dumps({"type": "conversation.create"}))
        conversation = json.loads(await connection.recv_bytes())["conversation"]["id"]
        await connection.response.create(model=MODEL, input="first turn", conversation=conversation)
        await answer(connection)
    async with connected(url) as connection:
        await connection.response.create(model=MODEL, input="second", conversation=conversation)
        text, response = await answer(connection)
        assert text == "second"
        assert response.conversation.id == conversation
        assert response.usage.input_tokens == 2 + 2 + 1


async def cancel(url: str) -> None:
    async with connected(url) as connection:
        await connection.response.create(model=MODEL, input=LONG)
        async for event in connection:
            if event.type == "response.output_text.delta":
                break
        await connection.send_raw(json.dumps({"type": "response.cancel"}))
        async for event in connection:
            if event.type in TERMINAL:
                break
        assert event.type == "response.incomplete"
        assert LONG.startswith(event.response.output_text)
        assert event.response.output_text != LONG
        await connection.response.create(model=MODEL, input="next")
        assert (await answer(connection))[0] == "next"


async def error(url: str) -> None:
    """The SDK parses our error event; the next turn works."""
    async with connected(url) as connection:
        await connection.response.create(model=MODEL, input="x", previous_response_id="resp_never_was")
        event = await connection.recv()
        assert event.type == "error"
        assert event.error.code == "previous_response_not_found"
        assert event.error.param == "previous_response_id"
        await connection.response.create(model=MODEL, input="fine")
        assert (await answer(connection))[0] == "fine"


async def reconnect(url: str) -> None:
    """The SDK reconnects by itself; what it sends then is ours to say: the rest of the answer, please."""
    seen: list[Any] = []

    def on_reconnecting(_: Any) -> None:
        last = max(event.sequence_number for event in seen)
        retrieve = {"type": "response.retrieve", "response_id": seen[0].response.id, "starting_after": last}
        asyncio.get_running_loop().create_task(connection.send_raw(json.dumps(retrieve)))

    async with connected(url, on_reconnecting=on_reconnecting, initial_delay=0.05, max_delay=0.5) as connection:
        await connection.response.create(model=MODEL, input=LONG)
        was_cut = False
        async for event in connection:
            seen.append(event)
            if event.type == "response.output_text.delta" and not was_cut:
                was_cut = True
                await asyncio.to_thread(cut)
            if event.type in TERMINAL:
                break
        assert event.type == "response.completed"
        assert "".join(event.delta for event in seen if event.type == "response.output_text.delta") == LONG


async def tools(url: str) -> None:
    """A function is called; its output is a turn of the same conversation."""
    tool: Any = {"type": "function", "name": "get_weather", "parameters": {"type": "object"}}
    async with connected(url) as connection:
        await connection.send_raw(json.dumps({"type": "conversation.create"}))
        conversation = json.loads(await connection.recv_bytes())["conversation"]["id"]
        await connection.response.create(model=AGENT, input=QUESTION, tools=[tool], conversation=conversation)
        _, response = await answer(connection)
        (call,) = [item for item in response.output if item.type == "function_call"]
        assert json.loads(call.arguments) == {"city": "Paris"}
        output: Any = {"type": "function_call_output", "call_id": call.call_id, "output": WEATHER}
        await connection.response.create(model=AGENT, input=[output], tools=[tool], conversation=conversation)
        assert (await answer(connection))[0] == ANSWER


if __name__ == "__main__":
    run({"happy": happy, "turns": turns, "cancel": cancel, "error": error, "reconnect": reconnect, "tools": tools})
