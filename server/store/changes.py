"""What administrators have changed of the models while servers ran, in Redis, for all gateways and the next start."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from server.config import StoreConfig
from server.store.client import RedisClient


class ChangeStore:
    """`{p}:models` is a hash; `models.changes` says what its fields mean."""

    _client: RedisClient
    _config: StoreConfig

    async def put_model_changes(
        self, fields: Mapping[str, bytes], gone: Sequence[str], *, seen: str, mark: str
    ) -> bool:
        """Write some fields and drop others, unless any was changed since `seen`; return whether it is done."""
        pairs = [part for field in fields.items() for part in field]
        (is_done,) = await self._client.run("change_models", seen, mark, len(gone), *gone, *pairs)
        return bool(is_done)

    async def model_changes(self) -> dict[str, bytes]:
        """Return all fields."""
        found = await self._client.command("HGETALL", self._models)
        return {name.decode(): value for name, value in found.items()}

    async def drop_model_changes(self) -> None:
        """Forget them all."""
        await self._client.command("DEL", self._models)

    @property
    def _models(self) -> str:
        return f"{self._config.key_prefix}:models"
