"""The keeper of engines: started, watched, started again with patience, and given up when nothing helps."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from server.models import pool as pools
from server.models.pool import Model, ModelFailedError, ModelState, Pool, UnknownModelError
from server.observe.metrics import Metrics
from tests.support.memory import until
from tests.support.scripted import ScriptedEngine, start_fault


@pytest.fixture(autouse=True)
def scaled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits of seconds take milliseconds."""
    monkeypatch.setattr(pools, "RESTART_FIRST_S", 0.001)
    monkeypatch.setattr(pools, "RESTART_MAX_S", 0.004)
    monkeypatch.setattr(pools, "STABLE_S", 0.0)  # every engine that starts has lived long enough
    monkeypatch.setattr(pools, "HEALTH_INTERVAL_S", 0.002)


class Factory:
    """Makes a model's engines, in their order; after the last one listed come engines without a fault."""

    def __init__(self, *engines: ScriptedEngine) -> None:
        self.made: list[ScriptedEngine] = []
        self._planned = list(engines)

    def __call__(self) -> ScriptedEngine:
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
        models = {f"m{n}": Model(f"m{n}", factory, 10, 1, **fields) for n, factory in enumerate(factories)}
        pool = Pool(models, "m0", stall_timeout_s)
        made.append(pool)
        pool.start()
        return pool, models["m0"]

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
    assert model.admission is not None
    assert model.admission.limit == 8


async def test_every_step_of_loading_is_logged_once(caplog):
    """A load of minutes shows that it goes on: its steps, and each tenth of a long one."""
    model = Model("m", Factory(), 10, 1)
    caplog.set_level("INFO", logger=pools.__name__)
    model.set(ModelState.LOADING, "importing")
    for percent in range(15):
        model.set(ModelState.LOADING, "loading weights", percent / 100)
    model.set(ModelState.LOADING, "warming up")
    model.set(ModelState.READY, "ready")
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
    assert model.engine is None
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
    model.last_token_at = asyncio.get_running_loop().time()
    ticket = model.admission.enter()
    for _ in range(20):
        await asyncio.sleep(0)
    assert model.ready_engine is engine  # admitted, but nothing runs in the engine
    engine.unfinished = 1
    await until(lambda: len(factory.made) == 2)
    assert engine.is_gone
    ticket.release()
    await pool.wait_ready()
    assert model.ready_engine is factory.made[1]


async def test_new_requests_do_not_hide_a_hang(make_pool):
    """Only an engine that had nothing to do gets its time anew."""
    factory = Factory()
    pool, model = make_pool(factory)
    await pool.wait_ready()
    engine = factory.made[0]
    model.asked(engine)
    asked_at = model.last_token_at
    await asyncio.sleep(0.001)
    engine.unfinished = 1
    model.asked(engine)
    assert model.last_token_at == asked_at
    engine.unfinished = 0
    model.asked(engine)
    assert model.last_token_at > asked_at


async def test_a_start_that_takes_too_long(make_pool):
    """It is ended, and says what to do."""
    factory = Factory(slow())
    pool, model = make_pool(factory, start_timeout_s=0.01)
    with pytest.raises(
        ModelFailedError, match=r"m0 was not loaded within 0.01 s \(loading\); raise vllm.start_timeout_s"
    ):
        await pool.wait_ready()
    assert model.engine is None
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


async def test_restarts_back_off_and_are_given_up(make_pool, monkeypatch):
    """Each failed start waits twice as long, up to a bound; after five in a row the model is given up."""
    delays: list[float] = []
    sleep = asyncio.sleep

    async def noted(delay: float) -> None:
        if asyncio.current_task().get_name().startswith("model "):  # type: ignore[union-attr]
            delays.append(delay)
            delay = 0
        await sleep(delay)

    factory = Factory(ScriptedEngine(), *[broken() for _ in range(9)])
    pool, model = make_pool(factory)
    await pool.wait_ready()
    monkeypatch.setattr(asyncio, "sleep", noted)
    model.report_dead(factory.made[0])
    await pool.wait_failed()
    assert model.state is ModelState.FAILED
    assert len(factory.made) == 1 + pools.MAX_RESTARTS
    assert delays == [0.001, 0.002, 0.004, 0.004, 0.004]
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
