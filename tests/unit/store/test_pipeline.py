"""The connection that carries scripts and journals, where it is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import hiredis
import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis import exceptions
from redis.asyncio.connection import UnixDomainSocketConnection

from server.store.connection import BulkConnection, bulk_connection
from server.store.pipeline import Pipeline, Usual

PING = b"*1\r\n$4\r\nPING\r\n"


@pytest.fixture
async def connection(tmp_path: Path) -> AsyncIterator[BulkConnection]:
    """Leads to a server that answers whatever it gets."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(1000):
            writer.write(b"+OK\r\n")
        writer.close()

    path = str(tmp_path / "socket")
    async with await asyncio.start_unix_server(answer, path):
        options = {"connection_class": UnixDomainSocketConnection, "path": path, "protocol": 2, "driver_info": None}
        made = bulk_connection(options)
        yield made
        await made.close()


async def test_a_connection_that_is_lost_before_its_first_command(connection: BulkConnection) -> None:
    """Who asks is told at once, and the next one gets another connection."""
    await connection._connected()
    assert connection._writer is not None
    connection._writer.transport.abort()
    pipeline = Pipeline(connection, 30.0)
    with pytest.raises(exceptions.ConnectionError, match="closed the connection"):
        await pipeline.send(PING)
    assert await pipeline.send(PING) == [b"OK"]
    await pipeline.close()


async def test_a_connection_that_is_lost_between_two_commands(connection: BulkConnection) -> None:
    """The same: nothing is written to it any more, and nobody waits for what cannot come."""
    pipeline = Pipeline(connection, 30.0)
    assert await pipeline.send(PING) == [b"OK"]
    pipeline._transport.abort()
    with pytest.raises(exceptions.ConnectionError, match="closed the connection"):
        await pipeline.send(PING)
    assert await pipeline.send(PING) == [b"OK"]
    await pipeline.close()


class _Wire:
    """Stands in for a connection: what the pipeline writes goes nowhere, what Redis says is the test's."""

    line: asyncio.Protocol

    def parser(self) -> Any:
        return hiredis.Reader()

    async def hand_over(self, line: asyncio.Protocol) -> Any:
        self.line = line
        return self

    def write(self, _packed: bytes) -> None: ...

    def drop(self) -> None: ...

    async def close(self) -> None: ...


USUAL = ["1-1", "1-2", "2-10", "1-3"]
OTHERS = [b"$-1\r\n", b"$3\r\n1-4\r\n", b"-ERR equal or smaller\r\n", b"$4\r\n1-22\r\n", b":7\r\n"]
bulks = [b"$%d\r\n%b\r\n" % (len(reply), reply.encode()) for reply in USUAL]


@given(
    others=st.dictionaries(st.integers(0, len(USUAL) - 1), st.sampled_from(OTHERS)),
    cuts=st.lists(st.integers(0, 60)),
    before=st.integers(0, 2),
    after=st.integers(0, 2),
)
async def test_usual_replies_are_passed_over_and_all_others_seen(
    others: dict[int, bytes], cuts: list[int], before: int, after: int
) -> None:
    """Wherever the replies are cut, and whatever they are between: one that is not as expected is never missed."""
    wire: Any = _Wire()
    pipeline = Pipeline(wire, 30.0)
    earlier = [pipeline.send(PING) for _ in range(before)]
    asked = pipeline.send(b"events and a count", len(USUAL) + 1, usual=Usual(b"".join(bulks), len(USUAL)))
    later = [pipeline.send(PING) for _ in range(after)]
    await asyncio.sleep(0)
    replies = [others.get(index, usual) for index, usual in enumerate(bulks)]
    data = b"".join([b"+OK\r\n" * before, *replies, b":42\r\n", b"+OK\r\n" * after])
    edges = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    for start, stop in pairwise(edges):
        wire.line.data_received(data[start:stop])
    assert [await future for future in (*earlier, *later)] == [[b"OK"]] * (before + after)
    *told, count = await asked
    assert count == 42
    if replies != bulks:
        reader = hiredis.Reader()
        reader.feed(b"".join(replies))
        assert [repr(reply) for reply in told] == [repr(reader.gets()) for _ in replies]
    elif told:  # parsed all the same, where the first of them came together with what was before
        assert told == [reply.encode() for reply in USUAL]
        assert before
    await pipeline.close()
