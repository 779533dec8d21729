"""One seeded run: people talk, the nemesis breaks things, and in the end the checker judges."""

from __future__ import annotations

import asyncio
import random
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.chaos.checker import Dump, History, Violation, check, response_of, save, summary
from tests.chaos.clients import Client, Reader, Talker, Watcher
from tests.chaos.nemesis import Nemesis, plan
from tests.chaos.world import World

CONVERSATIONS: Final = 5
TALKERS: Final = 9
WATCHERS: Final = 5
RATE: Final = 30.0  # tokens a second
WORDS: Final = (5, 90)  # of a turn
CANCELLED: Final = 0.15  # share of turns that are stopped on the way
SETTLE_S: Final = 90.0  # after the last fault everything ends within this
VLLM_SETTLE_S: Final = 240.0
# Short, so that a short run comes to see what happens beyond them.
CONFIG: Final[dict[str, dict[str, Any]]] = {
    # Journals outlive the longest storm: at its end every answer is read again from its first event.
    "store": {"unavailable_timeout_s": 4.0, "operation_timeout_s": 1.5, "journal_ttl_s": 6 * 3600},
    "limits": {"queued_repeat_s": 3.0, "send_timeout_s": 4.0, "ping_interval_s": 4.0, "ping_timeout_s": 4.0},
}


@dataclass
class Verdict:
    """violations: empty when every promise was kept. folder: where a failing run's histories are."""

    seed: int
    violations: list[Violation]
    summary: str
    folder: Path | None = None

    def __str__(self) -> str:
        if not self.violations:
            return f"seed {self.seed}: all promises kept; {self.summary}"
        listed = "\n".join(f"  {violation}" for violation in self.violations[:50])
        return f"seed {self.seed}: {len(self.violations)} broken promises; {self.summary}; {self.folder}\n{listed}"


class Storm:
    """One run in a world that is up. say: told what happens."""

    def __init__(self, world: World, seed: int, say: Callable[[str], None]) -> None:
        self.history = History()
        self._world = world
        self._seed = seed
        self._rng = random.Random(seed)
        self._tell = say
        self._stop = asyncio.Event()
        self._conversations: list[str] = []
        self._began = time.monotonic()

    def _say(self, text: str) -> None:
        self.history.notes.append((asyncio.get_running_loop().time(), text))
        self._tell(f"{time.monotonic() - self._began:6.1f} s  {text}")

    def _client(self, kind: type[Any], index: int, **options: Any) -> Any:
        rng = random.Random(self._rng.getrandbits(32))
        name = f"{kind.__name__.lower()}{index}"
        # Every other one does not notice a silent path by itself: the server must see to it that it is not forgotten.
        return kind(name, self._world.addresses, self.history, rng, first=index, pings=index % 2 == 0, **options)

    async def run(self, seconds: float) -> Verdict:
        """Talk and break for so long, let everything end, and judge."""
        opener = self._client(Client, 0)
        for index in range(CONVERSATIONS):
            made = await opener.ask("conversation.create", metadata={"n": str(index)})
            self._conversations.append(made["conversation"]["id"])
        await opener.leave()
        watchers = [
            self._client(Watcher, index, conversation=self._conversations[index % CONVERSATIONS])
            for index in range(WATCHERS)
        ]
        talkers = [self._client(Talker, index, small_buffer=index == TALKERS - 1) for index in range(TALKERS)]
        talkers[-1].pause_s = 0.3
        watching = [asyncio.create_task(watcher.run()) for watcher in watchers]
        talking = [asyncio.create_task(self._talk(talker), name=talker.name) for talker in talkers]
        try:
            faults = plan(self._seed, seconds, len(self._world.gateways), engine=self._world.engine)
            await Nemesis(self._world, self._say).run(faults, self._rng)
            self._stop.set()
            dump = await self._settle(talking, watchers)
        except Exception:  # noqa: BLE001 a run that breaks is a failed run, whose histories are wanted most
            return self._judge(Dump(), [Violation("run", traceback.format_exc())])
        finally:
            for task in (*watching, *talking):
                task.cancel()
            await asyncio.wait([*watching, *talking])
        return self._judge(dump, [])

    async def _talk(self, talker: Talker) -> None:
        rng = random.Random(self._rng.getrandbits(32))
        for number in range(1_000_000):
            if self._stop.is_set():
                break
            words = rng.randint(*WORDS)
            text = " ".join(f"{talker.name}·{number}·{word}" for word in range(words)) + rng.choice(["", "\n", " é🫠"])
            conversation = rng.choice([*self._conversations, None])
            cancel_after = rng.randint(2, 30) if rng.random() < CANCELLED else None
            length = {} if self._world.engine == "echo" else {"max_output_tokens": words}
            await talker.say(text, conversation, cancel_after=cancel_after, truncation="auto", **length)
            if rng.random() < 0.2:
                await talker.leave()
        await talker.leave()

    # The end

    async def _settle(self, talking: list[asyncio.Task[None]], watchers: list[Watcher]) -> Dump:
        """Wait for the ends, a bounded time, and ask the servers what they have."""
        deadline = time.monotonic() + (SETTLE_S if self._world.engine == "echo" else VLLM_SETTLE_S)
        await asyncio.wait(talking, timeout=deadline - time.monotonic())
        self._say(f"{sum(not task.done() for task in talking)} clients still wait")
        for task in talking:
            if task.done():
                task.result()
        while True:
            dump = await self._dump()
            quiet = not any(dump.gauges.values()) and not any(any(told) for told in dump.running.values())
            if (quiet and all(w.is_subscribed and not w.open for w in watchers)) or time.monotonic() > deadline:
                break
            await asyncio.sleep(0.2)
        for watcher in watchers:
            if not watcher.is_subscribed or watcher.open:
                self._say(f"{watcher.name} waits for {sorted(watcher.open) or 'its subscription'}")
        if quiet:
            await self._read_all(list(dump.responses))
        self._say("read everything")
        return dump

    async def _read_all(self, responses: list[str]) -> None:
        """Read every response again, at every gateway."""
        for index in range(len(self._world.gateways)):
            reader = self._client(Reader, index)
            for response in responses:
                async with asyncio.timeout(20):
                    await reader.read(response)
            await reader.leave()

    async def _dump(self) -> Dump:
        return await asyncio.to_thread(dump_of, self._world, self.history, self._conversations)

    def _judge(self, dump: Dump, violations: list[Violation]) -> Verdict:
        gone = [index for index, gateway in enumerate(self._world.gateways) if gateway.process.poll() is not None]
        violations += [Violation("gateways_live", f"g{index} has ended by itself") for index in gone]
        if not violations:
            violations += check(self.history, dump, echo=self._world.engine == "echo")
        violations += [Violation("logs", line.strip()) for line in self._world.faults()]
        verdict = Verdict(self._seed, violations, summary(self.history, dump))
        if violations:
            verdict.folder = Path(tempfile.mkdtemp(prefix=f"chaos-{self._seed}-"))
            save(self.history, dump, verdict.folder)
            for index, gateway in enumerate(self._world.gateways):
                (verdict.folder / f"g{index}.log").write_text("".join(gateway.log), "utf-8")
        return verdict


def dump_of(world: World, history: History, conversations: list[str]) -> Dump:
    """Ask every gateway what it has."""
    dump = Dump()
    responses = {r for frame in history.frames if (r := response_of(frame.event))}
    for index, gateway in enumerate(world.gateways):
        for conversation in conversations:
            dump.running.setdefault(conversation, []).append(
                gateway.get(f"/v1/conversations/{conversation}")[1]["running_response"]
            )
            items = gateway.get(f"/v1/conversations/{conversation}/items?limit=1000")[1]["data"]
            dump.items.setdefault(conversation, []).append(items)
            responses |= {item["response_id"] for item in items if item.get("response_id")}
        dump.gauges[f"g{index} responses_running"] = gateway.metric("responses_running")
        models = gateway.get("/v1/models")[1]["data"]
        dump.gauges[f"g{index} engine running"] = sum(model["running"] for model in models)
        dump.gauges[f"g{index} engine waiting"] = sum(model["waiting"] for model in models)
    for response in sorted(responses):
        told = [gateway.get(f"/v1/responses/{response}") for gateway in world.gateways]
        dump.responses[response] = [stored for status, stored in told if status == 200]
        if not dump.responses[response]:
            del dump.responses[response]
    return dump


async def storm(
    seed: int,
    seconds: float,
    *,
    gateways: int = 2,
    engine: str = "echo",
    options: tuple[str, ...] = (),
    say: Callable[[str], None] = lambda _text: None,
) -> Verdict:
    """Run one storm in a world of its own."""
    async with World(gateways, rate=RATE, engine=engine, options=options, config=CONFIG) as world:
        return await Storm(world, seed, say).run(seconds)
