"""A TCP proxy between clients and one gateway that can cut, delay and stall what passes."""

from __future__ import annotations

import asyncio
import random
import socket
import struct
from typing import Final

from tests.support.listening import accept_no_more

CHUNK: Final = 16 * 1024
_RESET: Final = struct.pack("ii", 1, 0)  # SO_LINGER of 0 s: closing sends RST


class Link:
    """One client's connection and ours to the gateway."""

    def __init__(self, proxy: Proxy, client: asyncio.StreamWriter, gateway: asyncio.StreamWriter) -> None:
        self._proxy = proxy
        self._sides = (client, gateway)

    async def run(self, from_client: asyncio.StreamReader, from_gateway: asyncio.StreamReader) -> None:
        """Carry bytes both ways until one side ends or it is cut."""
        client, gateway = self._sides
        ways = [
            asyncio.create_task(self._carry(from_client, gateway)),
            asyncio.create_task(self._carry(from_gateway, client)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            self.cut(reset=False)
            await asyncio.wait(ways)
            await asyncio.gather(*(side.wait_closed() for side in self._sides), return_exceptions=True)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(CHUNK):
                await self._proxy.flowing.wait()
                if self._proxy.delay_s:
                    await asyncio.sleep(self._proxy.delay_s)
                writer.write(data)
                await writer.drain()
        except OSError:
            pass  # one side is gone; the other one is closed by `run`

    def cut(self, *, reset: bool) -> None:
        """Close both sides, by RST or by FIN."""
        for side in self._sides:
            if reset:
                own_socket = side.get_extra_info("socket")
                if own_socket.fileno() >= 0:  # not closed by then
                    own_socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                side.transport.abort()
            else:
                side.close()


class Proxy:
    """Listens on a port of its own. target_port: the gateway's, which stays the same when it is restarted."""

    def __init__(self, target_port: int) -> None:
        self.target_port = target_port
        self.port = 0
        self.delay_s = 0.0
        self.flowing = asyncio.Event()
        self.flowing.set()
        self._links: set[Link] = set()
        self._tasks: set[asyncio.Task[None]] = set()  # one for each client, also for those without a link yet
        self._server: asyncio.Server | None = None
        self._closed = False

    async def start(self) -> Proxy:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def close(self) -> None:
        """Stop listening and cut everything."""
        self._closed = True  # a client may have been accepted whose task has not begun
        if self._server is not None:
            await accept_no_more(self._server)
            self._server.close()
        self.resume()
        self.cut(reset=True)
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def cut(self, *, reset: bool, share: float = 1.0, rng: random.Random | None = None) -> int:
        """Cut connections; return how many. share: of the connections, chosen by `rng`."""
        links = list(self._links)
        if rng is not None:
            links = [link for link in links if rng.random() < share]
        for link in links:
            link.cut(reset=reset)
        return len(links)

    def stall(self) -> None:
        """Let nothing pass; the buffers of both sides fill."""
        self.flowing.clear()

    def resume(self) -> None:
        """Let everything pass again."""
        self.flowing.set()
        self.delay_s = 0.0

    async def _accept(self, from_client: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            if not self._closed:
                await self._lead(from_client, client)
        except asyncio.CancelledError:
            if not self._closed:
                raise  # `close` cancels it; asyncio would log that as a fault of the callback
        finally:
            client.transport.abort()
            self._tasks.discard(task)

    async def _lead(self, from_client: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        try:
            from_gateway, gateway = await asyncio.open_connection("127.0.0.1", self.target_port)
        except OSError:
            return
        link = Link(self, client, gateway)
        self._links.add(link)
        try:
            await link.run(from_client, from_gateway)
        finally:
            self._links.discard(link)
