"""Quotas in Redis: what was taken of each, by whichever gateway."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from server.config import StoreConfig
from server.store.client import RedisClient

Quota = Mapping[str, Any]


class QuotaStore:
    """What `server.access.limits` asks of the store. `{p}:quota:<key>` is a sorted set of ids, or a number.

    now_ms: Unix time; None for Redis's own clock, which is one for all gateways.
    """

    _client: RedisClient
    _config: StoreConfig

    async def take_quotas(
        self, thing: str, quotas: Sequence[Quota], now_ms: int | None, command: tuple[str, str, str]
    ) -> tuple[int, int]:
        """Take from all quotas or none; return (0, 0), or the number of the first that is used up and its wait.

        command: kind, owner and command id ('' for none) of what is begun; (-1, 0) where it was begun before.
        """
        quoted = json.dumps(list(quotas))
        number, wait_ms = await self._client.run("quota_take", thing, _time(now_ms), quoted, *command)
        return number, wait_ms

    async def end_quotas(self, thing: str, quotas: Sequence[Quota], now_ms: int | None) -> None:
        """Give back what was taken and can be, and write down what was spent; the second time changes nothing."""
        await self._client.run("quota_end", thing, _time(now_ms), json.dumps(list(quotas)))

    async def renew_quotas(self, held: Sequence[tuple[str, str]], lease_ms: int) -> None:
        """Hold places for another while: pairs of a quota's key and an id."""
        await self._client.run("quota_renew", lease_ms, *(word for pair in held for word in pair))

    async def read_quotas(self, quotas: Sequence[Quota], now_ms: int | None) -> list[tuple[int, int]]:
        """Return what is used of each, and when that changes, in milliseconds (-1: not by waiting)."""
        values = await self._client.run("quota_read", _time(now_ms), json.dumps(list(quotas)))
        return list(zip(values[::2], values[1::2], strict=True))


def _time(now_ms: int | None) -> str:
    return "" if now_ms is None else str(now_ms)
