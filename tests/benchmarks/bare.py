"""`websockets` alone, without a server around it: what a handshake and a broadcast cost at the least.

Run as `python -m tests.benchmarks.bare`: `{"port": …}` on standard input, then a broadcast a line.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import uvloop
from websockets.asyncio.server import ServerConnection, broadcast, serve

from tests.benchmarks.load import cpu_s, say


async def send(connections: set[ServerConnection], frames: int, size: int, rate: float) -> float:
    """Send so many frames of so many bytes to everybody, at a steady rate; return the CPU time of that."""
    frame = b"x" * size
    used = cpu_s()
    loop = asyncio.get_running_loop()
    began = loop.time()
    for number in range(frames):
        broadcast(connections, frame, text=True)
        await asyncio.sleep(max(0, began + (number + 1) / rate - loop.time()))
    broadcast(connections, b"[DONE]", text=True)
    return cpu_s() - used


async def main() -> None:
    """Serve until told to stop."""
    settings: dict[str, Any] = json.loads(sys.stdin.readline())
    connections: set[ServerConnection] = set()

    async def hold(websocket: ServerConnection) -> None:
        connections.add(websocket)
        try:
            async for _frame in websocket:
                await websocket.send("welcome")
        finally:
            connections.discard(websocket)

    async with serve(hold, "127.0.0.1", settings["port"], compression=None):
        say(ready=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            say(cpu_s=await send(connections, **json.loads(line)))


if __name__ == "__main__":
    uvloop.run(main())
