"""API keys: made once, shown once, kept as hashes."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import msgspec

from server.access.auth import User, account_id, unauthorized

KEY_PREFIX: Final = "tw-"
ID_BYTES: Final = 8  # 16 hexadecimal digits: to name a key in lists and logs
SECRET_BYTES: Final = 32  # nobody guesses 256 bits, so one round of SHA-256 keeps them as well as a slow hash would
_KEY: Final = re.compile(r"tw-([0-9a-f]{16})-([A-Za-z0-9_-]{43})", re.ASCII)
_NO_DIGEST: Final = "0" * 64


class KeyRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is kept of a key.

    digest: SHA-256 of the whole key, in hexadecimal. expires_at, created_at: Unix time; None for a key without an end.
    label: what it is for, in the operator's words.
    """

    id: str
    digest: str
    user: str
    tenant: str = ""
    rights: tuple[str, ...] = ()
    limits: dict[str, int] = {}
    label: str = ""
    created_at: int = 0
    expires_at: int | None = None


@dataclass(frozen=True, slots=True)
class KeyState:
    """A key as it is now. revoked_at: Unix time, or None."""

    record: KeyRecord
    revoked_at: int | None = None

    @property
    def fault(self) -> str | None:
        """Why it signs nobody in any more, or None if it does."""
        if self.revoked_at is not None:
            return "the key was revoked"
        if self.record.expires_at is not None and self.record.expires_at <= time.time():
            return "the key has expired"
        return None

    @property
    def user(self) -> User:
        """Return who signs in with it."""
        record = self.record
        return User(
            account_id(record.user, record.tenant),
            frozenset(record.rights),
            key=record.id,
            expires_at=record.expires_at,
            limits=tuple(sorted(record.limits.items())),
        )


class KeyStore(Protocol):
    """Where keys are kept, as the store has it: bytes by key id, and when each was revoked."""

    async def put_key(self, key_id: str, record: bytes) -> None: ...
    async def get_keys(self, key_ids: Sequence[str]) -> list[tuple[bytes | None, int | None]]: ...
    async def list_keys(self) -> list[tuple[bytes | None, int | None]]: ...
    async def revoke_key(self, key_id: str, at: int) -> None: ...


class Keys:
    """Every API key of this store. What the store raises passes through."""

    def __init__(self, store: KeyStore) -> None:
        self._store = store

    async def create(self, user: str, **fields: Any) -> tuple[str, KeyRecord]:
        """Make a key of a user; return it with its record. fields: those of `KeyRecord` that the operator chooses."""
        key_id = secrets.token_hex(ID_BYTES)
        key = f"{KEY_PREFIX}{key_id}-{secrets.token_urlsafe(SECRET_BYTES)}"
        record = KeyRecord(id=key_id, digest=_digest(key), user=user, created_at=int(time.time()), **fields)
        await self._store.put_key(key_id, msgspec.json.encode(record))
        return key, record

    async def verify(self, key: str) -> User:
        """Return who signs in with a key. Raises ProtocolError."""
        match = _KEY.fullmatch(key)
        state = (await self.states([match[1]]))[0] if match else None
        # As long for a key that does not exist: its id shall not be guessed by the clock either.
        is_right = hmac.compare_digest(_digest(key), state.record.digest if state else _NO_DIGEST)
        if state is None or not is_right:
            raise unauthorized("there is no such key; check that all of it was copied")
        if state.fault is not None:
            raise unauthorized(f"{state.fault}; ask whoever runs the server for another one")
        return state.user

    async def states(self, key_ids: Sequence[str]) -> list[KeyState | None]:
        """Return each key as it is now, or None where it is gone."""
        return [_state(*stored) for stored in await self._store.get_keys(key_ids)]

    async def list(self) -> list[KeyState]:
        """Return all keys, oldest first."""
        states = [state for stored in await self._store.list_keys() if (state := _state(*stored)) is not None]
        return sorted(states, key=lambda state: (state.record.created_at, state.record.id))

    async def revoke(self, key_id: str) -> bool:
        """Let nobody sign in with a key any more; return whether there is one. A second time changes nothing."""
        (state,) = await self.states([key_id])
        if state is not None:
            await self._store.revoke_key(key_id, int(time.time()))
        return state is not None


def is_key(credential: str) -> bool:
    """Whether a credential looks like a key of ours, and not like a token."""
    return credential.startswith(KEY_PREFIX)


def _digest(key: str) -> str:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()


def _state(data: bytes | None, revoked_at: int | None) -> KeyState | None:
    return None if data is None else KeyState(msgspec.json.decode(data, type=KeyRecord), revoked_at)
