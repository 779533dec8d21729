"""pydantic-ai with its Responses WebSocket transport."""

from __future__ import annotations

import asyncio
import warnings
from typing import Any

from pydantic_ai import Agent
from pydantic_ai.exceptions import ModelAPIError, ModelHTTPError
from pydantic_ai.models.openai import OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

from tests.interop.drivers.case import AGENT, ANSWER, LONG, MODEL, QUESTION, WEATHER, cut, raises, run

# It falls back to HTTP with a warning where a socket does not work; here that must be an error.
warnings.simplefilter("error")


def agent(url: str, model: str = MODEL) -> Agent[None, Any]:
    settings: Any = {"openai_transport": "websocket"}
    provider = OpenAIProvider(base_url=f"{url}/v1", api_key="k")
    return Agent(OpenAIResponsesModel(model, provider=provider, settings=settings), instructions="Say it again.")


async def happy(url: str) -> None:
    async with agent(url) as echo, echo.run_stream("hello from pydantic") as result:
        pieces = [piece async for piece in result.stream_text(delta=True, debounce_by=None)]
        assert "".join(pieces) == "hello from pydantic"


async def turns(url: str) -> None:
    async with agent(url) as echo:
        first = await echo.run("my name is Ada")
        second = await echo.run("who am I", message_history=first.all_messages())
        assert second.output == "who am I"
        assert second.usage.input_tokens == 3 + 4 + 4 + 3


async def cancel(url: str) -> None:
    """It leaves: the socket is closed, the next run opens another."""
    async with agent(url) as echo:
        async with echo.run_stream(LONG) as result:
            async for text in result.stream_text(debounce_by=None):
                assert LONG.startswith(text)
                assert text != LONG
                break
        assert (await echo.run("next")).output == "next"


async def error(url: str) -> None:
    async with agent(url, "no-such") as wrong:
        with raises(ModelHTTPError, "status_code: 404"):
            await wrong.run("x")
    async with agent(url) as echo:
        assert (await echo.run("fine")).output == "fine"


async def reconnect(url: str) -> None:
    """It does not resume an answer: a cut in the middle is an error of that run; the next one connects anew."""
    async with agent(url) as echo:
        first = await echo.run("my name is Ada")
        with raises(ModelAPIError, "interrupted"):
            async with echo.run_stream(LONG) as result:
                was_cut = False
                async for _ in result.stream_text(debounce_by=None):
                    if not was_cut:
                        was_cut = True
                        await asyncio.to_thread(cut)
        second = await echo.run("who am I", message_history=first.all_messages())
        assert second.output == "who am I"
        assert second.usage.input_tokens == 3 + 4 + 4 + 3


async def tools(url: str) -> None:
    """It calls the function and goes on by itself, on the same socket."""
    asked: list[str] = []
    caller = agent(url, AGENT)

    @caller.tool_plain
    def get_weather(city: str) -> str:
        """Say how the weather is."""
        asked.append(city)
        return WEATHER

    async with caller:
        result = await caller.run(QUESTION)
    assert asked == ["Paris"]
    assert result.output == ANSWER


if __name__ == "__main__":
    run({"happy": happy, "turns": turns, "cancel": cancel, "error": error, "reconnect": reconnect, "tools": tools})
