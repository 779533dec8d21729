"""A LoRA adapter as a model: an engine that has none of its own, but asks its base model's.

So a hundred adapters cost one base model. An adapter is loaded when somebody asks for it, and brings its base along; it
goes when its base goes. Which adapters are in the GPU's memory is vLLM's to decide (the least recently used go).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import replace
from typing import Final
from weakref import WeakSet

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
    Sink,
)
from server.models.errors import ModelsError
from server.models.model import Model
from server.models.replica import Lease
from server.models.state import Phase

LOAD_TIMEOUT_S: Final = 120.0  # for one adapter, once its base is there: some megabytes from a disk, behind a long step


class AdapterEngine:
    """See the module's text.

    name: the adapter's, as a model. folder: where peft has saved it.
    """

    def __init__(self, name: str, base: Model, folder: str) -> None:
        self.name = name
        self.context_length = 0  # known once started
        self.max_concurrency = 0
        self.takes_images = False
        self._base = base
        self._folder = folder
        self._hosts: WeakSet[AdapterHost] = WeakSet()  # that have it: the replicas of the base get it one by one
        self._is_started = False
        self._is_closed = False

    @property
    def unfinished(self) -> int:
        """None of its own: whether the engine makes tokens is seen where all of its answers are, at the base model."""
        return 0

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
        self.context_length = lease.engine.context_length
        self.max_concurrency = lease.engine.max_concurrency
        self.takes_images = lease.engine.takes_images
        self._is_started = True

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
        self._hosts.add(engine)
        try:
            async with asyncio.timeout(LOAD_TIMEOUT_S):
                await engine.load_adapter(self.name, self._folder)
        except TimeoutError as error:
            text = f"adapter {self.name} was not loaded into model {self._base.name} within {LOAD_TIMEOUT_S:g} s"
            raise EngineStartError(text) from error

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
            raise self._dead()
        try:
            await self._load_into(lease.engine)
            lease.asked()
            asked = replace(request, adapter=self.name, sink=request.sink and _Heard(lease, request.sink))
            async with contextlib.aclosing(lease.engine.generate(asked)) as chunks:
                async for chunk in chunks:
                    lease.heard()
                    yield chunk
        except EngineDeadError:
            lease.report_dead()
            raise
        finally:
            lease.release()

    async def check_health(self) -> None:
        """Say whether the base model is there, if only for what still runs; its own replicas are watched already."""
        is_there = any(replica.phase in (Phase.READY, Phase.DRAINING) for replica in self._base.replicas)
        if self._is_closed or not self._is_started or not is_there:
            raise self._dead()

    def close(self) -> None:
        """Take no more requests; the base model goes on."""
        self._is_closed = True

    async def wait_closed(self) -> None:
        """Take the adapter out of the base model's engines, where they still run."""
        self.close()
        for engine in tuple(self._hosts):
            with contextlib.suppress(EngineError):
                await asyncio.shield(engine.unload_adapter(self.name))
        self._hosts.clear()

    def _ready_engine(self) -> Engine:
        engine = self._base.ready_engine
        if self._is_closed or not self._is_started or engine is None:
            raise self._dead()
        return engine

    def _dead(self) -> EngineDeadError:
        return EngineDeadError(f"the base model {self._base.name} of {self.name} is not loaded")


class _Heard:
    """A sink as the base model's engine gets it: what it takes shows that the engine is well, too."""

    def __init__(self, lease: Lease, sink: Sink) -> None:
        self._lease = lease
        self._sink = sink

    def receive(self, chunk: Chunk) -> None:
        self._lease.heard()
        self._sink.receive(chunk)

    def wait(self, hand_over: Callable[[], None]) -> None:
        self._lease.heard()
        self._sink.wait(hand_over)

    def heard(self) -> None:
        self._lease.heard()
        self._sink.heard()
