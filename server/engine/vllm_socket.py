"""vLLM's socket for outputs, read without what pyzmq does for each message between it and the event loop.

pyzmq's asyncio sockets look at their events four times a message, each an enum made anew, and keep books of whoever
waits. vLLM has one task that reads, and messages of one to three frames.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import zmq
    import zmq.asyncio


class LeanReading:
    """Stands before the reading half of an asyncio socket that one task reads. Its loop is the running one."""

    def __init__(self, socket: zmq.asyncio.Socket) -> None:
        from zmq import EVENTS, NOBLOCK, Again, Socket  # noqa: PLC0415 - imported by vLLM by now

        self._none_yet = Again
        self._now, self._events = int(NOBLOCK), int(EVENTS)  # ints: pyzmq's enums are slow
        self._socket: Any = Socket.shadow(socket.underlying)  # the same, blocking; pyzmq's asyncio half keeps one, too
        self._receive = self._socket.recv
        self._loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[None] | None = None
        owner: Any = socket
        owner._get_loop()  # noqa: SLF001 it begins to watch its file descriptor, until it is closed
        owner._handle_events = self._wake  # noqa: SLF001 this one's: before the class's methods
        owner.recv_multipart = self.recv_multipart

    async def recv_multipart(self, **_how: Any) -> list[zmq.Frame]:
        """Return the next message's frames, as pyzmq does with `copy=False`, which is how vLLM wants them."""
        while True:
            try:
                frame = self._receive(self._now, False)
            except self._none_yet:  # only then will the socket's file descriptor tell of the next one
                await self._woken()
                continue
            frames = [frame]
            while frame.more:
                frame = self._receive(0, False)  # all of a message is there, or nothing
                frames.append(frame)
            return frames

    async def _woken(self) -> None:
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self, _fd: int = 0, _events: int = 0) -> None:
        if self._waiter is None:
            # Nobody reads (any more). The file descriptor stays readable, and the loop awake, until somebody looks.
            if not self._socket.closed:
                self._socket.getsockopt(self._events)
        elif not self._waiter.done():
            self._waiter.set_result(None)
