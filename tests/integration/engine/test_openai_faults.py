"""The remote engine against servers that are down, busy, wrong or rude. Each is a real HTTP server on loopback.

Long: there are many ways to be rude, and all need the same few servers.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from protocol.items import parse_input
from protocol.options import Options
from server.engine import endpoint, openai
from server.engine.base import (
    AnswerLostError,
    BusyError,
    Chunk,
    EngineDeadError,
    EngineError,
    EngineStartError,
    FinishReason,
    GenerationRequest,
    PromptError,
    RequestError,
    Sampling,
)
from server.engine.openai import OpenAIEngine, OpenAISettings
from tests.unit.engine.contract import user

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
KEY = "sk-of-the-tests"
MODELS = {"data": [{"id": "m", "max_model_len": 100}, {"id": "other"}]}


DOT = "data:image/gif;base64,R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7"


def event(text: str = "", reason: str | None = None) -> bytes:
    return web.json_response({"choices": [{"delta": {"content": text}, "finish_reason": reason}]}).body  # type: ignore[return-value]


def stream_of(*pieces: bytes, end: bytes = b"data: [DONE]\n\n") -> Handler:
    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for piece in pieces:
            await response.write(b"data: " + piece + b"\n\n")
        await response.write(end)
        return response

    return handler


def fixed(status: int = 200, *, json: object = None, text: str | None = None, **headers: str) -> Handler:
    async def handler(request: web.Request) -> web.StreamResponse:
        shown = {name.replace("_", "-"): value for name, value in headers.items()}
        if text is not None:
            return web.Response(status=status, text=text, content_type="text/html", headers=shown)
        return web.json_response(json, status=status, headers=shown)

    return handler


@asynccontextmanager
async def serving(
    *, chat: Handler | None = None, models: Handler | None = None, **routes: Handler
) -> AsyncIterator[str]:
    """Serve; yield the base URL."""
    app = web.Application()
    app.router.add_get("/v1/models", models or fixed(json=MODELS))
    if chat is not None:
        app.router.add_post("/v1/chat/completions", chat)
    for name, handler in routes.items():
        app.router.add_route("*", f"/{name}", handler)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def engine_of(url: str, **settings: object) -> AsyncIterator[OpenAIEngine]:
    engine = OpenAIEngine("remote", OpenAISettings(url, **({"model": "m"} | settings)))  # type: ignore[arg-type]
    try:
        await engine.start(lambda *_: None)
        yield engine
    finally:
        engine.close()
        await engine.wait_closed()


async def answer(engine: OpenAIEngine, max_tokens: int = 20, text: str = "hi") -> list[Chunk]:
    request = GenerationRequest("r", await engine.render(user(text)), Sampling(max_tokens))
    async with aclosing(engine.generate(request)) as chunks:
        return [chunk async for chunk in chunks]


def free_url() -> str:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{sock.getsockname()[1]}/v1"


@pytest.mark.parametrize(
    ("models", "settings", "text"),
    [
        (fixed(text="<html>"), {}, "answered no JSON, but text/html: is the url right"),
        (fixed(json=[1]), {}, "answered no list of models"),
        (fixed(json={"data": [3]}), {}, "answered no list of models"),
        (fixed(json={"data": [{"id": "m", "owned_by": ["x"]}]}), {}, "does not tell the model's window"),
        (fixed(json={"data": [{"id": "m", "max_model_len": True}]}), {}, "does not tell the model's window"),
        (fixed(json={"data": []}), {}, "no model 'm': its list is empty"),
        (fixed(json=MODELS), {"model": "othre"}, "no model 'othre': it has other"),
        (fixed(json=MODELS), {"model": "other"}, "does not tell the model's window: set context_length"),
        (fixed(404, json={"detail": "Not Found"}), {}, "answered 404.*mostly /v1"),
        (fixed(401, json={"error": {"message": "no"}}), {}, "answered 401: no .*api_key_env"),
        (fixed(500, json={"error": "broken"}), {}, "answered 500: broken"),
        (fixed(302, json={}, Location="https://else.example/v1"), {}, "go to https://else.example/v1"),
    ],
)
async def test_a_wrong_server_is_told_at_start(models: Handler, settings: dict, text: str) -> None:
    """One line that says what was there instead, and what to set."""
    async with serving(models=models) as url:
        with pytest.raises(EngineStartError, match=text) as caught:
            async with engine_of(url, **settings):
                pass
        assert "\n" not in str(caught.value)


async def test_a_server_that_is_down_is_told_at_start() -> None:
    """With its address."""
    url = free_url()
    with pytest.raises(EngineStartError, match=f"{url}/models does not answer"):
        async with engine_of(url):
            pass


async def test_a_server_without_anything_of_vllm_is_enough() -> None:
    """No count, no health, no usage: the prompt is estimated, pieces are counted, room is left to the server."""
    bodies = []

    async def chat(request: web.Request) -> web.StreamResponse:
        bodies.append(await request.json())
        return await stream_of(event("Hel"), event("lo"), event("", "stop"))(request)

    async with serving(chat=chat) as url, engine_of(url, context_length=50) as engine:
        await engine.check_health()
        prompt = await engine.render(user("a" * 41))
        chunks = await answer(engine, 50 - prompt.token_count, "a" * 41)
        sampling = Sampling(5, temperature=0.0, top_k=0, stop=("x",))
        request = GenerationRequest("r", prompt, sampling, cache_salt="acme")
        [chunk async for chunk in engine.generate(request)]
    assert prompt.token_count == 15
    assert "".join(chunk.text for chunk in chunks) == "Hello"
    assert sum(chunk.token_count for chunk in chunks) == 2
    assert chunks[-1].finish_reason is FinishReason.STOP
    assert "max_tokens" not in bodies[0]
    told = {name: bodies[1][name] for name in ("max_tokens", "temperature", "top_k", "stop")}
    assert told == {"max_tokens": 5, "temperature": 0.0, "top_k": 0, "stop": ["x"]}
    assert "ignore_eos" not in bodies[1]
    assert "cache_salt" not in bodies[1]  # vLLM's word, which others may refuse


async def test_images_and_logprobs_are_handed_on() -> None:
    """In the words of Chat Completions: parts in their order, and what is told of each token."""
    bodies = []
    told = {"content": [{"token": "Hi", "logprob": -0.5, "bytes": [72], "top_logprobs": []}]}

    async def chat(request: web.Request) -> web.StreamResponse:
        bodies.append(await request.json())
        said = json.dumps({"choices": [{"delta": {"content": "Hi"}, "logprobs": told}]})
        return await stream_of(said.encode(), event("", "stop"))(request)

    parts = [{"type": "input_text", "text": "See "}, {"type": "input_image", "image_url": DOT}]
    async with serving(chat=chat) as url, engine_of(url, context_length=9000) as engine:
        assert engine.takes_images
        prompt = await engine.render(parse_input([{"role": "user", "content": parts}]))
        request = GenerationRequest("r", prompt, Sampling(5), options=Options(top_logprobs=1))
        (chunk, *_) = [chunk async for chunk in engine.generate(request)]
    text, image = bodies[0]["messages"][0]["content"]
    assert text == {"type": "text", "text": "See "}
    assert image == {"type": "image_url", "image_url": {"url": DOT}}
    assert prompt.token_count > 100
    assert (bodies[0]["logprobs"], bodies[0]["top_logprobs"]) == (True, 1)
    assert chunk.logprobs == ({"token": "Hi", "bytes": [72, 105], "logprob": -0.5, "top_logprobs": []},)


async def test_before_the_first_token_a_busy_server_is_asked_again() -> None:
    """Two refusals, then the answer; the client sees the answer alone."""
    asked = []

    async def chat(request: web.Request) -> web.StreamResponse:
        asked.append(1)
        return await (fixed(503, json={}) if len(asked) < 3 else stream_of(event("ok", "stop")))(request)

    async with serving(chat=chat) as url, engine_of(url) as engine:
        assert [chunk.text for chunk in await answer(engine)] == ["ok"]
    assert len(asked) == 3


@pytest.mark.parametrize(
    ("handler", "error", "text"),
    [
        (
            fixed(429, json={"error": {"message": "quota"}}, Retry_After="60"),
            BusyError,
            "429: quota .try again in 60 s",
        ),
        (fixed(429, json={}, Retry_After="9" * 400), BusyError, "try again in 86400 s"),
        (fixed(429, json={}, Retry_After="Fri, 31 Dec 2099 23:59:59 GMT"), BusyError, "try again in 86400 s"),
        (fixed(400, json={"error": {"message": "too\nlong"}}), RequestError, "too long"),
        (fixed(400, text="{" * 9000), RequestError, "chat/completions answered 400: no text"),
        (fixed(text="<html>hello"), EngineError, "answered text/html, not a stream"),
        (fixed(json={"choices": []}), EngineError, "answered application/json, not a stream"),
        (stream_of(b"{nonsense"), EngineError, "cannot be read"),
        (stream_of(b'{"choices":3}'), EngineError, "cannot be read"),
        (stream_of(b'{"error":{"message":"out of memory"}}'), EngineError, "reports: out of memory"),
        (stream_of(event("x", "abort")), EngineError, r"broke this answer off \(abort\)"),
        (stream_of(event("x"), end=b""), AnswerLostError, "ended without saying why"),
        (stream_of(event("x")), AnswerLostError, "ended without saying why"),
        (stream_of(b'{"choices":[],"usage":{"completion_tokens":5}}'), AnswerLostError, "ended without saying why"),
    ],
)
async def test_a_fault_is_one_request_s_fault(handler: Handler, error: type[EngineError], text: str) -> None:
    """It is told in one line, and costs the engine nothing."""
    async with serving(chat=handler) as url, engine_of(url) as engine:
        with pytest.raises(error, match=text) as caught:
            await answer(engine)
        assert "\n" not in str(caught.value)
        assert not isinstance(caught.value, EngineDeadError)
        assert engine.unfinished == 0
        await engine.check_health()


async def test_what_came_before_a_stream_broke_is_kept_and_the_rest_can_be_asked_for() -> None:
    """A connection that ends in the middle loses the answer, not the engine."""

    async def chat(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b"data: " + event("half") + b"\n\n")
        assert request.transport is not None
        request.transport.abort()
        return response

    async with serving(chat=chat) as url, engine_of(url) as engine:
        chunks = engine.generate(GenerationRequest("r", await engine.render(user("x")), Sampling(5)))
        assert (await anext(chunks)).text == "half"
        with pytest.raises(AnswerLostError, match="ended early"):
            await anext(chunks)
        assert engine.unfinished == 0


async def test_silence_in_the_middle_loses_the_answer() -> None:
    """A stream that brings nothing for the time that is set counts as broken."""

    async def chat(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b"data: " + event("x") + b"\n\n")
        await asyncio.Event().wait()
        return response

    async with serving(chat=chat) as url, engine_of(url, silence_timeout_s=0.2) as engine:
        with pytest.raises(AnswerLostError, match="time is up"):
            await answer(engine)


async def test_a_stream_whose_chunks_are_malformed_loses_the_answer() -> None:
    """The connection is closed then, and who reads is told nothing."""
    read = asyncio.Event()

    async def chat(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b"data: " + event("x") + b"\n\n")
        await read.wait()
        assert request.transport is not None
        request.transport.write(b"no size\r\nof a chunk\r\n")
        await asyncio.Event().wait()
        return response

    async with serving(chat=chat) as url, engine_of(url, silence_timeout_s=0.2) as engine:
        chunks = engine.generate(GenerationRequest("r", await engine.render(user("x")), Sampling(5)))
        assert (await anext(chunks)).text == "x"
        read.set()
        with pytest.raises(AnswerLostError, match="ended early: time is up"):
            await anext(chunks)


async def test_a_server_that_drops_one_request_is_not_called_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    """It answers others, and would stop doing so if it was: only a server that is unwell, too, is dead."""
    monkeypatch.setattr(endpoint, "RETRY_FIRST_S", 0.001)

    async def drop(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    asked = []

    async def tokenize(request: web.Request) -> web.StreamResponse:
        asked.append(request)
        return await (drop(request) if len(asked) > 1 else fixed(json={"count": 3})(request))

    async with serving(chat=drop) as url, engine_of(url, context_length=100) as engine:
        with pytest.raises(AnswerLostError, match="does not answer"):
            await answer(engine)
    async with serving(tokenize=tokenize) as url, engine_of(url) as engine:
        with pytest.raises(AnswerLostError, match="does not answer"):
            await engine.render(user("x"))
    async with serving(chat=drop, health=fixed(500)) as url, engine_of(url, context_length=100) as engine:
        with pytest.raises(EngineDeadError, match="does not answer"):
            await answer(engine)


@pytest.mark.parametrize("pause", ["\u00b2", "-5", "soon", "Fri, 31 Dec 2099 23:59:59 +99999999999"])
async def test_a_pause_that_makes_no_sense_is_none(pause: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The request is tried again as if none was asked for."""
    monkeypatch.setattr(endpoint, "RETRY_FIRST_S", 0.001)
    async with serving(chat=fixed(429, json={}, Retry_After=pause)) as url, engine_of(url) as engine:
        with pytest.raises(BusyError) as caught:
            await answer(engine)
        assert caught.value.retry_after_s == openai.BUSY_RETRY_S


@pytest.mark.parametrize(
    ("status", "body", "headers"),
    [
        (401, b'{"error": {"message": "Incorrect API key provided: %s"}}', {}),
        (400, b"bad key %s", {}),
        (302, b"", {"Location": f"https://else.example/?key={KEY}"}),
        (200, b'data: {"error": "bad key %s"}\n\n', {"Content-Type": "text/event-stream"}),
        (200, b'data: {"choices": [{"finish_reason": "%s"}]}\n\n', {"Content-Type": "text/event-stream"}),
        (200, b"data: %s\n\n", {"Content-Type": "text/event-stream"}),
    ],
)
async def test_a_server_that_repeats_the_key_does_not_make_us_tell_it(
    status: int, body: bytes, headers: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it says goes to users and into the log; also where the key comes in two pieces."""
    monkeypatch.setenv("TEST_KEY", KEY)

    async def handler(request: web.Request) -> web.StreamResponse:
        assert request.headers["Authorization"] == f"Bearer {KEY}"
        said = body.replace(b"%s", KEY.encode())
        response = web.StreamResponse(status=status, headers=headers)
        await response.prepare(request)
        half = said.find(KEY[3:].encode())
        await response.write(said[:half])
        if status == 200:
            await asyncio.sleep(0)
        await response.write(said[half:])
        return response

    settings: Any = {"api_key_env": "TEST_KEY", "context_length": 100}
    async with serving(chat=handler) as url, engine_of(url, **settings) as engine:
        with pytest.raises(EngineError) as caught:
            await answer(engine)
    assert KEY not in str(caught.value)
    if status != 200:
        async with serving(models=handler) as url:
            with pytest.raises(EngineStartError) as refused:
                async with engine_of(url, **settings):
                    pass
        assert KEY not in str(refused.value)


async def test_a_key_may_be_a_part_of_answers_and_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers without keys are given any word; it is taken out of errors alone."""
    monkeypatch.setenv("TEST_KEY", "m")
    chat = stream_of(event("some more"), event(reason="stop"))
    async with serving(chat=chat) as url, engine_of(url, api_key_env="TEST_KEY") as engine:
        chunks = await answer(engine)
    assert "".join(chunk.text for chunk in chunks) == "some more"


async def test_a_request_that_is_not_answered_is_lost_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was waited for long enough: it is not asked again here, and the server is not called dead for it."""
    asked = []

    async def chat(request: web.Request) -> web.StreamResponse:
        asked.append(request)
        await asyncio.Event().wait()
        raise AssertionError

    async def tokenize(request: web.Request) -> web.StreamResponse:
        if asked:
            await asyncio.Event().wait()
        return web.json_response({"count": 3})

    async with (
        serving(chat=chat, tokenize=tokenize) as url,
        engine_of(url, silence_timeout_s=0.2) as engine,
    ):
        with pytest.raises(AnswerLostError, match=r"chat/completions has not begun to answer within 0.2 s"):
            await answer(engine)
        assert len(asked) == 1
        monkeypatch.setattr(endpoint, "ANSWER_TIMEOUT_S", 0.1)
        with pytest.raises(EngineError, match=r"tokenize did not answer within 0.1 s") as caught:
            await engine.render(user("x"))
        assert not isinstance(caught.value, EngineDeadError)
        await engine.check_health()


async def test_a_server_that_goes_on_behind_the_limit_is_stopped() -> None:
    """It does not keep to max_tokens: the answer ends as one that was cut off, and so does its work."""
    closed = asyncio.Event()

    async def chat(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        try:
            while True:
                await response.write(b"data: " + event("on ") + b"\n\n")
                await asyncio.sleep(0)
        finally:
            closed.set()

    async with serving(chat=chat) as url, engine_of(url) as engine:
        chunks = await answer(engine, 5)
        assert chunks[-1].finish_reason is FinishReason.LENGTH
        await closed.wait()


async def test_what_comes_behind_the_end_is_not_waited_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that neither says `[DONE]` nor closes does not keep its answer from ending."""
    monkeypatch.setattr(openai, "LAST_WORDS_S", 0.05)

    async def chat(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b"data: " + event("x", "stop") + b"\n\n")
        await asyncio.Event().wait()
        return response

    async with serving(chat=chat) as url, engine_of(url) as engine:
        chunks = await answer(engine)
        assert [chunk.text for chunk in chunks] == ["x", ""]
        assert chunks[-1].finish_reason is FinishReason.STOP


async def test_a_cancel_in_the_moment_of_the_answer_closes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also the connection that has just begun to answer: else the server would go on for nobody."""
    closed = asyncio.Event()

    async def chat(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        try:
            await asyncio.Event().wait()
        finally:
            closed.set()
        return response

    async with serving(chat=chat) as url, engine_of(url) as engine:
        ask = engine._endpoint.stream
        kept = []

        async def stream(*arguments: Any) -> Any:
            kept.append(await ask(*arguments))
            asyncio.get_running_loop().call_soon(task.cancel)  # before it has had the time to take it
            return kept[0]

        monkeypatch.setattr(engine._endpoint, "stream", stream)
        task = asyncio.create_task(answer(engine))
        with pytest.raises(asyncio.CancelledError):
            await task
        await closed.wait()
        assert engine.unfinished == 0


@pytest.mark.parametrize("begun", [False, True])
async def test_closing_the_engine_ends_what_runs(begun: bool) -> None:
    """With EngineDeadError, whether the server had begun to answer or not."""
    reached = asyncio.Event()

    async def chat(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        if begun:
            await response.prepare(request)
            await response.write(b"data: " + event("x") + b"\n\n")
        reached.set()
        await asyncio.Event().wait()
        return response

    async with serving(chat=chat) as url, engine_of(url) as engine:
        task = asyncio.create_task(answer(engine))
        await reached.wait()
        engine.close()
        with pytest.raises(EngineDeadError):
            await task
        assert engine.unfinished == 0
        with pytest.raises(EngineDeadError):
            await engine.check_health()


async def test_a_server_that_goes_away_is_unhealthy_and_found_dead() -> None:
    """By the health check, and by a request that has said nothing yet."""
    async with serving(chat=stream_of(event("x", "stop"))) as url:
        engine = OpenAIEngine("remote", OpenAISettings(url, "m"))
        await engine.start(lambda *_: None)
        prompt = await engine.render(user("x"))
    with pytest.raises(EngineDeadError, match="does not answer"):
        await engine.check_health()
    with pytest.raises(EngineDeadError, match="does not answer"):
        await anext(engine.generate(GenerationRequest("r", prompt, Sampling(5))))
    engine.close()
    await engine.wait_closed()


async def test_an_unwell_server_is_unhealthy() -> None:
    """What `/health` says with a 5xx is believed."""
    async with serving(health=fixed(503, json={"error": "loading"})) as url, engine_of(url) as engine:
        with pytest.raises(EngineDeadError, match="answered 503: loading"):
            await engine.check_health()


async def test_a_template_that_refuses_is_told_while_the_prompt_is_made() -> None:
    """Where the server counts prompts; so no turn is begun that cannot be answered."""
    asked = []

    async def tokenize(request: web.Request) -> web.StreamResponse:
        asked.append(await request.json())
        if len(asked) == 1:
            return web.json_response({"count": 3})
        return web.json_response({"error": {"message": "roles must alternate"}}, status=400)

    async with serving(tokenize=tokenize) as url, engine_of(url) as engine:
        with pytest.raises(PromptError, match="roles must alternate"):
            await engine.render(user("x"))
