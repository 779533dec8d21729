"""The models of this server: their engines, loaded at start, watched, and started again when one dies."""

from __future__ import annotations

import asyncio
import difflib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from server.access.admission import Admission
from server.engine.base import Engine, EngineStartError
from server.observe.metrics import ModelMetrics

logger = logging.getLogger(__name__)

RESTART_FIRST_S: Final = 1.0  # back-off between starts of a dead engine: doubled up to
RESTART_MAX_S: Final = 60.0
STABLE_S: Final = 60.0  # an engine that lived this long begins a new row of failures
MAX_RESTARTS: Final = 5  # failed starts in a row before the model is given up
HEALTH_INTERVAL_S: Final = 2.0  # a dead EngineCore is noticed at the latest after this, also when idle


class ModelState(StrEnum):
    """Where a model is in its life."""

    LOADING = "loading"
    READY = "ready"
    FAILED = "failed"


class UnknownModelError(Exception):
    """No model of that name; the text names the nearest ones."""


class ModelFailedError(Exception):
    """The model could not be started, and will not be tried again."""


@dataclass(eq=False)
class Model:
    """One model and its engine.

    start_timeout_s: loading may take this long; None sets no bound.
    changed: set, then replaced, at every change of state or progress.
    """

    name: str
    make_engine: Callable[[], Engine]
    max_queue: int
    created_at: int
    system_prompt: str | None = None
    start_timeout_s: float | None = None
    metrics: ModelMetrics | None = None
    state: ModelState = ModelState.LOADING
    detail: str = "waiting to start"
    progress: float | None = None
    said: tuple[ModelState, str, int | None] | None = None  # what was logged last
    engine: Engine | None = None
    admission: Admission | None = None
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    died: asyncio.Event = field(default_factory=asyncio.Event)
    last_token_at: float = 0.0  # loop time of the newest sign of life while requests run

    @property
    def ready_engine(self) -> Engine | None:
        return self.engine if self.state is ModelState.READY else None

    def asked(self, engine: Engine) -> None:
        """A request goes to this engine: where it had nothing to do, its silence begins now.

        Where it had, new requests do not make the silence shorter: else a hung engine with users would never be found.
        """
        if not engine.unfinished:
            self.heard()

    def heard(self) -> None:
        """The engine has made something."""
        self.last_token_at = asyncio.get_running_loop().time()

    def report_dead(self, engine: Engine) -> None:
        """A request found this engine dead: take nothing to it any more, and start another."""
        if engine is self.engine and self.state is ModelState.READY:
            self.set(ModelState.LOADING, "the engine died", level=logging.ERROR)
            self.died.set()

    def set(self, state: ModelState, detail: str, progress: float | None = None, *, level: int = logging.INFO) -> None:
        """Note a change, log each step and each tenth of it, and wake who waits for it."""
        said = (state, detail, None if progress is None else int(progress * 10))
        if said != self.said:
            words = detail if progress is None else f"{detail}: {progress:.0%}"
            logger.log(level, "model %s: %s", self.name, words, extra={"model": self.name, "state": state.value})
        self.said = said
        self.state, self.detail, self.progress = state, detail, progress
        if self.metrics is not None:
            self.metrics.engine_up(up=state is ModelState.READY)
        self.changed.set()
        self.changed = asyncio.Event()


class Pool:
    """Keep every configured model's engine running.

    stall_timeout_s: an engine that makes no token this long while requests run counts as dead.

    models: by name, in the order of the configuration. default: the model for requests that name none.
    """

    def __init__(self, models: Mapping[str, Model], default: str, stall_timeout_s: float) -> None:
        self.models = models
        self.default = default
        self._stall_timeout_s = stall_timeout_s
        self._keepers: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin to load every model, one after the other (they share one machine), and keep each running."""
        turn = asyncio.Lock()
        self._keepers = [
            asyncio.create_task(self._keep(model, turn), name=f"model {model.name}") for model in self.models.values()
        ]

    async def wait_ready(self) -> None:
        """Return when every model is ready; raise ModelFailedError when one is given up."""
        for model in self.models.values():
            while model.state is not ModelState.READY:
                if model.state is ModelState.FAILED:
                    raise ModelFailedError(model.detail)
                await model.changed.wait()

    async def wait_failed(self) -> None:
        """Return when a model has been given up: the server cannot do its work any more."""
        if self._keepers:
            await asyncio.wait(self._keepers, return_when=asyncio.FIRST_COMPLETED)

    def get(self, name: str | None) -> Model:
        """Return the model of that name, or the default. Raises UnknownModelError."""
        model = self.models.get(name or self.default)
        if model is None:
            near = difflib.get_close_matches(name or "", self.models, n=3) or list(self.models)[:5]
            raise UnknownModelError(f"there is no model '{(name or '')[:100]}'; there is {', '.join(near)}")
        return model

    def close(self) -> None:
        """Begin to stop every engine; idempotent."""
        for keeper in self._keepers:
            keeper.cancel()
        for model in self.models.values():
            if model.engine is not None:
                model.engine.close()

    async def wait_closed(self) -> None:
        """Return when every engine is gone."""
        if self._keepers:
            await asyncio.wait(self._keepers)
        for model in self.models.values():
            if model.engine is not None:
                await model.engine.wait_closed()

    async def _keep(self, model: Model, turn: asyncio.Lock) -> None:
        """Start the model's engine, watch it, start it again when it dies; return when that fails too often."""
        loop = asyncio.get_running_loop()
        failures = 0
        while True:
            try:
                async with turn:
                    await self._start(model)
                started_at = loop.time()
                await self._watch(model)
                # An engine that dies at once is as good as one that does not start.
                failures = 0 if loop.time() - started_at >= STABLE_S else failures + 1
            except Exception as error:  # what nobody expected is a failed start, too: waiting for it must end
                if not isinstance(error, EngineStartError):
                    logger.exception("model %s: unexpected error", model.name, extra={"model": model.name})
                failures += 1
                # At the server's own start nothing is gained by waiting: say what is wrong and end.
                if model.admission is None or failures >= MAX_RESTARTS:
                    model.set(ModelState.FAILED, str(error) or type(error).__name__)
                    return
            delay = min(RESTART_FIRST_S * 2**failures, RESTART_MAX_S)
            model.set(ModelState.LOADING, f"the engine died; starting it again in {delay:.0f} s")
            await asyncio.sleep(delay)

    async def _start(self, model: Model) -> None:
        model.engine = engine = model.make_engine()
        model.set(ModelState.LOADING, "starting the engine")
        try:
            async with asyncio.timeout(model.start_timeout_s) as limit:
                await engine.start(lambda words, done: model.set(ModelState.LOADING, words, done))
        except BaseException as error:
            engine.close()
            await asyncio.shield(engine.wait_closed())
            model.engine = None
            if limit.expired():
                text = f"model {model.name} was not loaded within {model.start_timeout_s:g} s ({model.detail})"
                raise EngineStartError(f"{text}; raise vllm.start_timeout_s") from error
            raise
        if model.admission is None:
            model.admission = Admission(engine.max_concurrency, model.max_queue)
        model.set(ModelState.READY, "ready")

    async def _watch(self, model: Model) -> None:
        """Return when the engine has died and its remains are gone."""
        engine = model.engine
        assert engine is not None
        model.died.clear()
        why = ""
        while not why:
            why = await self._fault(model, engine)
        model.set(ModelState.LOADING, why, level=logging.ERROR)
        engine.close()
        await asyncio.shield(engine.wait_closed())

    async def _fault(self, model: Model, engine: Engine) -> str:
        """Wait for the next look at the engine; return what is wrong with it, or nothing.

        Health is judged by tokens, not by a process being there: a stopped process is as good as none.
        """
        try:
            async with asyncio.timeout(HEALTH_INTERVAL_S):
                await model.died.wait()
        except TimeoutError:
            pass  # nobody has seen it die: look for ourselves
        else:
            return "the engine died"
        try:
            await engine.check_health()
        except Exception as error:  # noqa: BLE001 whatever it is, it does not say that the engine is well
            return str(error) or type(error).__name__
        silent_s = asyncio.get_running_loop().time() - model.last_token_at
        if model.admission and model.admission.running and engine.unfinished and silent_s > self._stall_timeout_s:
            return f"the engine has made no token for {silent_s:.0f} s"
        return ""
