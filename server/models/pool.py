"""The models of this server: loaded when wanted, watched, restarted when dead. Long, as all that changes them is here.

`placement` decides, this executes: one task looks at the whole whenever something has changed, each replica has a task
for its life.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Container, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Final

from server.config import ModelConfig
from server.engine.base import Engine, EngineStartError
from server.models import placement, scaling, state
from server.models.errors import ModelFailedError, ModelsError, NoRoomError, RegistryError, UnknownModelError
from server.models.model import Model, ModelState, Want
from server.models.registry import Registry
from server.models.replica import Replica
from server.models.scaling import Scale
from server.models.state import Device, Phase, Policy, ReplicaView
from server.observe.metrics import DeviceSample, ModelSample

logger = logging.getLogger(__name__)

RESTART_FIRST_S: Final = 1.0  # back-off between starts of a dead engine: doubled up to
RESTART_MAX_S: Final = 60.0
STABLE_S: Final = 60.0  # an engine that lived this long begins a new row of failures
MAX_RESTARTS: Final = 5  # failed starts in a row before the model is given up
SCALE_INTERVAL_S: Final = 0.5  # between looks at how many replicas are needed
WANT_TIMEOUT_S: Final = 600.0  # who has waited this long for room is told that there is none
LOCAL: Final = Device("local")  # where nobody has declared devices: one without bounds

EngineFactory = Callable[[tuple[Device, ...]], Engine]
ModelFactory = Callable[[str, ModelConfig], Awaitable[Model]]


async def _no_factory(name: str, _settings: ModelConfig) -> Model:
    raise RegistryError(f"model '{name}' cannot be added: this server makes none while it runs")


class Pool:
    """Keep what is needed loaded.

    models: in the order of the configuration; those with a floor, and the default, are loaded at the start.
    default: the model for requests that name none.
    stall_timeout_s: an engine that makes no token this long while requests run counts as dead.
    want_timeout_s: how long clients wait for room.
    """

    def __init__(
        self,
        models: Iterable[Model],
        default: str,
        stall_timeout_s: float,
        *,
        devices: Sequence[Device] = (LOCAL,),
        policy: Policy = Policy(),  # noqa: B008 frozen
        scaling_policy: scaling.Policy = scaling.Policy(),  # noqa: B008 frozen
        want_timeout_s: float = WANT_TIMEOUT_S,
    ) -> None:
        self.registry = Registry(default=default)
        self.devices = {device.id: device for device in devices}
        self.evictions = 0
        self.loads = 0
        self.on_loaded: Callable[[], None] = lambda: None  # called after each load
        self.on_unloaded: Callable[[], None] = lambda: None  # called when an engine is gone, however it went
        self.make_model: ModelFactory = _no_factory  # for models that are added while it runs
        self._policy = policy
        self._scaling = scaling_policy
        self._scaled_at = -math.inf
        self._stall_timeout_s = stall_timeout_s
        self._want_timeout_s = want_timeout_s
        self._poked = asyncio.Event()
        self._is_tense = True  # something waits or drains
        self._someone_failed = asyncio.Event()
        self._placer: asyncio.Task[None] | None = None
        self._lives: dict[asyncio.Task[None], Replica] = {}
        self._gone: dict[str, Model] = {}  # removed, with replicas that still run
        self._turns: dict[str, asyncio.Lock] = {device.id: asyncio.Lock() for device in devices}
        self._first: list[Model] = []  # what `wait_ready` waits for
        self._pushed_out: dict[Model, str] = {}  # evicted model -> the one it was evicted for, while that loads
        for model in models:
            self.add(model)

    @property
    def models(self) -> Mapping[str, Model]:
        """By id."""
        return self.registry.models

    @property
    def default(self) -> str:
        return self.registry.default

    def is_leaving(self, name: str | None) -> bool:
        """Whether a removed model of that id still runs."""
        return name in self._gone

    def get(self, name: str | None) -> Model:
        """Return the model of that name, or the default. Raises UnknownModelError."""
        return self.registry.get(name)

    def add(self, model: Model, aliases: Iterable[str] = ()) -> None:
        """Take a model in; nothing is loaded before it is wanted. Raises RegistryError, which leaves it out."""
        self.check_new(model.name, aliases, model.base)
        self.registry.add(model, aliases)
        model.poke, model.eased = self.poke, self._eased
        self.poke()

    def check_new(self, name: str, aliases: Iterable[str], base: str | None) -> None:
        """Raise RegistryError where such a model cannot be taken in."""
        if name in self._gone:
            raise RegistryError(f"a model '{name}' is being removed; wait for its last answers to end")
        self.registry.check_new(name, aliases, base)

    async def load(self, name: str) -> Model:
        """Return when the model is ready. Raises UnknownModelError, ModelUnavailableError."""
        model = self.get(name)
        if model.given_up:
            model.given_up, model.retry_at = False, 0.0  # somebody may have repaired what was wrong
        with model.wanted() as want:
            while model.ready_engine is None:
                want.check()
                await model.changed.wait()
        return model

    async def unload(self, name: str) -> Model:
        """Return when the model is unloaded; what runs may end. Raises UnknownModelError, RegistryError."""
        model = self.get(name)
        if model.needs.floor:
            kept = "is pinned; unpin it first" if model.needs.pinned else "has min_replicas in its settings"
            raise RegistryError(f"'{model.name}' {kept}: it would be loaded again at once")
        model.is_to_restore = False  # nor does it come back when the one that it went for cannot be loaded
        self._pushed_out.pop(model, None)
        await self._drain(model)
        return model

    def pin(self, name: str, *, pinned: bool) -> Model:
        """Load and keep the model, or keep it no more. Raises UnknownModelError, RegistryError."""
        model = self.check_pin(name, pinned=pinned)
        model.needs = replace(model.needs, pinned=pinned)
        model.tell()
        return model

    def check_pin(self, name: str, *, pinned: bool) -> Model:
        """Return the model. Raises UnknownModelError, RegistryError where it cannot be kept."""
        model = self.get(name)
        if pinned and model.base is not None:
            raise RegistryError(f"'{model.name}' has no engine of its own; pin its base model '{model.base}'")
        if pinned and model.given_up:
            raise RegistryError(f"'{model.name}' cannot be loaded: {model.detail}")
        return model

    async def remove(self, name: str) -> None:
        """Return when the model's last answers have ended; it is not there for new ones from now on.

        Raises UnknownModelError, RegistryError.
        """
        await self.see_off(self.take_out(name))

    def take_out(self, name: str) -> Model:
        """Remove the model for who comes from now on; `see_off` must follow.

        Raises UnknownModelError, RegistryError.
        """
        model = self.registry.remove(name)
        model.is_removed, model.is_to_restore, model.scale = True, False, Scale(0)
        model.needs = replace(model.needs, pinned=False, minimum=0)
        model.fail_wants(UnknownModelError(f"the model '{name}' was removed"))
        self._gone[name] = model
        return model

    async def see_off(self, model: Model) -> None:
        """Return when the last answers of a model that was taken out have ended."""
        await self._drain(model)
        self._gone.pop(model.name, None)

    async def _drain(self, model: Model) -> None:
        """Return when the replicas that the model has now are gone."""
        leaving = list(model.replicas)
        for replica in leaving:
            if replica.phase is Phase.READY or replica.phase is Phase.DRAINING:
                replica.drain("unloading when its last answer has ended")
            elif not replica.is_stopping:  # also one that goes to sleep
                replica.stop("unloading")
        while any(replica in model.replicas for replica in leaving):
            await model.changed.wait()

    # Life

    def start(self, expected: Container[str] | None = None) -> None:
        """Begin to load what must be there, one after the other on each device, and to serve wants.

        expected: the models that `wait_ready` may wait for; None: all.
        """
        default = self.registry.find(self.default)
        first = [model for model in self.models.values() if model.needs.floor or model is default]
        self._first = [model for model in first if expected is None or model.name in expected]
        if default is not None and not default.needs.floor:
            default.want(Want(until_ready=True))
        self._placer = asyncio.create_task(self._place(), name="placement")

    async def wait_ready(self) -> None:
        """Return when every model that is loaded at the start is ready; raise ModelFailedError when one is given up."""
        for model in self._first:
            while model.state is not ModelState.READY:
                if model.given_up:
                    raise ModelFailedError(model.detail)
                await model.changed.wait()

    async def wait_failed(self) -> None:
        """Return when every model has been given up: the server cannot do its work any more."""
        while not all(model.given_up for model in self.models.values()):
            self._someone_failed.clear()
            await self._someone_failed.wait()

    def close(self) -> None:
        """Begin to stop every engine; idempotent."""
        for task in (self._placer, *self._lives):
            if task is not None:
                task.cancel()
        for replica in self._lives.values():
            if replica.engine is not None:
                replica.engine.close()

    async def wait_closed(self) -> None:
        """Return when every engine is gone."""
        tasks = [task for task in (self._placer, *self._lives) if task is not None]
        if tasks:
            await asyncio.wait(tasks)

    def poke(self) -> None:
        """Something has changed: look at the whole again."""
        self._poked.set()

    def _eased(self) -> None:
        """Something is less busy: that matters only while somebody waits for room. Answers end all the time."""
        if self._is_tense:
            self._poked.set()

    # What metrics ask

    def model_samples(self) -> Iterator[ModelSample]:
        for model in self._all():
            replicas = [
                (",".join(device.id for device in replica.devices), replica.leases) for replica in model.replicas
            ]
            yield ModelSample(model.name, model.state.value, len(model.wants), tuple(replicas))

    def device_samples(self) -> Iterator[DeviceSample]:
        for device in self.devices.values():
            replicas = ((model, r) for model in self._all() for r in model.replicas if device in r.devices)
            taken = sum(model.needs.size(replica.phase) for model, replica in replicas)
            yield DeviceSample(device.id, device.memory, taken)

    # Placement

    async def _place(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self._poked.clear()
            try:
                look_at = self._step(loop.time())
            except Exception:  # this task must live: without it nothing is loaded any more
                logger.exception("placement failed")
                look_at = loop.time() + RESTART_FIRST_S
            try:
                async with asyncio.timeout_at(None if look_at == math.inf else look_at):
                    await self._poked.wait()
            except TimeoutError:
                pass  # it is time

    def _step(self, now: float) -> float:
        """Do what is to be done now; return when to look again."""
        look_at = min(self._fail_late_wants(now), self._scale(now))
        self._follow_bases()
        view = self._view(now)
        self._is_tense = bool(view.wants) or any(replica.phase is not Phase.READY for replica in view.replicas)
        decided = placement.plan(view)
        for action in decided.actions:
            self._do(action)
        return min(look_at, decided.look_at)

    def _scale(self, now: float) -> float:
        """Note how many replicas each model's traffic asks for; return when to look again."""
        look_at = math.inf
        for model in self.models.values():
            least, most = max(1, model.needs.floor), model.needs.maximum
            if most > least and (model.replicas or model.wants):
                if now >= self._scaled_at + SCALE_INTERVAL_S:
                    model.scale = scaling.step(
                        model.scale, model.traffic(now), now=now, least=least, most=most, policy=self._scaling
                    )
                look_at = now + SCALE_INTERVAL_S
        if now >= self._scaled_at + SCALE_INTERVAL_S:
            self._scaled_at = now
        return look_at

    def _follow_bases(self) -> None:
        """Let adapters go whose base model goes: they come back, and bring it along, when somebody asks for them."""
        for model in self.models.values():
            if model.base is not None and model.ready_engine and self.models[model.base].ready_engine is None:
                for replica in model.replicas:
                    if replica.phase is Phase.READY:
                        replica.drain("its base model is going")

    def _fail_late_wants(self, now: float) -> float:
        look_at = math.inf
        for model in self.models.values():
            if not model.wants or model.wanted_since is None:
                continue
            if model.given_up and model.retry_at > now:
                model.fail_wants(ModelFailedError(model.detail, model.retry_at - now))
                continue
            is_waiting = all(replica.phase is not Phase.LOADING for replica in model.replicas)
            due = model.wanted_since + self._want_timeout_s
            if is_waiting and due <= now:
                model.fail_wants(self._late(model, now))
            elif is_waiting:
                look_at = min(look_at, due)
        return look_at

    def _late(self, model: Model, now: float) -> ModelsError:
        """Return what a model was waited for in vain: its server, where that is away, else room."""
        if model.fault is not None and model.retry_at > now:
            return ModelFailedError(model.fault, model.retry_at - now)
        text = f"there was no room for model '{model.name}' within {self._want_timeout_s:g} s: others are busy"
        return NoRoomError(text, retry_after_s=RESTART_FIRST_S)

    def _view(self, now: float) -> state.State:
        """Return what `placement` needs to know: of the models only those that something has to be done about."""
        models = {
            model.name: state.ModelView(model.needs, model.scale.target, model.retry_at, model.given_up)
            for model in self._all()
            if model.replicas or model.is_due
        }
        wants = [
            state.Want(model.name, now if model.wanted_since is None else model.wanted_since, not model.wants)
            for model in self.models.values()
            if model.wanted_since is not None or model.is_to_restore
        ]
        return state.State(
            now=now,
            devices=tuple(self.devices.values()),
            models=models,
            replicas=[self._replica_view(model, replica) for model in self._all() for replica in model.replicas],
            wants=wants,
            policy=self._policy,
        )

    def _replica_view(self, model: Model, replica: Replica) -> ReplicaView:
        waiting = len(model.wants) if replica.phase is Phase.READY else 0
        devices = tuple(device.id for device in replica.devices)
        in_use = replica.leases + waiting
        return ReplicaView(
            replica.id,
            model.name,
            replica.phase,
            devices,
            in_use,
            replica.last_used,
            replica.drains_for_good,
            replica.cause,
        )

    def _all(self) -> Iterator[Model]:
        yield from self.models.values()
        yield from self._gone.values()

    def _do(self, action: state.Action) -> None:
        match action:
            case state.Load():
                self._load(self.models[action.model], action.devices)
            case state.Unload():
                self._unload(self._find(action.replica), action.cause, to_sleep=action.to_sleep)
            case state.Drain():
                replica = self._find(action.replica)
                replica.drains_for_good = action.for_good
                replica.cause = None if action.for_good else action.cause
                why = "there are enough others" if action.for_good else f"makes room for {action.cause}"
                replica.set(Phase.DRAINING, why)
            case state.Resume():
                replica = self._find(action.replica)
                replica.cause = None
                replica.set(Phase.READY, "ready")
            case state.Refuse():
                self._refuse(self.models[action.model], action.reason)
            case state.Wake():
                replica = self._find(action.replica)
                replica.phase = Phase.LOADING  # from now on, not from when its task runs
                self._spawn(self._wake(replica), replica)

    def _find(self, replica_id: str) -> Replica:
        return next(r for model in self._all() for r in model.replicas if r.id == replica_id)

    def _refuse(self, model: Model, reason: str) -> None:
        text = f"model '{model.name}' cannot be loaded: {reason}"
        if model.needs.floor and not model.replicas:
            self._give_up(model, text)
        if model.ready_engine is None:  # else it is one more replica that there is no room for
            model.fail_wants(NoRoomError(text))

    def _unload(self, replica: Replica, cause: str | None, *, to_sleep: bool) -> None:
        if cause is not None:
            self.evictions += 1
            model = next(model for model in self._all() if replica in model.replicas)
            self._pushed_out[model] = cause
            if model.metrics is not None:
                model.metrics.evicted()
        if to_sleep:
            replica.phase = Phase.STOPPING  # from now on, not from when its task runs
            self._spawn(replica.sleep(), replica)
            return
        replica.stop("unloading" if cause is None else f"unloading, to make room for {cause}")

    # Replicas

    def _load(self, model: Model, devices: tuple[str, ...]) -> None:
        replica = model.new_replica(tuple(self.devices[device] for device in devices))
        model.given_up = False
        self._spawn(self._live(model, replica), replica)

    def _spawn(self, work: Coroutine[None, None, None], replica: Replica) -> None:
        task = asyncio.create_task(work, name=f"replica {replica.id}")
        self._lives[task] = replica
        task.add_done_callback(self._lives.pop)

    async def _wake(self, replica: Replica) -> None:
        model = next(model for model in self._all() if replica in model.replicas)
        began = asyncio.get_running_loop().time()
        if await replica.wake():
            if model.metrics is not None:
                model.metrics.loaded(asyncio.get_running_loop().time() - began)
            self._ready(model, replica)

    async def _live(self, model: Model, replica: Replica) -> None:
        """Start a replica's engine, watch it, and clear up when it ends."""
        loop = asyncio.get_running_loop()
        fault: Exception | None = None
        started_at: float | None = None
        try:
            async with AsyncExitStack() as turn:
                for device in () if model.is_elsewhere else sorted(device.id for device in replica.devices):
                    await turn.enter_async_context(self._turns[device])
                began = loop.time()
                if model.is_due or model.scale.target > 1:  # else who wanted it is gone: no load for nobody
                    await replica.start(model.make_engine(replica.devices), model.start_timeout_s)
                    started_at = loop.time()
            if started_at is not None and not replica.is_stopping:
                if model.metrics is not None:
                    model.metrics.loaded(started_at - began)
                self._ready(model, replica)
                died_of = await replica.watch(self._stall_timeout_s)
                # An adapter dies of its base model, which has its own back-off.
                fault = EngineStartError(died_of) if died_of is not None and model.base is None else None
        except Exception as error:  # what nobody expected is a failed start, too: waiting for it must end
            if not isinstance(error, EngineStartError):
                logger.exception("model %s: unexpected error", model.name, extra={"model": model.name})
            fault = error
        finally:
            await replica.close()
        model.replicas.remove(replica)
        if fault is None:
            logger.info("model %s: unloaded", model.name, extra={"model": model.name, "state": "unloaded"})
        else:
            self._failed(model, fault, -1.0 if started_at is None else loop.time() - started_at)
        self.on_unloaded()
        self._after(model)

    def _ready(self, model: Model, replica: Replica) -> None:
        self.loads += 1
        model.fault = None
        model.is_to_restore = False
        for want in [want for want in model.wants if want.until_ready]:
            model.unwant(want)
        replica.heard()
        replica.used()
        replica.phase = Phase.READY  # counts for the places; told to everybody below
        model.resize()
        replica.set(Phase.READY, "ready")
        self._settle(model, restore=False)
        self.on_loaded()

    def _failed(self, model: Model, fault: Exception, lived_s: float) -> None:
        """Back off; give the model up where another try is of no use."""
        # An engine that dies at once is as good as one that does not start.
        model.failures = 0 if lived_s >= STABLE_S else model.failures + 1
        delay = min(RESTART_FIRST_S * 2**model.failures, RESTART_MAX_S)
        model.retry_at = asyncio.get_running_loop().time() + delay
        text = str(fault) or type(fault).__name__
        model.is_to_restore = False
        self._settle(model, restore=True)
        # One that has never run gains nothing by waiting: say what is wrong.
        is_hopeless = not model.has_run or (model.failures >= MAX_RESTARTS and not model.is_elsewhere)
        if is_hopeless and model.ready_engine is None:
            self._give_up(model, text)
            model.fail_wants(ModelFailedError(text, delay))
        elif model.is_due:
            model.fault = f"{text}; starting it again in {delay:g} s"
            logger.warning("model %s: %s", model.name, model.fault, extra={"model": model.name})

    def _settle(self, model: Model, *, restore: bool) -> None:
        """What was pushed out for this model has gone for good, or comes back since it was in vain."""
        for other in [other for other, cause in self._pushed_out.items() if cause == model.name]:
            del self._pushed_out[other]
            other.is_to_restore = restore and not other.is_removed and other.ready_engine is None

    def _give_up(self, model: Model, text: str) -> None:
        if not model.given_up:
            logger.error("model %s: %s", model.name, text, extra={"model": model.name, "state": "failed"})
        model.given_up = True
        model.fault = text
        model.tell()
        self._someone_failed.set()

    def _after(self, model: Model) -> None:
        """A replica is gone."""
        model.resize()
        model.tell()
