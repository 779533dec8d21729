"""vLLM's outputs on their way to whoever reads an answer, past the task that waits for it and in batches.

vLLM works on each token of each answer at once: text, output, collector, the waiting task. Who reads an answer once
in a while needs none of that in between, and of what is made then only the text. Microseconds of our CPU per token
(128 answers, tokens gathered by 1, 2, 4 and 8; the best of five): `OutputProcessor` alone 9.0, 5.6, 4.9, 4.3; here,
with the gathering itself, 4.7, 4.2, 4.0, 3.8. Waking a task costs more again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import TYPE_CHECKING, Any

from server.engine.base import Chunk, GenerationRequest, Sink
from server.engine.vllm_chunks import chunk_of

if TYPE_CHECKING:
    from vllm.lora.request import LoRARequest
    from vllm.outputs import RequestOutput
    from vllm.sampling_params import SamplingParams
    from vllm.v1.engine import EngineCoreOutput
    from vllm.v1.engine.async_llm import AsyncLLM
    from vllm.v1.engine.output_processor import OutputProcessor, OutputProcessorOutput, RequestOutputCollector


class Gathering:
    """Stands before an output processor: the tokens of answers that have a sink wait here until that asks for them.

    An answer's first output is let through, and its last, and whatever brings more than tokens.
    """

    def __init__(self, processor: OutputProcessor) -> None:
        self._process = processor.process_outputs
        self._states = processor.request_states
        self._version: str | None = None  # of the weights; the newest output's
        self._held: dict[str, _Held] = {}
        processor.process_outputs = self._take_in  # this one's: before the class's method

    def begin(self, request_id: str, sink: Sink, bypass: Bypass) -> None:
        """Hold the tokens of this request, which has no stop strings, from now on. request_id: vLLM's own."""
        self._held[request_id] = _Held(self, sink, bypass)

    def end(self, request_id: str) -> None:
        """Hand over what waits, and hold nothing of this request any more."""
        held = self._held.pop(request_id, None)
        if held is not None:
            held.hand_over()

    def work_on(self, output: EngineCoreOutput, bypass: Bypass) -> None:
        """Let vLLM make text of tokens that were held: only text, where nothing else is to come of them."""
        state = self._states.get(output.request_id)
        if state is None or state.stream_interval > 1 or not bypass.is_clear:
            self._process([output], weight_version=self._version)
            return
        state.detokenizer.update(output.new_token_ids, False)
        bypass.say(state.detokenizer.get_next_output_text(False, True), len(output.new_token_ids))

    def _take_in(
        self,
        outputs: list[EngineCoreOutput],
        timestamp: float | None = None,
        stats: Any = None,
        weight_version: str | None = None,
    ) -> OutputProcessorOutput:
        self._version = weight_version
        through = []
        for output in outputs:
            held = self._held.get(output.request_id)
            if held is None or not held.keeps(output):
                through.append(output)
        return self._process(through, timestamp, stats, weight_version=weight_version)


class _Held:
    """What waits of one request, as one output of several tokens, such as vLLM makes when it speculates."""

    __slots__ = ("_bypass", "_gathering", "_output", "_sink", "is_new")

    def __init__(self, gathering: Gathering, sink: Sink, bypass: Bypass) -> None:
        self._gathering = gathering
        self._sink = sink
        self._bypass = bypass
        self._output: EngineCoreOutput | None = None
        self.is_new = True

    def keeps(self, output: EngineCoreOutput) -> bool:
        """Take an output, or put what waits into it, to go on together."""
        before = self._output
        if self.is_new or not _is_plain(output):
            self.is_new = False
            if before is not None:
                output.new_token_ids = before.new_token_ids + output.new_token_ids
                self._output = None
            return False
        if before is None:
            self._output = output
            self._sink.wait(self.hand_over)
        else:
            before.new_token_ids += output.new_token_ids
            self._sink.heard()
        return True

    def hand_over(self) -> None:
        """Bring what waits to the sink; harmless when nothing does."""
        output, self._output = self._output, None
        if output is None:
            return
        try:
            self._gathering.work_on(output, self._bypass)
        except Exception as error:  # noqa: BLE001 it ends this request; who asks has others to care for
            self._bypass(error)


def _is_plain(output: EngineCoreOutput) -> bool:
    """Whether an output brings tokens, and nothing that would be lost where it is joined to the next one."""
    return (
        output.finish_reason is None
        and output.prefill_stats is None
        and output.new_logprobs is None
        and output.kv_transfer_params is None
        and output.routed_experts is None
        and output.new_sampling_mask is None
    )


async def outputs(  # noqa: PLR0917 what vLLM wants of us
    llm: AsyncLLM,
    gathering: Gathering,
    request: GenerationRequest,
    prompt: Any,
    parameters: SamplingParams,
    adapter: LoRARequest | None,
) -> AsyncGenerator[RequestOutput, None]:
    """Do what `AsyncLLM.generate` does, with a way past the task that waits where the request has a sink."""
    queue = None
    sink = request.sink
    try:
        queue = await llm.add_request(request.id, prompt, parameters, lora_request=adapter, priority=request.priority)
        if sink is not None:
            queue.put = Bypass(queue, sink, request.options.top_logprobs)  # this one's: before the class's method
            if not parameters.stop:  # else an answer would go on behind its end for as long as tokens wait
                gathering.begin(queue.request_id, sink, queue.put)
        finished = False
        while not finished:
            output = queue.get_nowait() or await queue.get()
            finished = output.finished
            yield output
    except (asyncio.CancelledError, GeneratorExit):
        if queue is not None:
            gathering.end(queue.request_id)
            await llm.abort(queue.request_id, internal=True)
        else:
            await llm.abort(request.id)  # cancelled on its way to EngineCore
        raise
    except Exception:
        if queue is not None and not llm.errored:  # a dead engine needs no abort
            await llm.abort(queue.request_id, internal=True)
        raise
    finally:
        if queue is not None and sink is not None:
            gathering.end(queue.request_id)
            del queue.put  # they hold each other


class Bypass:
    """Stands in for a collector's `put`: hands what came to the sink at once, and wakes no task for it.

    The last output, errors, and whatever comes while something waits in the collector go the usual way. It is called
    in the output handler of all requests, where nothing may be raised.
    """

    __slots__ = ("_cached", "_put", "_queue", "_sink", "_top_logprobs")

    def __init__(self, queue: RequestOutputCollector, sink: Sink, top_logprobs: int | None) -> None:
        self._queue = queue
        self._put: Callable[[Any], None] = queue.put
        self._sink = sink
        self._top_logprobs = top_logprobs
        self._cached = 0

    def __call__(self, output: Any) -> None:
        if self._queue.output is not None or isinstance(output, Exception) or output.finished:
            self._put(output)
            return
        try:
            self._cached = output.num_cached_tokens or self._cached
            self._sink.receive(chunk_of(output, self._cached, self._top_logprobs))
        except Exception as error:  # noqa: BLE001 it ends this request, and is raised where its task waits
            self._put(error)

    @property
    def is_clear(self) -> bool:
        """Whether nothing waits in the collector that must come before."""
        return self._queue.output is None

    def say(self, text: str, tokens: int) -> None:
        """Hand on the text of so many tokens."""
        self._sink.receive(Chunk(text, tokens, None, self._cached))
