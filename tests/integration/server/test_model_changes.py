"""Models changed while servers run: the same on two gateways, and after a restart."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from urllib.parse import quote

from server.cli import main
from tests.integration.server.wire import Client, client
from tests.support.server import ServerProcess

SETTINGS = """
default_model = "a"
[models.a]
source = "x"
[models.b]
source = "x"
aliases = ["chat"]
"""


async def listed(user: Client) -> dict[str, tuple[list[str], bool]]:
    return {row["id"]: (row["aliases"], row["pinned"]) for row in (await user.do("model.list"))["data"]}


async def until(look: Callable[[], Awaitable[object]], wanted: object) -> None:
    """Return when another gateway has heard of it, which nothing tells of."""
    async with asyncio.timeout(20):
        while await look() != wanted:  # noqa: ASYNC110 as above
            await asyncio.sleep(0.02)


async def test_two_gateways_and_a_restart(tmp_path: Path) -> None:
    """Added, renamed, pinned and removed on either of them; the settings files stay as they are."""
    first = ServerProcess(tmp_path / "first", config=SETTINGS)
    await asyncio.to_thread(first.start)
    redis = f"unix://{quote(str(first.data_dir / 'valkey' / 'socket'))}"
    second = ServerProcess(tmp_path / "second", "--redis-url", redis, config=SETTINGS)
    await asyncio.to_thread(second.start)
    with first, second:
        async with client(first) as here, client(second) as there:
            assert (await here.do("model.add", model="c", settings={"source": "y"}))["type"] == "model.added"
            assert (await here.do("model.alias", alias="chat", model="c"))["type"] == "model.aliased"
            await until(lambda: listed(there), {"a": ([], False), "b": ([], False), "c": (["chat"], False)})
            answer = await there.ask("hello", model="chat")
            assert (answer.response["model"], answer.text) == ("c", "hello")
            assert (await there.do("model.pin", model="c"))["type"] == "model.pinned"
            assert (await there.do("model.remove", model="b"))["type"] == "model.removed"
            await until(lambda: listed(here), {"a": ([], False), "c": (["chat"], True)})
            error = await here.refused("response.create", input="hello", model="b")
            assert error["code"] == "model_not_found"
            for name, user in (("d", here), ("e", there)):  # at once, with one alias: one of them is refused
                await user.send("model.add", model=name, settings={"source": "z", "aliases": ["f"]}, stream_id="f")
            ends = [await user.lane_event("f") for user in (here, there)]
            assert sorted(end["type"] for end in ends) == ["error", "model.added"]
            (added,) = [end["model"]["id"] for end in ends if end["type"] == "model.added"]
            models = {"a": ([], False), "c": (["chat"], True)}
            await until(lambda: listed(here), {**models, added: (["f"], False)})
            await until(lambda: listed(there), {**models, added: (["f"], False)})
            await there.do("model.remove", model=added)
            await until(lambda: listed(here), models)
        await asyncio.to_thread(second.restart)
        async with client(second) as there:
            assert await listed(there) == {"a": ([], False), "c": (["chat"], True)}
            assert (await there.ask("again", model="chat")).response["model"] == "c"
        await asyncio.to_thread(first.stop)  # and its Valkey with it
        assert await asyncio.to_thread(main, ["models", "reset", "--data-dir", str(first.data_dir)]) == 0
        await asyncio.to_thread(first.start)
        async with client(first) as here:
            assert await listed(here) == {"a": ([], False), "b": (["chat"], False)}
    assert first.faults() == second.faults() == []
