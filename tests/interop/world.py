"""What clients are run against: a real server, and a proxy before it whose connections can be cut."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from tests.chaos.proxy import Proxy
from tests.interop.clients import Client
from tests.support.server import ROOT, ServerProcess

# What the model `agent` says where a tool is called for; all else it repeats, as `echo` does.
SCRIPT = r"""
[[answers]]
role = "tool"
chunks = ["<think>So", " it says that.</think>", "It says: ", "{{input}}"]

[[answers]]
match = "^What is the weather"
chunks = [
    "<think>They want the", " weather.</think>", "Let me look.\n<tool_", "call>\n{\"name\": \"get_weather\", ",
    "\"arguments\": {\"city\": \"Par", "is\"}}\n</tool_call>",
]

[[answers]]
match = "^Read notes.txt"
chunks = [
    "<think>A file.</think><tool_call>\n", "{\"name\": \"exec_command\", \"arguments\": {\"cmd\": ",
    "\"cat notes.txt\"}}\n</tool_call>",
]
"""
RATE = 60  # tokens a second: slow enough to act while an answer streams
PROGRAM_S = 150


class World:
    """One server for all clients.

    options: more flags. is_scripted: with a model `agent` that calls tools; loading its parsers takes some seconds.
    url: the server, as http://…, by way of the proxy.
    """

    def __init__(self, data_dir: Path, *options: str, is_scripted: bool = False) -> None:
        config = f"[models.echo]\nsource = 'echo'\n[echo]\nrate = {RATE}\n"
        if is_scripted:
            script = data_dir / "script.toml"
            script.write_text(SCRIPT, "utf-8")
            config += f"script = '{script}'\n[models.agent]\nsource = 'echo'\n"
            config += "tool_parser = 'hermes'\nreasoning_parser = 'qwen3'\n"
        self.server = ServerProcess(data_dir, *options, config=config)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._proxy.port}"

    @property
    def ws_url(self) -> str:
        return self.url.replace("http", "ws", 1)

    def cut(self) -> None:
        """Reset every connection that clients have."""
        self._loop.call_soon_threadsafe(lambda: self._proxy.cut(reset=True))

    def __enter__(self) -> Self:
        self.server.start()
        self._thread.start()
        self._proxy = Proxy(self.server.port)
        asyncio.run_coroutine_threadsafe(self._proxy.start(), self._loop).result()
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._proxy.close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self.server.__exit__()

    def run(self, client: Client) -> dict[str, str]:
        """Run a client's cases; return what went wrong, by case, "" where nothing did."""
        process = subprocess.Popen(
            client.command(self.url, client.cases),
            cwd=ROOT,
            env={**os.environ, **client.variables(), "NODE_NO_WARNINGS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        timer = threading.Timer(PROGRAM_S, process.kill)
        timer.start()
        try:
            return self._follow(process, client.cases)
        finally:
            timer.cancel()
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with contextlib.suppress(BrokenPipeError):  # it may have ended without reading the last line
                        pipe.close()

    def _follow(self, process: subprocess.Popen[str], cases: Sequence[str]) -> dict[str, str]:
        """Do what the driver asks for, and gather what it tells."""
        assert process.stdin is not None
        assert process.stdout is not None
        outcomes: dict[str, str] = {}
        said: list[str] = []
        for line in process.stdout:
            match line.split():
                case ["@cut"]:
                    self.cut()
                    with contextlib.suppress(BrokenPipeError):  # k6 reads nothing
                        process.stdin.write("\n")
                        process.stdin.flush()
                case ["@pass", name]:
                    outcomes[name] = ""
                    said = []
                case ["@fail", name]:
                    outcomes[name] = "".join(said) or "it says nothing"
                    said = []
                case _:
                    said.append(line)
        status = process.wait()
        return {name: outcomes.get(name, f"it ended with status {status}:\n{''.join(said)}") for name in cases}
