"""What a log line looks like, and what never gets into one."""

from __future__ import annotations

import io
import json
import logging

import pytest

from server.config import Config
from server.observe import log


@pytest.fixture
def lines():
    """Configure logging into a string; everything is as before afterwards."""
    root = logging.getLogger()
    names = ["server", "protocol", "websockets"]
    before = root.handlers[:], root.level, {name: logging.getLogger(name).level for name in names}
    stream = io.StringIO()

    def configure(**settings) -> io.StringIO:
        log.configure(Config(engine="echo", **settings), stream)
        return stream

    yield configure
    logging.captureWarnings(capture=False)
    root.handlers[:], root.level = before[0], before[1]
    for name, level in before[2].items():
        logging.getLogger(name).setLevel(level)


def test_console(lines):
    """Time, level, event, fields; values with spaces are quoted."""
    stream = lines()
    logging.getLogger("server.x").info("connection ended", extra={"code": 1000, "seconds": 1.23456789, "path": "/a b"})
    line = stream.getvalue()
    assert line[2] == line[5] == ":"
    assert line[13:] == 'info    connection ended code=1000 seconds=1.23457 path="/a b"\n'


def test_json(lines):
    """One object a line, readable by machines; a traceback is a field."""
    stream = lines(log_format="json")
    try:
        raise ValueError("x\ny")
    except ValueError:
        logging.getLogger("server.x").exception("failed", extra={"response": "resp_1", "n": 3})
    entry = json.loads(stream.getvalue())
    assert stream.getvalue().count("\n") == 1
    assert entry.pop("time").endswith("Z")
    assert entry.pop("exception").startswith("Traceback")
    assert entry == {"level": "error", "logger": "server.x", "event": "failed", "response": "resp_1", "n": 3}


@pytest.mark.parametrize("log_format", ["console", "json"])
def test_a_line_stays_a_line(lines, log_format):
    """Ids come from clients: they cannot forge lines or move the cursor."""
    stream = lines(log_format=log_format)
    logging.getLogger("server.x").info("a\nb \x1b[2J", extra={"id": "x\nERROR forged\x1b[2J"})
    assert stream.getvalue().count("\n") == 1
    assert "\x1b" not in stream.getvalue()


def test_console_shows_tracebacks(lines):
    """An unexpected error keeps its traceback."""
    stream = lines()
    try:
        raise ValueError
    except ValueError:
        logging.getLogger("server.x").exception("failed")
    assert "Traceback" in stream.getvalue()


def test_levels(lines):
    """log_level is for our own loggers; libraries speak up from warnings on."""
    stream = lines(log_level="debug")
    logging.getLogger("server.x").debug("ours")
    logging.getLogger("other").info("theirs")
    logging.getLogger("other").warning("trouble")
    assert "ours" in stream.getvalue()
    assert "theirs" not in stream.getvalue()
    assert "trouble" in stream.getvalue()


def test_websockets_never_logs_frames(lines):
    """At debug level websockets would log what people write."""
    lines(log_level="debug")
    assert not logging.getLogger("websockets.server").isEnabledFor(logging.INFO)


def test_configure_twice(lines):
    """The second configuration replaces the first."""
    lines()
    stream = lines()
    logging.getLogger("server.x").warning("once")
    assert stream.getvalue().count("once") == 1
