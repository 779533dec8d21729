"""The processes behind a vLLM engine: they start, fail, die and end as the contract says, and never stay behind."""

from __future__ import annotations

import asyncio
import gc
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from server.engine.base import EngineDeadError, EngineStartError, GenerationRequest, Sampling, VllmSettings
from server.engine.vllm import VllmEngine
from tests.integration.conftest import start
from tests.unit.engine.contract import begin, user

pytestmark = pytest.mark.asyncio(loop_scope="session")

HELPER = "multiprocessing.resource_tracker"  # one for all, ends with us
END_S = 20.0  # a killed process is gone in well under a second; only a failing test waits so long
FOREVER = Sampling(1500, ignore_eos=True)

CHILD = """
import asyncio, signal, sys
from server.engine.base import GenerationRequest, Sampling
from server.engine.vllm import VllmEngine
from protocol.items import Message

async def main():
    interrupted = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, interrupted.set)
    engine = VllmEngine("child", sys.argv[1])
    await engine.start(lambda words, share: None)
    print(*engine.processes, flush=True)
    await interrupted.wait()
    prompt = await engine.render([Message("user", "hello")])
    count = 0
    async for chunk in engine.generate(GenerationRequest("1", prompt, Sampling(3, ignore_eos=True))):
        count += chunk.token_count
    print(count, flush=True)
    await asyncio.Event().wait()

if __name__ == "__main__":
    asyncio.run(main())
"""


@pytest.fixture(autouse=True)
def _collect() -> Iterator[None]:
    """Collect what a start that failed left in vLLM: a ZeroMQ context that nothing else can reach, which warns."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


def gone(process: int) -> bool:
    """Wait for the end of a process, which need not be our child."""
    try:
        descriptor = os.pidfd_open(process)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], END_S)[0])
    finally:
        os.close(descriptor)


def children() -> set[int]:
    """Return the ids of our children that are no zombies and not multiprocessing's own helper."""
    listing = subprocess.run(
        ["ps", "-o", "pid=,stat=,args=", "--ppid", str(os.getpid())], check=False, capture_output=True, text=True
    ).stdout
    lines = [line.split(maxsplit=2) for line in listing.splitlines()]
    return {
        int(pid) for pid, stat, args in lines if stat[0] != "Z" and not args.startswith("ps ") and HELPER not in args
    }


def shared_memory(leader: int) -> set[Path]:
    """Return the files of shared memory that a process group has open: left behind by what is killed too early."""
    maps = [Path(f"/proc/{process}/maps").read_text() for process in group(leader)]
    names = re.findall(r"(/dev/shm/\S+)$", "\n".join(maps), re.MULTILINE)
    return {path for path in map(Path, names) if path.exists()}


def group(leader: int) -> list[int]:
    """Return the processes of a process group."""
    return [int(line) for line in subprocess.check_output(["pgrep", "-g", str(leader)], text=True).split()]


def run_child(script: Path, model: Path) -> subprocess.Popen[str]:
    """Start CHILD as the leader of its own process group."""
    script.write_text(CHILD)
    return subprocess.Popen(
        [sys.executable, str(script), str(model)],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": str(Path.cwd())},
    )


@pytest.mark.timeout(300)
async def test_a_killed_engine_process_ends_its_requests(random_model_dir: Path) -> None:
    """Running requests and `check_health` say EngineDeadError, nothing counts as unfinished, closing leaves nothing."""
    engine = await start(VllmEngine("mortal", str(random_model_dir)))
    assert engine._llm is not None
    # vLLM looks up here whose loop is to close its sockets: an engine that nobody ever asks must have one, too.
    assert engine._llm.engine_core.resources.output_queue_task.get_loop() is asyncio.get_running_loop()
    others = children()
    chunks, _ = await begin(engine, user("hello"), FOREVER)
    (process,) = engine.processes
    assert process in others
    os.kill(process, signal.SIGKILL)
    with pytest.raises(EngineDeadError, match="process of engine mortal is gone"):
        async for _ in chunks:
            pass
    with pytest.raises(EngineDeadError):
        await engine.check_health()
    assert engine.unfinished == 0
    engine.close()
    await engine.wait_closed()
    assert process not in children()
    with pytest.raises(EngineDeadError, match="not running"):
        await engine.render(user("hello"))


@pytest.mark.timeout(300)
async def test_close_ends_running_requests_and_all_processes(random_model_dir: Path) -> None:
    """Closing is idempotent, ends a running answer with EngineDeadError, and waits for EngineCore and its workers."""
    engine = await start(VllmEngine("short-lived", str(random_model_dir), VllmSettings(max_model_len=1024)))
    assert engine.context_length == 1024
    (process,) = engine.processes
    chunks, _ = await begin(engine, user("hello"), Sampling(900, ignore_eos=True))
    held = shared_memory(process)
    assert held
    engine.close()
    engine.close()
    assert engine.unfinished == 0
    with pytest.raises(EngineDeadError):
        async for _ in chunks:
            pass
    await engine.wait_closed()
    assert gone(process)
    assert not any(path.exists() for path in held)


@pytest.mark.timeout(300)
async def test_ctrl_c_spares_the_engine_a_killed_parent_does_not(random_model_dir: Path, tmp_path: Path) -> None:
    """SIGINT to the whole process group leaves the engine answering; SIGKILL of its parent ends every process."""
    parent = run_child(tmp_path / "child.py", random_model_dir)
    assert parent.stdout is not None
    try:
        process = int(await asyncio.to_thread(parent.stdout.readline))
        workers = group(process)
        assert len(workers) >= 2
        os.killpg(parent.pid, signal.SIGINT)
        assert await asyncio.to_thread(parent.stdout.readline) == "3\n"
    finally:
        parent.kill()
        parent.wait()
        parent.stdout.close()
    assert all([await asyncio.to_thread(gone, worker) for worker in workers])


@pytest.mark.timeout(300)
@pytest.mark.parametrize("step", ["importing vLLM", "starting the engine process", "loading weights"])
async def test_a_cancelled_start_leaves_no_process(random_model_dir: Path, step: str) -> None:
    """Wherever it was."""
    before = children()
    reached = asyncio.Event()
    engine = VllmEngine("cancelled", str(random_model_dir))
    task = asyncio.create_task(start(engine, lambda words, _: reached.set() if words == step else None))
    reaching = asyncio.create_task(reached.wait())
    await asyncio.wait({task, reaching}, return_when=asyncio.FIRST_COMPLETED)
    assert reaching.done(), task
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert children() <= before
    with pytest.raises(EngineDeadError):
        await anext(engine.generate(GenerationRequest("1", None, FOREVER)))  # type: ignore[arg-type]


@pytest.mark.timeout(300)
async def test_a_damaged_weight_file_is_told_in_one_line(random_model_dir: Path, tmp_path: Path) -> None:
    """The root cause, which only a worker's traceback holds, and what to do."""
    folder = shutil.copytree(random_model_dir, tmp_path / "damaged")
    os.truncate(folder / "model.safetensors", 3000)
    before = children()
    with pytest.raises(
        EngineStartError, match=r"damaged' cannot be started: .*Safetensor.*fetch the model again"
    ) as caught:
        await start(VllmEngine("damaged", str(folder)))
    assert "\n" not in str(caught.value)
    assert children() <= before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ('"model_type": "llama"->"model_type": "nosuch"', "does not know such models"),
        ('"hidden_size": 128->"hidden_size": "many"', "cannot be started"),
    ],
)
async def test_a_config_that_makes_no_sense(random_model_dir: Path, tmp_path: Path, change: str, message: str) -> None:
    """One line that says what to do, before any process is started."""
    folder = shutil.copytree(random_model_dir, tmp_path / "strange")
    config = folder / "config.json"
    before, after = change.split("->")
    config.write_text(config.read_text().replace(before, after))
    with pytest.raises(EngineStartError, match=message) as caught:
        await start(VllmEngine("strange", str(folder)))
    assert "\n" not in str(caught.value)


async def test_settings_that_vllm_does_not_have(random_model_dir: Path) -> None:
    """A misspelt extra argument is named."""
    with pytest.raises(EngineStartError, match=r"no_such_argument.*correct the engine settings"):
        await start(VllmEngine("x", str(random_model_dir), VllmSettings(extra={"no_such_argument": 1})))


async def test_too_little_memory_for_one_answer(random_model_dir: Path) -> None:
    """The window does not fit into the KV cache: which setting to change."""
    settings = VllmSettings(cpu_kvcache_gib=0.0001)
    with pytest.raises(EngineStartError, match="smaller max_model_len, or give the KV cache more memory"):
        await start(VllmEngine("tiny", str(random_model_dir), settings))
