"""Ending asyncio's servers in the tests' own process, where a socket left open fails whichever test comes next."""

from __future__ import annotations

import asyncio


async def accept_no_more(server: asyncio.Server) -> None:
    """To be awaited before `close`: a server that is closed while it accepts a client forgets the client's socket."""
    for listening in server.sockets:
        asyncio.get_running_loop().remove_reader(listening.fileno())
    for _ in range(2):  # until each has a transport, and until its connection is made
        await asyncio.sleep(0)
