"""What people would use instead, each on the same engine: the raw consumer, vLLM's own server, a tutorial's server."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
import uuid
from typing import Any

import uvicorn
from fastapi import FastAPI, WebSocket, WebSocketDisconnect
from vllm.entrypoints.launchers.api_server.app_state import init_app_state
from vllm.entrypoints.launchers.app import build_app
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.inputs.engine import tokens_input
from vllm.sampling_params import RequestOutputKind, SamplingParams
from vllm.utils.argparse_utils import FlexibleArgumentParser


def parameters(tokens: int) -> SamplingParams:
    """Return what every contender asks the engine for: so many tokens, as deltas."""
    return SamplingParams(max_tokens=tokens, ignore_eos=True, output_kind=RequestOutputKind.DELTA)


def prompt_ids(llm: Any, text: str) -> list[int]:
    """Return a user's message in the model's chat template."""
    message = [{"role": "user", "content": text}]
    return list(llm.get_tokenizer().apply_chat_template(message, add_generation_prompt=True, return_dict=False))


# The limit: whoever wants tokens from vLLM does at least this


async def raw(llm: Any, *, streams: int, tokens: int, prompt: str, spread_s: float) -> dict[str, Any]:
    """Read so many answers side by side and do nothing with them."""
    ids = prompt_ids(llm, prompt)
    began = time.monotonic()
    answers = await asyncio.gather(
        *(_read(llm, list(ids), tokens, spread_s * number / streams) for number in range(streams))
    )
    return {"answers": answers, "wall_s": time.monotonic() - began, "cpu_s": 0.0}


async def _read(llm: Any, ids: list[int], tokens: int, delay_s: float) -> dict[str, Any]:
    await asyncio.sleep(delay_s)
    name = f"raw-{uuid.uuid4().hex}"
    sent = time.monotonic()
    first = last = 0.0
    frames = 0
    gaps = []
    async for _output in llm.generate(tokens_input(ids), parameters(tokens), name):
        now = time.monotonic()
        if first:
            gaps.append(now - last)
        else:
            first = now
        last = now
        frames += 1
    return {"id": name, "sent": sent, "first": first, "ended": last, "frames": frames, "bytes": 0, "gaps": gaps}


async def cancelled(llm: Any, *, streams: int, tokens: int, prompt: str) -> dict[str, Any]:
    """Begin so many answers, give all of them up at once, and return how long EngineCore went on with each."""
    ids = prompt_ids(llm, prompt)
    made = [
        llm.generate(tokens_input(list(ids)), parameters(tokens), f"raw-{uuid.uuid4().hex}") for _ in range(streams)
    ]
    await asyncio.gather(*(anext(outputs) for outputs in made))
    began = time.monotonic()

    async def give_up(outputs: Any) -> float:
        await outputs.aclose()
        await llm.is_sleeping()  # EngineCore works on what it is sent in order
        return time.monotonic() - began

    return {"late_s": await asyncio.gather(*map(give_up, made))}


async def batched(llm: Any, *, prompts: list[str], lengths: list[int], size: int) -> dict[str, Any]:
    """Answer users who all ask at once, so many at a time; the next batch begins when all of the last one have ended.

    size: 1 is one after another; as many as there are users leaves it to vLLM, which batches continuously.
    """
    began = time.monotonic()
    answers = []
    for start in range(0, len(prompts), size):
        users = range(start, min(start + size, len(prompts)))
        answers += await asyncio.gather(*(_read(llm, prompt_ids(llm, prompts[n]), lengths[n], 0) for n in users))
    first = [answer["first"] - began for answer in answers]
    return {"wall_s": time.monotonic() - began, "first_s": first, "tokens": sum(lengths)}


# A WebSocket chat server as tutorials write it


def tutorial_app(llm: Any) -> FastAPI:
    """Return it: one `send_text` for each token."""
    app = FastAPI()

    @app.websocket("/ws")
    async def chat(websocket: WebSocket) -> None:
        await websocket.accept()
        with contextlib.suppress(WebSocketDisconnect):
            while True:
                asked = json.loads(await websocket.receive_text())
                ids = prompt_ids(llm, asked["prompt"])
                sampling = parameters(asked["max_tokens"])
                async for output in llm.generate(tokens_input(ids), sampling, uuid.uuid4().hex):
                    await websocket.send_text(output.outputs[0].text)
                await websocket.send_text("[DONE]")

    return app


# vLLM's own server


async def vllm_app(llm: Any, model: str) -> FastAPI:
    """Return vLLM's OpenAI server on a running engine, as its own launcher makes it, without access log and metrics."""
    parser = make_arg_parser(FlexibleArgumentParser())
    args = parser.parse_args(["--model", model, "--served-model-name", "m", "--disable-log-stats"])
    tasks = await llm.get_supported_tasks()
    app = build_app(args, tasks, llm.model_config)
    await init_app_state(llm, app.state, args, tasks)
    return app


class Uvicorn(uvicorn.Server):  # type: ignore[misc]  # it comes with vLLM, which types do not follow
    """uvicorn in a loop that is not its own: signals are ours."""

    @contextlib.contextmanager
    def capture_signals(self) -> Any:
        """Leave signals alone."""
        yield

    @classmethod
    def on(cls, app: FastAPI, port: int) -> Uvicorn:
        """Return a server for an app, with uvicorn's defaults but for its logs."""
        return cls(uvicorn.Config(app, host="127.0.0.1", port=port, access_log=False, log_level="warning"))
