"""Logs on stderr: one line an event; fields with ids and numbers, never message text or credentials."""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Any, Final, TextIO

from server.config import Config

# What a LogRecord has by itself; everything else came in through `extra`.
_OWN_ATTRIBUTES: Final = frozenset(vars(logging.makeLogRecord({}))) | {
    "message",
    "asctime",
    "taskName",
    "websocket",  # websockets adds the connection object to its own records
}
# Ours follow `log_level`; libraries speak up only when something is wrong.
OWN_LOGGERS: Final = ("server", "protocol")
# websockets logs whole frames at DEBUG and two lines per connection at INFO: neither may reach the log.
QUIET_LOGGERS: Final = ("websockets",)


def configure(config: Config, stream: TextIO | None = None) -> None:
    """Send all logs to `stream` (None: stderr) in the configured format and level; replaces earlier handlers."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if config.log_format == "json" else ConsoleFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    for name in OWN_LOGGERS:
        logging.getLogger(name).setLevel(config.log_level.upper())
    for name in QUIET_LOGGERS:
        logging.getLogger(name).setLevel(logging.WARNING)
    logging.captureWarnings(capture=True)


def fields(record: logging.LogRecord) -> dict[str, Any]:
    """What the caller passed as `extra`."""
    return {key: value for key, value in vars(record).items() if key not in _OWN_ATTRIBUTES}


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, logger, event, then the fields."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, without its end."""
        entry = {
            "time": _utc(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
            **fields(record),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str, ensure_ascii=False)


class ConsoleFormatter(logging.Formatter):
    """Time, level, event and `key=value` fields, for people."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, followed by the traceback of an unexpected error."""
        words = [f"{_local(record.created)} {record.levelname.lower():7} {_one_line(record.getMessage())}"]
        words += [f"{key}={_value(value)}" for key, value in fields(record).items()]
        line = " ".join(words)
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def _utc(created: float) -> str:
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(created))}.{int(created % 1 * 1000):03}Z"


def _local(created: float) -> str:
    return f"{time.strftime('%H:%M:%S', time.localtime(created))}.{int(created % 1 * 1000):03}"


def _one_line(text: str) -> str:
    """Escape what would start a new line or move a terminal's cursor: ids may come from clients."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _value(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    text = str(value)
    plain = bool(text) and text.isprintable() and not any(c in text for c in ' "=')
    return text if plain else json.dumps(text, ensure_ascii=False)
