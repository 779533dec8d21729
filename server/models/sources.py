"""Model sources: what a user writes for a model, turned into what the engine loads.

`resolve` decides in this order: (1) the alias of a packaged model, fetched and converted once into the cache;
(2) an existing path; (3) something that looks like a path but is not there: an error; (4) a hub id, left for
the engine to fetch; (5) anything else: an error.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from server.models.errors import ModelSourceError
from server.models.packaged import PACKAGED, PROGRESS, SMOLLM2, PackagedModel, sha256

Progress = Callable[[str], None]

DEFAULT_MODEL = SMOLLM2.alias
MANIFEST = "tokenwire-manifest.json"
CONVERSION = 3  # raise it when server/models/packaged.py converts differently: cached models are then remade
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(:[\w.-]+)?")


def resolve(source: str, *, progress: Progress) -> str:
    """What the engine loads for `source`: a directory, a file, or a hub id.

    Arguments:
        source: an alias (`smollm2-135m-instruct`), a path, or a hub id (`org/name`).
        progress: called with one line of text at each step that takes long, and every few seconds in it. It may
            raise to give up: what runs is stopped, what was begun is removed, and the exception passes.

    Raises:
        ModelSourceError: nothing usable is there, or it could not be fetched; the text says what to do.
    """
    if model := PACKAGED.get(source):  # 1
        return str(_cached(model, progress))
    path = Path(source).expanduser()
    if source and path.exists():  # 2
        return str(_checked_path(path.resolve()))
    if _looks_like_path(source):  # 3
        raise ModelSourceError(f"model path {source!r} does not exist: check the path, or name one of {_aliases()}")
    if HUB_ID.fullmatch(source):  # 4
        return source
    raise ModelSourceError(  # 5
        f"model {source!r} is not known: give {_aliases()}, a model directory, or a hub id such as 'org/name'"
    )


def cache_directory() -> Path:
    """Where packaged models are kept: the user's cache (XDG Base Directory specification)."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    root = Path(base) if Path(base).is_absolute() else Path.home() / ".cache"
    return root / "tokenwire" / "models"


def _aliases() -> str:
    return ", ".join(repr(alias) for alias in PACKAGED)


def _looks_like_path(source: str) -> bool:
    return source.startswith(("/", "./", "../", "~", ".")) or source.count("/") > 1 or source.endswith((".gguf", "/"))


def _checked_path(path: Path) -> Path:
    """Refuse what the engine would refuse too, half a minute later and in its own words."""
    if not path.is_dir():
        if path.suffix == ".gguf":
            return path
        raise ModelSourceError(f"model path {str(path)!r} is no folder: give the folder with config.json and weights")
    settings = path / "config.json"
    if not settings.is_file():
        raise ModelSourceError(f"model directory {str(path)!r} has no config.json: give the folder that holds it")
    try:
        if isinstance(json.loads(settings.read_bytes()), dict):
            return path
    except ValueError:  # JSON or UTF-8
        pass
    raise ModelSourceError(f"{str(settings)!r} is not a JSON object: the model is damaged; fetch it again")


def _cached(model: PackagedModel, progress: Progress) -> Path:
    """The converted model's directory, made now if the cache does not hold it whole."""
    cache = cache_directory()
    target = cache / model.alias
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with _only_one(cache / f".{model.alias}.lock", progress):
            if not _is_whole(target, model, progress):
                _make(model, target, progress)
    except OSError as error:
        raise ModelSourceError(
            f"cannot keep model {model.alias!r} in {str(cache)!r}: {error.strerror or error}; "
            "free some space (it needs 600 MB for a moment) or set XDG_CACHE_HOME to another folder"
        ) from error
    return target


@contextmanager
def _only_one(lock: Path, progress: Progress) -> Iterator[None]:
    """Hold `lock`, which the system frees when the process ends, however it ends."""
    with lock.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress("waiting for another process that prepares the same model")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _is_whole(target: Path, model: PackagedModel, progress: Progress) -> bool:
    """Whether `target` holds every file as its manifest, which is written last, says."""
    if not target.exists():
        return False
    try:
        manifest = json.loads((target / MANIFEST).read_bytes())
        whole = bool(manifest == _manifest(target, model))
    except (OSError, ValueError):
        whole = False
    if not whole:
        progress(f"the cached model in {target} is incomplete, damaged or of an older version: making it again")
    return whole


def _manifest(directory: Path, model: PackagedModel) -> dict[str, Any]:
    files = sorted(path for path in directory.iterdir() if path.name != MANIFEST)
    return {
        "source": {"requirement": model.requirement, "sha256": model.wheel_sha256, "licence": model.licence},
        "conversion": CONVERSION,
        "files": {path.name: {"bytes": path.stat().st_size, "sha256": sha256(path)} for path in files},
    }


def _make(model: PackagedModel, target: Path, progress: Progress) -> None:
    """Prepare the model beside `target` and move it there in one step. The caller holds the lock."""
    prefix = f".partial-{model.alias}-"
    for left_over in target.parent.glob(prefix + "*"):  # of a process that was killed
        shutil.rmtree(left_over)
    with tempfile.TemporaryDirectory(prefix=prefix, dir=target.parent) as partial:
        _run_preparation(model, partial, progress)
        made = Path(partial) / "model"
        (made / MANIFEST).write_text(json.dumps(_manifest(made, model), indent=1))
        shutil.rmtree(target, ignore_errors=True)
        made.rename(target)
    progress(f"model {model.alias} is ready in {target}")


def _run_preparation(model: PackagedModel, directory: str, progress: Progress) -> None:
    command = [sys.executable, "-m", "server.models.packaged", model.alias, directory]
    last_line = ""
    # A process group of its own, tied to our end of its standard input: see server/models/packaged.py.
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONWARNINGS": "ignore"},
    ) as child:
        assert child.stdout is not None  # stdout=PIPE
        for line in child.stdout:
            if line.startswith(PROGRESS):
                progress(f"model {model.alias}: {line.removeprefix(PROGRESS).strip()}")
            else:
                last_line = line.strip() or last_line
    if child.returncode:
        raise ModelSourceError(f"model {model.alias!r} could not be prepared: {last_line or child.returncode}")


def main(arguments: list[str]) -> int:
    """Print what the engine would load for a source; fetch and convert it first where needed."""

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    try:
        print(resolve(arguments[0] if arguments else DEFAULT_MODEL, progress=say))
    except ModelSourceError as error:
        say(f"error: {error}")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
