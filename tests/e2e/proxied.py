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
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._proxy.start(), self._loop).result(10)
        self.url = f"http://127.0.0.1:{self._proxy.port}/"

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
        asyncio.run_coroutine_threadsafe(self._proxy.close(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()


@contextmanager
def network(server: ServerProcess) -> Iterator[Network]:
    made = Network(server)
    try:
        yield made
    finally:
        made.close()
