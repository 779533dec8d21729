"""Redis's errors in our words, and its URL without its password."""

from __future__ import annotations

import re
from typing import Final

from redis import exceptions

from server.store.base import StoreError, StoreUnavailableError

# What a server answers while it cannot serve: the first word of the error, and what it means to an operator.
_UNAVAILABLE: Final = {
    "READONLY": "Redis is a read-only replica now (a failover?)",
    "LOADING": "Redis is still loading its data",
    "BUSY": "Redis is busy with a script",
    "OOM": "Redis has no memory left (maxmemory is reached)",
    "MISCONF": "Redis cannot save to its disk and refuses writes",
    "MASTERDOWN": "Redis is a replica that lost its master",
    "NOREPLICAS": "Redis has too few replicas and refuses writes",
    "CLUSTERDOWN": "Redis Cluster is down",
    "TRYAGAIN": "Redis asks to try again",
    "NOAUTH": "Redis asks for a password; put it into the URL",
    "WRONGPASS": "Redis refused the user name or password of the URL",
}
_PASSWORD_OPTION: Final = re.compile(r"([?&][^=&]*password[^=&]*=)[^&]*", re.IGNORECASE)


def masked(url: str) -> str:
    """Return a Redis URL as it may be shown: without user name and password, also where it is malformed."""
    scheme, separator, rest = url.rpartition("://")
    credentials, at, place = rest.rpartition("@")
    shown = f"***@{place}" if at and credentials else place
    return _PASSWORD_OPTION.sub(r"\1***", f"{scheme}{separator}{shown}")


def refusal(error: exceptions.RedisError) -> str:
    """Return the word Redis refused with (`READONLY`, `ERR`), or an empty one where Redis said nothing."""
    word = error.status_code or str(error).partition(" ")[0]
    return word if word.isupper() else ""


def is_passing(error: exceptions.RedisError) -> bool:
    """Return whether Redis refused for a reason that may pass: it is full, a replica, starting."""
    return refusal(error) in _UNAVAILABLE


def translated(error: Exception, url: str) -> StoreError:
    """Return what a fault of Redis or of the way to it is to our callers.

    url: the server's, masked.
    """
    if not isinstance(error, exceptions.RedisError):  # OSError, asyncio.TimeoutError
        return StoreUnavailableError(f"Redis at {url} cannot be reached: {_text(error)}")
    if isinstance(error.__cause__, exceptions.RedisError):
        error = error.__cause__  # redis-py wraps what happens at a sign-in into a ConnectionError
    if is_passing(error):
        return StoreUnavailableError(f"{_UNAVAILABLE[refusal(error)]} ({url})")
    if isinstance(error, exceptions.AuthenticationError):
        return StoreUnavailableError(f"Redis at {url} refused the sign-in: {_text(error)}")
    if isinstance(error, exceptions.TimeoutError):
        return StoreUnavailableError(f"Redis at {url} did not answer in time")
    if isinstance(error, exceptions.InvalidResponse):
        return StoreUnavailableError(f"What listens at {url} does not answer as Redis does: {_text(error)}")
    if isinstance(error, exceptions.ConnectionError):
        return StoreUnavailableError(f"Redis at {url} cannot be reached: {_text(error)}")
    return StoreError(f"Redis at {url} refused a command: {_text(error)}")


def _text(error: Exception) -> str:
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__  # the sentence may go on
