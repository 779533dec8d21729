"""OpenAI's agents SDK for Python over the WebSocket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from agents import Agent, MultiProvider, RunConfig, Runner, SQLiteSession, function_tool, set_tracing_disabled

from tests.interop.drivers.case import AGENT, ANSWER, LONG, MODEL, QUESTION, WEATHER, cut, raises, run

set_tracing_disabled(True)


@asynccontextmanager
async def provided(url: str) -> AsyncIterator[RunConfig]:
    provider = MultiProvider(openai_api_key="k", openai_base_url=f"{url}/v1", openai_use_responses_websocket=True)
    try:
        yield RunConfig(model_provider=provider)
    finally:
        await provider.aclose()


def agent(model: str = MODEL, **fields: Any) -> Agent[Any]:
    return Agent(name="Echo", model=model, instructions="Say it again.", **fields)


def delta(event: Any) -> str:
    """Return the text that an event of a streamed run adds."""
    if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
        return str(event.data.delta)
    return ""


async def happy(url: str) -> None:
    async with provided(url) as config:
        result = Runner.run_streamed(agent(), "hello from an agent", run_config=config)
        text = "".join([delta(event) async for event in result.stream_events()])
        assert text == result.final_output == "hello from an agent"


async def turns(url: str) -> None:
    """By the server's memory, and by the client's own, which sends the whole history again."""
    async with provided(url) as config:
        first = await Runner.run(agent(), "my name is Ada", run_config=config)
        second = await Runner.run(agent(), "who am I", run_config=config, previous_response_id=first.last_response_id)
        assert second.final_output == "who am I"
        assert second.context_wrapper.usage.input_tokens == 3 + 4 + 4 + 3
        session = SQLiteSession("here")
        await Runner.run(agent(), "my name is Ada", run_config=config, session=session)
        second = await Runner.run(agent(), "who am I", run_config=config, session=session)
        assert second.context_wrapper.usage.input_tokens == 3 + 4 + 4 + 3


async def cancel(url: str) -> None:
    async with provided(url) as config:
        result = Runner.run_streamed(agent(), LONG, run_config=config)
        text = ""
        async for event in result.stream_events():
            text += delta(event)
            if text:
                result.cancel()
        assert LONG.startswith(text)
        assert text != LONG
        assert (await Runner.run(agent(), "next", run_config=config)).final_output == "next"


async def error(url: str) -> None:
    async with provided(url) as config:
        with raises(Exception, "no-such"):  # the SDK's class for it has no public name
            await Runner.run(agent("no-such"), "x", run_config=config)
        assert (await Runner.run(agent(), "fine", run_config=config)).final_output == "fine"


async def reconnect(url: str) -> None:
    """The SDK does not resume an answer: a cut in the middle is an error of that run; the next one connects anew."""
    async with provided(url) as config:
        first = await Runner.run(agent(), "my name is Ada", run_config=config)
        lost = Runner.run_streamed(agent(), LONG, run_config=config)
        was_cut = False
        with raises(Exception, "clos"):
            async for event in lost.stream_events():
                if delta(event) and not was_cut:
                    was_cut = True
                    await asyncio.to_thread(cut)
        second = await Runner.run(agent(), "who am I", run_config=config, previous_response_id=first.last_response_id)
        assert second.final_output == "who am I"
        assert second.context_wrapper.usage.input_tokens == 3 + 4 + 4 + 3


async def tools(url: str) -> None:
    """The SDK calls the function and goes on by itself."""
    asked: list[str] = []

    @function_tool
    def get_weather(city: str) -> str:
        """Say how the weather is."""
        asked.append(city)
        return WEATHER

    async with provided(url) as config:
        result = await Runner.run(agent(AGENT, tools=[get_weather]), QUESTION, run_config=config)
    assert asked == ["Paris"]
    assert result.final_output == ANSWER


if __name__ == "__main__":
    run({"happy": happy, "turns": turns, "cancel": cancel, "error": error, "reconnect": reconnect, "tools": tools})
