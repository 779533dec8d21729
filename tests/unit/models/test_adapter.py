"""Adapters as models: what they ask of their base model, and what becomes of them without it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest

from protocol.items import Message
from server.engine.base import EngineDeadError, EngineStartError, GenerationRequest, Sampling
from server.models import pool as pools
from server.models import replica as replicas
from server.models.adapter import AdapterEngine
from server.models.errors import ModelsError, RegistryError
from server.models.model import Model, ModelState
from server.models.pool import Pool
from server.models.state import Needs
from tests.support.memory import until
from tests.support.scripted import ScriptedEngine
from tests.support.sink import Taking


class Host(ScriptedEngine):
    """Takes adapters, but for one named misfit."""

    def __init__(self) -> None:
        super().__init__()
        self.adapters: list[str] = []

    async def load_adapter(self, name: str, folder: str) -> None:
        if name == "misfit":
            raise EngineStartError("adapter 'misfit' does not fit")
        if name not in self.adapters:
            self.adapters.append(name)

    async def unload_adapter(self, name: str) -> None:
        if name in self.adapters:
            self.adapters.remove(name)


class World:
    """A base model, loaded when it is asked for, and adapters on it."""

    def __init__(self, host: type[ScriptedEngine] = Host) -> None:
        self.hosts: list[ScriptedEngine] = []

        def make_host(_devices: object) -> ScriptedEngine:
            self.hosts.append(host())
            return self.hosts[-1]

        self.base = Model("base", make_host, 10, 1, needs=Needs())
        self.adapters = {name: self.adapter(name) for name in ("a", "b", "misfit")}
        other = Model("other", lambda _devices: ScriptedEngine(), 10, 1, needs=Needs())
        self.pool = Pool([self.base, other, *self.adapters.values()], "other", 100)
        self.pool.start()

    def adapter(self, name: str) -> Model:
        make = lambda _devices: AdapterEngine(name, self.base, f"/{name}")  # noqa: E731 as a factory is written
        return Model(name, make, 10, 1, needs=Needs(), is_elsewhere=True, base="base")

    @property
    def host(self) -> Host:
        assert isinstance(self.hosts[-1], Host)
        return self.hosts[-1]

    async def close(self) -> None:
        self.pool.close()
        await self.pool.wait_closed()


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    monkeypatch.setattr(pools, "RESTART_FIRST_S", 0.001)
    monkeypatch.setattr(replicas, "HEALTH_INTERVAL_S", 0.002)
    world = World()
    yield world
    await world.close()


async def test_an_adapter_brings_its_base_along(world: World) -> None:
    """Asked for, it is loaded into one engine with the others, and has the base's sizes."""
    await world.pool.load("a")
    await world.pool.load("b")
    assert len(world.hosts) == 1
    assert world.host.adapters == ["a", "b"]
    assert world.base.state is ModelState.READY
    engine = world.adapters["a"].ready_engine
    assert engine is not None
    assert (engine.context_length, engine.max_concurrency) == (1000, 8)


async def test_its_answers_name_it_and_keep_the_base_busy(world: World) -> None:
    """So that the base is not unloaded under them."""
    await world.pool.load("a")
    engine = world.adapters["a"].ready_engine
    assert engine is not None
    prompt = await engine.render([Message("user", "x")])
    world.host.say("hi")
    async with aclosing(engine.generate(GenerationRequest("r", prompt, Sampling(5)))) as chunks:
        assert (await anext(chunks)).text == "hi"
        assert world.host.requests[0].adapter == "a"
        assert world.base.in_flight == 1
    assert (world.base.in_flight, world.host.unfinished) == (0, 0)


async def test_an_unloaded_adapter_leaves_the_base(world: World) -> None:
    """Its weights are taken out of the engine, the others' stay."""
    await world.pool.load("a")
    await world.pool.load("b")
    await world.pool.unload("a")
    assert world.host.adapters == ["b"]
    assert world.base.state is ModelState.READY


async def test_one_that_does_not_fit_is_told(world: World) -> None:
    """And costs nobody else anything."""
    with pytest.raises(ModelsError, match="does not fit"):
        await world.pool.load("misfit")
    await world.pool.load("a")
    assert len(world.hosts) == 1


async def test_without_its_base_it_is_dead_and_comes_back_with_it(world: World) -> None:
    """A request finds it dead; the next load brings both back, in a new engine."""
    await world.pool.load("a")
    engine = world.adapters["a"].ready_engine
    assert engine is not None
    await world.pool.unload("base")
    with pytest.raises(EngineDeadError, match="base"):
        await engine.render([Message("user", "x")])
    await until(lambda: world.adapters["a"].state is ModelState.UNLOADED)
    await world.pool.load("a")
    assert len(world.hosts) == 2
    assert world.host.adapters == ["a"]


async def test_going_with_its_base_is_no_failure(world: World) -> None:
    """Else models that take turns would be put off ever longer."""
    for _ in range(4):
        await world.pool.load("a")
        await world.pool.unload("base")
        await until(lambda: world.adapters["a"].state is ModelState.UNLOADED)
    assert world.adapters["a"].failures == 0
    assert len(world.hosts) == 4


async def test_a_base_goes_when_its_adapters_answers_have_ended(world: World) -> None:
    """They are not broken off; the adapter takes no new ones meanwhile."""
    await world.pool.load("a")
    engine = world.adapters["a"].ready_engine
    lease = world.adapters["a"].lease(None)
    assert engine is not None
    assert lease is not None
    prompt = await engine.render([Message("user", "x")])
    async with aclosing(engine.generate(GenerationRequest("r", prompt, Sampling(5)))) as chunks:
        world.host.say("hi")
        await anext(chunks)
        unloading = asyncio.create_task(world.pool.unload("base"))
        await until(lambda: world.adapters["a"].state is ModelState.DRAINING)
        await asyncio.sleep(10 * replicas.HEALTH_INTERVAL_S)  # a look at its health finds nothing wrong
        assert world.adapters["a"].state is ModelState.DRAINING
        assert world.host.adapters == ["a"]
        world.host.say(" there")
        assert (await anext(chunks)).text == " there"
        assert not unloading.done()
    lease.release()
    await unloading
    await until(lambda: world.adapters["a"].state is ModelState.UNLOADED)


async def test_a_base_that_dies_is_started_again_for_its_adapter(world: World) -> None:
    """The answer that ran is told; the base has the failure, and the adapter none."""
    await world.pool.load("a")
    engine, lease = world.adapters["a"].ready_engine, world.adapters["a"].lease(None)
    assert engine is not None
    assert lease is not None
    prompt = await engine.render([Message("user", "x")])
    world.host.die()
    with pytest.raises(EngineDeadError):
        async with aclosing(engine.generate(GenerationRequest("r", prompt, Sampling(5)))) as chunks:
            await anext(chunks)
    lease.report_dead()
    lease.release()
    await world.pool.load("a")
    assert (world.base.failures, world.adapters["a"].failures, len(world.hosts)) == (1, 0, 2)


async def test_chunks_that_are_handed_over_show_that_the_base_is_well(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They come past the generator, and count for the base model's replica all the same."""
    await world.pool.load("a")
    world.host.hands_over = True
    engine = world.adapters["a"].ready_engine
    assert engine is not None
    prompt = await engine.render([Message("user", "x")])
    sink = Taking()
    world.host.say("hi")
    world.host.end()
    heard: list[None] = []
    monkeypatch.setattr(world.base.replicas[0], "heard", lambda: heard.append(None))
    async with aclosing(engine.generate(GenerationRequest("r", prompt, Sampling(5), sink=sink))) as chunks:
        assert (await anext(chunks)).text == ""
    assert [chunk.text for chunk in sink.chunks] == ["hi"]
    assert len(heard) == 3  # when it was asked, and with either chunk


async def test_what_an_adapter_cannot_be(world: World) -> None:
    """Pinned, without its base, or an adapter's base."""
    with pytest.raises(RegistryError, match="pin its base model 'base'"):
        world.pool.pin("a", pinned=True)
    with pytest.raises(RegistryError, match="'base' is the base of a, b, misfit; remove its adapters first"):
        world.pool.take_out("base")
    with pytest.raises(RegistryError, match="there is no model 'bsae' for the adapter 'c'"):
        world.pool.check_new("c", (), "bsae")
    with pytest.raises(RegistryError, match="'a' is an adapter itself; name its base model 'base'"):
        world.pool.check_new("c", (), "a")


async def test_a_base_that_takes_no_adapters_is_told() -> None:
    """An engine of another kind."""
    world = World(ScriptedEngine)
    with pytest.raises(ModelsError, match="its base model base takes no adapters"):
        await world.pool.load("a")
    await world.close()
