"""Programs that a person types frames into: wscat, websocat, `websockets`. $INTEROP_PROGRAM is the command."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager

from tests.interop.drivers.case import LONG, cut, run
from tests.interop.terminal import Terminal, on_a_terminal


@contextmanager
def typing(url: str) -> Iterator[Terminal]:
    command = shlex.split(os.environ["INTEROP_PROGRAM"])
    with on_a_terminal(*command, f"{url.replace('http', 'ws', 1)}/v1/responses") as terminal:
        if ready := os.environ.get("INTEROP_READY"):
            terminal.wait_for(ready)
        yield terminal


def has_text(shown: str, text: str) -> bool:
    """Tell whether an event with this whole text was shown. Some programs send the line's end along; all wrap lines."""
    return re.search(rf'"text":"{text}(\\n)?"', re.sub(r"[\r\n]", "", shown)) is not None


def happy(url: str) -> None:
    """Bare words, and an object without a type."""
    with typing(url) as terminal:
        terminal.type("bare words")
        assert has_text(terminal.wait_for("response.completed"), "bare words")
        terminal.type('{"input":"an object"}')
        assert has_text(terminal.wait_for("response.completed"), "an object")


def turns(url: str) -> None:
    """Bare words go on with the connection's conversation."""
    with typing(url) as terminal:
        terminal.type("my name is Ada")
        terminal.wait_for("response.completed")
        terminal.type("who am I")
        terminal.wait_for('"input_tokens":11')


def cancel(url: str) -> None:
    with typing(url) as terminal:
        terminal.type(LONG)
        terminal.wait_for("output_text.delta")
        terminal.type('{"type":"response.cancel"}')
        terminal.wait_for("response.incomplete")
        terminal.wait_for('"reason":"cancelled"')
        terminal.type("next")
        assert has_text(terminal.wait_for("response.completed"), "next")


def error(url: str) -> None:
    with typing(url) as terminal:
        terminal.type("{")
        terminal.wait_for('"code":"invalid_json"')
        terminal.type("fine")
        assert has_text(terminal.wait_for("response.completed"), "fine")


def reconnect(url: str) -> None:
    """The program is started again after the cut; the rest of the answer is asked for by hand."""
    with typing(url) as terminal:
        terminal.type(LONG)
        terminal.wait_for("output_text.delta")
        found = re.search(r'"id":"(resp_\w+)"', terminal.shown)
        assert found, terminal.shown
        cut()
    with typing(url) as terminal:
        terminal.type(json.dumps({"type": "response.retrieve", "response_id": found[1], "starting_after": 4}))
        rest = terminal.wait_for("response.completed")
        assert "response.created" not in rest
        assert has_text(rest, LONG)


if __name__ == "__main__":
    run({"happy": happy, "turns": turns, "cancel": cancel, "error": error, "reconnect": reconnect})
