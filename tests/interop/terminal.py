"""A program on a pseudo-terminal, as a person has it."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import subprocess
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager

PATIENCE_S = 20


class Terminal:
    """What is typed into a program and what it shows. shown: everything so far."""

    def __init__(self, master: int, process: subprocess.Popen[bytes]) -> None:
        self._master = master
        self._read_to = 0
        self.process = process
        self.shown = ""

    def type(self, line: str) -> None:
        """Type a line and press Enter."""
        self.press(line.encode() + b"\r")

    def press(self, keys: bytes) -> None:
        os.write(self._master, keys)

    def wait_for(self, text: str, *, after: str = "") -> str:
        """Return what was shown since the last wait, up to and including `text` (the first behind `after`)."""
        if after:
            return self.wait_for(after) + self.wait_for(text)
        deadline = time.monotonic() + PATIENCE_S
        while (at := self.shown.find(text, self._read_to)) < 0:
            ready, _, _ = select.select([self._master], [], [], max(0, deadline - time.monotonic()))
            assert ready, f"no {text!r} in {self.shown[self._read_to :]!r}"
            self.shown += self._read()
        start, self._read_to = self._read_to, at + len(text)
        return self.shown[start : self._read_to]

    def wait_raw(self) -> None:
        """Return when the program reads keys itself and the terminal does not show them a first time."""
        deadline = time.monotonic() + PATIENCE_S
        while termios.tcgetattr(self._master)[3] & termios.ECHO:
            assert time.monotonic() < deadline, f"it does not read: {self.shown!r}"
            time.sleep(0.01)

    def wait_ended(self) -> int:
        """Return the program's exit status when it has ended."""
        deadline = time.monotonic() + PATIENCE_S
        while self.process.poll() is None:
            assert time.monotonic() < deadline, f"it does not end: {self.shown!r}"
            if select.select([self._master], [], [], 0.02)[0]:
                self.shown += self._read(may_be_gone=True)
        return self.process.returncode

    def _read(self, *, may_be_gone: bool = False) -> str:
        try:
            return os.read(self._master, 65536).decode(errors="replace")
        except OSError:  # EIO: the program has closed its side
            if may_be_gone:
                return ""
            raise AssertionError(f"the program has ended: {self.shown!r}") from None


def _take_terminal() -> None:
    """In the child: make the terminal the one whose Ctrl-C is meant for it."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


@contextmanager
def on_a_terminal(*command: str, term: str = "dumb") -> Iterator[Terminal]:
    """Run a program until the end of the block."""
    master, slave = pty.openpty()
    process = subprocess.Popen(
        command,
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
        preexec_fn=_take_terminal,  # noqa: PLW1509 no threads of ours hold locks that it wants
        env={**os.environ, "TERM": term},
    )
    os.close(slave)
    try:
        yield Terminal(master, process)
    finally:
        process.kill()
        process.wait()
        os.close(master)
