"""What the configuration says of devices and of models' needs, in the words of `placement`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from server.config import Config, ModelConfig
from server.engine.base import VllmSettings
from server.errors import StartError
from server.models import scaling
from server.models.memory import estimate_cpu
from server.models.pool import LOCAL
from server.models.state import GIB, Device, Needs, Policy


def device_list(config: Config) -> tuple[Device, ...]:
    """Return the declared devices, or one without bounds."""
    declared = config.devices.items()
    return tuple(Device(name, device.memory_gib * GIB, device.gpu) for name, device in declared) or (LOCAL,)


def placement_policy(config: Config) -> Policy:
    """Return how models share the devices."""
    settings = config.placement
    return Policy(settings.memory_threshold, settings.swap_after_s, own_devices=settings.preset == "latency")


def scaling_policy(config: Config) -> scaling.Policy:
    """Return how the number of replicas follows traffic."""
    settings = config.placement
    return scaling.Policy(
        settings.scale_up_delay_s, settings.scale_down_after_s, min(scaling.PAUSE_S, settings.scale_down_after_s)
    )


def model_needs(config: Config, model: ModelConfig, source: str) -> Needs:
    """Return what a model asks of the devices. Raises StartError where its memory has to be declared.

    source: what the engine loads.
    """
    minimum = model.min_replicas
    if minimum is None:
        minimum = 0 if config.devices or model.base is not None else 1
    return Needs(
        memory=_memory(config, model, source) if config.devices else 0.0,
        width=_width(config, model),
        pinned=model.pin,
        minimum=minimum,
        maximum=max(model.max_replicas, minimum),
        idle_unload_s=model.idle_unload_s,
        asleep=None if model.asleep_gib is None else model.asleep_gib * GIB,
    )


def _width(config: Config, model: ModelConfig) -> int:
    """Return how many devices one replica takes."""
    if not config.devices or config.backend_of(model) != "vllm" or model.base is not None:
        return 1
    return model.tensor_parallel_size or config.vllm.tensor_parallel_size or 1


def _memory(config: Config, model: ModelConfig, source: str) -> float:
    """Return bytes on each device: as declared, else (1) nothing for echo and for what another engine runs, (2) what a
    GPU may give, (3) a guess.
    """
    if model.memory_gib is not None:
        return model.memory_gib * GIB
    if config.backend_of(model) != "vllm" or model.base is not None:
        return 0.0  # 1
    largest = max(device.memory_gib for device in config.devices.values()) * GIB
    if any(device.gpu is not None for device in config.devices.values()):
        return largest * config.placement.memory_threshold  # 2: vLLM takes what it is given
    guess = estimate_cpu(source, config.vllm.cpu_kvcache_gib, model.dtype or config.vllm.dtype)
    if guess is None:
        text = f"how much memory model {source!r} takes cannot be told before it is fetched; set its memory_gib"
        raise StartError(text)
    return guess  # 3


def on_devices(settings: VllmSettings, devices: Sequence[Device], memory: float) -> VllmSettings:
    """Return the engine arguments for a replica on these devices: its GPUs, and its share of their memory.

    memory: bytes that it may take on each of them.
    """
    gpus = tuple(device.index for device in devices if device.index is not None)
    if not gpus:
        return settings
    share = settings.gpu_memory_utilization or min(1.0, memory / min(device.memory for device in devices))
    return replace(settings, gpus=gpus, gpu_memory_utilization=share)
