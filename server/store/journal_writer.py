"""Journals in Redis: events in as few bytes and instructions as possible, and out again.

Microseconds of our CPU per event (160 bytes, each of another response, up to 200; uvloop, unix socket, Valkey 9, two
busy cores, so only the ratios count; tests/integration/store/benchmark_append.py), in batches of:

                                    1    10   100  1000
    append                         63   6.2   1.6   2.2    hand-packed XADDs, replies compared with what they should be
    XADDs packed by hiredis        45   4.8   2.2   4.0    without lock, deadline and check of the replies
    one script packed by hiredis   49   4.2   1.4   1.7    the same
    one script through redis-py   163    15   5.0   6.7
    pipeline of redis-py          132    28    20    28

XADDs stay: the script saves us up to a microsecond and costs Redis, which all gateways share, more than that (6-10
microseconds of its CPU per event, XADDs 4-6); and one bad event would fail its whole batch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Any, Final

import hiredis
from redis import exceptions
from redis.asyncio.connection import AbstractConnection

from server.config import StoreConfig
from server.store.base import JournalEntry, StoreError
from server.store.client import RedisClient
from server.store.errors import refusal, translated
from server.store.pipeline import Pipeline, Usual
from server.store.redo import COUNTER_TTL_S

STREAMS_REMEMBERED: Final = 8192  # running responses of one gateway, about 200 bytes each
NUMBERS_REMEMBERED: Final = 8192  # of events, about 150 bytes each: answers that run side by side are about as long
SIZES_REMEMBERED: Final = 1024  # of events
COUNT_REPLIES: Final = 2  # of `packed_count`


def packed_events(prefix: str, entries: Sequence[JournalEntry], end: bytes = b"") -> tuple[bytes, bytes]:
    """Return the XADDs of events as RESP, and what Redis replies when it takes them all: their ids.

    prefix: of the streams' keys, before the response's id. end: what goes out behind them.
    """
    ids = [_entry_id(entry.epoch, entry.sequence_number) for entry in entries]
    parts: list[bytes] = []
    for entry, entry_id in zip(entries, ids, strict=True):
        data = entry.data
        parts += (_head(prefix, entry.response_id), entry_id, _field(len(data)), data, b"\r\n")
    parts.append(end)
    return b"".join(parts), b"".join(ids)


@lru_cache(maxsize=STREAMS_REMEMBERED)
def _head(prefix: str, response_id: str) -> bytes:
    """Return the part of an event's XADD that its stream decides.

    NOMKSTREAM: the log of a response that was deleted does not come back.
    """
    name = (prefix + response_id).encode()
    return b"*6\r\n$4\r\nXADD\r\n$%d\r\n%b\r\n$10\r\nNOMKSTREAM\r\n" % (len(name), name)


@lru_cache(maxsize=NUMBERS_REMEMBERED)
def _entry_id(epoch: int, sequence_number: int) -> bytes:
    name = b"%d-%d" % (epoch, sequence_number)
    return b"$%d\r\n%b\r\n" % (len(name), name)


@lru_cache(maxsize=SIZES_REMEMBERED)
def _field(size: int) -> bytes:
    """Return the name of the field, and what stands before its `size` bytes."""
    return b"$1\r\ne\r\n$%d\r\n" % size


def packed_count(key: str) -> bytes:
    """Return what ends each batch: it counts our writes up in `key` (redo.py). Two replies, the count first."""
    pack: Any = hiredis.pack_command  # annotated for tuples of one
    return bytes(pack(("INCR", key)) + pack(("EXPIRE", key, COUNTER_TTL_S)))


class JournalStore:
    """The journal part of `Store`; see there.

    `{p}:events:<response>` is a stream; an entry's id is `<epoch>-<sequence_number>`, its only field `e` the event.
    Redis refuses an id that is not greater than the newest, which makes repeating harmless and fences: `claim` lifts
    the newest id past the old epoch.
    """

    _client: RedisClient
    _config: StoreConfig
    _lock: asyncio.Lock
    _journals: Pipeline
    _count: bytes  # `packed_count`

    async def append(self, entries: Sequence[JournalEntry]) -> frozenset[str]:
        """Write events in one round trip; return the ids of responses that were refused (taken over, or deleted).

        One batch at a time. Repeating entries that are there already is harmless.
        """
        if not entries:
            return frozenset()
        packed, ids = packed_events(self._client.key("events", ""), entries, self._count)
        async with self._lock:
            *replies, position, _ = await self._client.exchange(
                self._journals, packed, count=len(entries) + COUNT_REPLIES, usual=Usual(ids, len(entries))
            )
        doubtful = self._doubtful(entries, replies) if replies else {}
        if type(position) is not int:
            raise self._refused(position)
        self._client.redo.remember(position, len(packed), partial(_append_again, packed, len(entries)))
        return await self._stale(doubtful) if doubtful else frozenset()

    async def read_events(self, response_id: str, *, after: int, count: int) -> list[tuple[int, bytes]]:
        """Return (sequence_number, event) after a sequence number (-1: from the start), oldest first; [] if expired."""
        (events,) = await self._client.run("read_events", response_id, after, count)
        return [(int(number), data) for number, data in zip(events[::2], events[1::2], strict=True)]

    def _doubtful(self, entries: Sequence[JournalEntry], replies: Sequence[object]) -> dict[str, int]:
        """Return the responses, with our epochs, whose events Redis did not take now."""
        return {
            entry.response_id: entry.epoch
            for entry, reply in zip(entries, replies, strict=True)
            if type(reply) is not bytes and self._is_doubtful(reply)
        }

    def _is_doubtful(self, reply: object) -> bool:
        """Return True for a missing stream and an id that is not greater; raise every other refusal."""
        if reply is None or _is_repeated(reply):
            return True
        raise self._refused(reply)

    def _refused(self, reply: object) -> StoreError:
        error = (
            reply if isinstance(reply, exceptions.RedisError) else exceptions.RedisError(f"unexpected reply {reply!r}")
        )
        if refusal(error) in {"READONLY", "MASTERDOWN"}:
            self._journals.drop()  # a failover: look for the new master
        return translated(error, self._client.shown_url)

    async def _stale(self, doubtful: dict[str, int]) -> frozenset[str]:
        """Tell repeated entries from refused ones: ask who holds those responses now."""
        pairs = [part for pair in doubtful.items() for part in pair]
        (stale,) = await self._client.run("stale", *pairs)
        return frozenset(response.decode() for response in stale)


def _is_repeated(reply: object) -> bool:
    """Return True where Redis has an entry of this id, or a newer one."""
    return isinstance(reply, exceptions.RedisError) and "equal or smaller" in str(reply)


async def _append_again(packed: bytes, count: int, connection: AbstractConnection) -> int:
    """Write a batch once more that Redis has lost, and return its new position in the count."""
    await connection.send_packed_command(packed)
    replies = [await _reply(connection) for _ in range(count + COUNT_REPLIES)]
    for reply in replies:
        if isinstance(reply, exceptions.RedisError) and not _is_repeated(reply):
            raise reply
    return int(replies[-COUNT_REPLIES])


async def _reply(connection: AbstractConnection) -> Any:
    try:
        return await connection.read_response()
    except exceptions.ResponseError as error:
        return error
