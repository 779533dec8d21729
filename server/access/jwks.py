"""An identity provider's public keys (JWKS, RFC 7517): fetched, cached, fetched again when they rotate."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import aiohttp
import jwt
import orjson

from protocol.errors import ProtocolError

logger = logging.getLogger(__name__)

FETCH_TIMEOUT_S: Final = 5.0  # for all of it: a provider that drips must not keep everybody waiting
MAX_BYTES: Final = 1024 * 1024
# Tokens with key ids that nobody knows must not make us a flood on the provider.
REFETCH_PAUSE_S: Final = 10.0
# A provider that is down must not sign everybody out; but who can keep it down must not keep a stolen key alive.
MAX_STALE_S: Final = 86_400.0
RETRY_MS: Final = 5000

_now = time.monotonic

# What a key of a type can verify. Symmetric keys (`oct`) have no place in a published set.
ALGORITHMS: Final[Mapping[str, tuple[str, ...]]] = {
    "RSA": ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    "EC": ("ES256", "ES384", "ES512"),
    "OKP": ("EdDSA",),
}


@dataclass(frozen=True, slots=True)
class VerifyingKey:
    """A key, and the algorithms that it may verify."""

    key: Any
    algorithms: Sequence[str]
    id: str | None = None


class Jwks:
    """The keys behind one URL.

    ttl_s: they are fetched again when they are older. fetch: returns the document; raises OSError or ValueError.
    """

    def __init__(self, url: str, ttl_s: float, *, fetch: Callable[[str], Awaitable[Any]] | None = None) -> None:
        self._url = url
        self._ttl_s = ttl_s
        self._fetch = fetch or fetch_json
        self._keys: list[VerifyingKey] = []
        self._fetched_at: float | None = None
        self._tried_at: float | None = None
        self._is_away = False  # the last try failed
        self._fetching: asyncio.Task[None] | None = None

    async def find(self, key_id: str | None) -> VerifyingKey | None:
        """Return the key of that id; without an id, the only key there is. None where there is none such.

        Raises ProtocolError where no keys can be had.
        """
        is_old = self._age(self._fetched_at) >= self._ttl_s
        if is_old or self._pick(key_id) is None:  # a new one, perhaps
            await self._refresh()
        key = self._pick(key_id)
        # Without a look at the provider's newest keys nobody knows that one is not among them.
        if self._age(self._fetched_at) > max(MAX_STALE_S, self._ttl_s) or (key is None and self._is_away):
            text = "the identity provider's keys cannot be had; try again"
            raise ProtocolError("server_is_overloaded", text, retry_after_ms=RETRY_MS)
        return key

    def _age(self, since: float | None) -> float:
        return float("inf") if since is None else _now() - since

    def _pick(self, key_id: str | None) -> VerifyingKey | None:
        if key_id is None:
            return self._keys[0] if len(self._keys) == 1 else None
        return next((key for key in self._keys if key.id == key_id), None)

    async def _refresh(self) -> None:
        """Fetch, once for all who wait, and not too often."""
        if self._fetching is None:
            if self._age(self._tried_at) < REFETCH_PAUSE_S:
                return
            self._tried_at = _now()
            self._fetching = asyncio.create_task(self._load(), name="jwks")
        await asyncio.shield(self._fetching)

    async def _load(self) -> None:
        try:
            self._keys = verifying_keys(await self._fetch(self._url))
            self._fetched_at = _now()
            self._is_away = False
        except (OSError, ValueError) as error:
            self._is_away = True
            logger.warning("the keys at %s cannot be had: %s", self._url, error)
        finally:
            self._fetching = None


def verifying_keys(document: Any) -> list[VerifyingKey]:
    """Return what in a JWKS document can verify signatures. Raises ValueError where nothing can."""
    listed = document.get("keys") if isinstance(document, dict) else None
    found = [key for entry in (listed if isinstance(listed, list) else []) if (key := _verifying_key(entry))]
    if not found:
        raise ValueError("it holds no key that verifies signatures (RSA, EC or OKP)")
    return found


def _verifying_key(entry: Any) -> VerifyingKey | None:
    if not isinstance(entry, dict) or entry.get("use") == "enc":
        return None
    algorithms = ALGORITHMS.get(str(entry.get("kty")), ())
    if "alg" in entry:
        algorithms = tuple(name for name in algorithms if name == entry["alg"])
    if not algorithms:
        return None
    try:
        key = jwt.PyJWK(entry, algorithms[0] if "alg" not in entry and entry["kty"] == "RSA" else None)
    except (jwt.PyJWTError, ValueError, TypeError):
        return None  # a kind that the library does not know
    return VerifyingKey(key.key, algorithms, entry.get("kid"))


async def fetch_json(url: str) -> Any:
    """Get a JSON document, in FETCH_TIMEOUT_S at most. Raises OSError, ValueError."""
    timeout = aiohttp.ClientTimeout(total=FETCH_TIMEOUT_S)
    body = bytearray()
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout, trust_env=True) as session,
            session.get(url, headers={"Accept": "application/json"}) as reply,
        ):
            reply.raise_for_status()
            async for piece in reply.content.iter_any():
                body += piece
                if len(body) > MAX_BYTES:
                    raise ValueError(f"it has more than {MAX_BYTES} bytes")
    except TimeoutError:
        raise TimeoutError(f"it takes longer than {FETCH_TIMEOUT_S:g} s") from None
    except aiohttp.ClientError as error:
        raise OSError(str(error) or type(error).__name__) from error
    return orjson.loads(body)
