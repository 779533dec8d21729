"""The LoRA adapters of one vLLM engine."""

from __future__ import annotations

import asyncio
import copy
import logging
from typing import TYPE_CHECKING, Any, Final

from protocol.errors import excerpt
from server.engine.base import EngineError, EngineStartError, VllmSettings
from server.engine.lora import misfit, read_adapter
from server.engine.vllm_start import CACHED_ADAPTERS

if TYPE_CHECKING:
    from vllm.lora.request import LoRARequest
    from vllm.v1.engine.async_llm import AsyncLLM

logger = logging.getLogger(__name__)

_NOT_READ: Final[dict[str, tuple[int, int]]] = {}


class Adapters:
    """Which of them vLLM knows.

    It keeps `max_loras` ready to use and CACHED_ADAPTERS in the machine's memory; the least recently used go first, and
    come back from their folders.
    """

    def __init__(self, settings: VllmSettings) -> None:
        self._settings = settings
        self._requests: dict[str, LoRARequest] = {}
        self._last_id = 0  # vLLM wants a number for each; none is used again, as its caches are by number
        self._modules: dict[str, tuple[int, int]] | None = _NOT_READ

    def get(self, name: str | None) -> LoRARequest | None:
        """Return what a request for this adapter carries. Raises EngineError where it was not loaded."""
        if name is None:
            return None
        if name not in self._requests:
            raise EngineError(f"the adapter {name} is not loaded")
        return self._requests[name]

    async def load(self, llm: AsyncLLM, name: str, folder: str) -> None:
        """Load one, unless it is there. Raises EngineStartError where it does not fit, and what vLLM raises."""
        request = self._requests.get(name)
        if request is not None and len(self._requests) <= CACHED_ADAPTERS:
            return
        # With more of them vLLM may have dropped this one. In a step, a folder that is gone by now would end the engine
        # for all; asked for beforehand, it is an error of this request.
        adapter = await asyncio.to_thread(read_adapter, folder)
        if request is None:
            if self._modules is _NOT_READ:
                self._modules = await asyncio.to_thread(modules_of, llm.model_config.hf_config)
            if (reason := misfit(adapter, self._settings, self._modules)) is not None:
                raise EngineStartError(f"adapter {excerpt(folder)!r} does not fit its base model: {reason}")
            from vllm.lora.request import LoRARequest  # noqa: PLC0415 - imported by now, this only looks it up

            self._last_id += 1
            # The prefix cache goes by name and path: what was changed in its folder must not find what was before.
            request = LoRARequest(f"{name}#{self._last_id}", self._last_id, adapter.folder)
        await llm.add_lora(request)
        self._requests[name] = request

    async def unload(self, llm: AsyncLLM, name: str) -> None:
        """Take one out of vLLM's memory; harmless when it is not there."""
        request = self._requests.pop(name, None)
        if request is not None:
            await llm.remove_lora(request.lora_int_id)


def modules_of(hf_config: Any) -> dict[str, tuple[int, int]] | None:
    """Return how many numbers go into and come out of each part of a model that an adapter may change.

    By the names that peft uses: those of transformers' own model, which is built without its weights for that. None
    where transformers does not know the model, or it reads more than text (names differ between versions there).
    """
    import torch  # noqa: PLC0415 - imported by now, with vLLM
    import transformers  # noqa: PLC0415 - as above

    if hf_config.get_text_config() is not hf_config:
        return None
    try:
        kind = getattr(transformers, hf_config.architectures[0])
        with torch.device("meta"):
            model = kind(copy.deepcopy(hf_config))
    except Exception as error:  # noqa: BLE001 code of the model's authors: vLLM's own checks must do then
        logger.debug("the model's parts cannot be told: %s", error)
        return None
    found = {}
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear):
            found[name] = (module.in_features, module.out_features)
        elif isinstance(module, torch.nn.Embedding):
            found[name] = (module.num_embeddings, module.embedding_dim)
    return found
