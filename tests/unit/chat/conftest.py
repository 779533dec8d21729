"""Gateways that share a store and a bus in memory; their engines say what the test tells them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from protocol.codec import encode
from protocol.commands import ResponseCreate, parse_command
from server.chat import feeds, following, patience, runtime, takeover
from server.chat.generation import Generation
from server.chat.runtime import Runtime
from server.chat.service import Chat
from server.chat.takeover import Takeover
from server.config import Config, LimitsConfig, StoreConfig
from server.models.model import Model
from server.models.pool import LOCAL, Pool
from server.models.state import Phase
from server.observe.metrics import Metrics
from server.store.base import Conversation
from server.store.journal import Journal
from tests.support.memory import MemoryBus, MemoryClient, MemoryStore
from tests.support.scripted import ScriptedEngine


@pytest.fixture(autouse=True)
def scaled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits of seconds take milliseconds."""
    monkeypatch.setattr(feeds, "RETRY_S", 0.005)
    monkeypatch.setattr(following, "REPAIR_S", 0.02)
    monkeypatch.setattr(following, "LINGER_S", 0.05)
    monkeypatch.setattr(patience, "PACE_S", 0.005)
    monkeypatch.setattr(runtime, "RETRY_FIRST_S", 0.002)
    monkeypatch.setattr(takeover, "HEARTBEAT_S", 0.01)
    monkeypatch.setattr(takeover, "HEARTBEAT_TTL_S", 0.05)


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def bus() -> MemoryBus:
    return MemoryBus()


class Gateway:
    """One gateway with one model."""

    def __init__(self, name: str, store: MemoryStore, bus: MemoryBus, config: Config) -> None:
        self.name = name
        self.store = store
        self.engine = ScriptedEngine()
        metrics = Metrics()
        self.journal = Journal(store, metrics, config.store)
        self.runtime = Runtime(config, store, self.journal, bus, metrics, name)  # type: ignore[arg-type]
        self.model = Model("m", lambda _devices: self.engine, 10, 1)
        self.pool = Pool([self.model], "m", 100)
        self.chat = Chat(self.runtime, self.pool)
        self.takeover = Takeover(self.runtime, self.chat.adopt, self.chat.has_model)
        self.client = MemoryClient()
        self.replace_engine(self.engine)

    def replace_engine(self, engine: ScriptedEngine) -> None:
        self.engine = engine
        self.model.replicas.clear()
        replica = self.model.new_replica((LOCAL,))
        replica.engine = engine
        replica.set(Phase.READY, "ready")
        self.model.resize()
        self.model.tell()

    async def open(self) -> None:
        self.journal.start()
        await self.store.heartbeat(self.name, 5)
        await self.runtime.bus.subscribe(f"gateway:{self.name}", self.chat.control)

    async def create(self, client: MemoryClient | None = None, **fields: Any) -> Generation:
        command = parse_command(encode({"input": "hi", **fields}))
        assert isinstance(command, ResponseCreate)
        generation = await self.chat.create(client or self.client, command)
        assert generation is not None
        return generation

    async def handle(self, client: MemoryClient | None = None, **fields: Any) -> None:
        await self.chat.handle(client or self.client, parse_command(encode(fields)))

    async def die(self) -> None:
        """As SIGKILL would have it: nothing is written or said any more, and its heartbeat ends."""
        bus_handlers = self.runtime.bus.handlers[f"gateway:{self.name}"]  # type: ignore[attr-defined]
        bus_handlers.clear()
        await self.chat.drain(0)
        await self.runtime.close()
        self.store.kill(self.name)

    async def close(self) -> None:
        await self.chat.drain(0)
        await self.runtime.close()
        await self.journal.close()


MakeGateway = Callable[..., Any]


@pytest.fixture(params=["chunks are pulled", "chunks are handed over"])
async def make_gateway(
    store: MemoryStore, bus: MemoryBus, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> AsyncIterator[MakeGateway]:
    """Make gateways; whatever they do, they do with both kinds of engine."""
    monkeypatch.setattr(ScriptedEngine, "hands_over", request.param == "chunks are handed over")
    made: list[Gateway] = []

    async def make(name: str, **limits: Any) -> Gateway:
        config = Config(
            engine="echo", limits=LimitsConfig(**limits), store=StoreConfig(unavailable_timeout_s=0.05, tick_ms=1.0)
        )
        gateway = Gateway(name, store, bus, config)
        made.append(gateway)
        await gateway.open()
        return gateway

    yield make
    for gateway in made:
        await gateway.close()


@pytest.fixture
async def a(make_gateway: MakeGateway) -> Gateway:
    return await make_gateway("a")


@pytest.fixture
async def b(make_gateway: MakeGateway) -> Gateway:
    return await make_gateway("b")


@pytest.fixture
def conversation(store: MemoryStore) -> str:
    """A conversation of ann's."""
    store.conversations["conv_1"] = Conversation("conv_1", "ann", 1, 1)
    store.first_items["conv_1"] = []
    return "conv_1"


async def settle() -> None:
    """Let everything that can happen at once happen."""
    for _ in range(20):
        await asyncio.sleep(0)
