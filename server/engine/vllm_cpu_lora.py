"""A fault of vLLM's LoRA on CPUs, mended in its worker processes: they import this as their `worker_extension_cls`.

vLLM 0.32 gives each row of a step the index of its adapter's place, and -1 to rows without one. Its kernels for GPUs
skip those; the ones for CPUs (`torch_ops`) take -1 for the last place, so requests to the base model are answered with
whichever adapter is there. What an adapter adds to such rows is made nothing here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from vllm.lora.ops.torch_ops import lora_ops
from vllm.lora.punica_wrapper import punica_cpu

EXPANDING: Final = ("bgmv_expand", "bgmv_expand_slice")


class WorkerExtension:
    """Adds nothing to the worker: being imported is all."""


def _mended(original: Callable[..., None]) -> Callable[..., None]:
    def expand(inputs: Any, weights: Any, output: Any, indices: Any, *more: Any, **named: Any) -> None:
        has_one = (indices >= 0).unsqueeze(-1).to(inputs.dtype)
        original(inputs * has_one, weights, output, indices, *more, **named)

    return expand


for _name in EXPANDING:
    _expand = _mended(getattr(lora_ops, _name))
    setattr(lora_ops, _name, _expand)  # for those with `sgmv` in their names, which call these
    setattr(punica_cpu, _name, _expand)
