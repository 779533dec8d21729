"""What goes out on one socket: at once while the client keeps up, by a writer task with back-pressure when not."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from websockets.asyncio.server import ServerConnection
from websockets.exceptions import ConnectionClosed

from server.chat.hub import Subscription
from server.gateway.sockets import push

logger = logging.getLogger(__name__)

FAST_BUFFER_BYTES: Final = 32 * 1024  # bytes the transport may hold before we wait for the client
WAITING_HIGH: Final = 64  # answers and responses that wait for a slow client before its next command is worked on


class Outbox:
    """Frames for one socket.

    Answers to commands are queued whole. Subscriptions are cursors: what a slow client misses is merged when it
    catches up, so its memory is bounded by the answer. A send stuck for `send_timeout_s` ends the connection.
    """

    def __init__(self, websocket: ServerConnection, send_timeout_s: float) -> None:
        self._websocket = websocket
        self._send_timeout_s = send_timeout_s
        # Most clients are never behind: no deque or event (each holds one) before it is needed, 0.8 kB apiece.
        self._answers: list[bytes] = []
        self._ready: dict[Subscription, None] = {}
        self._work: asyncio.Event | None = None
        self._room: asyncio.Event | None = None  # there while there is none: set when there is some
        self._is_writing = False
        self._is_closed = False
        self._task: asyncio.Task[None] | None = None

    def send(self, frame: bytes) -> None:
        """Send an answer; never blocks."""
        if self._is_closed:
            return
        if self._keeps_up():
            push(self._websocket, (frame,))
            return
        self._answers.append(frame)
        self._start_writing()

    def wake(self, subscription: Subscription) -> None:
        """Send what waits in a subscription; never blocks."""
        if self._is_closed:
            return
        if self._keeps_up():
            push(self._websocket, subscription.take())
            return
        self._ready[subscription] = None
        self._start_writing()

    async def write(self, frame: bytes) -> None:
        """Send a frame and wait while the client is behind. Raises ConnectionClosed."""
        try:
            async with asyncio.timeout(self._send_timeout_s):
                await self._websocket.send(frame, text=True)
        except TimeoutError:
            logger.info("client reads too slowly", extra={"connection": str(self._websocket.id)})
            self._websocket.transport.abort()

    async def wait_for_room(self) -> None:
        """Return when little enough waits: a client that does not read is not listened to."""
        if self._room is not None:
            await self._room.wait()

    async def close(self) -> None:
        """Drop what waits; idempotent."""
        self._drop()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def _keeps_up(self) -> bool:
        transport = self._websocket.transport
        return not self._is_writing and transport.get_write_buffer_size() < FAST_BUFFER_BYTES

    def _start_writing(self) -> None:
        """Hand over to the writer; it is made when first needed, since most clients never are behind."""
        self._is_writing = True
        if self._work is None:
            self._work = asyncio.Event()
            self._task = asyncio.create_task(self._run(self._work), name=f"writer {self._websocket.id}")
        self._work.set()
        self._measure()

    async def _run(self, work: asyncio.Event) -> None:
        try:
            while True:
                await work.wait()
                work.clear()
                await self._write_all()
                self._is_writing = False
        except ConnectionClosed:
            self._drop()

    def _drop(self) -> None:
        """Take nothing more: frames read before the end are still handled, and must not wait for room."""
        self._is_closed = True
        self._answers.clear()
        self._ready.clear()
        self._measure()

    async def _write_all(self) -> None:
        while self._answers or self._ready:
            if self._answers:
                await self.write(self._answers.pop(0))
                self._measure()
                continue
            subscription = next(iter(self._ready))
            del self._ready[subscription]
            for frame in subscription.take():
                await self.write(frame)
            self._measure()

    def _measure(self) -> None:
        is_full = len(self._answers) + len(self._ready) >= WAITING_HIGH
        if is_full and self._room is None:
            self._room = asyncio.Event()
        elif self._room is not None and not is_full:
            self._room.set()
            self._room = None
