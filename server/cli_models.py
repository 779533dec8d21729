"""`tokenwire models list|add|remove|load|unload|pin|unpin|alias`: a running server's models from the command line.

`reset` alone needs no running server, but the settings that say which store.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any, Final

from server.config import Config
from server.errors import StartError

URL: Final = "http://127.0.0.1:8000"
KEY_VARIABLE: Final = "OPENAI_API_KEY"  # what clients of ours read anyway
KEY_HINT: Final = f"--api-key, or the variable {KEY_VARIABLE}"
EXIT_REFUSED: Final = 1
MAX_REPLY_BYTES: Final = 64 * 1024 * 1024  # a list of many models


def add_models_commands(commands: Any, add_flags: Callable[[argparse.ArgumentParser], None]) -> None:
    """Add `models` and its commands. add_flags: adds those that say which settings count, and so which store."""
    text = "list and change the models of a running server"
    lasts = "What is added, removed, pinned or renamed holds for all servers on one store, also after a restart."
    models = commands.add_parser("models", help=text, description=f"{text.capitalize()}. {lasts}")
    sub = models.add_subparsers(required=True, metavar="COMMAND")
    _command(sub, "list", "show the models and their states", _list)
    for name, words in (
        ("load", "load a model now, and wait for it"),
        ("unload", "unload a model when its last answer has ended"),
        ("pin", "load a model and keep it"),
        ("unpin", "let a model be unloaded again"),
        ("remove", "serve a model no more; what runs may end"),
    ):
        _command(sub, name, words, _change).add_argument("model", metavar="NAME")
    add = _command(sub, "add", "serve one more model", _add)
    add.add_argument("model", metavar="NAME")
    add.add_argument("source", metavar="SOURCE", help="a folder on the server, a hub id or a known name")
    add.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of [models.NAME]")
    alias = _command(sub, "alias", "give a model another name, or move that name to it", _alias)
    alias.add_argument("alias", metavar="ALIAS")
    alias.add_argument("model", metavar="NAME")
    text = "forget what was added, removed, pinned and renamed: the next start has the settings file's models again"
    forget = sub.add_parser("reset", help=text, description=text, allow_abbrev=False)
    forget.set_defaults(command=reset)
    add_flags(forget)


def reset(config: Config) -> int:
    """Forget the changes in the store that these settings name. Raises StartError."""
    from server.app import use_store  # noqa: PLC0415 seconds of imports that the others do without

    async def work(store: Any) -> int:
        await store.drop_model_changes()
        return 0

    return use_store(config, work)


def _command(sub: Any, name: str, text: str, frame: Callable[..., dict[str, Any]]) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = sub.add_parser(name, help=text, description=text, allow_abbrev=False)
    parser.add_argument("--url", default=URL, help=f"the server's address (default {URL})")
    parser.add_argument("--api-key", metavar="KEY", help=f"to sign in with (default: ${KEY_VARIABLE})")
    parser.set_defaults(remote=_talk, name=name, frame=frame)
    return parser


def _list(**_: Any) -> dict[str, Any]:
    return {"type": "model.list"}


def _change(name: str, model: str, **_: Any) -> dict[str, Any]:
    if name in {"pin", "unpin"}:
        return {"type": "model.pin", "model": model, "pinned": name == "pin"}
    return {"type": f"model.{name}", "model": model}


def _add(model: str, source: str, set: list[str], **_: Any) -> dict[str, Any]:
    settings: dict[str, Any] = {"source": source}
    for pair in set:
        key, separator, value = pair.partition("=")
        if not separator:
            raise StartError(f"--set {pair!r}: must be KEY=VALUE")
        try:
            settings[key] = json.loads(value)
        except ValueError:
            settings[key] = value  # a bare word is a string
    return {"type": "model.add", "model": model, "settings": settings}


def _alias(model: str, alias: str, **_: Any) -> dict[str, Any]:
    return {"type": "model.alias", "model": model, "alias": alias}


def _talk(options: Mapping[str, Any]) -> int:
    """Send one command, print its answer. Raises StartError where the server cannot be asked."""
    frame = options["frame"](**options)
    reply = _ask(options["url"], options["api_key"] or os.environ.get(KEY_VARIABLE), frame)
    if reply["type"] == "error":
        hint = f" ({KEY_HINT})" if reply["status"] == HTTPStatus.UNAUTHORIZED else ""
        print(f"tokenwire: {reply['error']['message']}{hint}", file=sys.stderr)
        return EXIT_REFUSED
    if reply["type"] == "model.listed":
        _print_models(reply["data"])
    elif reply["type"] != "model.removed":
        _print_models([reply["model"]])
    return 0


def _ask(url: str, key: str | None, frame: dict[str, Any]) -> dict[str, Any]:
    from websockets.exceptions import InvalidStatus, WebSocketException  # noqa: PLC0415 other commands do without
    from websockets.sync.client import connect  # noqa: PLC0415 as above

    address = url.rstrip("/").replace("http", "ws", 1) + "/v1/responses"
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        with connect(address, additional_headers=headers, max_size=MAX_REPLY_BYTES, proxy=None) as socket:
            socket.send(json.dumps(frame))
            return dict(json.loads(socket.recv()))
    except InvalidStatus as error:
        status = error.response.status_code
        if status == HTTPStatus.UNAUTHORIZED:
            raise StartError(f"{url} does not take this key: {KEY_HINT}") from None
        raise StartError(f"{url} refuses the connection with HTTP {status}; is the address right (--url)?") from None
    except (OSError, WebSocketException) as error:
        raise StartError(f"{url} cannot be asked: {error}; is the server running there (--url)?") from None


def _print_models(models: list[dict[str, Any]]) -> None:
    """Print a table: what a person wants to know first."""
    rows = [("MODEL", "STATE", "DEVICES", "RUNNING", "WAITING", "")]
    for model in models:
        devices = [device for replica in model["replicas"] for device in replica["devices"]]
        aliases = f"also {', '.join(model['aliases'])}" if model["aliases"] else ""
        pinned = "pinned" if model["pinned"] else ""
        detail = model["detail"] if model["detail"] != model["state"] else ""
        notes = "; ".join(note for note in (pinned, aliases, detail) if note)
        counts = (str(model["running"]), str(model["waiting"]))
        rows.append((model["id"], model["state"], ",".join(devices) or "-", *counts, notes))
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row[:5], widths, strict=True)]
        print("  ".join([*cells, row[5]]).rstrip())
