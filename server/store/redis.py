"""Conversations, responses and journals in one Redis (or Valkey)."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from server.config import LimitsConfig, StoreConfig
from server.store.base import StoreError, StoreUnavailableError
from server.store.changes import ChangeStore
from server.store.client import RedisClient
from server.store.conversations import ConversationStore
from server.store.credentials import CredentialStore
from server.store.journal_writer import JournalStore, packed_count
from server.store.quotas import QuotaStore
from server.store.turns import TurnStore

logger = logging.getLogger(__name__)

PING_TTL_S: Final = 60
OLDEST: Final = "7"  # PEXPIRETIME and what scripts may do came with it


class RedisStore(ConversationStore, TurnStore, JournalStore, CredentialStore, QuotaStore, ChangeStore):
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
        self._journals = self._client.pipeline()
        self._count = packed_count(self._client.redo.counter)

    async def connect(self) -> None:
        """Check that the server answers, takes writes and is new enough; warn when it may evict.

        Raises StoreUnavailableError, or StoreError for an old server, with one line that says what to do.
        """
        try:
            await self.ping()
        except StoreError as error:
            kind = StoreUnavailableError if isinstance(error, StoreUnavailableError) else StoreError
            raise kind(
                f"{error}. Start Redis, or correct `redis_url`; without one the server starts a private Valkey"
            ) from error
        await self._check_server()

    async def close(self) -> None:
        """Close every connection; idempotent."""
        await self._client.close()
        await self._journals.close()  # an append under way ends as unavailable

    async def ping(self) -> None:
        """Return if Redis answers and accepts writes, within `operation_timeout_s`."""
        await self._client.command("SET", f"{self._config.key_prefix}:ping", 1, "EX", PING_TTL_S)

    async def _check_server(self) -> None:
        try:
            told = await self._client.command("INFO")
        except StoreUnavailableError:
            raise
        except StoreError:
            return  # hosted servers forbid INFO to some users: then it is theirs to know
        version = str(told.get("redis_version", OLDEST))  # Valkey names the Redis it is compatible with
        if int(version.partition(".")[0]) < int(OLDEST):
            raise StoreError(f"Redis at {self._client.shown_url} is version {version}; {OLDEST} or newer is needed")
        policy = told.get("maxmemory_policy", "noeviction")
        if policy != "noeviction":
            logger.warning(
                "Redis at %s has maxmemory-policy %s: when memory runs out it drops live conversations; set noeviction",
                self._client.shown_url,
                policy,
            )
