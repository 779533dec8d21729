"""API keys in memory, and an identity provider that signs whatever a test wants."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa

Stored = tuple[bytes | None, int | None]


class MemoryKeys:
    """What `server.access.keys` asks of a store. is_away: every call raises ConnectionError."""

    def __init__(self) -> None:
        self.records: dict[str, bytes] = {}
        self.revoked: dict[str, int] = {}
        self.is_away = False

    def _check(self) -> None:
        if self.is_away:
            raise ConnectionError("away")

    async def put_key(self, key_id: str, record: bytes) -> None:
        self.records[key_id] = record

    async def get_keys(self, key_ids: Sequence[str]) -> list[Stored]:
        self._check()
        return [(self.records.get(key_id), self.revoked.get(key_id)) for key_id in key_ids]

    async def list_keys(self) -> list[Stored]:
        return await self.get_keys(list(self.records))

    async def revoke_key(self, key_id: str, at: int) -> None:
        self.revoked.setdefault(key_id, at)


class Provider:
    """One key pair of an identity provider. kind: `RS256` or `ES256`."""

    def __init__(self, kind: str = "RS256", key_id: str = "k1") -> None:
        self.kind = kind
        self.key_id = key_id
        self.private: Any = (
            rsa.generate_private_key(65537, 2048) if kind == "RS256" else ec.generate_private_key(ec.SECP256R1())
        )
        self.public = self.private.public_key()

    def jwk(self, **fields: Any) -> dict[str, Any]:
        """Return the public key as it is published."""
        algorithm = jwt.get_algorithm_by_name(self.kind)
        return {**algorithm.to_jwk(self.public, as_dict=True), "kid": self.key_id, "use": "sig", **fields}

    def sign(self, algorithm: str | None = None, /, **claims: Any) -> str:
        """Return a token of ann's that is good for a minute, but for the claims given; None leaves one out."""
        return jwt.encode(full(claims), self.private, algorithm or self.kind, headers={"kid": self.key_id})


def full(claims: dict[str, Any]) -> dict[str, Any]:
    """Return claims of ann's for the next minute, but for those given."""
    merged = {"sub": "ann", "exp": int(time.time()) + 60, **claims}
    return {name: value for name, value in merged.items() if value is not None}
