"""`tokenwire chat`: the command line of the terminal client."""

from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import Mapping
from typing import Any, Final

from server.cli_models import KEY_VARIABLE
from server.errors import StartError

EXIT_UNREAD: Final = 141  # as a shell has it: 128 and SIGPIPE
DEFAULT_URL: Final = "ws://localhost:8000"


def add_chat_command(commands: Any) -> None:
    """Add `chat` and its arguments."""
    text = "talk to a server in the terminal"
    parser: argparse.ArgumentParser = commands.add_parser("chat", help=text, description=text, allow_abbrev=False)
    parser.add_argument(
        "url", nargs="?", default=DEFAULT_URL, metavar="URL", help=f"the server (default {DEFAULT_URL})"
    )
    parser.add_argument("--model", metavar="NAME", help="model to ask (default: the server's)")
    parser.add_argument("--conversation", metavar="ID", help="conversation to go on with (default: a new one)")
    parser.add_argument("--api-key", metavar="KEY", help=f"to sign in with (default: ${KEY_VARIABLE}, else it asks)")
    parser.set_defaults(remote=chat)


def chat(options: Mapping[str, Any]) -> int:
    """Talk until the person leaves; return the exit code. Raises StartError."""
    from server.terminal.screen import chat as run  # noqa: PLC0415 a terminal library, which the server does without
    from server.terminal.talk import Talk, TalkError, address  # noqa: PLC0415 as above

    key = options["api_key"] or os.environ.get(KEY_VARIABLE)
    try:
        talk = Talk(address(options["url"]), key=key, model=options["model"], conversation=options["conversation"])
        return asyncio.run(run(talk))
    except TalkError as error:
        raise StartError(str(error)) from None
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # else Python tries once more at its exit, and complains
        return EXIT_UNREAD
