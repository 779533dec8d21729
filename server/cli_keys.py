"""`tokenwire keys create|list|revoke`: API keys from the command line."""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Callable
from typing import Any, Final

from server.access.keys import Keys, KeyState
from server.access.limits import own_limits
from server.config import DAY_S, Config
from server.errors import StartError

NAME: Final = re.compile(r"[!-~]{1,128}")  # users and tenants: people type them
RIGHT: Final = re.compile(r"[A-Za-z0-9_.:/-]{1,64}")
KEY_ID: Final = re.compile(r"[0-9a-f]{16}")
EXIT_MISSING: Final = 1


def add_keys_commands(commands: Any, add_flags: Callable[[argparse.ArgumentParser], None]) -> None:
    """Add `keys` and its commands. add_flags: adds those that say which settings count, and so which store."""
    text = "make, list and revoke API keys"
    keys = commands.add_parser("keys", help=text, description=f"{text.capitalize()}. They count with --auth keys.")
    sub = keys.add_subparsers(required=True, metavar="COMMAND")
    create = _command(sub, "create", create_key, "make a key and print it, this once", add_flags)
    create.add_argument("--user", required=True, metavar="NAME", help="whose it is; keys of one user share an account")
    create.add_argument("--tenant", default="", metavar="NAME", help="the user's group; tenants share nothing")
    create.add_argument(
        "--rights",
        default="",
        metavar="RIGHTS",
        help="with commas between: instructions, metrics, grammars, admin, models' own",
    )
    create.add_argument("--expires-days", type=float, metavar="DAYS", help="how long it lasts (default: until revoked)")
    create.add_argument(
        "--limit",
        action="append",
        default=[],
        metavar="NAME=NUMBER",
        help="the key's own, such as turns_per_minute=100",
    )
    create.add_argument("--label", default="", metavar="TEXT", help="what it is for")
    create.set_defaults(own=("user", "tenant", "rights", "expires_days", "limit", "label"))
    _command(sub, "list", list_keys, "list the keys, without their secrets", add_flags)
    revoke = _command(sub, "revoke", revoke_key, "let nobody sign in with a key any more", add_flags)
    revoke.add_argument("key_id", metavar="ID", help="as `list` shows it; the key itself does as well")
    revoke.set_defaults(own=("key_id",))


def _command(
    sub: Any, name: str, command: Callable[..., int], text: str, add_flags: Callable[[argparse.ArgumentParser], None]
) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = sub.add_parser(name, help=text, description=text, allow_abbrev=False)
    parser.set_defaults(command=command)
    add_flags(parser)
    return parser


def create_key(  # noqa: PLR0917 the options of one command
    config: Config, user: str, tenant: str, rights: str, expires_days: float | None, limit: list[str], label: str
) -> int:
    """Make a key; it alone goes to standard output. Raises StartError."""
    names = tuple(name.strip() for name in rights.split(",") if name.strip())
    for what, value in (("--user", user), ("--tenant", tenant)):
        if value and not NAME.fullmatch(value):
            raise StartError(f"{what} {value!r}: 1 to 128 visible ASCII characters without spaces are taken")
    if not user:
        raise StartError("--user is empty; say whose key it is")
    if bad := next((name for name in names if not RIGHT.fullmatch(name)), None):
        raise StartError(f"--rights: {bad!r} is no name of a right: A-Z a-z 0-9 _ . : / - are taken")
    if expires_days is not None and not 0 < expires_days < 36_500:  # noqa: PLR2004 a century
        raise StartError("--expires-days must be more than 0 and less than 36500")
    limits = _limits(limit)
    expires_at = None if expires_days is None else int(time.time() + expires_days * DAY_S)

    async def work(store: Any) -> int:
        key, record = await Keys(store).create(
            user, tenant=tenant, rights=names, limits=limits, label=label[:200], expires_at=expires_at
        )
        print(key, flush=True)
        print(f"Key {record.id} of {user}. It is not shown again: only its hash is kept.", file=sys.stderr)
        return 0

    return _use_store(config, work)


def _limits(given: list[str]) -> dict[str, int]:
    try:
        pairs = [(name, int(value)) for name, _, value in (text.partition("=") for text in given)]
        return dict(own_limits(dict(pairs)))
    except ValueError as error:
        raise StartError(f"--limit must be NAME=NUMBER: {error}") from None


def list_keys(config: Config) -> int:
    """Print a line for each key."""

    async def work(store: Any) -> int:
        rows: list[tuple[str, ...]] = [("ID", "USER", "TENANT", "RIGHTS", "MADE", "STATE", "LABEL")]
        rows += [_row(state) for state in await Keys(store).list()]
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        for row in rows:
            print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
        return 0

    return _use_store(config, work)


def revoke_key(config: Config, key_id: str) -> int:
    """Revoke a key. Raises StartError."""
    shown = key_id.removeprefix("tw-")[:16]
    if not KEY_ID.fullmatch(shown):
        raise StartError("a key's id has 16 digits from 0 to f; `tokenwire keys list` shows it")

    async def work(store: Any) -> int:
        if not await Keys(store).revoke(shown):
            print(f"tokenwire: there is no key {shown}", file=sys.stderr)
            return EXIT_MISSING
        print(f"Key {shown} is revoked. Open connections are closed within {config.auth.recheck_s:g} s.")
        return 0

    return _use_store(config, work)


def _row(state: KeyState) -> tuple[str, ...]:
    record = state.record
    until = "" if record.expires_at is None else f" until {_day(record.expires_at)}"
    words = "good" + until
    if state.revoked_at is not None:
        words = f"revoked {_day(state.revoked_at)}"
    elif state.fault is not None:
        words = f"expired {_day(record.expires_at or 0)}"
    rights = ",".join(record.rights) or "-"
    return record.id, record.user, record.tenant or "-", rights, _day(record.created_at), words, record.label


def _day(when: int) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(when))


def _use_store(config: Config, work: Callable[[Any], Any]) -> int:
    from server.app import use_store  # noqa: PLC0415 seconds of imports that --help does without

    return use_store(config, work)
