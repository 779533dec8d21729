"""All contenders in one process, on one engine, so that they are compared on the same footing within one minute.

One of them works at a time, so the process's CPU time belongs to it; the engine's own process is not in it. Run as
`python -m tests.benchmarks.host`: settings as a line of JSON on standard input, then a command a line; answers, a
line of JSON each, on standard output.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import signal
import sys
import time
import warnings
from collections.abc import AsyncGenerator, Callable, Sequence
from pathlib import Path
from typing import Any, Final

import uvloop

from protocol.events import Written
from protocol.items import Message
from protocol.options import PLAIN, Options
from server.app import App
from server.config import Config, ModelConfig
from server.engine.base import Chunk, GenerationRequest, ProgressCallback, Prompt, VllmSettings
from server.engine.vllm import VllmEngine
from server.models.pool import EngineFactory
from tests.benchmarks.load import cpu_s

POLL_S: Final = 0.05


class SharedEngine:
    """One vLLM, that several servers take for their own: starting and stopping it is not theirs."""

    def __init__(self, engine: VllmEngine) -> None:
        self._engine = engine
        self.context_length = engine.context_length
        self.max_concurrency = engine.max_concurrency
        self.takes_images = engine.takes_images

    @property
    def unfinished(self) -> int:
        return self._engine.unfinished

    async def start(self, progress: ProgressCallback) -> None:
        progress("it runs", None)

    async def check(self, options: Options) -> None:
        await self._engine.check(options)

    async def render(self, messages: Sequence[Message], options: Options = PLAIN) -> Prompt:
        return await self._engine.render(messages, options)

    async def extend(self, prompt: Prompt, written: Written) -> Prompt:
        return await self._engine.extend(prompt, written)

    def generate(self, request: GenerationRequest) -> AsyncGenerator[Chunk, None]:
        return self._engine.generate(request)

    async def check_health(self) -> None:
        await self._engine.check_health()

    def close(self) -> None:
        """Leave it to the others."""

    async def wait_closed(self) -> None:
        """Return at once."""


class SharedApp(App):
    """Tokenwire as it is, but for where its engine comes from."""

    def __init__(self, config: Config, engine: VllmEngine) -> None:
        super().__init__(config)
        self._shared = engine

    def _engine_factory(self, name: str, model: ModelConfig, source: str, memory: float) -> EngineFactory:
        return lambda _devices: SharedEngine(self._shared)

    def stop(self) -> None:
        """As SIGTERM does."""
        self._stop.set()


class Marks:
    """When requests reached the engine, when EngineCore sent their first token, and when an abort was through."""

    def __init__(self, llm: Any) -> None:
        self._llm = llm
        self._processor = llm.output_processor
        self._add, self._abort, self._process = llm.add_request, llm.abort, self._processor.process_outputs
        self._waiting: dict[str, str] = {}  # vLLM's name of a request without a token, and ours
        self.asked: dict[str, float] = {}
        self.first: dict[str, float] = {}
        self.idle: dict[str, float] = {}

    def on(self) -> None:
        """Begin to note: from here on these stand in the way."""
        self._llm.add_request, self._llm.abort = self._adding, self._aborting
        self._processor.process_outputs = self._processing

    def off(self) -> dict[str, Any]:
        """Stop, and return what was noted."""
        self._llm.add_request, self._llm.abort = self._add, self._abort
        self._processor.process_outputs = self._process
        return {"asked": self.asked, "first": self.first, "idle": self.idle}

    async def _adding(self, request_id: str, *arguments: Any, **named: Any) -> Any:
        self.asked[request_id] = time.monotonic()
        queue = await self._add(request_id, *arguments, **named)
        self._waiting[queue.request_id] = request_id
        return queue

    def _processing(self, outputs: Any, timestamp: float, *arguments: Any, **named: Any) -> Any:
        for output in outputs:
            if (name := self._waiting.pop(output.request_id, None)) is not None:
                self.first[name] = timestamp  # EngineCore's, of the same clock: what waits for us is no time of its own
        return self._process(outputs, timestamp, *arguments, **named)

    async def _aborting(self, request_id: Any, *arguments: Any, **named: Any) -> None:
        await self._abort(request_id, *arguments, **named)
        # EngineCore works on what it is sent in order: when it answers this, it has aborted.
        await self._llm.is_sleeping()
        self.idle[str(request_id)] = time.monotonic()


class Reading:
    """How vLLM's socket is read: by Tokenwire's reader, or as vLLM does by itself, which is how all others read it."""

    def __init__(self, llm: Any) -> None:
        self._llm = llm
        self._socket = llm.engine_core.resources.output_socket
        self._lean = {name: self._socket.__dict__[name] for name in ("recv_multipart", "_handle_events")}
        self._is_lean = True

    async def use(self, *, lean: bool) -> None:
        """Change over; nothing may run."""
        if lean == self._is_lean:
            return
        usual = self._socket.__dict__
        for name in self._lean:
            usual.pop(name, None)

        def both(*_: int) -> None:
            self._lean["_handle_events"]()
            type(self._socket)._handle_events(self._socket)

        usual |= {**(self._lean if lean else {}), "_handle_events": both}
        await self._llm.is_sleeping()  # its answer is read as before, and the next message anew
        usual.pop("_handle_events")
        usual |= self._lean if lean else {}
        self._is_lean = lean


class Host:
    """The engine, and who serves it."""

    def __init__(self, settings: dict[str, Any], answer: Callable[[dict[str, Any]], None]) -> None:
        self._settings = settings
        self._answer = answer
        limits = VllmSettings(
            max_num_seqs=settings["max_num_seqs"],
            max_num_batched_tokens=settings.get("max_num_batched_tokens"),
            extra=settings.get("extra", {}),
        )
        self._engine = VllmEngine("m", settings["model"], limits)
        self._apps: list[SharedApp] = []
        self._servers: list[Any] = []
        self._tasks: list[asyncio.Task[Any]] = []
        self._marks: Marks | None = None
        self._reading: Reading | None = None

    async def run(self) -> None:
        """Serve until told to stop."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            await self._engine.start(lambda *_: None)
        try:
            await self._serve()
            self._answer({"ready": True})
            while line := await asyncio.to_thread(sys.stdin.readline):
                self._answer(await self._do(json.loads(line)))
        finally:
            await self._stop()

    @property
    def _llm(self) -> Any:
        return self._engine._llm

    async def _serve(self) -> None:
        ports: dict[str, int] = self._settings["ports"]
        settings: dict[str, dict[str, Any]] = self._settings.get("stores", {})
        self._apps = [self._app(name, ports[name], store) for name, store in settings.items()]
        self._tasks += [asyncio.create_task(app.run(), name="tokenwire") for app in self._apps]
        if "tutorial" in ports:
            from tests.benchmarks import contenders

            self._servers = [
                contenders.Uvicorn.on(contenders.tutorial_app(self._llm), ports["tutorial"]),
                contenders.Uvicorn.on(await contenders.vllm_app(self._llm, self._settings["model"]), ports["vllm"]),
            ]
        self._tasks += [asyncio.create_task(server.serve(), name="uvicorn") for server in self._servers]
        while not self._is_up():  # noqa: ASYNC110 neither kind of server has an event for it
            await asyncio.sleep(POLL_S)
        gc.collect()
        gc.freeze()  # as Tokenwire and vLLM's server each do once they are up

    def _is_up(self) -> bool:
        return all(server.started for server in self._servers) and not any(app.reasons() for app in self._apps)

    def _app(self, name: str, port: int, store: dict[str, Any]) -> SharedApp:
        config = Config.model_validate(
            {
                "port": port,
                "models": {"m": {"source": self._settings["model"]}},
                "data_dir": Path(self._settings["data_dir"]) / name,
                "log_level": "warning",
                "store": store,
                "admission": {"adaptive": False},  # all of them take all answers at once
            }
        )
        return SharedApp(config, self._engine)

    async def _do(self, command: dict[str, Any]) -> dict[str, Any]:
        match command.pop("do"):
            case "usage":
                return {"cpu_s": cpu_s()}
            case "read":
                self._reading = self._reading or Reading(self._llm)
                await self._reading.use(**command)
                return {}
            case "raw":
                from tests.benchmarks import contenders

                return await contenders.raw(self._llm, **command)
            case "cancelled":
                from tests.benchmarks import contenders

                return await contenders.cancelled(self._llm, **command)
            case "batched":
                from tests.benchmarks import contenders

                return await contenders.batched(self._llm, **command)
            case "marks":
                if self._marks is None:
                    self._marks = Marks(self._llm)
                    self._marks.on()
                    return {}
                noted, self._marks = self._marks.off(), None
                return noted
            case other:
                raise ValueError(f"unknown command {other!r}")

    async def _stop(self) -> None:
        for app in self._apps:
            app.stop()
        for server in self._servers:
            server.should_exit = True
        await asyncio.wait_for(asyncio.gather(*self._tasks, return_exceptions=True), 60)
        self._engine.close()
        await self._engine.wait_closed()


def main() -> None:
    """Talk to whoever started us on the real standard output; whatever else is printed goes to standard error."""
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.getLogger("vllm").setLevel(logging.WARNING)
    settings = json.loads(sys.stdin.readline())

    def answer(what: dict[str, Any]) -> None:
        out.write(json.dumps(what) + "\n")

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(Host(settings, answer).run())


if __name__ == "__main__":
    main()
