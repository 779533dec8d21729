"""Changes of the models that are kept: what is written, and what another gateway makes of it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from server.config import ModelConfig
from server.errors import StartError
from server.models.changes import Changed, Changes, read
from server.models.errors import RegistryError, UnknownModelError
from server.models.model import Model
from server.models.pool import Pool
from server.models.replica import Lease
from server.models.state import Needs
from server.store.base import StoreUnavailableError
from tests.support.memory import MemoryBus, MemoryStore, until
from tests.support.scripted import ScriptedEngine


def make(name: str, base: str | None = None) -> Model:
    return Model(name, lambda _devices: ScriptedEngine(), 10, 1, needs=Needs(), base=base)


class Gateway:
    """One gateway: the file names `main` (the default) and `other`, whose alias is `chat`."""

    def __init__(self, store: Any, bus: Any) -> None:
        self.pool = Pool([make("main")], "main", 100)
        self.pool.add(make("other"), ["chat"])
        self.pool.make_model = self.make_model
        self.pool.start()
        self.changes = Changes(store, bus, self.pool)
        self.made: list[tuple[str, str]] = []
        self.task: asyncio.Task[None] | None = None

    async def make_model(self, name: str, settings: ModelConfig) -> Model:
        await asyncio.sleep(0)
        if settings.source == "nowhere":
            raise StartError("nowhere is not there")
        self.made.append((name, settings.source))
        return make(name, settings.base)

    @property
    def names(self) -> list[str]:
        return sorted(self.pool.models)

    @property
    def names_and_aliases(self) -> dict[str, set[str]]:
        return {name: set(self.pool.registry.aliases(name)) for name in self.names}


async def busy(model: Model) -> Lease:
    """Return the right to an answer that runs until it is given back."""
    with model.wanted():
        while (lease := model.lease(None)) is None:
            await model.changed.wait()
    return lease


@pytest.fixture
async def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
async def gateways(store: MemoryStore) -> AsyncIterator[tuple[Gateway, Gateway]]:
    bus = MemoryBus()
    both = Gateway(store, bus), Gateway(store, bus)
    for gateway in both:
        await bus.subscribe("models", gateway.changes.heard)
        gateway.task = asyncio.create_task(gateway.changes.run())
    yield both
    for gateway in both:
        assert gateway.task is not None
        gateway.task.cancel()
        gateway.pool.close()
        await gateway.pool.wait_closed()


async def test_what_is_added_is_everywhere(gateways: tuple[Gateway, Gateway]) -> None:
    """With its aliases, and a name that is moved to it."""
    here, there = gateways
    await here.changes.add("new", {"source": "x", "aliases": ["newest"]})
    await here.changes.alias("chat", "new")
    await until(lambda: there.pool.get("chat").name == "new")
    assert there.pool.get("newest").name == "new"
    assert here.made == there.made == [("new", "x")]


async def test_what_is_removed_is_gone_everywhere(gateways: tuple[Gateway, Gateway], store: MemoryStore) -> None:
    """Also one of the file; its names and pins go with it."""
    here, there = gateways
    await there.changes.alias("nick", "other")
    await there.changes.pin("other", pinned=True)
    await until(lambda: (model := here.pool.registry.find("nick")) and model.needs.pinned)
    await here.changes.remove("other")
    await until(lambda: there.names == ["main"])
    assert {**store.changes, "mark": b""} == {"models other": b"null", "mark": b""}


async def test_pins_are_everywhere(gateways: tuple[Gateway, Gateway]) -> None:
    here, there = gateways
    await here.changes.pin("chat", pinned=True)
    await until(lambda: there.pool.get("other").needs.pinned)
    await there.changes.pin("other", pinned=False)
    await until(lambda: not here.pool.get("other").needs.pinned)


async def test_another_model_of_the_same_name_takes_its_place(gateways: tuple[Gateway, Gateway]) -> None:
    """Also where both changes are heard of at once, and the first one was the settings file's."""
    here, there = gateways
    old = there.pool.get("other")
    await here.changes.remove("other")
    await here.changes.add("other", {"source": "y"})
    await until(lambda: there.made == [("other", "y")])
    assert old.is_removed
    await here.changes.remove("other")
    await here.changes.add("other", {"source": "z"})
    await until(lambda: there.made[-1] == ("other", "z"))


async def test_a_start_has_what_was_changed_before(gateways: tuple[Gateway, Gateway], store: MemoryStore) -> None:
    """An adapter after its base, whatever the order in the store."""
    here, _ = gateways
    await here.changes.add("base", {"source": "x"})
    await here.changes.add("adapter", {"source": "y", "base": "base"})
    await here.changes.alias("chat", "adapter")
    await here.changes.pin("base", pinned=True)
    store.changes = dict(reversed(store.changes.items()))
    late = Gateway(store, MemoryBus())
    await late.changes.apply(read(store.changes))
    assert late.names == ["adapter", "base", "main", "other"]
    assert late.pool.get("chat").name == "adapter"
    assert late.pool.get("base").needs.pinned
    late.pool.close()
    await late.pool.wait_closed()


async def test_what_cannot_be_any_more_is_logged(store: MemoryStore, caplog: pytest.LogCaptureFixture) -> None:
    """And costs the others nothing: a start must not fail for it."""
    gateway = Gateway(store, MemoryBus())
    changed = Changed(
        models={
            "lost": {"source": "nowhere"},
            "odd": {"source": "x", "sauce": 1},
            "fine": {"source": "x"},
            "main": None,
        },
        aliases={"a": "lost", "main": "fine", "b": "fine"},
        pins={"lost": True},
    )
    with caplog.at_level(logging.WARNING):
        await gateway.changes.apply(changed)
    assert gateway.names == ["fine", "main", "other"]
    assert gateway.pool.get("b").name == "fine"
    told = [
        record.getMessage().partition(":")[0] for record in caplog.records if record.name == "server.models.changes"
    ]
    assert told == [
        "model main stays as it is",
        "model lost, which was added while servers ran, is not served",
        "model odd, which was added while servers ran, is not served",
        "alias a is not given",
        "alias main is not given",
    ]
    gateway.pool.close()
    await gateway.pool.wait_closed()


@pytest.mark.parametrize(
    "second",
    [
        lambda changes: changes.add("late", {"source": "x", "aliases": ["nick"]}),
        lambda changes: changes.add("nick", {"source": "x"}),
        lambda changes: changes.alias("new", "other"),
        lambda changes: changes.add("new", {"source": "y"}),
    ],
)
async def test_of_two_changes_at_once_that_exclude_each_other_one_is_refused(
    gateways: tuple[Gateway, Gateway], store: MemoryStore, second: Callable[[Changes], Awaitable[object]]
) -> None:
    """On whichever gateways they were asked for; then both gateways have the same models and names."""
    here, there = gateways
    first = here.changes.add("new", {"source": "x", "aliases": ["nick"]})
    results = await asyncio.gather(first, second(there.changes), return_exceptions=True)
    assert sorted(isinstance(result, RegistryError) for result in results) == [False, True]
    await until(lambda: here.names_and_aliases == there.names_and_aliases)


async def test_a_name_moved_meanwhile_is_not_lost(gateways: tuple[Gateway, Gateway]) -> None:
    """A model that is added again later than it was elsewhere does not want back what it had as an alias."""
    here, there = gateways
    lease = await busy(there.pool.get("other"))
    await here.changes.remove("other")
    await here.changes.add("other", {"source": "y", "aliases": ["nick"]})
    await here.changes.alias("nick", "main")
    await until(lambda: there.pool.registry.find("nick"))
    lease.release()
    await until(lambda: here.names_and_aliases == there.names_and_aliases)


@pytest.mark.parametrize("alias", ["chat", "nick"])  # of a model of the file, and of one that was added
async def test_an_alias_that_went_with_its_last_model_is_nobodys(
    gateways: tuple[Gateway, Gateway], store: MemoryStore, alias: str
) -> None:
    """Also after a start, and with whom it came before it was moved; until somebody has it again."""

    async def started_now() -> set[str]:
        late = Gateway(store, MemoryBus())
        await late.changes.apply(read(store.changes))
        late.pool.close()
        await late.pool.wait_closed()
        return {name for name, aliases in late.names_and_aliases.items() if alias in aliases}

    here, there = gateways
    await here.changes.add("new", {"source": "x", "aliases": ["nick"]})
    await here.changes.add("last", {"source": "x"})
    await here.changes.alias(alias, "last")
    await here.changes.remove("last")
    await until(lambda: here.names_and_aliases == there.names_and_aliases)
    assert here.pool.registry.find(alias) is None
    assert await started_now() == set()
    await there.changes.add("next", {"source": "y", "aliases": [alias]})
    await until(lambda: here.names_and_aliases == there.names_and_aliases)
    assert await started_now() == {"next"}
    # Once nobody came with it any more, nothing is remembered of it.
    for name in ("next", "new", "other"):
        await here.changes.remove(name)
    assert set(store.changes) == {"models last", "models next", "models new", "models other", "mark"}


async def test_a_model_replaced_while_it_is_busy(gateways: tuple[Gateway, Gateway]) -> None:
    """Its last answer ends first, and meanwhile nothing else has to wait; then the new one is there."""
    here, there = gateways
    lease = await busy(there.pool.get("other"))
    await here.changes.remove("other")
    await here.changes.add("other", {"source": "y"})
    await until(lambda: there.names == ["main"])
    await there.changes.add("new", {"source": "x"})
    assert there.names == ["main", "new"]
    lease.release()
    await until(lambda: there.names == ["main", "new", "other"])
    assert there.made == [("new", "x"), ("other", "y")]


async def test_a_base_replaced_under_its_adapter(gateways: tuple[Gateway, Gateway]) -> None:
    """Heard of at once, with the adapter as it was: both are made again."""
    here, there = gateways
    await here.changes.add("base", {"source": "x"})
    await here.changes.add("adapter", {"source": "a", "base": "base"})
    await until(lambda: "adapter" in there.names)
    async with there.changes._lock:
        await here.changes.remove("adapter")
        await here.changes.remove("base")
        await here.changes.add("base", {"source": "y"})
        await here.changes.add("adapter", {"source": "a", "base": "base"})
    await until(lambda: there.made[2:] == [("base", "y"), ("adapter", "a")])


async def test_what_is_refused_is_not_written(gateways: tuple[Gateway, Gateway], store: MemoryStore) -> None:
    """Names that are taken, the default's removal, an alias of nothing."""
    here, _ = gateways
    with pytest.raises(RegistryError, match="taken"):
        await here.changes.add("other", {"source": "x"})
    with pytest.raises(StartError):
        await here.changes.add("new", {"source": "nowhere"})
    with pytest.raises(RegistryError, match="default"):
        await here.changes.remove("main")
    with pytest.raises(UnknownModelError):
        await here.changes.alias("x", "nothing")
    assert store.changes == {}


async def test_without_the_store_nothing_is_changed(gateways: tuple[Gateway, Gateway], store: MemoryStore) -> None:
    """Neither here nor there; afterwards it is."""
    here, there = gateways
    store.is_away = True
    for change in (
        here.changes.add("new", {"source": "x"}),
        here.changes.remove("other"),
        here.changes.alias("x", "main"),
        here.changes.pin("other", pinned=True),
    ):
        with pytest.raises(StoreUnavailableError):
            await change
    assert here.names == ["main", "other"]
    assert not here.pool.get("other").needs.pinned
    store.is_away = False
    await here.changes.add("new", {"source": "x"})
    await until(lambda: "new" in there.names)


def test_fields_of_a_newer_version_are_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    """What is understood counts."""
    changed = read({"weights a": b"1", "models b": b"null", "pins c": b'"x"', "aliases d": b'"b"'})
    assert changed == Changed(models={"b": None}, aliases={"d": "b"})
    assert "not understood: weights a" in caplog.text
    assert "not understood: pins c" in caplog.text
