"""API keys for a real server: made in its own store, as `tokenwire keys create` does."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from server.access.keys import Keys
from server.config import LimitsConfig, StoreConfig
from server.store.redis import RedisStore

T = TypeVar("T")


async def in_store(data_dir: Path, work: Callable[[RedisStore], Awaitable[T]]) -> T:
    """Do some work in the private Valkey of the server on `data_dir`."""
    store = RedisStore(f"unix://{quote(str(data_dir / 'valkey' / 'socket'))}", StoreConfig(), LimitsConfig())
    try:
        return await work(store)
    finally:
        await store.close()


async def make_key(data_dir: Path, user: str, *rights: str, **fields: Any) -> str:
    """Make a key of a user for the server on `data_dir`."""
    key, _ = await in_store(data_dir, lambda store: Keys(store).create(user, rights=rights, **fields))
    return key


def bearer(key: str) -> dict[str, str]:
    """Return the header that signs in with a key."""
    return {"Authorization": f"Bearer {key}"}
