"""A vLLM engine's arguments, its output and its errors, without vLLM."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections import deque
from pathlib import Path

import pytest

from server.engine.base import EngineDeadError, EngineStartError, VllmSettings
from server.engine.core_process import SOCKET_FOLDER, CoreEntry, CoreOutput, root_cause
from server.engine.vllm import VllmEngine
from server.engine.vllm_start import CPU_LORA, Start, check_source, engine_arguments, explain


def test_defaults_on_a_cpu() -> None:
    """Number format, eager mode, a small block for the prefix cache, and 1 GiB for it."""
    arguments = engine_arguments("m", VllmSettings(), cpu=True)
    assert (arguments["dtype"], arguments["enforce_eager"], arguments["block_size"]) == ("float32", True, 32)
    assert arguments["kv_cache_memory_bytes"] == 2**30


def test_defaults_on_a_gpu_are_vllms() -> None:
    """Nothing but the model, the prefix cache, urgent requests first, and no statistics."""
    assert engine_arguments("m", VllmSettings(), cpu=False) == {
        "model": "m",
        "disable_log_stats": True,
        "enable_prefix_caching": True,
        "scheduling_policy": "priority",
    }


def test_what_is_set_wins_and_extra_wins_over_all() -> None:
    """Also values that are false or zero."""
    settings = VllmSettings(enforce_eager=False, seed=0, cpu_kvcache_gib=0.5, extra={"block_size": 64, "seed": 7})
    arguments = engine_arguments("m", settings, cpu=True)
    assert (arguments["enforce_eager"], arguments["seed"], arguments["block_size"]) == (False, 7, 64)
    assert arguments["kv_cache_memory_bytes"] == 2**29


def test_adapters_have_room_where_it_is_asked_for() -> None:
    """And on a CPU, where vLLM's own code for them is wrong, the workers mend it."""
    arguments = engine_arguments("m", VllmSettings(max_loras=2, max_lora_rank=32), cpu=True)
    assert arguments["worker_extension_cls"] == CPU_LORA
    arguments = engine_arguments("m", VllmSettings(max_loras=2, max_lora_rank=32), cpu=False)
    named = {"enable_lora": True, "max_loras": 2, "max_lora_rank": 32, "max_cpu_loras": 64}
    assert named.items() <= arguments.items()
    assert "worker_extension_cls" not in arguments


@pytest.mark.parametrize("source", ["/no/such/model", "./no-such", "~/no-such-model-here"])
def test_a_path_that_is_not_there(source: str) -> None:
    """Told at once, without importing vLLM."""
    with pytest.raises(EngineStartError, match="does not exist"):
        check_source(source)


def test_a_folder_without_a_model(tmp_path: Path) -> None:
    """As above; a hub id passes."""
    with pytest.raises(EngineStartError, match=r"no config\.json"):
        asyncio.run(VllmEngine("x", str(tmp_path)).start(lambda *_: None))
    check_source("org/name")


@pytest.mark.parametrize("own", [None, "/their/own"])
def test_sockets_are_in_a_folder_that_goes_with_the_process(tmp_path: Path, own: str | None) -> None:
    """As vLLM leaves them behind. Where the user names a folder, theirs is used."""
    code = f"""if True:
        import os, pathlib
        from server.engine.core_process import prepare_environment
        prepare_environment()
        prepare_environment()
        folder = pathlib.Path(os.environ["{SOCKET_FOLDER}"])
        print(folder, *pathlib.Path(os.environ["TMPDIR"]).iterdir())
        if folder.exists():
            (folder / "socket").touch()
    """
    environment = {name: value for name, value in os.environ.items() if name != SOCKET_FOLDER}
    environment |= {"TMPDIR": str(tmp_path)} | ({SOCKET_FOLDER: own} if own else {})
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    folder, *made = done.stdout.split()
    assert made == ([] if own else [folder])
    assert folder == own or Path(folder).parent == tmp_path
    assert list(tmp_path.iterdir()) == []


def test_the_first_exception_of_the_output_is_the_cause() -> None:
    """Whoever printed it; later ones only say that it happened."""
    prefix = "(Worker pid=7) ERROR 11-30 00:09:54 [multiproc_executor.py:953] "
    lines = deque(
        [
            f"{prefix}Traceback (most recent call last):",
            f"{prefix}    raise ValueError: no",
            f"{prefix}torch.OutOfMemoryError: CUDA out of memory.",
            "Exception: WorkerProc initialization failed due to an exception in a background process.",
        ]
    )
    assert root_cause(lines) == "torch.OutOfMemoryError: CUDA out of memory."
    assert root_cause(deque(["all is well"])) is None


def test_an_explanation_is_one_line_with_a_hint() -> None:
    """Cut, without line breaks, and with what to do."""
    text = explain("m", "torch.OutOfMemoryError: CUDA out of memory.\n" + "x" * 1000)
    assert text.startswith("model 'm' cannot be started: torch.OutOfMemoryError: CUDA out of memory. xxx")
    assert text.endswith("(free some memory, or take less with gpu_memory_utilization or cpu_kvcache_gib)")
    assert len(text) < 450


def test_the_output_tells_process_and_progress() -> None:
    """The process id comes first; progress bars end in a carriage return; the end is when the last writer closes."""
    processes: list[int] = []
    shares: list[float] = []
    output = CoreOutput(verbose=False, on_process=processes.append, on_loading=shares.append)
    bar = "Loading safetensors checkpoint shards: {:3}% Completed | 1/2 [00:00<?, ?it/s]\r"
    output.writer._send(  # type: ignore[attr-defined]  # raw bytes, as a process writes them
        f"tokenwire-engine-core 42\n{bar.format(0)}{bar.format(50)}ValueError: no".encode() + b"\n"
    )
    assert not output.ended(0)
    output.writer.close()
    assert output.ended(10)
    assert (processes, shares) == ([42], [0.0, 0.5])
    assert output.failure() == "ValueError: no"


def test_a_load_that_hangs_keeps_no_other_waiting() -> None:
    """VLLM's entry is free as soon as the process has begun, and what stood there before stands there again."""

    class Owner:
        @staticmethod
        def entry() -> None: ...

    original = Owner.entry
    hanging, other = Start(lambda *_: None), Start(lambda *_: None)
    with hanging.engine_process(Owner, "entry"):
        ours = Owner.entry
        assert isinstance(ours, CoreEntry)
        assert hanging.output is not None
        hanging.output.writer._send(b"tokenwire-engine-core 4194304\n")  # type: ignore[attr-defined]  # no such process
        with other.engine_process(Owner, "entry"):  # would wait for ever
            assert isinstance(Owner.entry, CoreEntry)
            assert Owner.entry is not ours
        assert Owner.entry is original
    assert Owner.entry is original


def test_a_start_that_is_cancelled_before_its_process_leaves_the_entry() -> None:
    """The next one finds it."""

    class Owner:
        @staticmethod
        def entry() -> None: ...

    original = Owner.entry
    cancelled = Start(lambda *_: None)
    cancelled.cancel()
    with pytest.raises(EngineStartError, match="cancelled"), cancelled.engine_process(Owner, "entry"):
        pass
    with Start(lambda *_: None).engine_process(Owner, "entry"):
        assert Owner.entry is not original
    assert Owner.entry is original


def test_without_vllm_the_text_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The module imports without it; `start` raises."""
    monkeypatch.setitem(sys.modules, "vllm", None)
    for name in [name for name in sys.modules if name.startswith("vllm.")]:
        monkeypatch.delitem(sys.modules, name)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(EngineStartError, match="vLLM is not installed: run make serve"):
        asyncio.run(VllmEngine("x", str(tmp_path)).start(lambda *_: None))


def test_a_cancelled_start_takes_no_further_step() -> None:
    """Before any process was started, the thread ends with its next step."""
    start = Start(lambda *_: None)
    start.cancel()
    with pytest.raises(EngineStartError, match="cancelled"):
        start.step("reading")


async def test_an_engine_that_was_not_started_is_not_there() -> None:
    """Every call says so, and closing it is harmless."""
    engine = VllmEngine("x", "org/name")
    assert engine.unfinished == 0
    for call in (engine.check_health(), engine.render([])):
        with pytest.raises(EngineDeadError, match="not running"):
            await call
    await engine.wait_closed()
    engine.close()
    await engine.wait_closed()
