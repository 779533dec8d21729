"""vLLM behind the engine contract. It is imported here and in `parsing`, and only when an engine starts.

What vLLM 0.32 does, as read in its source, and what follows from it:

- Building `AsyncLLM` blocks for most of a minute, so it is built in a thread. Built outside a running loop, it starts
  its output handler with the first request, in that request's loop, and what reads EngineCore's socket, too, unless we
  do before. Its sockets (zmq.asyncio) work under uvloop.
- It installs no signal handlers here. EngineCore does in its own process: see `core_process`.
- Closing `generate()` takes the request out of the output processor before its first await: `unfinished` falls at once.
- When EngineCore dies, running requests get its `EngineDeadError`, but stay in the output processor for ever.
- It makes an output for each token, hands it to the request's collector, and wakes the task that reads that; if it
  comes late, outputs are merged.
- A bare list of token ids goes through its tokenizer's thread; `tokens_input` is taken as it is.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import threading
from collections.abc import AsyncGenerator, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, Final

import msgspec

from protocol.errors import excerpt
from protocol.events import Written
from protocol.items import Message
from protocol.options import PLAIN, Options
from server.engine.base import (
    Chunk,
    EngineDeadError,
    EngineError,
    EngineStartError,
    GenerationRequest,
    ProgressCallback,
    Prompt,
    RefusedError,
    Sampling,
    VllmSettings,
)
from server.engine.parsing import AnswerReader, OutputReader, Parsers
from server.engine.pictures import with_images
from server.engine.prompt import PromptRenderer
from server.engine.vllm_adapters import Adapters
from server.engine.vllm_chunks import chunk_of
from server.engine.vllm_outputs import Gathering, outputs
from server.engine.vllm_socket import LeanReading
from server.engine.vllm_start import GUIDING, Start, check_source, engine_arguments, not_importable, on_event_loop

if TYPE_CHECKING:
    from vllm.sampling_params import SamplingParams
    from vllm.v1.engine.async_llm import AsyncLLM

# How long EngineCore may take to end by itself before it is killed, in seconds; 1 to 2 are usual. Killed, it leaves
# its shared memory to multiprocessing's resource tracker, which removes it only when our process ends.
SHUTDOWN_GRACE_S: Final = 8.0
_KILLED_S: Final = 10.0

# `Sampling` and `SamplingParams` share these names. A model's own defaults stand where the request has None.
_SAMPLING_FIELDS: Final = tuple(field.name for field in fields(Sampling) if field.name != "stop")


class VllmEngine:
    """One model on one vLLM, whose EngineCore is a process of its own.

    name: for error texts.
    source: a model's folder, or its id on the hub.
    settings: how to run it.
    """

    def __init__(self, name: str, source: str, settings: VllmSettings | None = None) -> None:
        self.name = name
        self.context_length = 0  # known once started
        self.max_concurrency = 0
        self.takes_images = False
        self._source = source
        self._settings = settings or VllmSettings()
        self._start: Start | None = None
        self._llm: AsyncLLM | None = None
        self._renderer: PromptRenderer | None = None
        self._reader: OutputReader | None = None
        self._is_up = False
        self._gathering: Gathering | None = None
        self._defaults: dict[str, Any] = {}
        self._closer: threading.Thread | None = None
        self._adapters = Adapters(self._settings)

    @property
    def unfinished(self) -> int:
        """Requests in vLLM's output processor; 0 when the engine is gone."""
        llm = self._llm
        return 0 if llm is None or self._closer or llm.errored else llm.get_num_unfinished_requests()

    @property
    def processes(self) -> tuple[int, ...]:
        """Ids of EngineCore processes; each leads a process group with its workers."""
        return () if self._start is None else tuple(self._start.processes)

    async def start(self, progress: ProgressCallback) -> None:
        """Import vLLM, start its process, load the model."""
        check_source(self._source)
        loop = asyncio.get_running_loop()
        self._start = start = Start(on_event_loop(progress, loop.call_soon_threadsafe))
        loading = loop.run_in_executor(None, self._load, start)
        try:
            await asyncio.shield(loading)
        except asyncio.CancelledError:
            start.cancel()
            await asyncio.shield(self._abandon(loading))
            raise
        except EngineStartError:
            await self.wait_closed()
            raise
        assert self._llm is not None
        core = self._llm.engine_core
        LeanReading(core.resources.output_socket)
        # Not with the first request: until then vLLM knows of no loop, and would close its sockets in another thread,
        # while this loop watches them.
        core._ensure_output_queue_task()  # noqa: SLF001

    async def _abandon(self, loading: asyncio.Future[None]) -> None:
        with contextlib.suppress(EngineStartError):
            await loading
        self.close()
        await self.wait_closed()

    def _load(self, start: Start) -> None:
        """Do all that blocks, in a thread."""
        try:
            start.step("importing vLLM")
            try:
                from vllm.config import StructuredOutputsConfig  # noqa: PLC0415 - takes 10 s, and is optional
                from vllm.engine.arg_utils import AsyncEngineArgs  # noqa: PLC0415 - as above
                from vllm.platforms import current_platform  # noqa: PLC0415 - as above
                from vllm.v1.engine.async_llm import AsyncLLM  # noqa: PLC0415 - as above
                from vllm.v1.engine.core import EngineCoreProc  # noqa: PLC0415 - as above
            except ImportError as error:
                raise EngineStartError(not_importable(error)) from error
            start.step("reading the model's settings")
            arguments = engine_arguments(self._source, self._settings, cpu=current_platform.is_cpu())
            guiding = StructuredOutputsConfig(**(GUIDING | arguments.pop("structured_outputs_config", {})))
            config = AsyncEngineArgs(structured_outputs_config=guiding, **arguments).create_engine_config()
            # When the first client asks for logprobs, vLLM compiles a function even so. On a CPU that takes half a
            # minute, in which all others wait.
            compiles = not (current_platform.is_cpu() and config.model_config.enforce_eager)
            with start.engine_process(EngineCoreProc, "run_engine_core", self._settings.gpus, compiles=compiles):
                # Kept nowhere else, a local of this frame would outlive `wait_closed`.
                self._llm = AsyncLLM.from_vllm_config(config, disable_log_stats=True)
            start.step("preparing the chat template")
            self._take_over(self._llm)
        except EngineStartError:
            self.close()
            raise
        except Exception as error:
            self.close()
            raise start.failure(self._source, error) from error
        start.check()

    def _take_over(self, llm: AsyncLLM) -> None:
        self._defaults = llm.model_config.get_diff_sampling_param()
        self.context_length = llm.model_config.max_model_len
        self.max_concurrency = llm.scheduler_config.max_num_seqs
        self._gathering = Gathering(llm.output_processor)
        media = llm.model_config.multimodal_config
        self.takes_images = media is not None and media.get_limit_per_prompt("image") > 0
        tokenizer = llm.get_tokenizer()
        settings = self._settings
        self._reader = OutputReader(tokenizer, Parsers(settings.tool_parser, settings.reasoning_parser))
        self._renderer = PromptRenderer(tokenizer)
        self._is_up = True

    async def check(self, options: Options) -> None:
        """Let vLLM look at what would guide the answer."""
        llm = self._alive()
        if options.is_guided or self._offers_tools(options):
            await asyncio.to_thread(self._check, llm, options)

    def _check(self, llm: AsyncLLM, options: Options) -> None:
        config = llm.vllm_config
        try:
            parameters = self._parameters(Sampling(max_tokens=1), options)
            tokenizer = llm.get_tokenizer()
            parameters.verify(llm.model_config, config.speculative_config, config.structured_outputs_config, tokenizer)
        except EngineError:
            raise
        except Exception as error:  # whatever vLLM and its grammar library make of it
            raise _unguided(options, excerpt(" ".join(str(error).split()))) from error

    async def render(self, messages: Sequence[Message], options: Options = PLAIN) -> Prompt:
        """Apply the model's chat template."""
        self._alive()
        assert self._renderer is not None
        if options.tools and not self._offers_tools(options):
            options = msgspec.structs.replace(options, tools=())
        prompt = await self._renderer.render(messages, options)
        if any(message.images for message in messages):
            return await with_images(prompt, self._alive().renderer)
        return prompt

    def _offers_tools(self, options: Options) -> bool:
        return self._reader is not None and self._reader.offers_tools(options)

    async def extend(self, prompt: Prompt, written: Written) -> Prompt:
        """Add the beginning of the answer."""
        renderer = self._renderer
        self._alive()
        if renderer is None:
            raise EngineDeadError(f"engine {self.name} is still starting")
        return await renderer.extend(prompt, written)

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[Chunk, None]:
        """Yield the answer's chunks as vLLM makes them."""
        llm = self._alive()
        from vllm.inputs.engine import tokens_input  # noqa: PLC0415 - imported by now, this only looks it up

        cached = 0
        try:
            answer = self._begin(request)
            if answer is not None and request.prompt.continuation.text:
                yield Chunk("", 0, None, 0, await answer.again(request.prompt.continuation.text))
            prompt: Any = tokens_input(list(request.prompt.token_ids), cache_salt=request.cache_salt or None)
            if request.prompt.media is not None:
                prompt = {**request.prompt.media, **prompt, "type": request.prompt.media["type"]}
            parameters = self._parameters(request.sampling, request.options)
            if answer is not None:  # what a parser reads is yielded: it is read where this generator runs
                request = replace(request, sink=None)
            assert self._gathering is not None
            made = outputs(llm, self._gathering, request, prompt, parameters, self._adapters.get(request.adapter))
            async with contextlib.aclosing(made):
                async for output in made:
                    if output.outputs[0].finish_reason == "error" and request.options.is_guided:
                        raise _unguided(request.options, "vLLM cannot make a grammar of it, or not keep to it")
                    cached = output.num_cached_tokens or cached
                    chunk = chunk_of(output, cached, request.options.top_logprobs)
                    if answer is not None:
                        token_ids = tuple(output.outputs[0].token_ids)
                        chunk = answer.chunk(msgspec.structs.replace(chunk, token_ids=token_ids))
                    yield chunk
        except EngineError:
            raise
        except Exception as error:
            raise self._translated(error) from error

    async def load_adapter(self, name: str, folder: str) -> None:
        """Load a LoRA adapter; vLLM would take some that do not fit, so it is looked at before."""
        llm = self._alive()
        try:
            await self._adapters.load(llm, name, folder)
        except EngineError:
            raise
        except Exception as error:
            fault = self._translated(error)
            if isinstance(fault, EngineDeadError):
                raise fault from error
            text = f"adapter {excerpt(folder)!r} does not fit its base model: {fault}"
            raise EngineStartError(text) from error

    async def unload_adapter(self, name: str) -> None:
        """Take an adapter out of vLLM's memory."""
        llm = self._alive()
        try:
            await self._adapters.unload(llm, name)
        except Exception as error:
            raise self._translated(error) from error

    async def check_health(self) -> None:
        """Ask vLLM whether its process lives."""
        llm = self._alive()
        try:
            await llm.check_health()
        except Exception as error:
            raise self._translated(error) from error

    async def sleep(self) -> None:
        """VLLM's level 1: weights go to the host's memory, the KV cache is dropped.

        Its prefix cache is an index of what is dropped: unless it is reset, later prompts would hit what is gone.
        """
        llm = self._alive()
        if not llm.model_config.enable_sleep_mode:  # on a CPU vLLM takes the call and does nothing
            raise EngineError(f"engine {self.name} cannot sleep: that needs a GPU, and asleep_gib in its settings")
        try:
            await llm.reset_prefix_cache()
            await llm.sleep(level=1)
        except Exception as error:
            raise self._translated(error) from error

    async def wake(self) -> None:
        """Bring the weights back."""
        llm = self._alive()
        try:
            await llm.wake_up()
            await llm.reset_prefix_cache()
        except Exception as error:
            raise self._translated(error) from error

    def close(self) -> None:
        """End running requests and stop the processes, in a thread."""
        if self._closer is not None:
            return
        if self._start is not None and self._llm is None:
            self._start.cancel()
        if self._start is not None and self._start.output is not None:
            self._start.output.quiet = True
        self._closer = threading.Thread(target=self._shut_down, name=f"vllm-close-{self.name}")
        if self._llm is not None:
            from vllm.v1.engine.exceptions import EngineDeadError as VllmDeadError  # noqa: PLC0415 - as above

            # Of vLLM's class, so that its generators do not try to abort in an engine that is going away.
            self._llm.output_processor.propagate_error(VllmDeadError())
        self._closer.start()

    def _shut_down(self) -> None:
        if self._llm is not None:
            self._llm.shutdown(timeout=SHUTDOWN_GRACE_S)
        if self._start is not None and (output := self._start.output) is not None and not output.ended(0.1):
            self._start.kill()
            output.ended(_KILLED_S)
        multiprocessing.active_children()  # collects the exit status of those that were killed

    async def wait_closed(self) -> None:
        """Return when EngineCore and its workers are gone."""
        if self._closer is None:
            return
        await asyncio.shield(asyncio.to_thread(self._closer.join))
        llm, self._llm = self._llm, None
        if llm is not None:
            # shutdown() only asked the loop to cancel these.
            tasks = [task for task in (llm.output_handler, llm.engine_core.resources.output_queue_task) if task]
            if tasks:
                await asyncio.wait(tasks, timeout=SHUTDOWN_GRACE_S)
            # The sockets are closed now. vLLM leaves their context, with two threads, to whenever it is collected.
            await asyncio.to_thread(llm.engine_core.resources.ctx.destroy, linger=0)

    def _alive(self) -> AsyncLLM:
        if self._llm is None or not self._is_up or self._closer is not None:
            raise EngineDeadError(f"engine {self.name} is not running")
        return self._llm

    def _begin(self, request: GenerationRequest) -> AnswerReader | None:
        assert self._reader is not None
        prompt = request.prompt
        end = len(prompt.token_ids) - len(prompt.continuation.token_ids)
        return self._reader.begin(request.options, prompt.token_ids[end - prompt.opening : end])

    def _parameters(self, sampling: Sampling, options: Options) -> SamplingParams:
        from vllm.sampling_params import RequestOutputKind, SamplingParams  # noqa: PLC0415 - as in generate

        given = {name: value for name in _SAMPLING_FIELDS if (value := getattr(sampling, name)) is not None}
        assert self._reader is not None
        guide = self._reader.guide(options)
        return SamplingParams(
            **(self._defaults | given),
            stop=list(sampling.stop),
            logprobs=options.top_logprobs,
            structured_outputs=guide.structured,
            skip_special_tokens=not guide.keeps_markup,
            output_kind=RequestOutputKind.DELTA,
        )

    def _translated(self, error: Exception) -> EngineError:
        from vllm.v1.engine.exceptions import EngineDeadError as VllmDeadError  # noqa: PLC0415 - as in generate

        if isinstance(error, VllmDeadError) or self._closer is not None or (self._llm and self._llm.errored):
            return EngineDeadError(f"the process of engine {self.name} is gone")
        cause = error.__cause__ or error  # vLLM wraps what it did not expect
        return EngineError(excerpt(" ".join(str(cause).split()) or type(cause).__name__))


def _unguided(options: Options, why: str) -> RefusedError:
    param = "tools" if options.format is None else "text.format"
    return RefusedError(f"{param} cannot guide this model: {why}", param)
