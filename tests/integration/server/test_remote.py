"""A gateway whose models are on other servers: streams that end early, and what cannot work."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest
from aiohttp import web

from tests.integration.server.wire import client
from tests.support.server import ServerProcess


async def test_an_answer_that_breaks_off_goes_on(tmp_path: Path) -> None:
    """The other server loses its connection in the middle: the rest is asked for, and the client sees one answer.

    The model's own prompt and sampling are in each request, unless the client says otherwise. When the other server is
    busy for longer than is waited here, the client is told that much.
    """
    asked = []

    async def chat(request: web.Request) -> web.StreamResponse:
        asked.append(await request.json())
        if len(asked) == 3:
            return web.json_response({"error": {"message": "full"}}, status=429, headers={"Retry-After": "30"})
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        text = "one two" if len(asked) == 1 else " three"
        await response.write(b'data: {"choices":[{"delta":{"content":"%s"}}]}\n\n' % text.encode())
        if len(asked) == 1:
            await asyncio.sleep(0.2)  # the gateway has it by then
            assert request.transport is not None
            request.transport.abort()
        else:
            await response.write(b'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n')
        return response

    app = web.Application()
    app.router.add_post("/v1/chat/completions", chat)
    app.router.add_get("/v1/models", models)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    own = 'system_prompt = "Be brief."\nsampling = { temperature = 0.5, top_p = 0.9 }'
    config = f'[models.m]\nbackend = "openai"\nsource = "m"\nremote = {{ url = "{url}" }}\n{own}'
    server = ServerProcess(tmp_path, config=config)
    try:
        await asyncio.to_thread(server.start)
        async with client(server) as user:
            answer = await user.ask("count")
            refused = await user.ask("count on", temperature=0.25)
        assert answer.check().text == "one two three"
        assert answer.type == "response.completed"
    finally:
        await asyncio.to_thread(server.stop)
        await runner.cleanup()
    error = refused.response["error"]
    assert error["code"] == "server_is_overloaded"
    assert error["message"].endswith("answered 429: full (try again in 30 s)")
    told = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "count"}]
    assert asked[0]["messages"] == told
    assert asked[1]["messages"] == [*told, {"role": "assistant", "content": "one two"}]
    assert [(body["temperature"], body["top_p"]) for body in asked] == [(0.5, 0.9), (0.5, 0.9), (0.25, 0.9)]
    assert server.faults() == []


async def models(_: web.Request) -> web.Response:
    return web.json_response({"data": [{"id": "m", "max_model_len": 1000}]})


@pytest.mark.parametrize(
    ("remote", "fault"),
    [
        ('url = "http://127.0.0.1:9/v1"', "http://127.0.0.1:9/v1/models does not answer"),
        ("", "models.m.remote.url .*backend 'openai' needs a url such as http://host:8000/v1"),
        ('url = "http://u:p@h/v1"', "must hold no password"),
        ('url = "http://api.example.com/v1", api_key_env = "K"', "a key goes over https:// only"),
    ],
)
def test_what_cannot_work_is_told_at_the_start(tmp_path: Path, remote: str, fault: str) -> None:
    """In the last lines of the log, and the process ends."""
    config = f'[models.m]\nbackend = "openai"\nsource = "m"\nremote = {{ {remote} }}'
    server = ServerProcess(tmp_path, config=config).launch()
    assert server.wait() != 0
    assert re.search(fault, server.tail())
