"""The documented recipes for clients, run as they are through the loss of their server."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.e2e.programs import program
from tests.support.server import ROOT, ServerProcess

EXAMPLES = ROOT / "examples"
WORDS = " ".join(f"word{number}" for number in range(80))
PATIENCE_S = 60


class Running:
    """A program whose output is watched as it comes."""

    def __init__(self, *command: str) -> None:
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.output = b""
        self._grown = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        while piece := os.read(self.process.stdout.fileno(), 65536):
            with self._grown:
                self.output += piece
                self._grown.notify_all()

    def wait_for(self, text: str) -> None:
        with self._grown:
            found = self._grown.wait_for(lambda: text.encode() in self.output, PATIENCE_S)
        assert found, self.output

    def end(self) -> tuple[int, str]:
        """Returns its exit status and what it wrote as errors."""
        assert self.process.stderr is not None
        assert self.process.stdout is not None
        try:
            status = self.process.wait(PATIENCE_S)
            self._reader.join(PATIENCE_S)
            return status, self.process.stderr.read().decode()
        finally:
            self.process.kill()
            self.process.stderr.close()
            self.process.stdout.close()


def python_example(_: Path) -> list[str]:
    return [sys.executable, str(EXAMPLES / "resume.py")]


def node_example(folder: Path) -> list[str]:
    """As in a project that has `ws` installed: Node finds it beside the script."""
    (folder / "node_modules").symlink_to(ROOT / ".tools" / "node_modules")
    script = folder / "resume.mjs"
    script.write_text((EXAMPLES / "resume.mjs").read_text())
    return [program("node"), str(script)]


@pytest.mark.parametrize("how", ["restart", "kill"])
@pytest.mark.parametrize("example", [python_example, node_example])
def test_an_answer_survives_its_server(tmp_path: Path, example, how: str):
    folder = tmp_path / "project"
    folder.mkdir()
    options = ("--echo-rate", "20", "--drain-timeout", "0")
    with ServerProcess(tmp_path / "data", *options).start() as server:
        client = Running(*example(folder), f"{server.ws_url}/v1/responses", WORDS)
        try:
            client.wait_for("word10 ")
            port = server.port
            if how == "restart":
                assert server.stop() == 0, server.tail()
            else:
                server.kill()
            assert WORDS.encode() != client.output
            server.start(port)
        finally:
            status, errors = client.end()
        assert status == 0, errors
        assert client.output.decode() == WORDS
        assert errors.strip() == "[completed]"
        assert server.faults() == []


def test_a_refusal_ends_it_with_the_servers_words(tmp_path: Path):
    folder = tmp_path / "project"
    folder.mkdir()
    with ServerProcess(tmp_path / "data").start() as server:
        for example in (python_example(folder), node_example(folder)):
            client = Running(*example, f"{server.ws_url}/v1/responses", "   ")
            status, errors = client.end()
            assert status != 0
            assert "input" in errors
