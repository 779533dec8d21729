"""The network between a browser and a server: the chaos tests' proxy, in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tests.chaos.proxy import Proxy
from tests.support.server import ServerProcess


class Network:
    """Reaches a server at `url`."""

    def __init__(self, server: ServerProcess) -> None:
        self._proxy = Proxy(server.port)
        ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run(ready)), daemon=True)
        self._thread.start()
        assert ready.wait(10)
        self.url = f"http://127.0.0.1:{self._proxy.port}/"

    async def _run(self, ready: threading.Event) -> None:
        self._loop, self._closed = asyncio.get_running_loop(), asyncio.Event()
        await self._proxy.start()
        ready.set()
        await self._closed.wait()
        await self._proxy.close()
        # Clients that were just being accepted: cancelled before they have begun, they would leave open sockets.
        while others := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(others)
        await asyncio.sleep(0)  # a socket is closed one step after its transport

    def _do(self, deed: Callable[[], object]) -> None:
        async def do() -> None:
            deed()

        asyncio.run_coroutine_threadsafe(do(), self._loop).result(10)

    def stall(self) -> None:
        """What is sent gets lost, and nobody is told."""
        self._do(self._proxy.stall)

    def resume(self) -> None:
        self._do(self._proxy.resume)

    def cut(self) -> None:
        """Every connection is reset; new ones can be made."""
        self._do(lambda: self._proxy.cut(reset=True))

    def lead_to(self, server: ServerProcess) -> None:
        """New connections reach another server, as behind a load balancer."""
        self._proxy.target_port = server.port

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._closed.set)
        self._thread.join(10)
        assert not self._thread.is_alive()


@contextmanager
def network(server: ServerProcess) -> Iterator[Network]:
    made = Network(server)
    try:
        yield made
    finally:
        made.close()
