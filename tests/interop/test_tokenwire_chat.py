"""`tokenwire chat`, as a person has it: on a terminal, and in a pipe."""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.interop.terminal import Terminal, on_a_terminal
from tests.interop.world import World
from tests.support.server import ROOT, ServerProcess, clean_environment

LONG = " ".join(f"w{number}" for number in range(60))
CHAT = (sys.executable, "-m", "server", "chat")
CTRL_C, CTRL_D = b"\x03", b"\x04"
STYLE = re.compile(r"\x1b\[[0-9;?]*[a-z]")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with World(tmp_path_factory.mktemp("world"), "--model", "echo", "--model", "other") as world:
        yield world
        world.server.until_metric("connections", 0)
        world.server.until_metric("responses_running", 0)
    assert world.server.faults() == [], world.server.tail()


PROMPT = "> "


class Chat:
    """The program on a terminal. TERM is dumb: what is shown comes without cursor movements."""

    def __init__(self, terminal: Terminal) -> None:
        self.terminal = terminal
        self.terminal.wait_for(PROMPT, after="Ctrl-D leaves")

    def begin(self, line: str) -> None:
        """Type a line; return when it is shown as typed and taken."""
        self.terminal.wait_raw()
        self.terminal.type(line)
        self.terminal.wait_for("\n", after=line)

    def do(self, line: str) -> str:
        """Type a line; return what is shown until the next prompt."""
        self.begin(line)
        return self.rest()

    def rest(self) -> str:
        return STYLE.sub("", self.terminal.wait_for(PROMPT).removesuffix(PROMPT)).replace("\r", "").strip()

    def leave(self, how: bytes = CTRL_D) -> str:
        self.terminal.wait_raw()
        self.terminal.press(how)
        assert self.terminal.wait_ended() == 0
        return self.terminal.shown


@contextmanager
def chatting(*arguments: str) -> Iterator[Chat]:
    with on_a_terminal(*CHAT, *arguments) as terminal:
        yield Chat(terminal)


def environment() -> dict[str, str]:
    return {name: value for name, value in clean_environment().items() if name != "OPENAI_API_KEY"}


def piped(text: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [*CHAT, *arguments]
    return subprocess.run(
        command, cwd=ROOT, env=environment(), input=text, capture_output=True, text=True, timeout=60, check=False
    )


def items(world: World) -> list[str]:
    """What was said in the newest conversation."""
    conversation = world.server.get("/v1/conversations?limit=1")[1]["data"][0]["id"]
    data = world.server.get(f"/v1/conversations/{conversation}/items")[1]["data"]
    return [item["content"][0]["text"] for item in data]


def test_turns_models_and_a_new_conversation(world: World):
    with chatting(world.url) as chat:
        assert chat.do("my name is Ada") == "my name is Ada"
        assert chat.do("/model") == "echo  ready\n  other  ready"
        assert "There is no model no-such." in chat.do("/model no-such")
        assert chat.do("/model other") == "echo  ready\n* other  ready"
        assert chat.do("who am I") == "who am I"
        assert items(world) == ["my name is Ada", "my name is Ada", "who am I", "who am I"]
        assert chat.do("/new") == "A new conversation."
        assert chat.do("alone") == "alone"
        assert items(world) == ["alone", "alone"]
        assert world.server.metric("responses_total", model="other") == 2
        assert "There is no /what." in chat.do("/what")
        found = re.search(r"--conversation (conv_\w+)", chat.leave())
        assert found
    with chatting(world.url, "--conversation", found[1]) as chat:
        assert chat.do("again") == "again"
        assert items(world) == ["alone", "alone", "again", "again"]
        chat.leave(b"/quit\r")


def test_ctrl_c_stops_an_answer_and_not_the_program(world: World):
    with chatting(world.url) as chat:
        chat.begin(f"long {LONG}")
        chat.terminal.wait_for("w2 ")
        chat.terminal.press(CTRL_C)
        shown = chat.rest()
        assert shown.endswith("[stopped]")
        assert "w59" not in shown
        chat.terminal.wait_raw()
        chat.terminal.press(CTRL_C)
        assert chat.rest() == "Ctrl-D leaves."
        assert chat.do("next") == "next"
        chat.leave()


def test_an_answer_goes_on_after_the_connection_was_cut(world: World):
    """Each word once, in order; the person is told."""
    with chatting(world.url) as chat:
        chat.begin(LONG)
        first = chat.terminal.wait_for("w2 ")
        world.cut()
        shown = first + chat.rest()
        assert "[the connection is lost; trying again]" in shown
        assert re.findall(r"w\d+", shown) == LONG.split()
        assert chat.do("next") == "next"
        chat.leave()


def test_control_characters_of_an_answer_do_not_reach_the_terminal(world: World):
    done = piped("a\x1b[2Jb\x07 \u009b31m c\td\n", world.url)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "a\ufffd[2Jb\ufffd \ufffd31m c\td\n"


def test_a_pipe_gets_the_answers_alone(world: World):
    done = piped("one\n\n/new is text here\ntwo\n", world.url.removeprefix("http://"))
    assert (done.returncode, done.stdout, done.stderr) == (0, "one\n/new is text here\ntwo\n", "")


def test_a_pipe_of_bytes_that_are_no_text_and_of_too_long_a_line(world: World):
    """What can be read is asked; a line that the server takes for too long is told, and the next one is answered."""
    command = [*CHAT, world.url]
    said = b"caf\xe9 \xff\n" + b"x" * 2_000_000 + b"\nnext\n"
    done = subprocess.run(
        command, cwd=ROOT, env=environment(), input=said, capture_output=True, timeout=60, check=False
    )
    assert done.stdout.decode() == "caf\ufffd \ufffd\nnext\n"
    assert (done.returncode, done.stderr.count(b"[error]"), done.stderr.count(b"1009")) == (1, 1, 1)


@pytest.mark.parametrize(
    ("line", "status", "words"),
    [
        ("seq 99 | CHAT | head -1; exit ${PIPESTATUS[1]}", 141, ""),
        ("CHAT <&-", 2, "standard input is closed"),
        ("echo hi | CHAT >&-", 2, "standard output is closed"),
    ],
)
def test_a_broken_pipe(world: World, line: str, status: int, words: str):
    """Nobody reads, or nobody writes: it ends, in a word or none."""
    command = line.replace("CHAT", f"{shlex.join(CHAT)} {world.url}")
    done = subprocess.run(
        ["bash", "-c", command], cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, words in done.stderr, len(done.stderr) < 100) == (status, True, True), done.stderr


def test_ctrl_c_ends_a_pipe(world: World):
    """There is nothing to go back to; the answer is stopped, what was still to be asked is not."""
    with subprocess.Popen(
        [*CHAT, world.url], cwd=ROOT, env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{LONG}\nnext\n")
        process.stdin.flush()
        shown = process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        shown += process.stdout.read()
    assert process.returncode == 130
    assert "w59" not in shown
    assert "next" not in shown
    world.server.until_metric("responses_running", 0)


def test_what_goes_wrong_is_told(world: World):
    """A refused turn ends with status 1, a server that is not there with 2, each with its reason."""
    done = piped("x\n", world.url, "--model", "no-such")
    assert (done.returncode, done.stdout) == (1, "")
    assert "[error] there is no model 'no-such'" in done.stderr
    done = piped("x\n", world.url, "--conversation", "conv_missing")
    assert "[error]" in done.stderr
    for url, words in (("ws://127.0.0.1:9", "is the server running?"), ("ftp://x", "is no address")):
        done = piped("x\n", url)
        assert done.returncode == 2
        assert words in done.stderr
        assert "Traceback" not in done.stderr


def test_signing_in(tmp_path: Path):
    """With a key as an argument, or asked for when the server wants one; the key is not shown."""
    with ServerProcess(tmp_path / "data", "--auth", "keys") as server:
        make = [sys.executable, "-m", "server", "keys", "create", "--user", "ann", "--data-dir", str(tmp_path / "data")]
        key = subprocess.check_output(make, cwd=ROOT, text=True, env=environment()).strip()
        assert piped("hi\n", server.url, "--api-key", key).stdout == "hi\n"
        done = piped("hi\n", server.url)
        assert (done.returncode, done.stdout) == (1, "")
        assert "wants a key" in done.stderr
        with chatting(server.url) as chat:
            chat.begin("hello")
            for before, tried in (("wants a key", "wrong"), ("wants another key", key)):
                chat.terminal.wait_for("Key:", after=before)  # a prompt is drawn anew for what is typed, too
                chat.terminal.wait_raw()
                chat.terminal.type(tried)
            assert chat.rest().endswith("hello")
            assert key not in chat.leave()
