"""Starting, stopping, dying, coming back."""

from __future__ import annotations

import asyncio
import signal
import socket
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed

from tests.integration.server.wire import Client, client
from tests.support.server import ServerProcess, is_alive, until_gone

LONG = " ".join(f"w{number}" for number in range(40))


async def test_sigterm_when_idle_and_a_start_again(tmp_path: Path):
    """Exit code 0, no process left, sockets closed with 1012; conversations are there after the next start."""
    server = ServerProcess(tmp_path, "--echo-rate", "50000").start()
    async with client(server) as c:
        conversation = await c.conversation(metadata={"title": "kept"})
        answer = await c.ask("remember me", conversation=conversation)
        await c.ask("bare", id="before")
        children = server.children()
        assert len(children) == 1
        # A second server on the same data directory is refused, and does the first one no harm.
        second = ServerProcess(tmp_path).launch()
        assert second.wait() == 2
        assert len(second.log) == 1
        assert str(tmp_path) in second.log[0]
        assert (await c.ask("still here")).text == "still here"
        server.process.send_signal(signal.SIGTERM)
        assert (await c.event())["error"]["code"] == "websocket_connection_limit_reached"
        with pytest.raises(ConnectionClosed) as closed:
            await c.event()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1012
    assert server.wait() == 0
    assert not any(is_alive(pid) for pid in children)
    assert server.faults() == []
    with server.start():
        async with client(server) as c:
            assert await c.items(conversation) == [("user", "remember me"), ("assistant", "remember me")]
            got = await c.do("conversation.retrieve", conversation=conversation)
            assert got["conversation"]["metadata"] == {"title": "kept"}
            await c.send("response.retrieve", response_id=answer.id)
            assert (await c.answer()).events == answer.events
            assert (await c.ask("next", conversation=conversation)).input_tokens == 5
    assert server.faults() == []


async def test_a_closed_terminal_lets_answers_end(tmp_path: Path):
    """SIGHUP is SIGTERM, unless the server was started with it ignored, as nohup does."""
    ours = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # these tests may run under nohup themselves
    try:
        server = ServerProcess(tmp_path, "--echo-rate", "30").start()
    finally:
        signal.signal(signal.SIGHUP, ours)
    async with client(server) as c:
        await c.begin("one two three")
        server.process.send_signal(signal.SIGHUP)
        assert (await c.answer()).text == "one two three"
    assert server.wait() == 0
    assert server.faults() == []


async def test_sigterm_lets_answers_end(tmp_path: Path):
    """Running and waiting answers end within the drain time; new turns and new sockets are refused; exit 0."""
    server = ServerProcess(tmp_path, "--echo-rate", "30").start()
    async with client(server) as c:
        conversation = await c.conversation()
        await c.begin(LONG, conversation=conversation)
        await c.create("waits", conversation=conversation, stream_id="w")
        await c.until("response.queued", stream_id="w")
        server.process.send_signal(signal.SIGTERM)
        server.wait_for_log("draining")
        error = await c.refused("response.create", input="new", stream_id="n")
        assert error["code"] == "server_is_overloaded"
        assert error["retry_after_ms"] > 0
        assert await asyncio.to_thread(server.get, "/readyz") == (503, {"ready": False, "reasons": ["draining"]})
        assert (await c.answer()).text == LONG
        assert (await c.answer("w", whole=False)).text == "waits"
    assert server.wait() == 0
    assert server.faults() == []


async def test_an_answer_longer_than_the_drain_time(tmp_path: Path):
    """Exit 0; the next server takes the answer over and completes it, and the conversation goes on."""
    server = ServerProcess(tmp_path, "--echo-rate", "10", "--drain-timeout", "0.2").start()
    async with client(server) as c:
        conversation = await c.conversation()
        response = await c.begin(LONG, conversation=conversation)
        server.process.send_signal(signal.SIGTERM)
        seen = await c.until_closed()
    assert server.wait() == 0
    server.options += ["--echo-rate", "50000"]
    with server.start():
        async with client(server) as c:
            await _went_on(c, conversation, response, seen)
    assert server.faults() == []


async def _went_on(c: Client, conversation: str, response: str, seen: list[dict[str, Any]]) -> None:
    """Assert that an answer that a dead server had begun is completed, and that the next turn follows it."""
    answer = await c.ask("next", conversation=conversation)
    assert (answer.text, answer.input_tokens) == ("next", 81)
    await c.send("response.retrieve", response_id=response)
    ended = await c.answer()
    assert (ended.type, ended.text) == ("response.completed", LONG)
    assert ended.events[: len(seen)] == seen
    said = await c.items(conversation)
    assert said == [("user", LONG), ("assistant", LONG), ("user", "next"), ("assistant", "next")]


async def test_a_second_sigterm_ends_it_at_once(tmp_path: Path):
    """Whatever runs: gone, and its Valkey too. Two within a moment are one: make passes on what its group got."""
    server = ServerProcess(tmp_path, "--echo-rate", "1").start()
    async with client(server) as c:
        await c.begin(LONG)
        valkey = server.valkey_pid()
        server.process.send_signal(signal.SIGTERM)
        server.process.send_signal(signal.SIGTERM)
        server.wait_for_log("draining")
        for _ in range(2):  # the second comes a second later: it drains
            await c.until("response.output_text.delta")
        server.process.send_signal(signal.SIGTERM)
        assert server.wait() == 1
    until_gone(valkey)


async def test_sigkill_leaves_nothing_and_loses_nothing(tmp_path: Path):
    """Valkey ends by itself; the next server has all that clients saw, and goes on with what was running."""
    server = ServerProcess(tmp_path, "--echo-rate", "20").start()
    async with client(server) as c:
        conversation = await c.conversation()
        response = await c.begin(LONG, conversation=conversation)
        seen = [await c.event() for _ in range(10)]
        valkey = server.valkey_pid()
        server.kill()
    until_gone(valkey)
    server.options += ["--echo-rate", "50000"]
    with server.start():
        async with client(server) as c:
            await _went_on(c, conversation, response, seen)
    assert server.faults() == []


# What cannot start says so in one line, exits with 2 and leaves nothing behind


def _fails(tmp_path: Path, *options: str, config: str = "", engine: str = "echo") -> str:
    server = ServerProcess(tmp_path, *options, config=config, engine=engine).launch()
    assert server.wait() == 2, server.tail()
    lines = [line for line in server.log if line.startswith("tokenwire:")]
    assert len(lines) == 1, server.tail()
    assert "Traceback" not in server.tail()
    lock = tmp_path / "valkey" / "socket"
    if lock.exists():
        with socket.socket(socket.AF_UNIX) as probe, pytest.raises(OSError, match="refused"):
            probe.connect(str(lock))
    return lines[0]


def test_a_port_in_use(tmp_path: Path):
    """Names the port and what to do."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        server = ServerProcess(tmp_path).launch(port)
        assert server.wait() == 2
    assert [line for line in server.log if line.startswith("tokenwire:")] == server.log[-1:]
    assert f"port {port}" in server.log[-1]
    assert "--port" in server.log[-1]


def test_a_redis_that_is_not_there(tmp_path: Path):
    """Names the address."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"redis://127.0.0.1:{closed.getsockname()[1]}/0"
        line = _fails(tmp_path, "--redis-url", url)
    assert url in line
    assert "redis_url" in line


def test_a_redis_that_is_silent(tmp_path: Path):
    """Accepts and never answers: given up after the operation time-out."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        url = f"redis://127.0.0.1:{silent.getsockname()[1]}/0"
        assert url in _fails(tmp_path, "--redis-url", url, config="[store]\noperation_timeout_s = 0.3\n")


def test_a_model_that_is_not_there(tmp_path: Path):
    """Names the path."""
    line = _fails(tmp_path, "--model", str(tmp_path / "no-model"), engine="vllm")
    assert str(tmp_path / "no-model") in line


def test_a_public_key_that_is_not_there(tmp_path: Path):
    """Names the setting and the file."""
    file = tmp_path / "key.pem"
    line = _fails(tmp_path, config=f'[auth]\nmethods = ["jwt"]\n[auth.jwt]\npublic_key_file = "{file}"\n')
    assert "auth.jwt.public_key_file" in line
    assert str(file) in line


def test_a_data_directory_that_cannot_be_made(tmp_path: Path):
    """Names it, and the setting."""
    (tmp_path / "file").touch()
    line = _fails(tmp_path / "file" / "data")
    assert str(tmp_path / "file" / "data") in line
    assert "--data-dir" in line


def test_a_broken_key(tmp_path: Path):
    """Names the key and the nearest one."""
    line = _fails(tmp_path, config="[limits]\nmax_lane = 3\n")
    assert "limits.max_lane" in line
    assert "max_lanes" in line
