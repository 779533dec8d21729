"""What is broken when: a seeded plan, and the hands that carry it out."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tests.chaos.world import World
from tests.support.valkey_log import forget_since

PAUSE_S: Final = (0.3, 2.0)  # between the end of one fault and the next
BEYOND_HEARTBEAT_S: Final = 7.0  # a gateway silent for this long has been taken over


@dataclass(frozen=True, slots=True)
class Fault:
    """kind: a method of `Nemesis`. target: a gateway's number. lasts_s: until it is mended. share: of what is cut."""

    kind: str
    target: int
    lasts_s: float
    share: float = 1.0
    seed: int = 0


# kind -> (how often it comes up, shortest and longest time in seconds)
_KINDS: Final[dict[str, tuple[int, float, float]]] = {
    "cut_by_reset": (4, 0, 0.5),
    "cut_by_close": (4, 0, 0.5),
    "kill_gateway": (3, 0, 4),
    "pause_gateway": (2, 0.5, BEYOND_HEARTBEAT_S + 2),
    "drain_gateway": (2, 0, 2),
    "stall": (2, 1, 6),
    "delay": (2, 1, 3),
    "kill_valkey": (2, 0, 3),
    "pause_valkey": (2, 0.3, 7),
    "forget_valkey": (2, 0, 2),
}
_ENGINE_KINDS: Final = {"kill_engine": (3, 0.0, 0.5), "pause_engine": (1, 1.0, 5.0)}


def plan(seed: int, seconds: float, gateways: int, *, engine: str) -> list[Fault]:
    """Return faults that take about so long with the pauses between them."""
    rng = random.Random(seed)
    kinds = _KINDS | (_ENGINE_KINDS if engine == "vllm" else {})
    names, weights = list(kinds), [weight for weight, _, _ in kinds.values()]
    faults: list[Fault] = []
    left = seconds
    while True:
        (kind,) = rng.choices(names, weights)
        _, low, high = kinds[kind]
        fault = Fault(kind, rng.randrange(gateways), rng.uniform(low, high), rng.uniform(0.2, 1), rng.getrandbits(32))
        left -= fault.lasts_s + sum(PAUSE_S) / 2
        if left < 0 and faults:
            return faults
        faults.append(fault)


class Nemesis:
    """Carries a plan out. say: told what is broken and mended."""

    def __init__(self, world: World, say: Callable[[str], None]) -> None:
        self._world = world
        self._say = say

    async def run(self, faults: list[Fault], rng: random.Random) -> None:
        """Break and mend, one after the other; in the end everything is mended."""
        for fault in faults:
            await asyncio.sleep(rng.uniform(*PAUSE_S))
            self._say(f"{fault.kind} g{fault.target} {fault.lasts_s:.1f} s")
            await getattr(self, fault.kind)(fault)
        self._say("all mended")

    # Sockets

    async def cut_by_reset(self, fault: Fault) -> None:
        await self._cut(fault, reset=True)

    async def cut_by_close(self, fault: Fault) -> None:
        await self._cut(fault, reset=False)

    async def _cut(self, fault: Fault, *, reset: bool) -> None:
        rng = random.Random(fault.seed)
        self._world.proxies[fault.target].cut(reset=reset, share=fault.share, rng=rng)
        await asyncio.sleep(fault.lasts_s)

    async def stall(self, fault: Fault) -> None:
        self._world.proxies[fault.target].stall()
        await asyncio.sleep(fault.lasts_s)
        self._world.proxies[fault.target].resume()

    async def delay(self, fault: Fault) -> None:
        self._world.proxies[fault.target].delay_s = 0.2 * fault.share
        await asyncio.sleep(fault.lasts_s)
        self._world.proxies[fault.target].resume()

    # Gateways

    async def kill_gateway(self, fault: Fault) -> None:
        gateway = self._world.gateways[fault.target]
        gateway.process.kill()
        await asyncio.to_thread(gateway.wait)
        await asyncio.sleep(fault.lasts_s)
        await self._world.restart(fault.target)

    async def pause_gateway(self, fault: Fault) -> None:
        gateway = self._world.gateways[fault.target]
        gateway.send(signal.SIGSTOP)
        await asyncio.sleep(fault.lasts_s)
        gateway.send(signal.SIGCONT)

    async def drain_gateway(self, fault: Fault) -> None:
        gateway = self._world.gateways[fault.target]
        gateway.send(signal.SIGTERM)
        code = await asyncio.to_thread(gateway.wait)
        assert code == 0, f"a drained gateway ended with {code}:\n{gateway.tail()}"
        await asyncio.sleep(fault.lasts_s)
        await self._world.restart(fault.target)

    # The store

    async def kill_valkey(self, fault: Fault) -> None:
        self._world.valkey.kill()
        await asyncio.sleep(fault.lasts_s)
        self._world.valkey.start()  # by this thread, which it is tied to; a moment without an event loop does no harm

    async def pause_valkey(self, fault: Fault) -> None:
        self._world.valkey.send(signal.SIGSTOP)
        await asyncio.sleep(fault.lasts_s)
        self._world.valkey.send(signal.SIGCONT)

    async def forget_valkey(self, fault: Fault) -> None:
        """It loses up to a second of what it has acknowledged, as a crash with a slow disk or a failover would."""
        end = self._world.valkey.log_end()
        await asyncio.sleep(fault.share)
        self._world.valkey.kill()
        forget_since(end)
        await asyncio.sleep(fault.lasts_s)
        self._world.valkey.start()

    # Engines

    async def kill_engine(self, fault: Fault) -> None:
        await self._signal_engine(fault, signal.SIGKILL)
        await asyncio.sleep(fault.lasts_s)

    async def pause_engine(self, fault: Fault) -> None:
        await self._signal_engine(fault, signal.SIGSTOP)
        await asyncio.sleep(fault.lasts_s)
        await self._signal_engine(fault, signal.SIGCONT)

    async def _signal_engine(self, fault: Fault, number: signal.Signals) -> None:
        for pid in self._world.gateways[fault.target].engine_pids():
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                pass  # it has ended by itself meanwhile
