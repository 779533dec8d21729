"""An engine that says what a test tells it to, when it is told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace

from protocol.events import Written
from protocol.items import Message
from protocol.options import PLAIN, Options
from server.engine.base import (
    Chunk,
    EngineDeadError,
    EngineStartError,
    FinishReason,
    GenerationRequest,
    ProgressCallback,
    Prompt,
)


class ScriptedEngine:
    """One token a character, one more for each message. Answers wait for `say`, `end` and `die`, in that order.

    fault: what `start` raises. can_start: `start` waits for it. hands_over: to the requests' sinks, where it may.
    """

    hands_over = False
    takes_images = False

    def __init__(self, *, context_length: int = 1000, max_concurrency: int = 8) -> None:
        self.context_length = context_length
        self.max_concurrency = max_concurrency
        self.fault: BaseException | None = None
        self.can_start = asyncio.Event()
        self.can_start.set()
        self.requests: list[GenerationRequest] = []
        self.rendered: list[Sequence[Message]] = []
        self.is_closed = False
        self.is_gone = False
        self.is_dead = False
        self.unfinished = 0
        self._script: asyncio.Queue[Chunk | Exception] = asyncio.Queue()
        self._died = asyncio.Event()

    async def start(self, progress: ProgressCallback) -> None:
        progress("loading", 0.5)
        await self.can_start.wait()
        if self.fault is not None:
            raise self.fault

    async def check(self, options: Options) -> None:
        """Take whatever is asked."""

    async def render(self, messages: Sequence[Message], options: Options = PLAIN) -> Prompt:
        await asyncio.sleep(0)
        self.rendered.append(messages)
        count = sum(len(message.content) + 1 for message in messages)
        return Prompt((), count, tuple(messages))

    async def extend(self, prompt: Prompt, written: Written) -> Prompt:
        return Prompt((), prompt.token_count + len(written.text), prompt.messages, written)

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[Chunk, None]:
        self.requests.append(replace(request, sink=None))  # which would keep the whole response
        self.unfinished += 1
        try:
            while True:
                step = await self._script.get()
                if isinstance(step, Exception):
                    raise step
                if self.hands_over and request.sink is not None and step.finish_reason is None:
                    request.sink.receive(step)
                else:
                    yield step
        finally:
            self.unfinished -= 1

    async def check_health(self) -> None:
        if self.is_dead:
            raise EngineDeadError("the engine process is gone")

    def close(self) -> None:
        self.is_closed = True

    async def wait_closed(self) -> None:
        await asyncio.sleep(0)
        self.is_gone = True

    # The script

    def say(self, text: str) -> None:
        self._script.put_nowait(Chunk(text, len(text)))

    def say_chunk(self, chunk: Chunk) -> None:
        self._script.put_nowait(chunk)

    def end(self, reason: FinishReason = FinishReason.STOP) -> None:
        self._script.put_nowait(Chunk("", 0, reason))

    def die(self) -> None:
        self.is_dead = True
        self._script.put_nowait(EngineDeadError("the engine process is gone"))


def start_fault(text: str = "there is no such model") -> EngineStartError:
    return EngineStartError(text)
