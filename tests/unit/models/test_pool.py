"""The keeper of engines, over its whole life (hence the length): started, watched, started again, given up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from server.engine.base import EngineError
from server.models import pool as pools
from server.models import replica as replicas
from server.models.errors import ModelFailedError, NoRoomError, UnknownModelError
from server.models.model import Model, ModelState
from server.models.pool import LOCAL, Pool
from server.models.replica import Lease
from server.models.state import Device, Needs, Phase, Policy
from server.observe.metrics import Metrics
from tests.support.memory import until
from tests.support.scripted import ScriptedEngine, start_fault


@pytest.fixture(autouse=True)
def scaled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits of seconds take milliseconds."""
    monkeypatch.setattr(pools, "RESTART_FIRST_S", 0.001)
    monkeypatch.setattr(pools, "RESTART_MAX_S", 0.004)
    monkeypatch.setattr(pools, "STABLE_S", 0.0)  # every engine that starts has lived long enough
    monkeypatch.setattr(replicas, "HEALTH_INTERVAL_S", 0.002)


class Factory:
    """Makes a model's engines, in their order; after the last one listed come engines without a fault."""

    def __init__(self, *engines: ScriptedEngine) -> None:
        self.made: list[ScriptedEngine] = []
        self._planned = list(engines)

    def __call__(self, devices: tuple[Device, ...] = ()) -> ScriptedEngine:
        self.made.append(self._planned.pop(0) if self._planned else ScriptedEngine())
        return self.made[-1]


def broken(fault: BaseException | None = None) -> ScriptedEngine:
    engine = ScriptedEngine()
    engine.fault = fault or start_fault()
    return engine


def slow() -> ScriptedEngine:
    engine = ScriptedEngine()
    engine.can_start.clear()
    return engine


def ready(model: Model) -> object:
    return model.ready_engine


MakePool = Callable[..., tuple[Pool, Model]]


@pytest.fixture
async def make_pool() -> AsyncIterator[MakePool]:
    made: list[Pool] = []

    def make(*factories: Factory, stall_timeout_s: float = 100, **fields: Any) -> Any:
        models = [Model(f"m{n}", factory, 10, 1, **fields) for n, factory in enumerate(factories)]
        pool = Pool(models, "m0", stall_timeout_s)
        made.append(pool)
        pool.start()
        return pool, models[0]

    yield make
    for pool in made:
        pool.close()
        await pool.wait_closed()


async def test_start(make_pool):
    """Loading tells how far it is; then it is ready, with as many places as the engine has."""
    factory = Factory(slow())
    pool, model = make_pool(factory)
    await until(lambda: model.progress is not None)
    assert (model.state, model.detail, model.progress) == (ModelState.LOADING, "loading", 0.5)
    assert ready(model) is None
    factory.made[0].can_start.set()
    await pool.wait_ready()
    assert model.ready_engine is factory.made[0]
    assert model.admission.limit == 8


async def test_every_step_of_loading_is_logged_once(caplog):
    """A load of minutes shows that it goes on: its steps, and each tenth of a long one."""
    replica = Model("m", Factory(), 10, 1).new_replica((LOCAL,))
    caplog.set_level("INFO", logger=replicas.__name__)
    replica.set(Phase.LOADING, "importing")
    for percent in range(15):
        replica.set(Phase.LOADING, "loading weights", percent / 100)
    replica.set(Phase.LOADING, "warming up")
    replica.set(Phase.READY, "ready")
    said = [record.getMessage() for record in caplog.records]
    steps = ["importing", "loading weights: 0%", "loading weights: 10%", "warming up", "ready"]
    assert said == [f"model m: {step}" for step in steps]


async def test_models_load_one_after_the_other(make_pool):
    """They share one machine."""
    first, second = Factory(slow()), Factory()
    pool, _ = make_pool(first, second)
    await until(lambda: first.made)
    for _ in range(10):
        await asyncio.sleep(0)
    assert second.made == []
    first.made[0].can_start.set()
    await pool.wait_ready()
    assert len(second.made) == 1


@pytest.mark.parametrize("fault", [start_fault("no such model"), RuntimeError("no such model")])
async def test_a_first_start_that_fails(make_pool, fault, caplog):
    """Nothing is gained by trying again: it says why, its remains are gone, and waiting for it ends."""
    factory = Factory(broken(fault))
    pool, model = make_pool(factory)
    with pytest.raises(ModelFailedError, match="no such model"):
        await pool.wait_ready()
    await pool.wait_failed()
    assert model.state is ModelState.FAILED
    assert model.replicas == []
    assert factory.made[0].is_gone
    assert len(factory.made) == 1


async def test_an_engine_that_dies_idle(make_pool):
    """Noticed without any request, its remains gone before the next one starts."""
    factory = Factory()
    pool, model = make_pool(factory)
    await pool.wait_ready()
    admission = model.admission
    factory.made[0].is_dead = True
    await until(lambda: len(factory.made) == 2)
    assert factory.made[0].is_gone
    await pool.wait_ready()
    assert model.ready_engine is factory.made[1]
    assert model.admission is admission  # who waits keeps its place


async def test_an_engine_whose_health_cannot_be_asked(make_pool, monkeypatch):
    """Whatever the question raises, it is started again."""
    factory = Factory()
    pool, _ = make_pool(factory)
    await pool.wait_ready()

    async def fails() -> None:
        raise OSError("broken pipe")

    monkeypatch.setattr(factory.made[0], "check_health", fails)
    await until(lambda: len(factory.made) == 2)
    assert factory.made[0].is_gone


async def test_an_engine_that_a_request_finds_dead(make_pool):
    """Nobody else is sent to it from that moment on; an old engine's death says nothing of the new one."""
    factory = Factory()
    pool, model = make_pool(factory)
    await pool.wait_ready()
    old = factory.made[0]
    model.report_dead(old)
    assert ready(model) is None
    model.report_dead(old)
    await pool.wait_ready()
    assert model.ready_engine is factory.made[1]
    model.report_dead(old)
    assert model.ready_engine is factory.made[1]


async def test_an_engine_that_hangs(make_pool):
    """No token while requests run: as good as dead. An idle one, or one that was just asked, is not."""
    factory = Factory()
    pool, model = make_pool(factory, stall_timeout_s=0.02)
    await pool.wait_ready()
    engine = factory.made[0]
    lease = model.lease(None)
    lease.asked()
    for _ in range(20):
        await asyncio.sleep(0)
    assert model.ready_engine is engine  # leased, but nothing runs in the engine
    engine.unfinished = 1
    await until(lambda: len(factory.made) == 2)
    assert engine.is_gone
    lease.release()
    await pool.wait_ready()
    assert model.ready_engine is factory.made[1]


async def test_new_requests_do_not_hide_a_hang(make_pool):
    """Only an engine that had nothing to do gets its time anew."""
    factory = Factory()
    pool, model = make_pool(factory)
    await pool.wait_ready()
    engine, replica = factory.made[0], model.replicas[0]
    model.lease(None).asked()
    asked_at = replica.last_token_at
    await asyncio.sleep(0.001)
    engine.unfinished = 1
    model.lease(None).asked()
    assert replica.last_token_at == asked_at
    engine.unfinished = 0
    model.lease(None).asked()
    assert replica.last_token_at > asked_at


async def test_a_start_that_takes_too_long(make_pool):
    """It is ended, and says what to do."""
    factory = Factory(slow())
    pool, model = make_pool(factory, start_timeout_s=0.01)
    with pytest.raises(
        ModelFailedError, match=r"m0 was not loaded within 0.01 s \(loading\); raise vllm.start_timeout_s"
    ):
        await pool.wait_ready()
    assert model.replicas == []
    assert factory.made[0].is_gone


async def test_a_metric_says_whether_it_can_answer(make_pool):
    """0 while it loads, 1 while it is ready, 0 when it has died."""
    metrics = Metrics()
    factory = Factory(slow(), slow())
    pool, model = make_pool(factory, metrics=metrics.for_model("m0"))

    def up() -> float | None:
        return metrics.registry.get_sample_value("tokenwire_engine_up", {"model": "m0"})

    await until(lambda: factory.made)
    assert up() == 0
    factory.made[0].can_start.set()
    await pool.wait_ready()
    assert up() == 1
    model.report_dead(factory.made[0])
    assert up() == 0


async def test_restarts_back_off_and_are_given_up(make_pool, caplog):
    """Each failed start waits twice as long, up to a bound; after five in a row the model is given up."""
    factory = Factory(ScriptedEngine(), *[broken() for _ in range(9)])
    pool, model = make_pool(factory)
    await pool.wait_ready()
    model.report_dead(factory.made[0])
    await pool.wait_failed()
    assert model.state is ModelState.FAILED
    assert len(factory.made) == 1 + pools.MAX_RESTARTS
    said = [record.getMessage() for record in caplog.records]
    delays = [text.rpartition(" in ")[2] for text in said if "starting it again" in text]
    assert delays == ["0.001 s", "0.002 s", "0.004 s", "0.004 s", "0.004 s"]
    assert all(engine.is_gone for engine in factory.made)
    with pytest.raises(ModelFailedError):
        await pool.wait_ready()


async def test_an_engine_that_dies_young_counts_as_a_failure(make_pool, monkeypatch):
    """One that starts and dies at once is not started again every second for ever without a pause."""
    monkeypatch.setattr(pools, "STABLE_S", 60.0)
    factory = Factory(ScriptedEngine(), *[broken() for _ in range(9)])
    pool, model = make_pool(factory)
    await pool.wait_ready()
    model.report_dead(factory.made[0])
    await pool.wait_failed()
    assert len(factory.made) == pools.MAX_RESTARTS  # its own death was the first failure


async def test_a_restart_that_succeeds_counts_from_one_again(make_pool):
    """Failures in a row are what counts."""
    plan = [ScriptedEngine(), broken(), broken(), ScriptedEngine(), broken(), broken(), broken(), broken()]
    factory = Factory(*plan)
    pool, model = make_pool(factory)
    await pool.wait_ready()
    model.report_dead(factory.made[0])
    await pool.wait_ready()
    model.report_dead(factory.made[-1])
    await pool.wait_ready()
    assert model.ready_engine is factory.made[8]


async def test_closing_during_a_start(make_pool):
    """The half-started engine is gone, too."""
    factory = Factory(slow())
    pool, _ = make_pool(factory)
    await until(lambda: factory.made)
    pool.close()
    pool.close()
    await pool.wait_closed()
    assert factory.made[0].is_closed
    assert factory.made[0].is_gone


async def test_closing_a_running_one(make_pool):
    """Engines are gone when it says so, and none is started again."""
    factory = Factory()
    pool, _ = make_pool(factory)
    await pool.wait_ready()
    pool.close()
    await pool.wait_closed()
    assert factory.made[0].is_gone
    assert len(factory.made) == 1


async def test_names(make_pool):
    """None is the default; an unknown one is told what there is."""
    pool, model = make_pool(Factory(), Factory())
    assert pool.get(None) is model
    assert pool.get("m1").name == "m1"
    with pytest.raises(UnknownModelError, match="there is no model 'm2'; there is m"):
        pool.get("m2")


async def test_a_conversation_keeps_its_replica(make_pool):
    """Where its prefix is cached, until that one is much busier than the other, or dead."""
    factory = Factory()
    pool, model = make_pool(factory, needs=Needs(minimum=2, maximum=2))
    await until(lambda: len([replica for replica in model.replicas if replica.phase is Phase.READY]) == 2)
    leases = [model.lease("c") for _ in range(6)]
    home, other = leases[0].engine, leases[5].engine
    assert [lease.engine for lease in leases] == [home] * 5 + [other]
    assert home is not other
    for lease in leases:
        lease.release()
    assert model.lease("c").engine is other  # where it was answered last
    model.report_dead(other)
    assert model.lease("c").engine is home
    assert pool.loads == 2


# One device that holds one of two models


SMALL = {"devices": (Device("d", 1.0),), "policy": Policy(threshold=1.0, swap_after_s=0.02)}


class Shared:
    """Models that fit one at a time, loaded when they are asked for."""

    def __init__(self, names: str, **options: Any) -> None:
        self.factories = {name: Factory() for name in names}
        self.models = {name: Model(name, factory, 10, 1, needs=Needs(1.0)) for name, factory in self.factories.items()}
        self.pool = Pool(self.models.values(), "", 100, **{**SMALL, **options})
        self.order: list[str] = []  # in which models were answered

    def __getitem__(self, name: str) -> Model:
        return self.models[name]

    def made(self, name: str) -> int:
        return len(self.factories[name].made)

    def loads(self) -> int:
        return sum(len(factory.made) for factory in self.factories.values())

    async def lease(self, name: str) -> Lease:
        """Wait as an answer does."""
        model = self.models[name]
        with model.wanted() as want:
            while (lease := model.lease(None)) is None:
                want.check()
                await model.changed.wait()
        self.order.append(name)
        return lease

    async def turn(self, name: str, seconds: float = 0.001) -> None:
        lease = await self.lease(name)
        try:
            await asyncio.sleep(seconds)
        finally:
            lease.release()


@pytest.fixture
async def share() -> AsyncIterator[Callable[..., Shared]]:
    made: list[Shared] = []

    def make(names: str, **options: Any) -> Shared:
        made.append(Shared(names, **options))
        made[-1].pool.start()
        return made[-1]

    yield make
    for shared in made:
        shared.pool.close()
        await shared.pool.wait_closed()


async def test_nothing_is_loaded_before_it_is_asked_for(share):
    """Then it is, once, for all who ask."""
    shared = share("ab")
    await shared.pool.wait_ready()
    assert ready(shared["a"]) is None
    assert shared["a"].state is ModelState.UNLOADED
    await asyncio.gather(*(shared.turn("a") for _ in range(5)))
    assert ready(shared["a"]) is not None
    assert (shared.made("a"), shared.made("b")) == (1, 0)


async def test_models_take_turns(share):
    """Each is answered, each time the other has gone first: its engine is gone before the next one starts."""
    shared = share("ab")
    for name, other in ("ab", "ba", "ab", "ba"):
        await shared.turn(name)
        assert shared[other].state is not ModelState.READY
        assert all(engine.is_gone for engine in shared.factories[other].made)
    assert (shared.made("a"), shared.made("b")) == (2, 2)
    assert shared.pool.evictions == 3


async def test_abcabc_at_once_takes_three_loads(share):
    """The line is per model, not per request."""
    shared = share("abc")
    await asyncio.gather(*(shared.turn(name) for name in "abcabc"))
    assert shared.loads() == 3
    assert shared.order == [*"aabbcc"]


async def test_what_runs_is_not_broken_off(share):
    """B waits until A's answer has ended."""
    shared = share("ab")
    lease = await shared.lease("a")
    waiting = asyncio.create_task(shared.turn("b"))
    await until(lambda: shared["a"].state is ModelState.DRAINING)
    assert shared.made("b") == 0
    assert shared["b"].state is ModelState.LOADING
    assert shared["b"].detail == "waiting for room"
    lease.release()
    await waiting
    assert shared.order == ["a", "b"]


async def test_a_busy_model_makes_room_in_the_end(share):
    """Requests for A without a pause: B waits for a bounded time, then A's next ones wait behind it."""
    shared = share("ab")

    async def busy() -> None:
        while True:
            await shared.turn("a", 0.004)

    users = [asyncio.create_task(busy()) for _ in range(3)]
    await until(lambda: "a" in shared.order)
    await shared.turn("b")
    await until(lambda: shared.made("a") == 2)  # and A comes back
    for user in users:
        user.cancel()
    await asyncio.wait(users)


async def test_who_leaves_before_the_load_begins_causes_none(share):
    """Nor does what drained for it go."""
    shared = share("ab")
    lease = await shared.lease("a")
    waiting = asyncio.create_task(shared.turn("b"))
    await until(lambda: shared["a"].state is ModelState.DRAINING)
    waiting.cancel()
    await asyncio.wait([waiting])
    await until(lambda: shared["a"].state is ModelState.READY)
    lease.release()
    await shared.turn("a")
    assert shared.loads() == 1


async def test_who_leaves_while_another_model_loads_causes_no_load(share):
    """Its place in the device's turn is given up."""
    shared = share("ab", devices=(Device("d", 2.0),))
    shared.factories["a"]._planned.append(slow())
    first = asyncio.create_task(shared.turn("a"))
    await until(lambda: shared.made("a"))
    waiting = asyncio.create_task(shared.turn("b"))
    await until(lambda: shared["b"].replicas)
    waiting.cancel()
    await asyncio.wait([waiting])
    shared.factories["a"].made[0].can_start.set()
    await first
    await until(lambda: not shared["b"].replicas)
    assert shared.made("b") == 0


async def test_a_swap_that_fails(share):
    """Who asked for it is told why; the model that had to go for it comes back unasked."""
    shared = share("ab")
    await shared.turn("a")
    shared.factories["b"]._planned.append(broken())
    with pytest.raises(ModelFailedError, match="there is no such model"):
        await shared.turn("b")
    assert shared["b"].state is ModelState.FAILED
    await until(lambda: shared["a"].state is ModelState.READY)
    assert shared.made("a") == 2


async def test_a_swap_that_waited_for_answers_and_fails(share):
    """The same when the one that had to go was busy: it drained first."""
    shared = share("ab")
    lease = await shared.lease("a")
    shared.factories["b"]._planned.append(broken())
    failing = asyncio.create_task(shared.turn("b"))
    await until(lambda: shared["a"].state is ModelState.DRAINING)
    lease.release()
    with pytest.raises(ModelFailedError, match="there is no such model"):
        await failing
    await until(lambda: shared["a"].state is ModelState.READY)
    assert (shared.made("a"), shared.pool.evictions) == (2, 1)


async def test_after_a_failed_load(share, monkeypatch):
    """Until its back-off is over everybody is told at once when to come again; then it is tried again."""
    monkeypatch.setattr(pools, "RESTART_FIRST_S", 0.03)
    monkeypatch.setattr(pools, "RESTART_MAX_S", 0.03)
    shared = share("ab")
    shared.factories["b"]._planned.append(broken())
    with pytest.raises(ModelFailedError):
        await shared.turn("b")
    with pytest.raises(ModelFailedError) as caught:
        await shared.turn("b")
    assert 0 < (caught.value.retry_after_s or 0) <= 0.03
    assert shared.made("b") == 1
    await asyncio.sleep(0.04)
    await shared.turn("b")
    assert shared["b"].state is ModelState.READY


async def test_a_load_that_hangs(share):
    """It is ended in time, and the next in the line has its turn."""
    shared = share("ab")
    shared.factories["a"]._planned.append(slow())
    shared["a"].start_timeout_s = 0.01
    hanging = asyncio.create_task(shared.turn("a"))
    await until(lambda: shared.made("a"))
    await shared.turn("b")
    with pytest.raises(ModelFailedError, match=r"a was not loaded within 0.01 s"):
        await hanging
    assert shared.factories["a"].made[0].is_gone


async def test_everything_is_pinned(share):
    """A clear error at once; what is pinned is untouched."""
    shared = share("ab")
    shared["a"].needs = Needs(1.0, pinned=True)
    shared.pool.poke()
    lease = await shared.lease("a")
    with pytest.raises(NoRoomError, match="model 'b' cannot be loaded: pinned models take all the room"):
        await shared.turn("b")
    lease.release()
    assert shared["a"].state is ModelState.READY
    assert shared["b"].state is ModelState.UNLOADED


async def test_no_room_in_time(share):
    """Waiting is bounded."""
    shared = share("ab", want_timeout_s=0.02, policy=Policy(threshold=1.0, swap_after_s=100.0))
    lease = await shared.lease("a")
    with pytest.raises(NoRoomError, match=r"there was no room for model 'b' within 0.02 s"):
        await shared.turn("b")
    lease.release()


async def test_a_server_that_stays_away(share, monkeypatch):
    """What it died of is told to who has waited as long, not that others are busy."""
    shared = share("ab", want_timeout_s=0.02)
    shared["a"].is_elsewhere = True
    lease = await shared.lease("a")
    monkeypatch.setattr(pools, "RESTART_FIRST_S", 50)
    monkeypatch.setattr(pools, "RESTART_MAX_S", 50)
    lease.report_dead()
    lease.release()
    with pytest.raises(ModelFailedError, match="the engine died; starting it again in 50 s") as caught:
        await shared.turn("a")
    assert caught.value.retry_after_s == pytest.approx(50, abs=5)


async def test_an_engine_that_dies_does_not_touch_others(share):
    """Who waits for it gets the next one."""
    shared = share("ab", devices=(Device("d", 2.0),))
    a, b = await shared.lease("a"), await shared.lease("b")
    a.report_dead()
    a.release()
    await shared.turn("a")
    assert (shared.made("a"), shared.made("b")) == (2, 1)
    assert b.engine is shared["b"].ready_engine
    b.release()


async def test_a_turn_that_comes_late_to_a_removed_model(share):
    """It has waited for its conversation meanwhile: it is told, and does not wait for ever."""
    shared = share("ab")
    await shared.turn("a")
    await shared.pool.remove("a")
    with pytest.raises(UnknownModelError, match="the model 'a' was removed"):
        await shared.turn("a")
    assert shared.made("a") == 1


async def test_a_model_that_is_being_removed_makes_room(share, caplog):
    """Also where its place is needed before its removal has begun."""
    shared = share("ab")
    await shared.turn("a")
    leaving = shared.pool.take_out("a")
    await shared.turn("b")
    await shared.pool.see_off(leaving)
    assert shared.factories["a"].made[0].is_gone
    assert "placement failed" not in caplog.text


async def test_what_an_administrator_unloads_does_not_come_back_by_itself(share):
    """Although the model that it had to go for cannot be loaded."""
    shared = share("ab")
    await shared.turn("a")
    shared.factories["a"]._planned.append(slow())
    shared.factories["b"]._planned.append(broken())
    with pytest.raises(ModelFailedError):
        await shared.turn("b")
    assert shared["a"].state is ModelState.LOADING
    await shared.pool.unload("a")
    await asyncio.sleep(0.01)
    assert (shared["a"].state, shared["a"].replicas) == (ModelState.UNLOADED, [])


async def test_an_engine_that_does_not_stop_well(share, monkeypatch, caplog):
    """It is logged; it does not keep its place for ever."""

    async def fails(_engine: ScriptedEngine) -> None:
        raise OSError("no such process")

    monkeypatch.setattr(ScriptedEngine, "wait_closed", fails)
    shared = share("ab")
    await shared.turn("a")
    await shared.turn("b")
    assert "model a: its engine did not stop well" in caplog.text


class SleepyEngine(ScriptedEngine):
    """It notes what it does; `refuses` to wake, and sleeps when it `can_sleep`."""

    def __init__(self) -> None:
        super().__init__()
        self.did: list[str] = []
        self.refuses = False
        self.can_sleep = asyncio.Event()
        self.can_sleep.set()

    async def sleep(self) -> None:
        self.did.append("sleep")
        await self.can_sleep.wait()

    async def wake(self) -> None:
        await asyncio.sleep(0)
        if self.refuses:
            raise EngineError("no memory to wake up in")
        self.did.append("wake")


async def test_where_an_engine_can_sleep_it_is_not_unloaded(share):
    """It sleeps while another has the room, and is woken in its place."""
    shared = share("ab", devices=(Device("d", 1.1),))
    engine = SleepyEngine()
    shared.factories["a"]._planned.append(engine)
    shared["a"].needs = Needs(1.0, asleep=0.1)
    await shared.turn("a")
    await shared.turn("b")
    assert shared["a"].state is ModelState.ASLEEP
    await shared.turn("a")
    assert engine.did == ["sleep", "wake"]
    assert shared["a"].ready_engine is engine
    assert shared.made("a") == 1
    await until(lambda: shared.factories["b"].made[0].is_gone)


async def test_a_sleeper_that_does_not_wake(share):
    """It is unloaded, and another engine answers."""
    shared = share("ab", devices=(Device("d", 1.1),))
    engine = SleepyEngine()
    engine.refuses = True
    shared.factories["a"]._planned.append(engine)
    shared["a"].needs = Needs(1.0, asleep=0.1)
    await shared.turn("a")
    await shared.turn("b")
    await shared.turn("a")
    assert engine.is_gone
    assert shared.made("a") == 2


def sleepy(share: Callable[..., Shared]) -> tuple[Shared, SleepyEngine]:
    """Return two models, of which the first one can sleep beside the other."""
    shared = share("ab", devices=(Device("d", 1.1),))
    engine = SleepyEngine()
    shared.factories["a"]._planned.append(engine)
    shared["a"].needs = Needs(1.0, asleep=0.1)
    return shared, engine


async def test_a_sleeper_is_woken_once(share):
    """However often the whole is looked at before it begins to wake up."""
    shared, engine = sleepy(share)
    await shared.turn("a")
    await shared.turn("b")
    await shared.pool.unload("b")
    with shared["a"].wanted():
        for _ in range(3):
            shared.pool._step(asyncio.get_running_loop().time())
        await until(lambda: shared["a"].state is ModelState.READY)
    assert engine.did == ["sleep", "wake"]


@pytest.mark.parametrize("leave", ["unload", "remove"])
async def test_what_goes_to_sleep_can_be_unloaded(share, leave):
    """It does not come to rest as a sleeper that nobody ends."""
    shared, engine = sleepy(share)
    engine.can_sleep.clear()
    await shared.turn("a")
    other = asyncio.create_task(shared.turn("b"))
    await until(lambda: engine.did)
    leaving = asyncio.create_task(getattr(shared.pool, leave)("a"))
    await until(lambda: engine.is_closed)
    engine.can_sleep.set()
    await asyncio.gather(leaving, other)
    assert shared["a"].replicas == []


async def test_a_sleep_that_hangs(share, monkeypatch):
    """It is ended in time: its engine is stopped, and the other one has the room."""
    monkeypatch.setattr(replicas, "SLEEP_TIMEOUT_S", 0.01)
    shared, engine = sleepy(share)
    engine.can_sleep.clear()
    await shared.turn("a")
    await shared.turn("b")
    assert engine.is_gone


async def test_what_is_idle_for_long_is_unloaded(share):
    """And loaded again when it is asked for."""
    shared = share("a")
    shared["a"].needs = Needs(1.0, idle_unload_s=0.01)
    await shared.turn("a")
    await until(lambda: shared["a"].state is ModelState.UNLOADED)
    assert shared.factories["a"].made[0].is_gone
    await shared.turn("a")
    assert shared.made("a") == 2
