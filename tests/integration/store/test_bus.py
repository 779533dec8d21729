"""Wake-ups between gateways, on real servers: what is heard, what a gap is, and what survives a restart."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from redis.asyncio.client import PubSub

from server.config import StoreConfig
from server.store import bus as buses
from server.store.bus import Bus
from tests.support.memory import until

GAP = {"gap": True}


class Ear:
    """A handler that keeps what it hears."""

    def __init__(self) -> None:
        self.heard: list[Any] = []

    def __call__(self, message: dict[str, Any]) -> None:
        self.heard.append(message)

    @property
    def news(self) -> list[Any]:
        return [message for message in self.heard if message != GAP]

    async def until(self, count: int) -> list[Any]:
        await until(lambda: len(self.news) >= count)
        return self.news


OpenBus = Callable[..., Awaitable[Bus]]


@pytest.fixture
async def open_bus(prefix) -> AsyncIterator[OpenBus]:
    """Open buses that are closed at the end. They have connected when they come."""
    opened: list[Bus] = []

    async def open_one(url: str, **settings: Any) -> Bus:
        bus = Bus(url, StoreConfig(key_prefix=prefix, **settings))
        opened.append(bus)
        bus.start()
        await until(lambda: bus._pubsub)
        return bus

    yield open_one
    for bus in opened:
        await bus.close()


@pytest.fixture
async def pair(open_bus, shared_server) -> tuple[Bus, Bus]:
    """Two gateways."""
    return await open_bus(shared_server.url), await open_bus(shared_server.url)


def subscribers(server, prefix, channel) -> int:
    return int(server.call("PUBSUB", "NUMSUB", f"{prefix}:bus:{channel}")[1])


async def test_what_one_says_the_others_hear(pair):
    """On its channel only, in order, and the speaker hears itself."""
    one, two = pair
    here, there, other = Ear(), Ear(), Ear()
    await one.subscribe("c", here)
    await two.subscribe("c", there)
    await two.subscribe("d", other)
    for number in range(100):
        one.publish("c", {"n": number})
    expected = [{"n": number} for number in range(100)]
    assert await here.until(100) == expected
    assert await there.until(100) == expected
    assert other.news == []


async def test_a_confirmed_subscription_hears_what_is_said_next(pair):
    """By anybody, however soon: `subscribe` returns when the server has it."""
    one, two = pair
    for number in range(20):
        ear = Ear()
        await one.subscribe(f"c{number}", ear)
        two.publish(f"c{number}", {"n": number})
        assert await ear.until(1) == [{"n": number}]


async def test_messages_that_meet_are_sent_together(pair, shared_server):
    """Equal ones once; a burst costs one round trip."""
    one, two = pair
    ear = Ear()
    await two.subscribe("c", ear)
    for _ in range(50):
        one.publish("c", {"wake": True})
    one.publish("c", {"last": True})
    assert await ear.until(2) == [{"wake": True}, {"last": True}]


async def test_several_handlers_of_one_channel(pair, shared_server, prefix):
    """Each is called; the channel is left with the last of them; leaving twice is harmless."""
    one, two = pair
    ears = [Ear(), Ear()]
    for ear in ears:
        await one.subscribe("c", ear)
    await one.unsubscribe("c", ears[0])
    await one.unsubscribe("c", ears[0])
    two.publish("c", {"n": 1})
    assert await ears[1].until(1) == [{"n": 1}]
    assert ears[0].news == []
    await one.unsubscribe("c", ears[1])
    await until(lambda: subscribers(shared_server, prefix, "c") == 0)
    await one.unsubscribe("never", ears[1])


async def test_leaving_and_coming_at_once(pair, shared_server, prefix):
    """A subscription that meets the end of another one of its channel holds."""
    one, two = pair
    for _ in range(20):
        old, new = Ear(), Ear()
        await one.subscribe("c", old)
        await asyncio.gather(one.unsubscribe("c", old), one.subscribe("c", new))
        two.publish("c", {"n": 1})
        assert await new.until(1) == [{"n": 1}]
        assert old.news == []
        await one.unsubscribe("c", new)
    await until(lambda: subscribers(shared_server, prefix, "c") == 0)


async def test_a_handler_that_fails(pair, caplog):
    """It is logged; the others are called, and the bus goes on."""
    one, _ = pair

    def fails(message: dict[str, Any]) -> None:
        raise ZeroDivisionError

    ear = Ear()
    await one.subscribe("c", fails)
    await one.subscribe("c", ear)
    await one.subscribe("d", ear)
    one.publish("c", {"n": 1})
    one.publish("d", {"n": 2})
    await ear.until(2)
    assert "ZeroDivisionError" in caplog.text


async def test_what_a_stranger_says(pair, shared_server, prefix, caplog):
    """Something that is not ours in our channel harms nothing."""
    one, _ = pair
    ear = Ear()
    await one.subscribe("c", ear)
    for text in ("{", "3", ""):
        shared_server.call("PUBLISH", f"{prefix}:bus:c", text)
    one.publish("c", {"n": 1})
    await until(lambda: {"n": 1} in ear.heard)


async def test_a_restart_of_the_server(open_bus, own_server, monkeypatch):
    """The bus comes back by itself, tells every handler of the gap, and hears again what is said."""
    monkeypatch.setattr(buses, "RECONNECT_FIRST_S", 0.01)
    monkeypatch.setattr(buses, "RECONNECT_MAX_S", 0.05)
    one, two = await open_bus(own_server.url), await open_bus(own_server.url)
    ears = [Ear(), Ear()]
    for ear, channel in zip(ears, ("c", "d"), strict=True):
        await one.subscribe(channel, ear)
    own_server.stop()
    own_server.start()
    await until(lambda: all(GAP in ear.heard for ear in ears))
    await until(lambda: two._pubsub)
    for ear, channel in zip(ears, ("c", "d"), strict=True):
        two.publish(channel, {"n": 1})
        await ear.until(1)


async def test_a_connection_that_is_cut(open_bus, own_server):
    """By a proxy or an operator, with the server well: messages may have been missed, so a gap is told."""
    one, two = await open_bus(own_server.url), await open_bus(own_server.url)
    ear = Ear()
    await one.subscribe("c", ear)
    own_server.call("CLIENT", "KILL", "TYPE", "pubsub")
    await until(lambda: GAP in ear.heard)
    two.publish("c", {"n": 1})
    await until(lambda: {"n": 1} in ear.heard)


async def test_without_a_server(open_bus, own_server, monkeypatch):
    """Subscribing waits for a bounded time, speaking not at all; the subscription holds when the server is there."""
    monkeypatch.setattr(buses, "RECONNECT_FIRST_S", 0.01)
    monkeypatch.setattr(buses, "RECONNECT_MAX_S", 0.05)
    monkeypatch.setattr(buses, "SUBSCRIBE_TIMEOUT_S", 0.05)
    bus = await open_bus(own_server.url)
    own_server.stop()
    await until(lambda: bus._pubsub is None)
    ear = Ear()
    await bus.subscribe("c", ear)
    bus.publish("c", {"lost": True})
    own_server.start()
    await until(lambda: GAP in ear.heard)
    bus.publish("c", {"n": 1})
    await until(lambda: {"n": 1} in ear.heard)


async def test_subscribing_while_it_connects(open_bus, own_server, monkeypatch):
    """Between the list of channels that a new connection asks for and its being there: it is asked for, too."""
    monkeypatch.setattr(buses, "RECONNECT_FIRST_S", 0.01)
    bus = await open_bus(own_server.url)
    subscribe = PubSub.subscribe
    entered, go_on = asyncio.Event(), asyncio.Event()

    async def slowly(pubsub: Any, *channels: str) -> None:
        await subscribe(pubsub, *channels)
        entered.set()
        await go_on.wait()

    monkeypatch.setattr(PubSub, "subscribe", slowly)
    own_server.call("CLIENT", "KILL", "TYPE", "pubsub")
    await entered.wait()
    ear = Ear()
    subscribing = asyncio.create_task(bus.subscribe("late", ear))
    await asyncio.sleep(0)
    go_on.set()
    await subscribing
    bus.publish("late", {"n": 1})
    await until(lambda: {"n": 1} in ear.heard)


async def test_a_server_that_hangs(open_bus, own_server):
    """It is waited for without a spin; what was said to it meanwhile may be lost, what is said afterwards is heard."""
    bus = await open_bus(own_server.url)
    ear = Ear()
    await bus.subscribe("c", ear)
    own_server.send(signal.SIGSTOP)
    bus.publish("c", {"n": 0})
    own_server.send(signal.SIGCONT)
    bus.publish("c", {"n": 1})
    await until(lambda: {"n": 1} in ear.heard)


async def test_silence_is_no_fault(open_bus, own_server, monkeypatch):
    """A server that has nothing to say answers pings: no gap is told for it."""
    monkeypatch.setattr(buses, "POLL_S", 0.2)
    one, two = await open_bus(own_server.url), await open_bus(own_server.url)
    ear = Ear()
    await one.subscribe("c", ear)
    await asyncio.sleep(1)
    two.publish("c", {"n": 1})
    await until(lambda: ear.heard)
    assert ear.heard == [{"n": 1}]


async def test_a_server_that_is_gone_without_a_word(open_bus, own_server, tmp_path, monkeypatch):
    """Its machine fails, and another one has its address: the old connection stays open and silent."""
    monkeypatch.setattr(buses, "POLL_S", 0.1)
    gone = asyncio.Event()
    ways: set[asyncio.Task[None]] = set()

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, is_old: bool) -> None:
        try:
            while (data := await reader.read(4096)) and not (is_old and gone.is_set()):
                writer.write(data)
            if is_old:
                await asyncio.Event().wait()
        finally:
            writer.close()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there = await asyncio.open_unix_connection(own_server.socket)
        for way in (carry(reader, there[1], not gone.is_set()), carry(there[0], writer, not gone.is_set())):
            ways.add(asyncio.create_task(way))

    async with await asyncio.start_unix_server(accept, tmp_path / "address"):
        bus = await open_bus(f"unix://{tmp_path}/address")
        ear = Ear()
        await bus.subscribe("c", ear)
        gone.set()
        await until(lambda: GAP in ear.heard)
        other = await open_bus(own_server.url)
        other.publish("c", {"n": 1})
        await until(lambda: {"n": 1} in ear.heard)
        await bus.close()
        for way in ways:
            way.cancel()
        await asyncio.wait(ways)


async def test_a_cancelled_subscription_leaves_nothing(pair, shared_server, prefix):
    """Neither a handler here nor a channel there."""
    one, two = pair
    ear = Ear()
    subscribing = asyncio.create_task(one.subscribe("c", ear))
    await asyncio.sleep(0)
    subscribing.cancel()
    await asyncio.wait([subscribing])
    await until(lambda: subscribers(shared_server, prefix, "c") == 0)
    two.publish("c", {"n": 1})
    other = Ear()
    await one.subscribe("d", other)
    two.publish("d", {"n": 1})
    await other.until(1)
    assert ear.heard == []


async def test_closing(open_bus, shared_server):
    """Twice is once; speaking into a closed bus is harmless."""
    bus = await open_bus(shared_server.url)
    await bus.subscribe("c", Ear())
    await bus.close()
    await bus.close()
    bus.publish("c", {"n": 1})
