"""The command line, without the server behind it."""

from __future__ import annotations

import subprocess
import sys
import types

import pytest

from server.cli import main
from server.errors import StartError


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch):
    """Variables of the machine that runs the tests must not matter."""
    import os

    for name in [name for name in os.environ if name.startswith("TOKENWIRE_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def served(monkeypatch):
    """Stands for server.app: keeps the config that it was started with."""
    configs: list[object] = []

    def run(config) -> int:
        configs.append(config)
        return 7

    monkeypatch.setitem(sys.modules, "server.app", types.SimpleNamespace(run=run))
    return configs


def test_serve_passes_every_flag_on(served, tmp_path):
    """Flags become settings; serve's exit code is the server's."""
    code = main(
        f"serve --host ::1 --port 0 --engine echo --model org/a --model b=c --default-model b --redis-url redis://h "
        f"--data-dir {tmp_path} --echo-rate 5 --echo-ttft 9 --log-level debug --log-format json "
        "--allow-unauthenticated --drain-timeout 1 --engine-stall-timeout 2 "
        "--allowed-origins https://a.b,https://c.d".split()
    )
    (config,) = served
    assert code == 7
    assert {name: model.source for name, model in config.models.items()} == {"a": "org/a", "b": "c"}
    assert (config.host, config.port, config.default_model, config.redis_url) == ("::1", 0, "b", "redis://h")
    assert (config.echo.rate, config.echo.ttft_ms, config.drain_timeout_s, config.data_dir) == (5, 9, 1, tmp_path)
    assert (config.log_level, config.log_format, config.allow_unauthenticated) == ("debug", "json", True)
    assert (config.engine_stall_timeout_s, config.allowed_origins) == (2, ("https://a.b", "https://c.d"))


def test_config_file_from_flag_or_variable(served, tmp_path, monkeypatch):
    """--config wins over TOKENWIRE_CONFIG."""
    for port in (1, 2):
        (tmp_path / f"{port}.toml").write_text(f"port = {port}")
    monkeypatch.setenv("TOKENWIRE_CONFIG", str(tmp_path / "1.toml"))
    main(["serve"])
    main(["serve", "--config", str(tmp_path / "2.toml")])
    assert [config.port for config in served] == [1, 2]


def test_start_errors_are_one_line(monkeypatch, capsys):
    """A port in use, Redis away, a model that is not there: one line on stderr, exit code 2."""

    def run(config):
        raise StartError("port 8000 on 127.0.0.1 is in use")

    monkeypatch.setitem(sys.modules, "server.app", types.SimpleNamespace(run=run))
    assert main(["serve"]) == 2
    assert capsys.readouterr() == ("", "tokenwire: port 8000 on 127.0.0.1 is in use\n")


def test_interrupt(monkeypatch):
    """Ctrl-C before the server handles signals is no traceback."""

    def run(config):
        raise KeyboardInterrupt

    monkeypatch.setitem(sys.modules, "server.app", types.SimpleNamespace(run=run))
    assert main(["serve"]) == 130


@pytest.mark.parametrize("command", ["serve", "check"])
def test_config_faults(served, command, capsys):
    """Each fault is a line on stderr, exit code 2, nothing started."""
    assert main([command, "--port", "x", "--drain-timeout", "-1"]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert [line.split(":")[1].strip() for line in output.err.splitlines()] == [
        "port (--port)",
        "drain_timeout_s (--drain-timeout)",
    ]
    assert served == []


@pytest.mark.parametrize("value", ["=x", "a=", "", "dir/"])
def test_bad_model_flag(value, capsys):
    """A model needs a name and a source; a trailing slash is fine."""
    code = main(["check", "--engine", "echo", "--model", value])
    assert code == (0 if value == "dir/" else 2)
    assert value == "dir/" or "must be SOURCE or NAME=SOURCE" in capsys.readouterr().err


def test_two_models_of_one_name(capsys):
    """Names are given apart with NAME=SOURCE."""
    assert main(["check", "--model", "a/m", "--model", "b/m"]) == 2
    assert "two models are named 'm'" in capsys.readouterr().err


def test_check_says_what_serve_would_do(capsys, tmp_path):
    """Address, sign-in, models, store and limits, in words; no password."""
    (tmp_path / "config.json").write_text("{}")
    arguments = ["--model", str(tmp_path), "--model", "h=org/name", "--redis-url", "redis://u:secret@h:1/0"]
    assert main(["check", *arguments]) == 0
    output = capsys.readouterr().out
    assert "http://127.0.0.1:8000" in output
    assert f"{tmp_path.name} (default): in {tmp_path}" in output
    assert "h: org/name from the model hub" in output
    assert "Redis at redis://h:1/0; kept 30 days" in output
    assert "secret" not in output
    assert "whoever reaches the port is the same user" in output


def test_check_warns(capsys):
    """What is allowed and still unwise is said."""
    flags = ["--engine", "echo", "--host", "10.0.0.1", "--allow-unauthenticated", "--redis-url", "redis://h"]
    assert main(["check", *flags]) == 0
    output = capsys.readouterr().out
    assert "Warning: anyone who reaches 10.0.0.1" in output
    assert "Warning: Redis is used without a password" in output
    assert main(["check", "--engine", "echo", "--host", "10.0.0.1", "--auth", "keys"]) == 0
    output = capsys.readouterr().out
    assert "Warning: keys and texts can be read on the way" in output
    assert "anyone who reaches" not in output


def test_check_finds_missing_models(capsys):
    """A path that is not there is a fault of that model's source."""
    assert main(["check", "--model", "a=/no/such/folder"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("tokenwire: models.a.source: ")
    assert "does not exist" in error
    assert error.count("\n") == 1


def test_check_knows_whether_the_default_model_is_there(capsys, tmp_path, monkeypatch):
    """The known model is in the cache or will be fetched."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert main(["check"]) == 0
    assert "fetched and converted once" in capsys.readouterr().out
    (tmp_path / "tokenwire/models/smollm2-135m-instruct").mkdir(parents=True)
    main(["check"])
    assert f"in {tmp_path}" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [["--version"], ["--help"], ["serve", "--help"], ["check", "--engine", "echo"]])
def test_quick_commands_import_no_engine(arguments):
    """These answer without loading vLLM or the server."""
    code = (
        "import sys\nfrom server.cli import main\n"
        "try: main(sys.argv[1:])\n"
        "except SystemExit as end: assert not end.code\n"
        "assert not {'vllm', 'torch', 'server.app', 'websockets'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_module_is_the_command():
    """`python -m server` is `tokenwire`."""
    done = subprocess.run([sys.executable, "-m", "server", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("tokenwire ")


PROGRAM = """
import atexit, sys, types
from server.cli import main
class Late:
    def __del__(self): print("torn down")
def run(_):
    {load}
    atexit.register(print, "hook")
    return 3
sys.modules["server.app"] = types.SimpleNamespace(run=run, late=Late())
sys.exit(main())
"""


@pytest.mark.parametrize(("load", "said"), [("pass", "hook torn down"), ("sys.modules['vllm'] = types", "hook")])
def test_the_program_ends_without_tearing_vllm_down(load, said):
    """Its exit code and what is to be done at exit stay; what libraries say of a tear-down is not to be read."""
    command = [sys.executable, "-c", PROGRAM.format(load=load), "serve", "--engine", "echo"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.split(), done.stderr) == (3, said.split(), "")


@pytest.mark.parametrize("arguments", [[], ["nothing"], ["serve", "--foo"], ["serve", "--por", "1"]])
def test_usage_errors(arguments, capsys):
    """Unknown commands and flags are exit code 2, without guessing abbreviations."""
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == 2
    assert "Traceback" not in capsys.readouterr().err
