"""Models on other servers: what their settings need, and what a fault says."""

from __future__ import annotations

from pathlib import Path

import pytest

from server.config import Config
from server.config_loading import load_config
from server.errors import ConfigError
from server.models.devices import model_needs

REMOTE = '[models.m]\nbackend = "{backend}"\nsource = "there"\nremote = {{ {remote} }}\n'


def load(folder: Path, text: str) -> Config:
    file = folder / "t.toml"
    file.write_text(text)
    return load_config({}, {}, file)


@pytest.mark.parametrize(
    ("backend", "remote"),
    [
        ("openai", 'url = "http://127.0.0.1:8000/v1"'),
        ("openai", 'url = "https://api.example.com/v1", api_key_env = "K"'),
        ("openai", 'url = "http://10.0.0.7:8000/v1", api_key_env = "K"'),
        ("openai", 'url = "http://vllm:8000/v1", api_key_env = "K"'),
        ("triton", 'url = "triton:8001", tokenizer = "/t", context_length = 100, model_control = true'),
    ],
)
def test_a_model_on_another_server(tmp_path: Path, backend: str, remote: str) -> None:
    """Its backend is its own, whatever the engine of the others, and it takes no memory here."""
    config = load(tmp_path, "[devices.gpu0]\nmemory_gib = 1\n" + REMOTE.format(backend=backend, remote=remote))
    model = config.models["m"]
    assert config.backend_of(model) == backend
    assert config.engine == "vllm"
    assert model_needs(config, model, "there").memory == 0


@pytest.mark.parametrize(
    ("backend", "remote", "fault"),
    [
        ("openai", "", "models.m.remote.url .*needs a url such as"),
        ("openai", 'url = "localhost:8000"', "needs a url such as"),
        ("openai", 'url = "http://a:b@h/v1"', "must hold no password"),
        ("openai", 'url = "http://api.example.com/v1", api_key_env = "K"', "a key goes over https"),
        ("triton", 'url = "http://h:1"', "needs host:port"),
        ("triton", 'url = "h:1"', "needs tokenizer and context_length"),
        ("openai", 'url = "http://h/v1", urls = "x"', "no such key"),
        ("grpc", 'url = "http://h/v1"', "'vllm', 'echo', 'openai' or 'triton'"),
    ],
)
def test_what_a_remote_model_lacks_is_told(tmp_path: Path, backend: str, remote: str, fault: str) -> None:
    """With the key at fault, and without a password that somebody put into a url."""
    with pytest.raises(ConfigError, match=fault):
        load(tmp_path, REMOTE.format(backend=backend, remote=remote))
