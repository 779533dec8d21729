"""A primary and its replica behind one address, as a managed Redis has it, and failovers that lose what lagged."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Self

import redis

from tests.chaos.proxy import Proxy
from tests.chaos.world import Valkey
from tests.support.server import POLL_S

SYNC_S: Final = 20  # for a replica to have everything


class Node(Valkey):
    """One of the two. Its port stays the same."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        folder.mkdir(parents=True, exist_ok=True)
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            self.port: int = taken.getsockname()[1]
        self.options = ("--bind", "127.0.0.1", "--port", str(self.port))

    def call(self, *arguments: Any) -> Any:
        with redis.Redis(unix_socket_path=str(self.socket), decode_responses=True) as client:
            return client.execute_command(*arguments)

    def follow(self, port: int) -> None:
        self.call("REPLICAOF", "127.0.0.1", port)


class Pair:
    """Gateways are given `url`; whoever is primary answers there."""

    def __init__(self, folder: Path) -> None:
        self.primary, self.replica = Node(folder / "one"), Node(folder / "two")
        self._address = Proxy(self.primary.port)
        self._link = Proxy(self.primary.port)  # between the two

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self._address.port}"

    async def __aenter__(self) -> Self:
        await self._address.start()
        await self._link.start()
        self.start()
        await self._until_synced()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._address.close()
        await self._link.close()
        self.kill()

    def start(self) -> None:
        for node in (self.primary, self.replica):
            if node.process is None:
                node.start()
        self.replica.follow(self._link.port)

    def kill(self) -> None:
        self.primary.kill()
        self.replica.kill()

    async def fail_over(self, seen: Callable[[], bool], *, away_s: float = 0.2) -> None:
        """Kill the primary, and with it all that came since now, once `seen`; the replica takes its place."""
        self._link.stall()
        while not seen():  # noqa: ASYNC110 nothing tells of it
            await asyncio.sleep(POLL_S)
        self.primary.kill()
        self._link.cut(reset=True)
        await asyncio.sleep(away_s)
        self.replica.call("REPLICAOF", "NO", "ONE")
        self.primary, self.replica = self.replica, self.primary
        self._address.target_port = self._link.target_port = self.primary.port
        self._address.cut(reset=True)
        self._link.resume()

    async def rejoin(self) -> None:
        """Start the one that was killed as the replica of the other."""
        self.start()
        await self._until_synced()

    async def _until_synced(self) -> None:
        async with asyncio.timeout(SYNC_S):
            while self.replica.call("INFO", "replication")["master_link_status"] != "up":  # noqa: ASYNC110 as above
                await asyncio.sleep(POLL_S)
