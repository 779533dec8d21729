"""The connection that carries scripts and journals, where it is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from redis import exceptions
from redis.asyncio.connection import UnixDomainSocketConnection

from server.store.connection import BulkConnection, bulk_connection
from server.store.pipeline import Pipeline

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
