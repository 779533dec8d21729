"""One start of a vLLM engine: its arguments, its steps, its cancellation, and in one line why it failed."""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from protocol.errors import excerpt
from server.engine.base import EngineStartError, ProgressCallback, VllmSettings
from server.engine.core_process import CoreEntry, CoreOutput, kill_group, prepare_environment

MAX_CAUSE_CHARS: Final = 300  # of vLLM's own words in an error text
_END_S: Final = 10.0  # for killed processes to disappear; a big one takes a second to unmap

_ENGINE_FIELDS: Final = (
    "max_num_seqs",
    "max_num_batched_tokens",
    "long_prefill_token_threshold",
    "gpu_memory_utilization",
    "max_model_len",
    "tensor_parallel_size",
    "dtype",
    "enforce_eager",
    "seed",
    "reasoning_parser",  # so that what guides an answer waits until its thoughts are over
    "max_lora_rank",
)
CPU_LORA: Final = "server.engine.vllm_cpu_lora.WorkerExtension"
CACHED_ADAPTERS: Final = 64  # in the machine's memory, the least recently used go first; some megabytes each
# bfloat16 is ten times slower than float32 without AVX-512; compiling takes minutes. A block is the smallest
# piece of a prompt that the prefix cache can find again: 32 tokens is the smallest its CPU kernels take, the
# default of 128 would never hit in a short chat. A step that reads 2,048 tokens of a document takes a second or two,
# and all who read along would wait for it.
_CPU_DEFAULTS: Final = {
    "dtype": "float32",
    "enforce_eager": True,
    "max_num_seqs": 64,
    "block_size": 32,
    "long_prefill_token_threshold": 256,
}
_CPU_KVCACHE_GIB: Final = 1.0
# With "auto", vLLM checks each form with a library that can follow it, and then follows all forms with the library of
# the first request: what that one does not know is passed over in silence. White space between JSON's parts may go on
# until the answer is cut off.
GUIDING: Final = {"backend": "xgrammar", "disable_any_whitespace": True}

# Only one engine at a time may stand in vLLM's entry. (A GPU's free memory is measured while a model is loaded: that
# loads on one device come one after the other is the pool's to see to.)
_one_at_a_time = threading.Lock()


class _Place:
    """Our place in vLLM's entry, from its taking until the process has begun: a load that hangs keeps no other waiting.

    owner, name: vLLM's class and the name of its entry; there is no hook for this.
    """

    def __init__(self, owner: Any, name: str) -> None:
        _one_at_a_time.acquire()
        self._owner, self._name = owner, name
        self.original = getattr(owner, name)
        self._left = threading.Lock()

    def take(self, entry: Callable[..., None]) -> None:
        setattr(self._owner, self._name, staticmethod(entry))

    def leave(self) -> None:
        """Give it back, from whichever thread; idempotent."""
        if self._left.acquire(blocking=False):
            setattr(self._owner, self._name, staticmethod(self.original))
            _one_at_a_time.release()


class Start:
    """What the starting thread and the event loop share.

    progress: called from several threads.
    """

    def __init__(self, progress: ProgressCallback) -> None:
        self._progress = progress
        self._verbose = prepare_environment()
        self._cancelled = threading.Event()
        self.processes: list[int] = []
        self.output: CoreOutput | None = None
        self._place: _Place | None = None

    def step(self, words: str) -> None:
        """Say what comes next; raises EngineStartError when the start was cancelled."""
        self.check()
        self._progress(words, None)

    def check(self) -> None:
        """Raise EngineStartError when the start was cancelled."""
        if self._cancelled.is_set():
            raise EngineStartError("the start was cancelled")

    def cancel(self) -> None:
        """Let the starting thread end soon, with no process left."""
        self._cancelled.set()
        self.kill()

    def kill(self) -> None:
        """Kill the engine's processes, as far as they have shown up."""
        for process in self.processes:
            kill_group(process)

    @contextlib.contextmanager
    def engine_process(
        self, owner: Any, entry: str, gpus: Sequence[int] = (), *, compiles: bool = True
    ) -> Iterator[None]:
        """Let the EngineCore that vLLM starts meanwhile begin in `core_process.CoreEntry`.

        owner, entry: vLLM's class and the name of its entry.
        """
        self._place = place = _Place(owner, entry)
        try:
            self.step("starting the engine process")
            self.output = output = CoreOutput(verbose=self._verbose, on_process=self._started, on_loading=self._loading)
            place.take(CoreEntry(place.original, output.writer, gpus, compiles=compiles))
            try:
                yield
            except BaseException:
                self.kill()
                raise
            finally:
                output.writer.close()  # ours was the last one here: the pipe now ends with the processes
                output.quiet = False
        finally:
            place.leave()

    def failure(self, source: str, error: Exception) -> EngineStartError:
        """Return the error to raise for what vLLM raised; waits for the processes' last words."""
        cause = None
        if self.output is not None:
            self.output.ended(_END_S)
            cause = self.output.failure()
        return EngineStartError(explain(source, cause or f"{type(error).__name__}: {_gist(error)}"))

    def _started(self, process: int) -> None:
        if self._place is not None:
            self._place.leave()  # with several processes, vLLM has looked the entry up for all before the first begins
        self.processes.append(process)
        if self._cancelled.is_set():
            kill_group(process)

    def _loading(self, share: float) -> None:
        if share < 1:
            self._progress("loading weights", share)
        else:
            self._progress("warming up", None)


def engine_arguments(source: str, settings: VllmSettings, *, cpu: bool) -> dict[str, Any]:
    """Return the keyword arguments of vLLM's `AsyncEngineArgs`."""
    arguments: dict[str, Any] = {"model": source, "disable_log_stats": True, "enable_prefix_caching": True}
    # Short of memory, vLLM puts off its least urgent request instead of its newest.
    arguments["scheduling_policy"] = "priority"
    if cpu:
        arguments |= _CPU_DEFAULTS
        gib = _CPU_KVCACHE_GIB if settings.cpu_kvcache_gib is None else settings.cpu_kvcache_gib
        # Not VLLM_CPU_KVCACHE_SPACE: that is one number for all engines of this process.
        arguments["kv_cache_memory_bytes"] = int(gib * 2**30)
    if settings.can_sleep and not cpu:
        arguments["enable_sleep_mode"] = True
    arguments |= {name: value for name in _ENGINE_FIELDS if (value := getattr(settings, name)) is not None}
    if settings.max_loras is not None:
        cached = max(settings.max_loras, CACHED_ADAPTERS)
        arguments |= {"enable_lora": True, "max_loras": settings.max_loras, "max_cpu_loras": cached}
        if cpu:
            arguments["worker_extension_cls"] = CPU_LORA
    return arguments | dict(settings.extra)


def check_source(source: str) -> None:
    """Raise EngineStartError when `source` is clearly a path and nothing useful is there."""
    path = Path(source).expanduser()
    if source.startswith(("/", "./", "../", "~")) and not path.exists():
        raise EngineStartError(f"model path {source!r} does not exist: give a model's folder or a hub id")
    if path.is_dir() and not (path / "config.json").is_file():
        raise EngineStartError(f"model folder {source!r} holds no config.json: it is not a transformers model")


def explain(source: str, cause: str) -> str:
    """Return one line for the person who starts the server."""
    hint = next((hint for pattern, hint in _HINTS if pattern.search(cause)), "see vLLM's log: VLLM_LOGGING_LEVEL=INFO")
    return f"model {excerpt(source)!r} cannot be started: {excerpt(' '.join(cause.split()), MAX_CAUSE_CHARS)} ({hint})"


def _gist(error: Exception) -> str:
    """Return the line of an error's text that says something; pydantic's first one only counts."""
    text = str(error)
    if match := re.search(r"(?:Value|Assertion) error, (.*)", text):
        return match[1]
    return next((line for line in text.splitlines() if line.strip()), "no text")


def _hint(pattern: str, hint: str) -> tuple[re.Pattern[str], str]:
    return re.compile(pattern, re.IGNORECASE), hint


# The first that matches wins.
_HINTS: Final = (
    _hint(r"not recognize this architecture|architectures .* not supported", "this vLLM does not know such models"),
    _hint(r"safetensor|unpickling|streamreader|deserializ", "a weight file is damaged: fetch the model again"),
    _hint(r"size mismatch|shape|no module or parameter", "the weights do not fit the model's config.json"),
    _hint(r"kv cache|max.?seq|max_model_len", "set a smaller max_model_len, or give the KV cache more memory"),
    _hint(r"memory", "free some memory, or take less with gpu_memory_utilization or cpu_kvcache_gib"),
    _hint(
        r"offline|couldn't connect|localentry|valid model identifier|repository not found|repo id",
        "it is no folder here and no model that the hub gives: check the name, the network and HF_HUB_OFFLINE",
    ),
    _hint(r"unexpected keyword|validation|invalid|must be", "correct the engine settings"),
)


def on_event_loop(progress: ProgressCallback, call_soon: Callable[..., object]) -> ProgressCallback:
    """Return a callback for any thread that runs `progress` on the event loop."""

    def report(words: str, share: float | None) -> None:
        with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile: nobody to tell
            call_soon(progress, words, share)

    return report


def not_importable(error: ImportError) -> str:
    """Return what to do when vLLM cannot be imported."""
    missing = getattr(error, "name", None) or ""
    if missing.partition(".")[0] == "vllm":
        return "vLLM is not installed: run make serve, or pip install 'tokenwire[cpu]' or 'tokenwire[gpu]'"
    return f"vLLM is installed but cannot be imported: {excerpt(str(error))}"
