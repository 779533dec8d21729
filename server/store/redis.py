"""Conversations, responses and journals in one Redis (or Valkey)."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from server.config import LimitsConfig, StoreConfig
from server.store.base import StoreError, StoreUnavailableError
from server.store.client import RedisClient
from server.store.connection import bulk_connection
from server.store.conversations import ConversationStore
from server.store.journal_writer import JournalStore
from server.store.turns import TurnStore

logger = logging.getLogger(__name__)

PING_TTL_S: Final = 60


class RedisStore(ConversationStore, TurnStore, JournalStore):
    """`base.Store` on one Redis 7 or Valkey server (with replicas if you like; not on Redis Cluster).

    url: redis://, rediss:// or unix://. All that must be atomic is one Lua script; the scripts load themselves, also
    after Redis was restarted. The pool has `max_connections` connections, the journal one more of its own. An answer
    must end within `retention_s`: only the thread's beginnings and ends refresh it.

    Raises ValueError when the URL is malformed; makes no connection before it is used.
    """

    def __init__(self, url: str, config: StoreConfig, limits: LimitsConfig) -> None:
        self.url = url
        self._client = RedisClient(url, config)
        self._config = config
        self._limits = limits
        self._lock = asyncio.Lock()
        self._connection = bulk_connection(self._client.options)

    async def connect(self) -> None:
        """Check that the server answers and takes writes; warn when it may evict.

        Raises StoreUnavailableError with one line that says what to do.
        """
        try:
            await self.ping()
        except StoreUnavailableError as error:
            raise StoreUnavailableError(
                f"{error}. Start Redis, or correct `redis_url`; without one the server starts a private Valkey"
            ) from error
        await self._check_eviction()

    async def close(self) -> None:
        """Close every connection; idempotent."""
        await self._client.close()
        self._connection.drop()  # an append under way ends as unavailable

    async def ping(self) -> None:
        """Return if Redis answers and accepts writes, within `operation_timeout_s`."""
        await self._client.command("SET", f"{self._config.key_prefix}:ping", 1, "EX", PING_TTL_S)

    async def _check_eviction(self) -> None:
        try:
            answer = await self._client.command("INFO", "memory")
        except StoreUnavailableError:
            raise
        except StoreError:
            return  # hosted servers forbid INFO to some users: then it is theirs to know
        policy = _eviction_policy(answer)
        if policy not in {None, "noeviction"}:
            logger.warning(
                "Redis at %s has maxmemory-policy %s: when memory runs out it drops live conversations; set noeviction",
                self._client.shown_url,
                policy,
            )


def _eviction_policy(memory: object) -> str | None:
    """Return the policy that `INFO memory` names, as redis-py parses it."""
    return str(memory["maxmemory_policy"]) if isinstance(memory, dict) and "maxmemory_policy" in memory else None
