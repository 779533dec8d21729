"""A LoRA adapter as a model: an engine that has none of its own, but asks its base model's.

So a hundred adapters cost one base model. An adapter is loaded when somebody asks for it, and brings its base along;
which adapters are in the GPU's memory is vLLM's to decide (the least recently used go).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace

from protocol.events import Written
from protocol.items import Message
from protocol.options import PLAIN, Options
from server.engine.base import (
    AdapterHost,
    Chunk,
    Engine,
    EngineDeadError,
    EngineError,
    EngineStartError,
    GenerationRequest,
    ProgressCallback,
    Prompt,
)
from server.models.errors import ModelsError
from server.models.model import Model
from server.models.replica import Lease


class AdapterEngine:
    """See the module's text.

    name: the adapter's, as a model. folder: where peft has saved it.
    """

    def __init__(self, name: str, base: Model, folder: str) -> None:
        self.name = name
        self.context_length = 0  # known once started
        self.max_concurrency = 0
        self._base = base
        self._folder = folder
        self._engine: Engine | None = None  # the one that has it; another replica gets it with the first request
        self._running: set[AsyncGenerator[Chunk, None]] = set()
        self._is_closed = False

    @property
    def unfinished(self) -> int:
        """Requests not yet ended."""
        return 0 if self._is_closed else len(self._running)

    async def start(self, progress: ProgressCallback) -> None:
        """Load the base model if it is not, and the adapter into it."""
        progress(f"waiting for its base model {self._base.name}", None)
        lease = await self._base_lease()
        try:
            progress("loading the adapter", None)
            await self._load_into(lease.engine)
        except EngineDeadError as error:
            raise EngineStartError(f"its base model {self._base.name} died: {error}") from error
        finally:
            lease.release()
        self._engine = lease.engine
        self.context_length = lease.engine.context_length
        self.max_concurrency = lease.engine.max_concurrency

    async def _base_lease(self) -> Lease:
        try:
            with self._base.wanted() as want:
                while (lease := self._base.lease(None)) is None:
                    want.check()
                    await self._base.changed.wait()
        except ModelsError as error:
            raise EngineStartError(f"its base model {self._base.name} cannot be loaded: {error}") from error
        return lease

    async def _load_into(self, engine: Engine) -> None:
        if not isinstance(engine, AdapterHost):
            raise EngineStartError(f"its base model {self._base.name} takes no adapters")
        await engine.load_adapter(self.name, self._folder)

    async def check(self, options: Options) -> None:
        """As the base model does."""
        await self._ready_engine().check(options)

    async def render(self, messages: Sequence[Message], options: Options = PLAIN) -> Prompt:
        """As the base model does."""
        return await self._ready_engine().render(messages, options)

    async def extend(self, prompt: Prompt, written: Written) -> Prompt:
        """As the base model does."""
        return await self._ready_engine().extend(prompt, written)

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[Chunk, None]:
        """Ask the base model's engine, with the adapter; the base is in use meanwhile."""
        self._ready_engine()
        lease = self._base.lease(None)
        if lease is None:
            raise EngineDeadError(f"the base model {self._base.name} of {self.name} is not loaded any more")
        try:
            await self._load_into(lease.engine)
            lease.asked()
            chunks = lease.engine.generate(replace(request, adapter=self.name))
            self._running.add(chunks)
            try:
                async with contextlib.aclosing(chunks):
                    async for chunk in chunks:
                        lease.heard()
                        yield chunk
            finally:
                self._running.discard(chunks)
        finally:
            lease.release()

    async def check_health(self) -> None:
        """Ask the base model's engine."""
        await self._ready_engine().check_health()

    def close(self) -> None:
        """Take no more requests; the base model goes on."""
        self._is_closed = True

    async def wait_closed(self) -> None:
        """Take the adapter out of the base model's engine, if that still runs."""
        self.close()
        engine, self._engine = self._engine, None
        if isinstance(engine, AdapterHost):
            with contextlib.suppress(EngineError):
                await asyncio.shield(engine.unload_adapter(self.name))

    def _ready_engine(self) -> Engine:
        engine = self._base.ready_engine
        if self._is_closed or self._engine is None or engine is None:
            raise EngineDeadError(f"the base model {self._base.name} of {self.name} is not loaded")
        return engine
