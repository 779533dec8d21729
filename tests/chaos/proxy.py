"""A TCP proxy between clients and one gateway that can cut, delay and stall what passes."""

from __future__ import annotations

import asyncio
import random
import socket
import struct
from typing import Final

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
            await asyncio.wait(ways)
            self.cut(reset=False)

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
                side.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
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
        self._links: dict[Link, asyncio.Task[None] | None] = {}
        self._server: asyncio.Server | None = None

    async def start(self) -> Proxy:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def close(self) -> None:
        """Stop listening and cut everything."""
        if self._server is not None:
            self._server.close()
        self.resume()
        self.cut(reset=True)
        tasks = [task for task in self._links.values() if task is not None]
        if tasks:
            await asyncio.wait(tasks)

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
        try:
            from_gateway, gateway = await asyncio.open_connection("127.0.0.1", self.target_port)
        except OSError:
            client.transport.abort()
            return
        link = Link(self, client, gateway)
        self._links[link] = asyncio.current_task()
        try:
            await link.run(from_client, from_gateway)
        finally:
            del self._links[link]
