"""Many models behind one server, over the wire: loads, evictions, and what an administrator does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import pytest

from server.cli import main
from tests.integration.server.conftest import run_checked
from tests.integration.server.wire import Client, client
from tests.support.server import ServerProcess

# One of a, b and c at a time; d for ever on a device of its own.
SETTINGS = """
default_model = "a"
[echo]
load_ms = 50
rate = 200
[placement]
memory_threshold = 1.0
swap_after_s = 0.1
preset = "latency"
[devices.one]
memory_gib = 1
[devices.two]
memory_gib = 1
[models.a]
source = "x"
memory_gib = 1
aliases = ["first"]
[models."b@1"]
source = "x"
memory_gib = 1
[models.c]
source = "x"
memory_gib = 1
[models.d]
source = "x"
memory_gib = 1
pin = true
"""


THREE = {"min_replicas": 3, "max_replicas": 3}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    yield from run_checked(ServerProcess(tmp_path_factory.mktemp("data"), config=SETTINGS))


def loads(server: ServerProcess, *models: str) -> float:
    return sum(server.metric("model_load_seconds_count", model=model) for model in models)


async def states(wire: Client) -> dict[str, str]:
    listed = await wire.do("model.list")
    return {model["id"]: model["state"] for model in listed["data"]}


async def test_models_take_turns(server):
    """Each turn is answered by the model that it names; clients hear how far a load is; what was there goes."""
    async with client(server) as wire:
        for name, other in (("a", "b@1"), ("b", "a"), ("first", "b@1")):
            answer = await wire.ask(f"I am {name}", model=name)
            assert answer.text == f"I am {name}"
            assert answer.response["model"] == {"b": "b@1", "first": "a"}.get(name, name)
            assert (await states(wire))[other] in {"unloaded", "draining"}
        queued = [event["tokenwire"] for event in answer.events if event["type"] == "response.queued"]
        assert {event["reason"] for event in queued} == {"model_loading"}
        assert (await states(wire))["d"] == "ready"
    assert server.metric("model_state", model="a", state="ready") == 1
    assert server.metric("device_taken_bytes", device="one") == 2**30
    assert server.metric("model_evictions_total", model="b@1") >= 1


async def test_abcabc_at_once_takes_three_loads(server):
    """Whoever wants a model that is being loaded, or waits for its turn, is served by the same load."""
    before = loads(server, "a", "b@1", "c")
    async with client(server) as wire:
        await wire.ask("warm", model="a")
        before = loads(server, "a", "b@1", "c")
        turns = [(f"{n}", f"{n} {name}", name) for n, name in enumerate("bcabca")]
        for lane, text, name in turns:
            await wire.create(text, model=name, stream_id=lane)
        for lane, text, _ in turns:
            assert (await wire.answer(lane)).text == text
    assert loads(server, "a", "b@1", "c") - before <= 3


async def test_a_stream_is_not_broken_off_for_another_model(server):
    """B waits for A's last word."""
    async with client(server) as wire:
        await wire.ask("warm", model="a")
        words = " ".join(f"w{n}" for n in range(100))
        await wire.begin(words, model="a", stream_id="a")
        await wire.create("now me", model="b", stream_id="b")
        assert (await wire.answer("a")).text == words
        assert (await wire.answer("b")).text == "now me"


async def test_what_an_administrator_does(server):
    """Added, pinned, renamed, unloaded, removed; each answered by the model as it is then."""
    async with client(server) as wire:
        added = await wire.do("model.add", model="e@2", settings={"source": "x", "memory_gib": 1})
        assert added["type"] == "model.added"
        assert (await wire.ask("I am new", model="e")).text == "I am new"
        moved = await wire.do("model.alias", alias="e", model="a")
        assert moved["model"]["aliases"] == ["first", "e"]
        assert (await wire.ask("who", model="e")).response["model"] == "a"
        loaded = await wire.do("model.load", model="c")
        assert (loaded["type"], loaded["model"]["state"]) == ("model.loaded", "ready")
        pinned = await wire.do("model.pin", model="c")
        assert pinned["model"]["pinned"]
        refused = await wire.ask("no room", model="a")
        assert refused.response["error"]["code"] == "model_unavailable"
        assert "pinned models take all the room" in refused.response["error"]["message"]
        kept = await wire.refused("model.unload", model="c")
        assert kept["message"].startswith("'c' is pinned; unpin it first")
        await wire.do("model.pin", model="c", pinned=False)
        unloaded = await wire.do("model.unload", model="c")
        assert unloaded["model"]["state"] == "unloaded"
        removed = await wire.do("model.remove", model="e@2")
        assert removed["model"] == {"id": "e@2", "object": "model.removed", "removed": True}
        assert "e@2" not in await states(wire)


async def test_an_alias_moves_without_dropping_a_stream(server):
    """What was begun under the name ends where it is; the next turn is the other model's, in the same conversation."""
    async with client(server) as wire:
        for number in (3, 4):
            await wire.do("model.add", model=f"name@{number}", settings={"source": "x", "memory_gib": 0.5})
        await wire.do("model.alias", alias="prod", model="name@3")
        conversation = await wire.conversation()
        words = " ".join(f"w{n}" for n in range(100))
        await wire.begin(words, model="prod", conversation=conversation, stream_id="old")
        await wire.do("model.alias", alias="prod", model="name@4", stream_id="admin")
        await wire.create("and now", model="prod", conversation=conversation, stream_id="new")
        old, new = await wire.answer("old"), await wire.answer("new")
        assert (old.text, old.response["model"]) == (words, "name@3")
        assert (new.text, new.response["model"]) == ("and now", "name@4")
        for number in (3, 4):
            await wire.do("model.remove", model=f"name@{number}")


async def test_removing_a_busy_model_lets_it_finish(server):
    async with client(server) as wire:
        await wire.do("model.add", model="f", settings={"source": "x", "memory_gib": 1})
        words = " ".join(f"w{n}" for n in range(100))
        await wire.begin(words, model="f", stream_id="f")
        await wire.send("model.remove", model="f", stream_id="admin")
        while "f" in await states(wire):  # it is written for other gateways first
            pass
        await wire.create("too late", model="f", stream_id="late")
        assert (await wire.error("late"))["code"] == "model_not_found"
        assert (await wire.answer("f")).text == words
        assert (await wire.lane_event("admin"))["type"] == "model.removed"


@pytest.mark.parametrize(
    ("command", "text"),
    [
        ({"type": "model.load", "model": "aa"}, "there is no model 'aa'; there is a"),
        ({"type": "model.add", "model": "a", "settings": {"source": "x"}}, "the name 'a' is taken"),
        ({"type": "model.add", "model": "n", "settings": {"source": "x", "aliases": ["c"]}}, "the name 'c' is taken"),
        ({"type": "model.add", "model": "n", "settings": {"source": "x", "memory_gib": 2}}, "does not fit"),
        (
            {"type": "model.add", "model": "n", "settings": {"source": "x", "memory_gib": 1, "min_replicas": 3}},
            "models.n.max_replicas: 1 is less than min_replicas (3)",
        ),
        (
            {"type": "model.add", "model": "n", "settings": {"source": "x", "memory_gib": 1, **THREE}},
            "does not fit: min_replicas is 3, and on empty devices there is room for 2",
        ),
        ({"type": "model.add", "model": "n", "settings": {"source": "x", "pins": 1}}, "settings.pins: Extra inputs"),
        ({"type": "model.remove", "model": "a"}, "'a' is the default model"),
        ({"type": "model.remove", "model": "first"}, "an alias is moved, not removed"),
        ({"type": "model.alias", "model": "a", "alias": "c"}, "'c' is a model"),
        ({"type": "model.alias", "model": "a", "alias": "c d"}, "without spaces"),
    ],
)
async def test_what_an_administrator_cannot_do(server, command, text):
    """Refused with the reason; nothing has changed."""
    async with client(server) as wire:
        before = await wire.do("model.list")
        refused = await wire.refused(command["type"], **{k: v for k, v in command.items() if k != "type"})
        assert text in refused["message"]
        after = await wire.do("model.list")
        assert [m["id"] for m in after["data"]] == [m["id"] for m in before["data"]]
        assert [m["aliases"] for m in after["data"]] == [m["aliases"] for m in before["data"]]


@pytest.fixture
def command_line(server, capsys, monkeypatch) -> Callable[..., tuple[int, str]]:
    """Run `tokenwire models` against the server; return its exit code and what it printed."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)

    def run(*arguments: str, url: str = server.url) -> tuple[int, str]:
        code = main(["models", *arguments, "--url", url])
        return code, "".join(capsys.readouterr())

    return run


def test_the_command_line(command_line):
    """Each command does what it says, prints the model as it is then, and fails with the server's words."""
    assert command_line("add", "g", "somewhere", "--set", "memory_gib=1", "--set", "pin=false")[0] == 0
    assert command_line("alias", "gee", "g")[0] == 0
    assert " ready " in command_line("load", "g")[1]
    assert " pinned" in command_line("pin", "g")[1]
    (line,) = [line for line in command_line("list")[1].splitlines() if line.startswith("g ")]
    assert line.split() == ["g", "ready", "two", "0", "0", "pinned;", "also", "gee"]
    assert command_line("unpin", "g")[0] == 0
    assert " unloaded " in command_line("unload", "g")[1]
    assert command_line("remove", "g") == (0, "")
    code, text = command_line("load", "g")
    assert code == 1
    assert text.startswith("tokenwire: there is no model 'g'; there is ")


def test_the_command_line_without_a_server(command_line):
    code, text = command_line("list", url="http://127.0.0.1:9")
    assert code == 2
    assert text.startswith("tokenwire: http://127.0.0.1:9 cannot be asked: ")
    assert text.endswith("is the server running there (--url)?\n")


REPLICAS = """
[echo]
rate = 40
max_concurrency = 2
[placement]
scale_up_delay_s = 0.1
scale_down_after_s = 0.3
[models.m]
source = "x"
max_replicas = 3
[limits]
max_in_flight = 64
"""


async def test_replicas_come_and_go_with_traffic(tmp_path):
    """Turns that wait bring more, each answer is whole; when all is calm, one is left."""
    words = " ".join(f"w{n}" for n in range(20))
    with ServerProcess(tmp_path, config=REPLICAS) as server:
        async with client(server) as wire:

            async def replicas() -> list[str]:
                (model,) = (await wire.do("model.list", stream_id="ask"))["data"]
                return [replica["id"] for replica in model["replicas"]]

            assert await replicas() == ["m#1"]
            for n in range(12):
                await wire.create(words, stream_id=f"l{n}")
            most = 1
            for n in range(12):
                assert (await wire.answer(f"l{n}")).text == words
                most = max(most, len(await replicas()))
            assert most >= 2
            while len(await replicas()) > 1:  # noqa: ASYNC110 nothing tells of it
                await asyncio.sleep(0.02)
        assert server.faults() == []
