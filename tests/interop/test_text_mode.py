"""`/chat` by hand: the `websockets` client, and the real wscat on a terminal."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from websockets.asyncio.client import connect
from websockets.sync.client import connect as connect_sync

from tests.e2e.programs import program
from tests.interop.terminal import Terminal, on_a_terminal
from tests.support.server import ServerProcess

PATIENCE_S = 20
LONG = " ".join(f"w{number}" for number in range(40))


async def _answer(websocket) -> list[str]:
    """Return the frames of one answer, without the empty one that ends it."""
    frames = []
    async with asyncio.timeout(PATIENCE_S):
        while frame := await websocket.recv():
            frames.append(frame)
    return frames


async def test_an_answer_comes_in_pieces_and_ends_with_an_empty_frame(server: ServerProcess):
    """Text frames as the answer is made; then the next turn, in the same conversation."""
    async with connect(f"{server.ws_url}/chat") as websocket:
        await websocket.send(LONG)
        frames = await _answer(websocket)
        assert len(frames) > 5
        assert "".join(frames) == LONG
        await websocket.send("second")
        await websocket.send("third")
        assert "".join(await _answer(websocket)) == "second"
        assert "".join(await _answer(websocket)) == "third"
    conversation = server.get("/v1/conversations?limit=1")[1]["data"][0]["id"]
    items = server.get(f"/v1/conversations/{conversation}/items")[1]["data"]
    assert [item["content"][0]["text"] for item in items][::2] == [LONG, "second", "third"]


async def test_errors_are_text_too(server: ServerProcess):
    """`[error] …`, then the empty frame; the connection lives."""
    async with connect(f"{server.ws_url}/chat") as websocket:
        for bad in ("   ", b"\xff\xfe", "w " * 9000):
            await websocket.send(bad)
            frames = await _answer(websocket)
            assert len(frames) == 1
            assert frames[0].startswith("[error] ")
        await websocket.send('{"input": "not parsed here"}')
        assert "".join(await _answer(websocket)) == '{"input": "not parsed here"}'


def test_a_client_that_leaves_is_noticed_before_the_first_token(tmp_path: Path):
    """Nothing is sent during a long prefill, and yet the connection's place is free at once."""
    with ServerProcess(tmp_path, "--echo-ttft", "60000", "--drain-timeout", "0") as server:
        with connect_sync(f"{server.ws_url}/chat") as websocket:
            websocket.send("never answered")
            server.until_metric("responses_running", 1)
            websocket.socket.shutdown(2)
        server.until_metric("connections", 0)
    assert server.faults() == [], server.tail()


@contextmanager
def wscat(*arguments: str) -> Iterator[Terminal]:
    """Run the real wscat until the end of the block."""
    with on_a_terminal(program("wscat"), *arguments) as terminal:
        terminal.wait_for("Connected")
        yield terminal


@pytest.mark.parametrize("options", [(), ("-s", "responses")], ids=["plain", "subprotocol"])
def test_wscat_on_chat(server: ServerProcess, options: tuple[str, ...]):
    """A person types, reads the answer, and types again."""
    with wscat("-c", f"{server.ws_url}/chat", *options) as terminal:
        terminal.type("What is the capital of France?")
        terminal.wait_for("France?")
        terminal.type("thanks")
        terminal.wait_for("thanks")
