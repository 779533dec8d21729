"""Connections to Redis: their settings from a URL, and one whose bytes go our own way."""

from __future__ import annotations

import asyncio
import re
from typing import Any, Final, cast
from urllib.parse import unquote, urlsplit

import hiredis
from redis import exceptions
from redis.asyncio.connection import (
    AbstractConnection,
    Connection,
    SSLConnection,
    UnixDomainSocketConnection,
    parse_url,
)
from redis.asyncio.retry import Retry
from redis.backoff import ConstantBackoff, NoBackoff

from server.config import StoreConfig
from server.store.errors import masked
from server.store.redo import drop

# redis-py alone repeats every command 10 times. Once is enough to get past a connection that a restart has cut, and
# whoever wants to wait for Redis does so above. Our writes may be repeated: each is idempotent.
RETRIES: Final = 1
RETRY_PAUSE_S: Final = 0.05


def connection_options(url: str, config: StoreConfig) -> dict[str, Any]:
    """Return redis-py's connection settings for a URL; options in its query string win over ours.

    Raises ValueError when the URL is malformed.
    """
    options: dict[str, Any] = {
        "connection_class": Connection,
        "protocol": 2,  # nothing here needs RESP3, and its handshake costs round trips
        "driver_info": None,
        "client_name": "tokenwire",
        "socket_timeout": config.operation_timeout_s,
        "socket_connect_timeout": config.operation_timeout_s,
        "retry": Retry(ConstantBackoff(RETRY_PAUSE_S), RETRIES),
        # After a failover the old master answers READONLY: leave it, and look the name up again.
        "retry_on_error": [exceptions.ReadOnlyError, exceptions.MasterDownError],
    }
    try:
        options |= parse_url(url)
        if options["connection_class"] is UnixDomainSocketConnection and not options.get("path"):
            raise ValueError("no path")
        _check_database(url)
        _make(options["connection_class"], options)  # unknown options show here, not at the first command
    except (ValueError, TypeError, exceptions.RedisError):
        # The cause may quote a part of the password.
        raise ValueError(
            f"Redis URL {masked(url)} is not valid: write redis://[user:password@]host[:port][/db], rediss://…"
            " for TLS, or unix:///path/to/socket"
        ) from None
    return options


def _check_database(url: str) -> None:
    """Raise ValueError for a database that is no number: redis-py takes the first one then, and says nothing."""
    parts = urlsplit(url)
    if parts.scheme != "unix" and not re.fullmatch(r"/*[0-9]*/*", unquote(parts.path)):
        raise ValueError("no database number")


def _make(connection_class: type[AbstractConnection], options: dict[str, Any]) -> AbstractConnection:
    return connection_class(**{name: value for name, value in options.items() if name != "connection_class"})


class BulkConnection(AbstractConnection):
    """A connection whose bytes go another way than redis-py's.

    redis-py connects, signs in and selects the database; then it hands over.
    """

    _connecting: asyncio.Task[None] | None = None

    async def hand_over(self, protocol: asyncio.Protocol) -> asyncio.Transport:
        """Connect where need be; from then on `protocol` gets what comes, and may write.

        A cancelled caller leaves the attempt alone; the next one waits for the same. Raises
        redis.exceptions.RedisError, OSError.
        """
        await self._connected()
        if self._writer is None:
            raise exceptions.ConnectionError("the connection was closed")
        transport = self._writer.transport
        if transport.is_closing():  # its end is told to who had it before, and to nobody else
            self.drop()
            raise exceptions.ConnectionError("Redis closed the connection")
        transport.set_protocol(protocol)
        return cast("asyncio.Transport", transport)

    def parser(self) -> Any:
        """Return a parser for this connection's replies; those that are errors come out as exceptions."""
        return hiredis.Reader(protocolError=exceptions.InvalidResponse, replyError=self._parser.parse_error)

    async def _connected(self) -> None:
        """Connect where need be, in a task of its own: redis-py's `wait_for` may swallow a cancellation."""
        if self._connecting is None:
            if self.is_connected:
                return
            attempt = self.connect()  # type: ignore[no-untyped-call]  # so in redis-py
            self._connecting = asyncio.create_task(attempt, name="redis connects")
            self._connecting.add_done_callback(self._end_attempt)
        await asyncio.shield(self._connecting)

    def _end_attempt(self, attempt: asyncio.Task[None]) -> None:
        self._connecting = None
        if not attempt.cancelled():
            attempt.exception()  # whoever waited has it; it counts as seen

    async def close(self) -> None:
        """Stop connecting and close; idempotent."""
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.wait([self._connecting])
        self.drop()

    def drop(self) -> None:
        """Close at once, without waiting; the next `hand_over` connects anew."""
        drop(self)


class _BulkTcp(BulkConnection, Connection):
    pass


class _BulkTls(BulkConnection, SSLConnection):
    pass


class _BulkUnix(BulkConnection, UnixDomainSocketConnection):
    pass


_BULK: Final[dict[type[AbstractConnection], type[BulkConnection]]] = {
    Connection: _BulkTcp,
    SSLConnection: _BulkTls,
    UnixDomainSocketConnection: _BulkUnix,
}


def bulk_connection(options: dict[str, Any]) -> BulkConnection:
    """Make a bulk connection from `connection_options`; it connects on first use, without retries of its own."""
    made = _make(_BULK[options["connection_class"]], options | {"retry": Retry(NoBackoff(), 0)})
    if not isinstance(made, BulkConnection):
        raise TypeError(type(made).__name__)
    return made
