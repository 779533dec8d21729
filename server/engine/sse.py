"""Server-sent events, sans I/O: bytes in, the events' data out.

WHATWG HTML, section 9.2, as far as streams of JSON use it.
"""

from __future__ import annotations

from typing import Final

MAX_EVENT_BYTES: Final = 4 * 1024 * 1024  # an event is a few hundred bytes; a whole answer sent at once fits, too

_DATA: Final = b"data:"


class SseError(Exception):
    """What came is no event stream."""


class SseDecoder:
    """Cut a byte stream into events; names, ids and comments are passed over. Lines end with LF or CR LF."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes) -> list[bytes]:
        """Return the data of the events that `data` completes. Raises SseError for one that does not end."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        events = []
        for line in lines:
            text = line.removesuffix(b"\r")
            if text.startswith(_DATA):
                self._data.append(text[len(_DATA) :].removeprefix(b" "))
                self._size += len(text)
            elif not text and self._data:
                events.append(b"\n".join(self._data))
                self._data, self._size = [], 0
        if self._size + len(self._rest) > MAX_EVENT_BYTES:
            raise SseError(f"an event of more than {MAX_EVENT_BYTES} bytes")
        return events
