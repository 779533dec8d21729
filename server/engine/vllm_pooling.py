"""Embedding, reranking and classifying models on vLLM's pooling runner: one vector for each text."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from protocol.errors import excerpt
from protocol.events import Written
from protocol.items import Message
from protocol.options import PLAIN, Options
from server.engine.base import (
    Chunk,
    EngineError,
    EngineStartError,
    GenerationRequest,
    PooledText,
    ProgressCallback,
    Prompt,
    RefusedError,
    RequestError,
    VllmSettings,
)
from server.engine.prompt import INLINE_CHARS
from server.engine.vllm import VllmEngine

if TYPE_CHECKING:
    from vllm.v1.engine.async_llm import AsyncLLM

TASKS = ("embed", "classify")  # the first that the model can do


class VllmPoolingEngine(VllmEngine):
    """See the module's text; the arguments are those of `VllmEngine`."""

    def __init__(self, name: str, source: str, settings: VllmSettings | None = None) -> None:
        settings = settings or VllmSettings()
        extra = {"runner": "pooling", "enable_prefix_caching": False, **settings.extra}
        super().__init__(name, source, replace(settings, extra=extra))
        self.task = ""
        self.labels: tuple[str, ...] = ()
        self._tokenizer: Any = None

    async def start(self, progress: ProgressCallback) -> None:
        """Load the model, and learn what it can do."""
        await super().start(progress)
        supported = await self._alive().get_supported_tasks()
        self.task = next((task for task in TASKS if task in supported), "")
        if not self.task:
            self.close()
            await self.wait_closed()
            raise EngineStartError(f"model {self.name} neither embeds nor classifies; it can {', '.join(supported)}")

    def _take_over(self, llm: AsyncLLM) -> None:
        self.context_length = llm.model_config.max_model_len
        self.max_concurrency = llm.scheduler_config.max_num_seqs
        names = getattr(llm.model_config.hf_config, "id2label", None) or {}
        self.labels = tuple(str(names[index]) for index in sorted(names))
        self._tokenizer = llm.get_tokenizer()
        self._is_up = True

    async def check(self, options: Options) -> None:  # noqa: ARG002 the contract's arguments
        """There is no chat with such a model."""
        raise self._no_text()

    async def render(self, messages: Sequence[Message], options: Options = PLAIN) -> Prompt:  # noqa: ARG002 as above
        """As `check`."""
        raise self._no_text()

    async def extend(self, prompt: Prompt, written: Written) -> Prompt:  # noqa: ARG002 as above
        """As `check`."""
        raise self._no_text()

    def generate(self, request: GenerationRequest) -> AsyncGenerator[Chunk, None]:  # noqa: ARG002 as above
        """As `check`."""
        raise self._no_text()

    async def encode(self, text: str, second: str | None = None) -> PooledText:
        """Tokenise a text or a pair, as the model was trained: with its tokens around and between."""
        self._alive()
        if len(text) + len(second or "") > INLINE_CHARS:
            return await asyncio.to_thread(self._encode, text, second)
        return self._encode(text, second)

    def _encode(self, text: str, second: str | None) -> PooledText:
        # What text spells must not become one of the tokens that part and end it.
        encoded = self._tokenizer(text, second, split_special_tokens=True)
        kinds = encoded.get("token_type_ids") or ()
        return PooledText(list(encoded["input_ids"]), kinds.index(1) if second is not None and 1 in kinds else None)

    async def pool(self, request_id: str, text: PooledText, dimensions: int | None = None) -> list[float]:
        """Ask vLLM for the vector."""
        llm = self._alive()
        from vllm.exceptions import VLLMClientError  # noqa: PLC0415 - imported by now, this only looks it up
        from vllm.inputs.engine import tokens_input  # noqa: PLC0415 - as above
        from vllm.pooling_params import PoolingParams  # noqa: PLC0415 - as above

        parameters = PoolingParams(task=self.task, dimensions=dimensions)
        if text.second_from is not None:
            parameters.extra_kwargs = {"compressed_token_type_ids": text.second_from}  # where the ones begin
        try:
            outputs = llm.encode(tokens_input(list(text.token_ids)), parameters, request_id)
            async with contextlib.aclosing(outputs):
                async for output in outputs:
                    return [float(number) for number in output.outputs.data.reshape(-1).tolist()]
        except (ValueError, VLLMClientError) as error:
            if dimensions is not None:
                words = f"this model's vectors cannot be cut to {dimensions} numbers; leave dimensions out"
                raise RefusedError(words, "dimensions") from error
            raise RequestError(excerpt(" ".join(str(error).split()))) from error
        except EngineError:
            raise
        except Exception as error:
            raise self._translated(error) from error
        raise EngineError("the engine gave no vector")

    def _no_text(self) -> RequestError:
        return RequestError(f"model {self.name} makes no text: ask it with embedding.create or its like")
