"""What vLLM makes of a request, on its way to us."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import TYPE_CHECKING, Any, Final

from server.engine.base import Chunk, EngineError, FinishReason, GenerationRequest

if TYPE_CHECKING:
    from vllm.lora.request import LoRARequest
    from vllm.outputs import RequestOutput
    from vllm.sampling_params import SamplingParams
    from vllm.v1.engine.async_llm import AsyncLLM
    from vllm.v1.engine.output_processor import RequestOutputCollector

_FINISH_REASONS: Final = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH}


async def outputs_of(
    llm: AsyncLLM,
    request: GenerationRequest,
    *,
    prompt: Any,
    parameters: SamplingParams,
    adapter: LoRARequest | None,
    sink: Callable[[Chunk], None] | None,
) -> AsyncGenerator[RequestOutput, None]:
    """Do what `AsyncLLM.generate` does, with a way past the task that waits: see `_Bypass`."""
    queue = None
    try:
        queue = await llm.add_request(request.id, prompt, parameters, lora_request=adapter, priority=request.priority)
        if sink is not None:
            queue.put = _Bypass(queue, sink)  # this one's: before the class's method
        finished = False
        while not finished:
            output = queue.get_nowait() or await queue.get()
            finished = output.finished
            yield output
    except (asyncio.CancelledError, GeneratorExit):
        if queue is not None:
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
            del queue.put  # they hold each other


class _Bypass:
    """Stands in for a collector's `put`: hands what came to the sink at once, and wakes no task for it.

    The last output, errors, and whatever comes while something waits in the collector go the usual way. It is called
    in the output handler of all requests, where nothing may be raised.
    """

    __slots__ = ("_cached", "_put", "_queue", "_sink")

    def __init__(self, queue: RequestOutputCollector, sink: Callable[[Chunk], None]) -> None:
        self._queue = queue
        self._put = queue.put
        self._sink = sink
        self._cached = 0

    def __call__(self, output: Any) -> None:
        if self._queue.output is not None or isinstance(output, Exception) or output.finished:
            self._put(output)
            return
        try:
            self._cached = output.num_cached_tokens or self._cached
            self._sink(chunk_of(output, self._cached))
        except Exception as error:  # noqa: BLE001 it ends this request, and is raised where its task waits
            self._put(error)


def chunk_of(output: RequestOutput, cached_tokens: int) -> Chunk:
    """Return vLLM's output as the contract has it. Raises EngineError where vLLM broke the answer off."""
    completion = output.outputs[0]
    text, reason = completion.text, completion.finish_reason
    if reason is None:
        return Chunk(text, len(completion.token_ids), None, cached_tokens)
    if reason not in _FINISH_REASONS:
        raise EngineError(f"the engine broke this answer off ({reason})")
    finish_reason = _FINISH_REASONS[reason]
    if finish_reason is FinishReason.LENGTH:
        text = text.rstrip("\ufffd")  # half a character, cut off by max_tokens
    return Chunk(text, len(completion.token_ids), finish_reason, cached_tokens)
