"""From settings to devices and needs: what is declared, and what is guessed where nothing is."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from server.config import Config
from server.engine.base import VllmSettings
from server.errors import StartError
from server.models.devices import device_list, model_needs, on_devices, placement_policy
from server.models.memory import PROCESS_BYTES, estimate_cpu
from server.models.placement import fits
from server.models.state import GIB, Device


def config(engine: str = "vllm", *, devices: dict[str, Any] | None = None, **settings: Any) -> Config:
    model = {"source": "somewhere", **settings.pop("model", {})}
    return Config.model_validate({"engine": engine, "models": {"m": model}, "devices": devices or {}, **settings})


def test_without_devices_everything_is_loaded_and_nothing_is_counted():
    settings = config(model={"memory_gib": 5, "tensor_parallel_size": 2})
    (device,) = device_list(settings)
    needs = model_needs(settings, settings.models["m"], "somewhere")
    assert device.memory == math.inf
    assert (needs.memory, needs.width, needs.floor) == (0, 1, 1)


def test_with_devices_a_model_is_loaded_when_it_is_asked_for():
    settings = config(devices={"gpu0": {"memory_gib": 80, "gpu": 3}}, model={"memory_gib": 24, "max_replicas": 2})
    assert device_list(settings) == (Device("gpu0", 80 * GIB, 3),)
    needs = model_needs(settings, settings.models["m"], "somewhere")
    assert (needs.memory, needs.floor, needs.maximum) == (24 * GIB, 0, 2)


def test_on_a_gpu_a_model_without_a_size_takes_what_it_may():
    settings = config(devices={"gpu0": {"memory_gib": 80, "gpu": 0}})
    needs = model_needs(settings, settings.models["m"], "org/name")
    assert needs.memory == 64 * GIB
    assert fits(needs, device_list(settings), placement_policy(settings)) is None


def test_a_gpu_s_engine_sees_its_gpus_and_takes_its_share():
    devices = (Device("a", 80 * GIB, 2), Device("b", 40 * GIB, 5))
    settings = on_devices(VllmSettings(), devices, 20 * GIB)
    assert (settings.gpus, settings.gpu_memory_utilization) == ((2, 5), 0.5)
    assert on_devices(VllmSettings(gpu_memory_utilization=0.3), devices, 20 * GIB).gpu_memory_utilization == 0.3
    assert on_devices(VllmSettings(), (Device("cpu", GIB),), GIB) == VllmSettings()


@pytest.mark.parametrize(("dtype", "factor"), [(None, 2), ("float32", 2), ("bfloat16", 1)])
def test_on_a_cpu_the_files_tell(tmp_path, dtype, factor):
    """Weights of 16 bits become 32, unless the settings say not; the KV cache and the process come on top."""
    (tmp_path / "model-1.safetensors").write_bytes(b"x" * 1000)
    (tmp_path / "model-2.safetensors").write_bytes(b"x" * 500)
    (tmp_path / "pytorch_model.bin").write_bytes(b"x" * 1500)
    (tmp_path / "config.json").write_text(json.dumps({"torch_dtype": "bfloat16"}))
    assert estimate_cpu(str(tmp_path), 2, dtype) == 1500 * factor + 2 * GIB + PROCESS_BYTES


def test_what_cannot_be_known_has_to_be_declared():
    settings = config(devices={"cpu": {"memory_gib": 8}})
    with pytest.raises(StartError, match="set its memory_gib"):
        model_needs(settings, settings.models["m"], "org/name")
