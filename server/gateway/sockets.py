"""One accepted TCP connection, as websockets sees it, made ready for requests that are no WebSocket handshake."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Generator
from typing import Any, Final

from websockets.asyncio.server import Server, ServerConnection
from websockets.protocol import CONNECTING, Protocol
from websockets.server import ServerProtocol
from websockets.streams import StreamReader

from server.access.auth import User

logger = logging.getLogger(__name__)

_BODY_HEADERS: Final = (b"content-length:", b"transfer-encoding:")


class RequestReader(StreamReader):
    """Reads a request's head and throws its body away.

    websockets drops a request that has a body without an answer, and takes whatever follows a head for frames.
    Clients that fall back to `POST /v1/responses` must read a 426, and a pipelined second request must not
    break the answer to the first one. So the headers that announce a body are passed over, and until the answer
    is sent (a WebSocket client says nothing before it: RFC 6455 section 4.1) whatever comes is discarded.
    """

    def __init__(self, protocol: Protocol) -> None:
        super().__init__()
        self._protocol = weakref.proxy(protocol)  # no reference cycle: a closed connection is freed at once

    def read_line(self, m: int, too_long_exc_type: type[Exception] = RuntimeError) -> Generator[None, None, bytearray]:
        """Read a line of the head; frames never come this way."""
        while True:
            line = yield from super().read_line(m, too_long_exc_type)
            if not line.lower().startswith(_BODY_HEADERS):
                return line

    def at_eof(self) -> Generator[None, None, bool]:
        """Wait for data that counts; called before each frame."""
        while self._protocol.state is CONNECTING and not self.eof:
            self.buffer.clear()
            yield
        return (yield from super().at_eof())


class GatewayConnection(ServerConnection):
    """A connection that is known from the first byte to the last, and can answer any HTTP request.

    `serve(create_connection=…)` is websockets' own hook for that.

    user: set at the handshake. admitted: whether it holds one of the `limits.max_connections` places.
    on_lost: called once, when the TCP connection is gone.
    """

    def __init__(
        self,
        protocol: ServerProtocol,
        server: Server,
        *,
        on_made: Callable[[GatewayConnection], None],
        on_lost: Callable[[GatewayConnection], None],
        **settings: Any,
    ) -> None:
        # The parser has bound the old reader's methods but has read nothing yet: start it again on ours.
        protocol.reader = RequestReader(protocol)
        protocol.parser = protocol.parse()
        next(protocol.parser)
        super().__init__(protocol, server, **settings)
        self.user: User | None = None
        self.admitted = False
        self._on_made = on_made
        self._on_lost = on_lost

    def connection_made(self, transport: Any) -> None:
        """Note the connection before its handshake task can run."""
        self._on_made(self)
        super().connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget it; scanners and health checks that never sent a request leave one debug line."""
        super().connection_lost(exc)
        if self.request is None:
            logger.debug("closed before a request", extra={"connection": str(self.id)})
        self._on_lost(self)
