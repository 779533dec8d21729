"""The command line: `tokenwire serve` and `check`; `keys`, `models` and `chat` are in cli_keys.py and so on."""

from __future__ import annotations

import argparse
import atexit
import contextlib
import importlib.metadata
import logging
import os
import resource
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, Final

from server.cli_chat import add_chat_command
from server.cli_keys import add_keys_commands
from server.cli_models import add_models_commands
from server.config import DAY_S, FILE_VARIABLE, Config, ModelConfig, is_loopback
from server.errors import ConfigError, StartError

EXIT_FAULT: Final = 2  # a fault of the settings or the machine; nothing was left running
EXIT_INTERRUPTED: Final = 130  # 128 + SIGINT, as shells have it

# (flag, key, metavar, help); values stay text here: the schema reads and judges them, whatever source they come from.
_FLAGS: Final = (
    ("--host", "host", "HOST", "address to serve on (default 127.0.0.1)"),
    ("--port", "port", "PORT", "port; 0 picks a free one (default 8000)"),
    ("--engine", "engine", "vllm|echo", "vllm, or echo: answers with the question, for tests and load"),
    ("--default-model", "default_model", "NAME", "model used where a client names none (default: the first)"),
    ("--redis-url", "redis_url", "URL", "Redis or Valkey (default: a private Valkey in the data directory)"),
    ("--data-dir", "data_dir", "DIR", "where the private Valkey keeps conversations"),
    ("--echo-rate", "echo.rate", "TOKENS", "echo engine: tokens per second and answer; 0: as fast as asked"),
    ("--echo-ttft", "echo.ttft_ms", "MS", "echo engine: wait before the first token"),
    ("--log-level", "log_level", "LEVEL", "debug, info, warning or error (default info)"),
    ("--log-format", "log_format", "console|json", "console, or json: one object a line"),
    ("--drain-timeout", "drain_timeout_s", "SECONDS", "how long running answers may finish after SIGTERM"),
    ("--engine-stall-timeout", "engine_stall_timeout_s", "SECONDS", "an engine silent this long counts as dead"),
    ("--auth", "auth.methods", "METHODS", "how clients sign in: keys, jwt, or keys,jwt (default: they need not)"),
    ("--allowed-origins", "allowed_origins", "ORIGINS", "pages on other hosts that may connect, with commas between"),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code.

    argv: arguments without the program's name; None: this process is the program.
    """
    if argv is not None:
        return _run(argv)
    leave = _Leave()
    atexit.register(leave)  # hooks run in reverse order: this one last
    leave.code = _run(sys.argv[1:])
    return leave.code


class _Leave:
    """Ends a program that has loaded vLLM once its exit hooks are done, instead of Python's tear-down of all modules.

    Everything is closed by then. The tear-down would take seconds, and a library below vLLM, Triton, fills a page of
    standard error with what it does not find torn down; it has no switch for that.
    """

    code: int | None = None  # until the command has ended

    def __call__(self) -> None:
        if self.code is None or "vllm" not in sys.modules:
            return
        logging.shutdown()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError, AttributeError):  # closed, or nobody reads it
                stream.flush()
        os._exit(self.code)


def _run(argv: Sequence[str]) -> int:
    options = vars(_parser().parse_args(argv))
    remote = options.pop("remote", None)
    try:
        if remote is not None:
            return int(remote(options))  # of a server that runs: its settings are none of ours
        command = options.pop("command")
        own = {name: options.pop(name) for name in options.pop("own", ())}
        from server.config_loading import load_config  # noqa: PLC0415 takes a while, and --help does without

        config = load_config(_flags(options), os.environ, _config_file(options, os.environ))
        return int(command(config, **own))
    except ConfigError as error:
        print(*(f"tokenwire: {fault}" for fault in error.faults), sep="\n", file=sys.stderr)
    except StartError as error:
        print(f"tokenwire: {error}", file=sys.stderr)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    return EXIT_FAULT


def serve(config: Config) -> int:
    """Run the server until it is told to stop."""
    from server.app import run  # noqa: PLC0415 seconds of imports that check and --help do without

    return run(config)


def check(config: Config) -> int:
    """Say in plain words what `serve` would do. Raises ConfigError for model sources that are not there."""
    lines, faults = _model_lines(config)
    if faults:
        raise ConfigError(faults)
    print("The settings are fine. `tokenwire serve` would use:")
    for name, text in [*_address_lines(config), *lines, *_store_lines(config), *_limit_lines(config)]:
        print(f"  {name:14} {text}")
    for warning in _warnings(config):
        print(f"Warning: {warning}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tokenwire", description="A WebSocket chat backend for your own GPU.")
    version = importlib.metadata.version("tokenwire")
    parser.add_argument("--version", action="version", version=f"tokenwire {version}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, command, text in (
        ("serve", serve, "start the server"),
        ("check", check, "check the settings and say what serve would do"),
    ):
        epilog = (
            "Flags win over TOKENWIRE_… variables, those over the file. tokenwire.example.toml lists every setting."
        )
        sub = commands.add_parser(name, help=text, description=text, epilog=epilog, allow_abbrev=False)
        sub.set_defaults(command=command)
        _add_flags(sub)
    add_keys_commands(commands, _add_flags)
    add_models_commands(commands, _add_flags)
    add_chat_command(commands)
    return parser


def _add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--config", metavar="FILE", help=f"TOML file with settings (default: ${FILE_VARIABLE}, or none)"
    )
    parser.add_argument(
        "--model",
        action="append",
        metavar="[NAME=]SOURCE",
        help="model to serve: a folder, a hub id or a known name; repeatable; replaces the models of the file",
    )
    for flag, key, metavar, text in _FLAGS:
        parser.add_argument(flag, dest=key, metavar=metavar, help=text)
    parser.add_argument(
        "--allow-unauthenticated",
        dest="allow_unauthenticated",
        action="store_const",
        const=True,
        help="serve without sign-in on an address that other machines reach",
    )


def _config_file(options: Mapping[str, Any], env: Mapping[str, str]) -> Path | None:
    name = options["config"] or env.get(FILE_VARIABLE)
    return Path(name).expanduser() if name else None


def _flags(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return what was given, by dotted key."""
    given = {key: value for key, value in options.items() if key not in {"config", "model"} and value is not None}
    if options["model"]:
        given["models"] = _models(options["model"])
    return given


def _models(values: Sequence[str]) -> dict[str, dict[str, str]]:
    models: dict[str, dict[str, str]] = {}
    for value in values:
        name, separator, source = value.partition("=")
        if not separator:
            name, source = PurePosixPath(value).name, value
        if not name or not source:
            raise ConfigError([f"--model {value!r}: must be SOURCE or NAME=SOURCE"])
        if name in models:
            raise ConfigError([f"--model: two models are named {name!r}; give them names with NAME=SOURCE"])
        models[name] = {"source": source}
    return models


_SIGN_IN: Final[dict[tuple[str, ...], str]] = {
    (): "none: whoever reaches the port is the same user",
    ("keys",): "API keys",
    ("jwt",): "tokens of an identity provider",
}


def _address_lines(config: Config) -> list[tuple[str, str]]:
    host = f"[{config.host}]" if ":" in config.host else config.host
    where = f"http://{host}:{config.port}" if config.port else f"http://{host}, on a port that is free"
    sign_in = _SIGN_IN.get(config.auth.methods, "API keys, or tokens of an identity provider")
    return [("address", where), ("sign-in", sign_in), ("engine", config.engine)]


def _model_lines(config: Config) -> tuple[list[tuple[str, str]], list[str]]:
    """Return a line per model, and a fault for each whose source is not there."""
    lines, faults = [], []
    for name, model in config.models.items():
        default = " (default)" if name == config.default_model else ""
        match config.backend_of(model):
            case "echo":
                lines.append(("model", f"{name}{default}: repeats what it is told"))
                continue
            case "openai" | "triton" as backend:
                lines.append(("model", f"{name}{default}: {model.source} at {model.remote.url} ({backend})"))
                continue
        try:
            words = _source_words(model.source) if model.base is None else _adapter_words(model)
            lines.append(("model", f"{name}{default}: {words}"))
        except StartError as error:
            faults.append(f"models.{name}.source: {error}")
    return lines, faults


def _source_words(source: str) -> str:
    """Say where a model comes from; raises StartError where from nowhere."""
    from server.models.errors import ModelSourceError  # noqa: PLC0415 only check needs it
    from server.models.packaged import PACKAGED  # noqa: PLC0415 as above
    from server.models.sources import cache_directory, resolve  # noqa: PLC0415 as above

    if source in PACKAGED:
        cached = cache_directory() / source
        return f"in {cached}" if cached.exists() else f"fetched and converted once, into {cached}"
    try:
        found = resolve(source, progress=lambda _text: None)
    except ModelSourceError as error:
        raise StartError(str(error)) from None
    return f"in {found}" if Path(found).exists() else f"{found} from the model hub, or its cache"


def _adapter_words(model: ModelConfig) -> str:
    """Say what an adapter is; raises StartError where it is none."""
    from server.engine.base import EngineStartError  # noqa: PLC0415 only check needs it
    from server.engine.lora import read_adapter  # noqa: PLC0415 as above

    try:
        adapter = read_adapter(model.source)
    except EngineStartError as error:
        raise StartError(str(error)) from None
    return f"a LoRA adapter of rank {adapter.rank} for {model.base}, in {adapter.folder}"


def _store_lines(config: Config) -> list[tuple[str, str]]:
    days = config.store.retention_s / DAY_S
    place = f"a private Valkey in {config.data_dir}"
    if config.redis_url:
        place = f"Redis at {_without_password(config.redis_url)}"
    return [("conversations", f"{place}; kept {days:g} days after their last use")]


def _without_password(url: str) -> str:
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}".partition("?")[0]


def _limit_lines(config: Config) -> list[tuple[str, str]]:
    limits = config.limits
    return [
        ("connections", f"up to {limits.max_connections}, frames up to {limits.max_frame_bytes // 1024} KiB"),
        ("answers", f"up to {limits.max_in_flight} at once per connection, {limits.max_queue} waiting per model"),
        ("stopping", f"running answers get {config.drain_timeout_s:g} s to finish"),
    ]


def _warnings(config: Config) -> list[str]:
    found = []
    if not is_loopback(config.host):
        everything = f"anyone who reaches {config.host} can use the models and read every conversation"
        on_the_way = "keys and texts can be read on the way, unless a proxy before this server speaks TLS"
        found.append(on_the_way if config.auth.methods else everything)
    if config.redis_url and config.redis_url.startswith("redis://") and "@" not in config.redis_url:
        found.append("Redis is used without a password: make sure that nobody else reaches it")
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard != resource.RLIM_INFINITY and hard < config.limits.max_connections:
        found.append(f"the system allows {hard} open files, fewer than limits.max_connections: raise `ulimit -Hn`")
    return found
