"""One engine of a model on its devices: started, used by leases, watched, stopped."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from server.engine.base import Engine, EngineError, EngineStartError, Sleeper
from server.models.state import Device, Phase

logger = logging.getLogger(__name__)

SLEEP_TIMEOUT_S: Final = 120.0  # to sleep or wake up: some seconds, minutes for what the host has no quick memory for
HEALTH_INTERVAL_S: Final = 2.0  # a dead EngineCore is noticed at the latest after this, also when idle


class Lease:
    """The right to one answer of a replica. Give it back with `release`, whatever happened."""

    __slots__ = ("_replica", "engine")

    def __init__(self, replica: Replica, engine: Engine) -> None:
        self._replica: Replica | None = replica
        self.engine = engine
        replica.leases += 1
        replica.used()

    @property
    def replica_id(self) -> str | None:
        return self._replica.id if self._replica else None

    def asked(self) -> None:
        """A request goes to the engine: where it had nothing to do, its silence begins now.

        Where it had, new requests do not make the silence shorter: else a hung engine with users would never be found.
        """
        if self._replica is not None and not self.engine.unfinished:
            self._replica.heard()

    def heard(self) -> None:
        """The engine has made something."""
        if self._replica is not None:
            self._replica.heard()

    def report_dead(self) -> None:
        """The request found its engine dead."""
        if self._replica is not None:
            self._replica.report_dead()

    def release(self) -> None:
        """Leave; idempotent."""
        replica, self._replica = self._replica, None
        if replica is not None:
            replica.leases -= 1
            replica.used()
            if not replica.leases:  # somebody may wait for that
                replica.on_idle()


class Replica:
    """See the module's text.

    number: from 1, per model. on_change: called after each change of phase, detail or progress. on_idle: called when
    the last lease has ended.
    """

    def __init__(
        self,
        model: str,
        number: int,
        devices: tuple[Device, ...],
        on_change: Callable[[], None],
        on_idle: Callable[[], None],
    ) -> None:
        self.id = f"{model}#{number}"
        self.model = model
        self.number = number
        self.devices = devices
        self.on_change = on_change
        self.on_idle = on_idle
        self.phase = Phase.LOADING
        self.detail = "waiting to start"
        self.progress: float | None = None
        self.engine: Engine | None = None
        self.leases = 0
        self._time = asyncio.get_running_loop().time
        self.last_used = self.last_token_at = self._time()
        self.drains_for_good = False
        self.cause: str | None = None  # the model that it makes room for
        self.is_stopping = False  # it was told to
        self._is_dead = False
        self._alarm = asyncio.Event()  # set with either
        self._said: tuple[Phase, str, int | None] | None = None  # what was logged last
        self._words = f"model {model}" if number == 1 else f"model {model}, replica {number}"

    def __repr__(self) -> str:
        return f"<Replica {self.id} {self.phase.value}>"

    @property
    def capacity(self) -> int:
        return self.engine.max_concurrency if self.engine is not None else 0

    def used(self) -> None:
        self.last_used = self._time()

    def heard(self) -> None:
        """The engine has made something."""
        self.last_token_at = self._time()

    def set(self, phase: Phase, detail: str, progress: float | None = None, *, level: int = logging.INFO) -> None:
        """Note a change, and log each step and each tenth of it."""
        said = (phase, detail, None if progress is None else int(progress * 10))
        if said != self._said:
            words = detail if progress is None else f"{detail}: {progress:.0%}"
            logger.log(level, "%s: %s", self._words, words, extra={"model": self.model, "state": phase.value})
        self._said = said
        self.phase, self.detail, self.progress = phase, detail, progress
        self.on_change()

    def stop(self, detail: str) -> None:
        """Begin to unload it."""
        self.is_stopping = True
        self._alarm.set()
        self.set(Phase.STOPPING, detail)

    def drain(self, detail: str) -> None:
        """Take no new answers, and go when the last one has ended."""
        self.drains_for_good = True
        self.cause = None
        self.set(Phase.DRAINING, detail)

    def report_dead(self) -> None:
        """A request found the engine dead: take nothing to it any more."""
        if self.phase in (Phase.READY, Phase.DRAINING):
            self._is_dead = True
            self._alarm.set()
            self.set(Phase.STOPPING, "the engine died", level=logging.ERROR)

    async def start(self, engine: Engine, timeout_s: float | None) -> None:
        """Load the model, unless it is told to stop meanwhile; nothing is left of a start that fails.

        Raises EngineStartError, and whatever else the engine raises.
        """
        self.engine = engine
        self.set(Phase.LOADING, "starting the engine")
        starting = asyncio.create_task(self._start(engine, timeout_s), name=f"start {self.id}")
        stopping = asyncio.create_task(self._alarm.wait(), name=f"stop {self.id}")
        try:
            await asyncio.wait([starting, stopping], return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()
            if not starting.done():
                starting.cancel()
                await asyncio.wait([starting])
        if not starting.cancelled():
            starting.result()

    async def _start(self, engine: Engine, timeout_s: float | None) -> None:
        try:
            async with asyncio.timeout(timeout_s) as limit:
                await engine.start(self._progress)
        except BaseException as error:
            await self.close()
            if limit.expired():
                text = f"model {self.model} was not loaded within {timeout_s:g} s ({self.detail})"
                raise EngineStartError(f"{text}; raise vllm.start_timeout_s") from error
            raise

    def _progress(self, words: str, done: float | None) -> None:
        if self.phase is Phase.LOADING:
            self.set(Phase.LOADING, words, done)

    async def sleep(self) -> None:
        """Give the device's memory back; what cannot sleep is stopped. It is idle, and gets nothing new to do."""
        engine: object = self.engine
        self.set(Phase.STOPPING, "going to sleep")
        if await self._done(engine.sleep if isinstance(engine, Sleeper) else None):
            self.set(Phase.ASLEEP, "asleep")

    async def wake(self) -> bool:
        """Be ready again; return whether it is. What does not wake is stopped."""
        engine: object = self.engine
        self.set(Phase.LOADING, "waking up")
        return await self._done(engine.wake if isinstance(engine, Sleeper) else None)

    async def _done(self, work: Callable[[], Awaitable[None]] | None) -> bool:
        if work is not None and not self.is_stopping:
            try:
                async with asyncio.timeout(SLEEP_TIMEOUT_S):
                    await work()
            except (EngineError, TimeoutError) as error:
                why = str(error) or f"the engine took more than {SLEEP_TIMEOUT_S:g} s"
                logger.warning("%s: %s: %s", self._words, self.detail, why, extra={"model": self.model})
            else:
                return not self.is_stopping
        if not self.is_stopping:
            self.stop("unloading")
        return False

    async def watch(self, stall_timeout_s: float) -> str | None:
        """Return what the engine has died of; None when the replica was told to stop."""
        why = ""
        while not why and not self.is_stopping:
            why = await self._fault(stall_timeout_s)
        if self.is_stopping:
            return None
        self.set(Phase.STOPPING, why, level=logging.ERROR)
        return why

    async def close(self) -> None:
        """Return when the engine's remains are gone, as far as it can tell: a fault in that must not keep its place."""
        engine = self.engine
        if engine is None:
            return
        try:
            engine.close()
            await asyncio.shield(engine.wait_closed())
        except Exception:
            logger.exception("%s: its engine did not stop well", self._words, extra={"model": self.model})
        self.engine = None

    async def _fault(self, stall_timeout_s: float) -> str:
        """Wait for the next look at the engine; return what is wrong with it, or nothing.

        Health is judged by tokens, not by a process being there: a stopped process is as good as none.
        """
        engine = self.engine
        assert engine is not None
        try:
            async with asyncio.timeout(HEALTH_INTERVAL_S):
                await self._alarm.wait()
        except TimeoutError:
            pass  # nobody has seen it die: look for ourselves
        if self._is_dead:
            return "the engine died"
        if self.is_stopping:
            return ""
        try:
            await engine.check_health()
        except Exception as error:  # noqa: BLE001 whatever it is, it does not say that the engine is well
            return str(error) or type(error).__name__
        silent_s = asyncio.get_running_loop().time() - self.last_token_at
        if self.leases and engine.unfinished and silent_s > stall_timeout_s:
            return f"the engine has made no token for {silent_s:.0f} s"
        return ""
