"""Codex CLI without a person: `codex exec`, in a home and a folder of its own. The program is $INTEROP_PROGRAM."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.interop.drivers.case import AGENT, CASE_S, LONG, MODEL, cut, run

CONFIG = """
model = "{model}"
model_provider = "tokenwire"

[model_providers.tokenwire]
name = "Tokenwire"
base_url = "{url}/v1"
wire_api = "responses"
supports_websockets = true
"""


class Codex:
    """A home and a folder; each `run` is one turn."""

    def __init__(self, folder: Path, url: str, model: str = MODEL) -> None:
        self.folder = folder
        self.home = folder / "home"
        self.home.mkdir(exist_ok=True)
        (self.home / "config.toml").write_text(CONFIG.format(model=model, url=url), "utf-8")

    def run(self, *arguments: str, on_start: Callable[[subprocess.Popen[str]], None] | None = None) -> list[Any]:
        """Return what it says, event by event. on_start: called when the turn has begun."""
        command = [os.environ["INTEROP_PROGRAM"], "exec", "--json", "--skip-git-repo-check", "-s", "read-only"]
        process = subprocess.Popen(
            [*command, *arguments],
            cwd=self.folder,
            env={"PATH": os.environ["PATH"], "HOME": str(self.home), "CODEX_HOME": str(self.home)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        timer = threading.Timer(CASE_S, process.kill)
        timer.start()
        events = []
        try:
            assert process.stdout is not None
            with process.stdout:
                for line in process.stdout:
                    if not line.startswith("{"):
                        continue
                    events.append(json.loads(line))
                    if events[-1]["type"] == "turn.started" and on_start:
                        on_start(process)
            process.wait()
        finally:
            timer.cancel()
            process.kill()
        return events


@contextmanager
def codex(url: str, model: str = MODEL) -> Iterator[Codex]:
    with tempfile.TemporaryDirectory() as folder:
        yield Codex(Path(folder), url, model)


def said(events: list[Any]) -> list[str]:
    items = [event["item"] for event in events if event["type"] == "item.completed"]
    return [item["text"] for item in items if item["type"] == "agent_message"]


def metric(url: str, name: str) -> float:
    """Return the sum of a metric's samples."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=10) as reply:  # noqa: S310 our own http URL
        lines = reply.read().decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(f"tokenwire_{name}"))


def until(url: str, name: str, value: float) -> None:
    """Return when a metric has that value: Codex does not tell when text comes."""
    deadline = time.monotonic() + CASE_S
    while metric(url, name) != value:
        assert time.monotonic() < deadline, f"{name} is not {value}"
        time.sleep(0.02)


def happy(url: str) -> None:
    with codex(url) as client:
        events = client.run("say hello")
        assert said(events) == ["say hello"], events
        assert events[-1]["type"] == "turn.completed"
        assert events[-1]["usage"]["output_tokens"] == 2


def turns(url: str) -> None:
    """A second process goes on with the first one's session: it sends the history again, with what the model said."""
    with codex(url) as client:
        first = client.run("my name is Ada")
        second = client.run("resume", "--last", "who am I")
        assert said(second) == ["who am I"], second
        assert second[-1]["usage"]["input_tokens"] >= first[-1]["usage"]["input_tokens"] + 4 + 3


def cancel(url: str) -> None:
    """Ctrl-C: it leaves, and its answer, which is not stored, ends with it; the session can be gone on with."""
    with codex(url) as client:

        def interrupt(process: subprocess.Popen[str]) -> None:
            until(url, "responses_running", 1)
            process.send_signal(signal.SIGINT)

        events = client.run(LONG, on_start=interrupt)
        assert said(events) == [], events
        until(url, "responses_running", 0)
        assert said(client.run("resume", "--last", "next")) == ["next"]


def error(url: str) -> None:
    with codex(url, "no-such") as client:
        events = client.run("x")
        assert events[-1]["type"] == "turn.failed"
        assert "no-such" in events[-1]["error"]["message"]


def reconnect(url: str) -> None:
    """It connects again by itself and asks anew: its answers are not stored."""
    with codex(url) as client:

        def interrupt(_: object) -> None:
            until(url, "responses_running", 1)
            cut()

        events = client.run(LONG, on_start=interrupt)
        assert said(events) == [LONG], events


def tools(url: str) -> None:
    """The model has a command run, which reads a file; what it says then has the file's words."""
    with codex(url, AGENT) as client:
        (client.folder / "notes.txt").write_text("the word is heliotrope\n", "utf-8")
        events = client.run("Read notes.txt and tell me the word.")
        commands = [event["item"] for event in events if event.get("item", {}).get("type") == "command_execution"]
        assert commands, events
        assert "cat notes.txt" in commands[-1]["command"]
        assert commands[-1]["exit_code"] == 0, commands
        assert commands[-1]["aggregated_output"] == "the word is heliotrope\n"
        assert "the word is heliotrope" in said(events)[-1], events
        assert events[-1]["type"] == "turn.completed"


if __name__ == "__main__":
    run({"happy": happy, "turns": turns, "cancel": cancel, "error": error, "reconnect": reconnect, "tools": tools})
