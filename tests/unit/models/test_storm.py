"""The pool under everything at once, by a seed: turns, cancels, administrators, engines that fail, hang and die."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from server.engine.base import EngineError, EngineStartError
from server.models import pool as pools
from server.models import replica as replicas
from server.models.errors import ModelsError
from server.models.model import Model
from server.models.pool import Pool
from server.models.replica import Replica
from server.models.scaling import Policy as ScalingPolicy
from server.models.state import Device, Needs, Phase, Policy
from tests.support.scripted import ScriptedEngine

TURNS = 120
DEVICES = (Device("d", 2.0), Device("e", 3.0))
HANGS = 3600.0


@pytest.fixture(autouse=True)
def scaled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits of seconds take milliseconds."""
    for name, value in (("RESTART_FIRST_S", 0.002), ("RESTART_MAX_S", 0.01), ("STABLE_S", 0.0)):
        monkeypatch.setattr(pools, name, value)
    monkeypatch.setattr(pools, "SCALE_INTERVAL_S", 0.005)
    monkeypatch.setattr(replicas, "HEALTH_INTERVAL_S", 0.005)
    monkeypatch.setattr(replicas, "SLEEP_TIMEOUT_S", 0.02)


class Weather:
    """Chance, until all is calm."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.is_calm = False

    async def strikes(self, error: type[EngineError]) -> None:
        """Take some time; fail or hang, now and then."""
        await asyncio.sleep(self.chance.random() * 0.005)
        fate = 1.0 if self.is_calm else self.chance.random()
        if fate < 0.1:
            raise error("bad luck")
        if fate < 0.15:
            await asyncio.sleep(HANGS)


class Engine(ScriptedEngine):
    def __init__(self, weather: Weather) -> None:
        super().__init__(max_concurrency=weather.chance.choice([1, 4]))
        self.weather = weather

    async def start(self, progress: object) -> None:
        await self.weather.strikes(EngineStartError)

    async def sleep(self) -> None:
        await self.weather.strikes(EngineError)

    async def wake(self) -> None:
        await self.weather.strikes(EngineError)


class Storm:
    """A pool and those who use it."""

    def __init__(self, seed: int) -> None:
        self.weather = Weather(seed)
        self.chance = self.weather.chance
        policy = Policy(threshold=1.0, swap_after_s=0.01, own_devices=bool(seed % 2))
        scaling = ScalingPolicy(0.01, 0.03, 0.01)
        models = [self.model(f"m{number}") for number in range(5)]
        self.pool = Pool(models, "", 100, devices=DEVICES, policy=policy, scaling_policy=scaling, want_timeout_s=0.5)
        self.known = models
        self.broken_off: list[Replica] = []

    def model(self, name: str) -> Model:
        size = self.chance.choice([0.3, 0.7, 1.0, 2.0])
        needs = Needs(
            size,
            width=self.chance.choice([1, 1, 2]),
            maximum=self.chance.choice([1, 3]),
            idle_unload_s=self.chance.choice([None, 0.02]),
            asleep=self.chance.choice([None, 0.1 * size]),
        )
        return Model(name, lambda _devices: Engine(self.weather), 10, 1, needs=needs, start_timeout_s=0.03)

    async def turn(self) -> None:
        """Be answered, or told why not; also by models that were removed meanwhile."""
        model = self.chance.choice(self.known)
        with model.wanted() as want:
            while (lease := model.lease("c")) is None:
                want.check()
                await model.changed.wait()
        replica = next(replica for replica in model.replicas if replica.engine is lease.engine)
        try:
            await asyncio.sleep(self.chance.random() * 0.01)
            if replica.engine is not lease.engine and not lease.engine.is_dead:  # type: ignore[attr-defined]
                self.broken_off.append(replica)
        finally:
            lease.release()

    async def act(self) -> None:
        """Do what administrators and misfortune do."""
        name = self.chance.choice(list(self.pool.models))
        acts: list[Callable[[], Awaitable[object] | object]] = [
            lambda: self.pool.load(name),
            lambda: self.pool.unload(name),
            lambda: self.pool.pin(name, pinned=self.chance.random() < 0.4),
            lambda: self.pool.remove(name),
            lambda: self.add(self.chance.choice([name, f"n{self.chance.randrange(5)}"])),
            lambda: self.die(name),
        ]
        done = self.chance.choice(acts)()
        if isinstance(done, Awaitable):
            await done

    def add(self, name: str) -> None:
        model = self.model(name)
        self.pool.add(model)
        self.known.append(model)

    def die(self, name: str) -> None:
        for replica in self.pool.models[name].replicas:
            if isinstance(replica.engine, Engine):
                replica.engine.is_dead = True

    def overbooked(self) -> list[str]:
        """Return the devices with more on them than they hold; what sleeps and is stopped has the size of a sleeper."""
        taken = dict.fromkeys(self.pool.devices, 0.0)
        for model in self.pool._all():
            for replica in model.replicas:
                is_small = model.needs.asleep is not None and replica.phase is Phase.STOPPING
                for device in replica.devices:
                    taken[device.id] += model.needs.size(Phase.ASLEEP if is_small else replica.phase)
        return [device.id for device in DEVICES if taken[device.id] > device.memory + 1e-6]


@pytest.mark.parametrize("seed", range(6))
async def test_a_storm(seed: int, caplog: pytest.LogCaptureFixture) -> None:
    """Memory is never overbooked, nothing is broken off, everybody hears an end; then all is served as before."""
    storm = Storm(seed)
    pool = storm.pool
    pool.start()
    tasks: list[asyncio.Task[None]] = []
    for number in range(TURNS):
        tasks.append(asyncio.create_task(storm.act() if number % 5 == 4 and pool.models else storm.turn()))
        if storm.chance.random() < 0.2:
            asyncio.get_running_loop().call_later(storm.chance.random() * 0.02, tasks[-1].cancel)
        await asyncio.sleep(storm.chance.random() * 0.006)
        assert storm.overbooked() == []
    storm.weather.is_calm = True
    ends = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 20)
    assert [end for end in ends if end is not None and not isinstance(end, ModelsError | asyncio.CancelledError)] == []
    assert storm.broken_off == []
    for model in pool.models.values():
        model.needs = replace(model.needs, pinned=False)
    for name in pool.models:
        assert (await asyncio.wait_for(loaded(pool, name), 20)).name == name
    assert "placement failed" not in caplog.text
    pool.close()
    await asyncio.wait_for(pool.wait_closed(), 20)


async def loaded(pool: Pool, name: str) -> Model:
    """Load a model; it may have to wait for the end of a back-off."""
    while True:
        try:
            return await pool.load(name)
        except ModelsError:
            await asyncio.sleep(0.005)
