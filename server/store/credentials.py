"""API keys in Redis: what is kept of each, and which are revoked."""

from __future__ import annotations

from collections.abc import Sequence

from server.config import StoreConfig
from server.store.client import RedisClient

Stored = tuple[bytes | None, int | None]


class CredentialStore:
    """The keys of one Redis. `{p}:keys` is a hash of records by key id, `{p}:revoked` one of the times of revoking.

    Two hashes: revoking is one write, which no other one undoes.
    """

    _client: RedisClient
    _config: StoreConfig

    async def put_key(self, key_id: str, record: bytes) -> None:
        """Keep a record."""
        await self._client.command("HSET", self._keys, key_id, record)

    async def get_keys(self, key_ids: Sequence[str]) -> list[Stored]:
        """Return each key's record and the time of its revoking, None where there is none."""
        if not key_ids:
            return []
        revoked = await self._client.command("HMGET", self._revoked, *key_ids)
        records = await self._client.command("HMGET", self._keys, *key_ids)
        return [(record, _time(at)) for record, at in zip(records, revoked, strict=True)]

    async def list_keys(self) -> list[Stored]:
        """Return all of them, in no order."""
        names = await self._client.command("HKEYS", self._keys)
        return await self.get_keys([name.decode() for name in names])

    async def revoke_key(self, key_id: str, at: int) -> None:
        """Note when a key was revoked; the first time stays."""
        await self._client.command("HSETNX", self._revoked, key_id, at)

    @property
    def _keys(self) -> str:
        return f"{self._config.key_prefix}:keys"

    @property
    def _revoked(self) -> str:
        return f"{self._config.key_prefix}:revoked"


def _time(value: bytes | None) -> int | None:
    return None if value is None else int(value)
