"""Where settings come from, which one wins, and what a fault says."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from server.config import DEFAULT_MODEL, Config, is_loopback
from server.config_loading import load_config
from server.errors import ConfigError, StartError


@pytest.fixture
def toml(tmp_path):
    """Write a config file."""

    def write(text: str) -> Path:
        file = tmp_path / "t.toml"
        file.write_text(text)
        return file

    return write


def faults(flags=None, env=None, file=None) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as refused:
        load_config(flags or {}, env or {}, file)
    assert all("\n" not in fault for fault in refused.value.faults)
    return refused.value.faults


def test_defaults():
    """Nothing given: vLLM, the small model, loopback, a private Valkey under the home folder."""
    config = load_config({}, {}, None)
    assert (config.engine, config.default_model, list(config.models)) == ("vllm", DEFAULT_MODEL, [DEFAULT_MODEL])
    assert config.models[DEFAULT_MODEL].source == DEFAULT_MODEL
    assert config.data_dir == Path.home() / ".local/share/tokenwire"
    assert load_config({"engine": "echo"}, {}, None).default_model == "echo"


def test_flags_win_over_variables_over_the_file(toml):
    """Each source overrides the ones below, key by key."""
    file = toml("port = 1\nlog_level = 'debug'\n[store]\ntick_ms = 10\nkey_prefix = 'f'\n[echo]\nrate = 1")
    env = {"TOKENWIRE_PORT": "2", "TOKENWIRE_STORE__TICK_MS": "20", "TOKENWIRE_ECHO__RATE": "2", "OTHER": "x"}
    config = load_config({"port": "3", "echo.rate": "3", "host": None}, env, file)
    assert (config.port, config.store.tick_ms, config.store.key_prefix) == (3, 20, "f")
    assert (config.echo.rate, config.log_level, config.host) == (3, "debug", "127.0.0.1")


def test_variables_hold_lists_tables_and_nothing():
    """Lists have commas or are JSON, tables are JSON, empty means not set."""
    env = {
        "TOKENWIRE_ALLOWED_ORIGINS": "https://A.example, http://b:1",
        "TOKENWIRE_MODELS": '{"a/b": {"source": "x"}}',
        "TOKENWIRE_MODELS__Mixed__SOURCE": "y",
        "TOKENWIRE_REDIS_URL": "",
        "TOKENWIRE_CONFIG": "elsewhere.toml",
    }
    config = load_config({}, env, None)
    assert config.allowed_origins == ("https://a.example", "http://b:1")
    assert {name: model.source for name, model in config.models.items()} == {"a/b": "x", "Mixed": "y"}
    assert config.redis_url is None
    assert load_config({}, {"TOKENWIRE_ALLOWED_ORIGINS": '["https://a.example"]'}, None).allowed_origins


def test_models_from_flags_replace_the_others(toml):
    """`--model` serves that model alone, whatever default the file names."""
    file = toml("default_model = 'a'\n[models.a]\nsource = 'x'")
    config = load_config({"models": {"b": {"source": "y"}}}, {}, file)
    assert (list(config.models), config.default_model) == (["b"], "b")


def test_home_folder(toml):
    """~ is the home folder in paths."""
    config = load_config({"data_dir": "~/x"}, {}, toml("[models.a]\nsource = '~/m'"))
    assert config.data_dir == Path.home() / "x"
    assert config.models["a"].source == str(Path.home() / "m")


def test_one_line_per_fault_names_key_and_origin(toml):
    """All faults are told at once, each with the place to look at."""
    file = toml("hots = 'a'\n[store]\ntick_mss = 3\ntick_ms = 0.1\n[models.'q.5']\nsorce = 'x'")
    found = faults({"port": "x"}, {"TOKENWIRE_LIMITS__MAX_LANES": "no"}, file)
    assert set(found) == {
        f"hots ({file}): no such key; did you mean host?",
        f"store.tick_mss ({file}): no such key; did you mean store.tick_ms?",
        f"store.tick_ms ({file}): must be greater than or equal to 1, not 0.1",
        f"models.q.5.source ({file}): is missing and has no default; set it",
        f"models.q.5.sorce ({file}): no such key; did you mean models.q.5.source?",
        "port (--port): must be a valid integer, unable to parse string as an integer, not 'x'",
        (
            "limits.max_lanes (TOKENWIRE_LIMITS__MAX_LANES): must be a valid integer, "
            "unable to parse string as an integer, not 'no'"
        ),
    }


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("TOKENWIRE_PROT", "TOKENWIRE_PORT"),
        ("TOKENWIRE_STORE__TICKMS", "TOKENWIRE_STORE__TICK_MS"),
        ("TOKENWIRE_STORE_TICK_MS", "TOKENWIRE_STORE__TICK_MS"),
    ],
)
def test_unknown_variables_are_refused(name, nearest):
    """A typo in a variable is not silent."""
    assert faults(env={name: "1"}) == (f"{name}: no such setting; did you mean {nearest}?",)


@pytest.mark.parametrize("value", ["nan", "inf", "-1"])
def test_odd_numbers(value):
    """Numbers that no clock understands are refused."""
    assert len(faults({"drain_timeout_s": value})) == 1


def test_a_switch_is_no_number(toml):
    """`port = true` is no port 1, and `host = true` no name."""
    found = faults(file=toml("port = true\nhost = true\ndrain_timeout_s = false\n[limits]\nmax_lanes = true"))
    assert [fault.partition(": ")[2] for fault in found] == [
        "must not be true or false, not True",
        "must not be true or false, not True",
        "must not be true or false, not False",
        "must not be true or false, not True",
    ]
    assert load_config({}, {"TOKENWIRE_STORE__WRITE_AHEAD": "false"}, None).store.write_ahead is False


def test_a_text_that_is_too_short():
    """Faults of texts begin as all others do."""
    assert faults({"host": ""}) == ("host (--host): must have at least 1 character, not ''",)


def test_a_value_where_a_table_belongs(toml):
    """As when a model's settings stand in `[models]` itself; in words of TOML."""
    found = faults(file=toml("store = 3\n[models]\nsource = 'x'"))
    assert {fault.partition(": ")[2] for fault in found} == {"must be a table, not 3", "must be a table, not 'x'"}


def test_the_longest_tick_is_not_shorter_than_the_shortest():
    """Else the one that was asked for would be left out of account."""
    assert faults(env={"TOKENWIRE_STORE__TICK_MS": "500"}) == (
        "store.max_tick_ms (TOKENWIRE_STORE__TICK_MS): 200 is less than tick_ms (500); raise it",
    )


def test_text_that_begins_like_json():
    """Whether a variable is JSON depends on the setting, not on the text."""
    assert load_config({}, {"TOKENWIRE_STORE__KEY_PREFIX": "{tw}"}, None).store.key_prefix == "{tw}"


def test_broken_json_in_a_variable():
    """It is told by the variable's name."""
    assert faults(env={"TOKENWIRE_MODELS": "{"})[0].startswith("TOKENWIRE_MODELS: is not JSON: ")


def test_a_file_may_be_a_pipe():
    """As in `--config <(decrypt settings)`."""
    reading, writing = os.pipe()
    os.write(writing, b"port = 1")
    os.close(writing)
    try:
        assert load_config({}, {}, Path(f"/dev/fd/{reading}")).port == 1
    finally:
        os.close(reading)


def test_broken_files(toml, tmp_path):
    """A missing file, a folder and broken TOML are one line each."""
    assert "no such file; check --config" in faults(file=tmp_path / "none.toml")[0]
    assert "cannot be read" in faults(file=tmp_path)[0]
    assert "is not TOML" in faults(file=toml("port = = 1"))[0]
    assert "(at line 1" in faults(file=toml("port = = 1"))[0]


@pytest.mark.parametrize("url", ["http://u:secret@h", "localhost:6379"])
def test_redis_url_is_not_repeated(url):
    """An error text holds no password."""
    (fault,) = faults({"redis_url": url})
    assert "redis://" in fault
    assert "secret" not in fault


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.0.1", "my.host"])  # noqa: S104 refused, not bound
def test_no_sign_in_means_loopback_only(host):
    """Other addresses need an explicit word."""
    (fault,) = faults({"host": host})
    assert fault.startswith("host (--host): ")
    assert "--allow-unauthenticated" in fault
    assert load_config({"host": host, "allow_unauthenticated": True}, {}, None).host == host


@pytest.mark.parametrize(
    ("host", "loopback"),
    [("127.0.0.1", True), ("127.1.2.3", True), ("::1", True), ("LOCALHOST", True), ("10.0.0.1", False), ("x", False)],
)
def test_is_loopback(host, loopback):
    """Addresses by their value, names only if they are localhost."""
    assert is_loopback(host) is loopback


def test_default_model_must_be_served(toml):
    """A default that is not there is told with the ones that are."""
    file = toml("default_model = 'b'\n[models.a]\nsource = 'x'")
    assert faults(file=file) == (f"default_model ({file}): 'b' is not one of the models (a)",)


def test_batched_tokens_must_hold_every_sequence(toml):
    """A step holds a token of each sequence, or vLLM refuses; a model's values are taken with those of [vllm]."""
    file = toml("[vllm]\nmax_num_seqs = 64\n[models.a]\nsource = 'x'\nmax_num_batched_tokens = 32")
    (fault,) = faults(file=file)
    assert fault == f"models.a.max_num_batched_tokens ({file}): 32 is less than max_num_seqs (64); raise it"


@pytest.mark.parametrize("name", ["a b", "", "é", "x\n", "x" * 201])
def test_model_names(name):
    """Names are safe in JSON, labels and on command lines."""
    assert "models." in faults({"models": {name: {"source": "x"}}})[0]


@pytest.mark.parametrize("origin", ["chat.example", "https://a/b", "https://", "*"])
def test_origins(origin):
    """An origin is scheme, host and port."""
    assert "must look like https://chat.example" in faults(env={"TOKENWIRE_ALLOWED_ORIGINS": origin})[0]


def test_config_is_frozen_and_faults_are_start_errors():
    """Settings do not change while we run; ConfigError is a StartError with all faults in its text."""
    assert type(load_config({}, {}, None)) is Config
    with pytest.raises(ValueError, match="frozen"):
        Config().port = 1
    assert str(ConfigError(["a", "b"])) == "a; b"
    assert issubclass(ConfigError, StartError)


@pytest.mark.parametrize(
    ("aliases", "fault"),
    [
        (["b"], "models.a.aliases: 'b' is a model itself; take another name"),
        (["x", "y"], "models.b.aliases: 'y' is an alias of model 'a' already"),
        (["c d"], "models.a.aliases: 'c d' must be 1 to 200 visible ASCII characters without spaces"),
    ],
)
def test_a_name_means_one_model(aliases, fault):
    models = {"a": {"source": "s", "aliases": aliases}, "b": {"source": "s", "aliases": ["y"]}}
    (line,) = faults({"models": models})
    assert line.replace(" (--model)", "") == fault


def test_the_default_may_be_an_alias():
    models = {"a@1": {"source": "s"}, "a@2": {"source": "s", "aliases": ["a"]}}
    assert load_config({"models": models, "default_model": "a"}, {}, None).default_model == "a"


def test_fewer_replicas_than_must_be_there():
    (line,) = faults({"models": {"a": {"source": "s", "min_replicas": 3, "max_replicas": 2}}})
    assert "max_replicas" in line
    assert "2 is less than min_replicas (3)" in line
