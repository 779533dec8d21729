"""One accepted TCP connection, as websockets sees it, made ready for requests that are no WebSocket handshake."""

from __future__ import annotations

import logging
import time
import weakref
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, Final

from websockets.asyncio.server import Server, ServerConnection
from websockets.frames import DATA_OPCODES, Frame, Opcode
from websockets.protocol import CONNECTING, OPEN, Event, Protocol
from websockets.server import ServerProtocol
from websockets.streams import StreamReader

from server.access.auth import User
from server.access.limits import Hold

logger = logging.getLogger(__name__)

_BODY_HEADERS: Final = (b"content-length:", b"transfer-encoding:")

# uvloop hands over 256 kB at once, up to 32 times before any other socket gets its turn. That may be a million frames.
PIECE_BYTES: Final = 4096  # worked on at once: some milliseconds where it is all empty frames
TURN_S: Final = 0.005  # then the others have their turn
MAX_UNREAD_PONGS_BYTES: Final = 256 * 1024  # answers to pings that a client may leave unread


def _never() -> bool:
    return False


def push(websocket: ServerConnection, messages: Iterable[bytes]) -> None:
    """Write text frames now, without back-pressure; nothing goes to a socket that closes.

    What websockets' `broadcast` does for one socket, in half its time. We negotiate no extension and send no fragments,
    so a frame is its head and the message (RFC 6455 section 5.2).
    """
    if websocket.protocol.state is OPEN:
        websocket.transport.write(b"".join([part for message in messages for part in (_head(len(message)), message)]))


@lru_cache(maxsize=1024)
def _head(size: int) -> bytes:
    """Return the head of a whole, unmasked text frame."""
    return Frame(Opcode.TEXT, bytes(size)).serialize(mask=False)[: -size or None]


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
            if line[:1] not in b"cCtT" or not line.lower().startswith(_BODY_HEADERS):
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

    What a client sends is worked on in small pieces, and others have their turn between them: websockets parses and
    answers whatever one read brings in one go, and a flood of tiny frames on one socket would stop all the others for
    seconds. Its pongs obey no back-pressure, so who sends pings without end and never reads is cut.

    user: set at the handshake. admitted: whether it holds one of the `limits.max_connections` places. place: what it
    holds of its user's.
    peer, address: whose TCP connection it is, and whose request (behind a proxy another one's). has_come: whether the
    request has come.
    on_made: called with the peer's address, returns whether the connection may stay. on_lost: called once, when it is
    gone.
    """

    def __init__(
        self,
        protocol: ServerProtocol,
        server: Server,
        *,
        on_made: Callable[[GatewayConnection, str], bool],
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
        self.place: Hold | None = None
        self.peer = self.address = ""
        self.has_come = False
        self._is_busy: Callable[[], bool] = _never
        self._heard_at = time.monotonic()
        self._on_made = on_made
        self._on_lost = on_lost
        self._unread = bytearray()
        self._is_full = False  # as many frames as may wait do wait for the handler
        self._has_turn = False  # the event loop will call `_go_on`
        self._at_eof = False
        self._unread_pongs = 0  # bytes

    def hold(self, is_held: bool) -> None:
        """Take in one frame and no more of who has not signed in; later, as many as usual."""
        messages = self.recv_messages
        if is_held:
            self._usual = messages.high, messages.low
            messages.high = messages.low = 0
        else:
            messages.high, messages.low = self._usual

    def connection_made(self, transport: Any) -> None:
        """Note the connection before its handshake task can run."""
        name = transport.get_extra_info("peername")
        self.peer = self.address = str(name[0]) if isinstance(name, tuple) and name else ""
        may_stay = self._on_made(self, self.peer)
        super().connection_made(transport)
        if not may_stay:
            transport.abort()
        self.recv_messages.pause = self._pause
        self.recv_messages.resume = self._resume

    @property
    def idle_s(self) -> float:
        """How long the client has sent no message, while nothing was done for it."""
        if self._is_busy():
            self._heard_at = time.monotonic()
        return time.monotonic() - self._heard_at

    @contextmanager
    def busy_when(self, condition: Callable[[], bool]) -> Iterator[None]:
        """Do not count the client as idle, while inside, when the condition holds."""
        self._is_busy = condition
        try:
            yield
        finally:
            self._is_busy = _never  # a closed connection is freed at once: no reference cycle

    def process_event(self, event: Event) -> None:
        """Note when a client says something; pings and pongs are the network's."""
        if isinstance(event, Frame) and event.opcode in DATA_OPCODES:
            self._heard_at = time.monotonic()
        super().process_event(event)

    def data_received(self, data: bytes) -> None:
        """Work on it now if it is little, else piece by piece."""
        self._unread += data
        if not self._has_turn:
            self._go_on()

    def eof_received(self) -> bool:  # type: ignore[override]  # asyncio takes both, and websockets says None for False
        """Say to keep the transport open (True) until everything before the end has been worked on."""
        self._at_eof = True
        if not self._unread:
            super().eof_received()
        return bool(self._unread)

    def _pause(self) -> None:
        self._is_full = True
        self.transport.pause_reading()

    def _resume(self) -> None:
        self._is_full = False
        self._give_turn()

    def _give_turn(self) -> None:
        if not self._has_turn:
            self._has_turn = True
            self.loop.call_soon(self._take_turn)

    def _take_turn(self) -> None:
        self._has_turn = False
        if not self.transport.is_closing():
            self._go_on()

    def _go_on(self) -> None:
        """Work on what came, for a turn; read on when all of it is done."""
        if not self.transport.get_write_buffer_size():
            self._unread_pongs = 0
        ends_at = time.monotonic() + TURN_S
        while self._unread and not self._is_full:
            if time.monotonic() >= ends_at:
                self.transport.pause_reading()
                self._give_turn()
                return
            piece = bytes(self._unread[:PIECE_BYTES])
            del self._unread[:PIECE_BYTES]
            self._work_on(piece)
        if self._is_full or self.transport.is_closing():
            return
        if self._at_eof:
            super().eof_received()
            self.transport.close()
        else:
            self.transport.resume_reading()

    def _work_on(self, piece: bytes) -> None:
        unsent = self.transport.get_write_buffer_size()
        super().data_received(piece)
        self._unread_pongs += max(0, self.transport.get_write_buffer_size() - unsent)
        if self._unread_pongs > MAX_UNREAD_PONGS_BYTES:
            logger.info("client sends pings and reads no pongs", extra={"connection": str(self.id)})
            self._unread.clear()
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget it; scanners and health checks that never sent a request leave one debug line."""
        self._unread.clear()
        super().connection_lost(exc)
        if self.request is None:
            logger.debug("closed before a request", extra={"connection": str(self.id)})
        self._on_lost(self)
