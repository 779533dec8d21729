"""Two real servers for one suite: the Valkey we ship and Debian's redis-server 7."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import redis

from protocol.items import Item
from server.config import LimitsConfig, StoreConfig
from server.store.base import Conversation, Finish, History, NewTurn
from server.store.embedded import _candidates, valkey_arguments
from server.store.redis import RedisStore

START_S = 20


class Server:
    """A server process on a unix socket in a folder of its own."""

    def __init__(self, binary: str, folder: Path) -> None:
        self.binary = binary
        self.folder = folder
        self.socket = folder / "socket"
        self.url = f"unix://{self.socket}"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [self.binary, *valkey_arguments(self.folder, self.socket)], stdout=log, stderr=log
            )
        deadline = time.monotonic() + START_S
        while True:
            try:
                assert self.call("PING")
            except redis.ConnectionError:
                assert time.monotonic() < deadline, (self.folder / "log").read_text()
                time.sleep(0.01)
            else:
                return

    def call(self, *arguments: Any) -> Any:
        """Run a command past the store."""
        with redis.Redis(unix_socket_path=str(self.socket), decode_responses=True) as client:
            return client.execute_command(*arguments)

    def send(self, number: signal.Signals) -> None:
        assert self.process is not None
        os.kill(self.process.pid, number)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        if self.process is not None:
            self.send(signal.SIGCONT)
            self.send(number)
            self.process.wait(timeout=START_S)
            self.process = None

    def expiry(self, pattern: str) -> dict[str, int]:
        """Return when each key goes, in Unix milliseconds; -1 for one that stays."""
        return {key: self.call("PEXPIRETIME", key) for key in self.call("KEYS", pattern)}


def _binary(kind: str) -> str:
    if kind == "valkey":
        return next(_candidates())
    found = shutil.which("redis-server")
    if found is None:
        pytest.fail("these tests need redis-server 7 on PATH: apt-get install redis-server")
    return found


@pytest.fixture(scope="session", params=["valkey", "redis"])
def shared_server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One server of each kind for all tests that do it no harm."""
    server = Server(_binary(request.param), tmp_path_factory.mktemp(request.param))
    server.start()
    yield server
    server.stop()


@pytest.fixture(params=["valkey", "redis"])
def own_server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of each kind that a test may maltreat."""
    server = Server(_binary(request.param), tmp_path_factory.mktemp(request.param))
    server.start()
    yield server
    server.stop()


OpenStore = Callable[..., Awaitable[RedisStore]]


@pytest.fixture
async def open_store() -> AsyncIterator[OpenStore]:
    """Open stores that are closed at the end; settings of `[store]` as keywords."""
    opened: list[RedisStore] = []

    async def open_one(url: str, **settings: Any) -> RedisStore:
        limits = LimitsConfig(max_waiting_per_conversation=settings.pop("max_waiting", 16))
        store = RedisStore(url, StoreConfig(**settings), limits)
        opened.append(store)
        await store.connect()
        return store

    yield open_one
    for store in opened:
        await store.close()


@pytest.fixture
def prefix() -> str:
    """A key prefix of the test's own."""
    return f"t{uuid4().hex[:12]}"


@pytest.fixture
async def store(shared_server: Server, open_store: OpenStore, prefix: str) -> RedisStore:
    return await open_store(shared_server.url, key_prefix=prefix)


class Scene:
    """What tests say often, in few words. Owner `ann`, conversation `c` unless told otherwise."""

    @staticmethod
    def item(text: str, role: Any = "user") -> Item:
        return Item(f"msg_{text}", role, text)

    @staticmethod
    def conversation(name: str = "c", owner: str = "ann") -> Conversation:
        return Conversation(name, owner, created_at=100, updated_at=100)

    @classmethod
    def turn(cls, name: str, **changes: Any) -> NewTurn:
        fields: dict[str, Any] = {
            "response_id": name,
            "owner": "ann",
            "conversation": "c",
            "previous": None,
            "command_id": None,
            "model": "m",
            "created_at": 100,
            "items": (cls.item(f"ask-{name}"),),
            "request": b'{"request":1}',
            "snapshot": b'{"status":"queued"}',
            "gateway": "g1",
        }
        return NewTurn(**(fields | changes))

    @classmethod
    def end(cls, name: str, *, epoch: int = 1, status: Any = "completed", events: Any = (), text: str = "") -> Finish:
        answer = cls.item(text or f"answer-{name}", "assistant")
        return Finish(name, epoch, status, (answer,), f'{{"status":"{status}"}}'.encode(), tuple(events))

    @classmethod
    async def answer(cls, store: RedisStore, name: str, **changes: Any) -> None:
        """Begin, start and finish one turn."""
        await store.begin(cls.turn(name, **changes))
        assert isinstance(await store.start(name, 1), History)
        await store.finish(cls.end(name))

    @staticmethod
    def texts(items: Any) -> list[str]:
        return [item.text for item in items]


@pytest.fixture
def scene() -> type[Scene]:
    return Scene
