"""`tokenwire chat` on a terminal, or in a pipe: reads turns, writes answers as they come."""

from __future__ import annotations

import asyncio
import contextlib
import io
import re
import signal
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, contextmanager
from typing import Final, TextIO

from prompt_toolkit import PromptSession
from prompt_toolkit.formatted_text import FormattedText
from prompt_toolkit.output import create_output
from prompt_toolkit.shortcuts import print_formatted_text

from server.terminal.talk import Ended, Said, SignInError, Talk, TalkError, Waits, find_model

HELP: Final = """\
/model          the models; /model NAME asks that one from now on
/new            begin another conversation
/help           this
/quit           leave, as Ctrl-D does
Ctrl-C stops an answer. Alt-Enter begins a new line."""

GREETING: Final = "Ctrl-C stops an answer, Ctrl-D leaves, /help says what else there is."
EXIT_FAILED: Final = 1
EXIT_INTERRUPTED: Final = 130  # as a shell has it: 128 and the signal's number

# C0 and C1 but for tab and line end, and what turns the direction of text (UAX #9).
_STEERING: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def clean(text: str) -> str:
    """Return `text` without control characters: what a model says must not steer the terminal."""
    return text if text.isprintable() else _STEERING.sub("\N{REPLACEMENT CHARACTER}", text)


class Screen:
    """Turns from standard input, answers to standard output, everything else to standard error if that is no terminal.

    Without a terminal on standard input each line is a turn, and only answers are written.
    """

    def __init__(self, talk: Talk, out: TextIO | None = None) -> None:
        self._talk = talk
        self._out = out or sys.stdout
        self._is_interactive = sys.stdin.isatty() and self._out.isatty()
        self._failed = False
        self._is_left = False  # Ctrl-C where nobody types: there is nothing to go back to
        self._column_0 = True  # the cursor is at the start of a line

    async def run(self) -> int:
        """Talk until the person leaves; return the exit code. Raises TalkError where there is no server."""
        try:
            await self._open()
            if self._is_interactive:
                self._note(f"Connected to {self._talk.url}. {GREETING}")
            async for line in self._lines():
                if not await self._do(line) or self._is_left:
                    break
        except (EOFError, KeyboardInterrupt):
            pass  # the person left instead of signing in
        except BrokenPipeError:
            await self._talk.stop()  # of an answer that nobody reads
            raise
        finally:
            await self._talk.close()
        if self._is_interactive and self._talk.conversation is not None:
            self._note(f"Go on later with: tokenwire chat --conversation {self._talk.conversation}")
        if self._is_left:
            return EXIT_INTERRUPTED
        return EXIT_FAILED if self._failed and not self._is_interactive else 0

    async def _open(self) -> None:
        try:
            await self._talk.open()
        except SignInError as error:
            await self._ask_for_key(error)

    async def _ask_for_key(self, error: SignInError) -> None:
        """Have the person sign in. Raises the error where nobody can be asked, and EOFError where nobody answers."""
        while True:
            if not self._is_interactive:
                raise error
            self._note(str(error))
            try:
                # An output of its own: prompt_toolkit shows passwords where TERM is dumb and it may choose itself.
                session = PromptSession[str](output=create_output())
                await self._talk.sign_in(await session.prompt_async("Key: ", is_password=True))
            except SignInError as again:
                error = again
            else:
                return

    async def _lines(self) -> AsyncIterator[str]:
        """Yield what the person says, until there is no more."""
        if not self._is_interactive:
            async for line in _piped():
                yield line
            return
        session = PromptSession[str]()
        with contextlib.suppress(EOFError):
            while True:
                try:
                    yield await session.prompt_async("> ")
                except KeyboardInterrupt:
                    self._note("Ctrl-D leaves.")

    async def _do(self, line: str) -> bool:
        """Do what one line says; return whether to go on."""
        text = line.strip()
        if not text:
            return True
        try:
            try:
                return await self._say(text)
            except SignInError as error:
                await self._ask_for_key(error)
                return await self._say(text)
        except TalkError as error:
            self._failed = True
            self._note(f"[error] {error}")
            if error.code == "conversation_not_found":
                self._talk.begin_anew()
                self._note("The next turn begins another conversation.")
        return True

    async def _say(self, text: str) -> bool:
        if self._is_interactive and text.startswith("/"):
            return await self._command(*text.split(maxsplit=1))
        await self._answer(text)
        return True

    async def _command(self, name: str, argument: str = "") -> bool:
        match name:
            case "/new":
                self._talk.begin_anew()
                self._note("A new conversation.")
            case "/model":
                await self._choose_model(argument)
            case "/quit":
                return False
            case "/help":
                self._note(HELP)
            case _:
                self._note(f"There is no {name}.\n{HELP}")
        return True

    async def _choose_model(self, name: str) -> None:
        models = await self._talk.models()
        if name and find_model(models, name) is None:
            self._note(f"There is no model {name}.")
        elif name:
            self._talk.model = name
        asked = find_model(models, self._talk.model)
        for model in models:
            mark = "*" if model is asked else " "
            self._note(f"{mark} {model['id']}  {model['state']}")

    async def _answer(self, text: str) -> None:
        self._column_0, waits = True, ""
        with self._interrupts_stop():
            async with aclosing(self._talk.ask(text)) as happenings:
                async for happening in happenings:
                    match happening:
                        case Said(piece):
                            self._out.write(clean(piece))
                            self._out.flush()
                            self._column_0 = piece.endswith("\n")
                        case Waits(why) if why != waits:
                            waits = why
                            self._note(f"[{why}]")
                        case Ended(why):
                            self._fresh_line()
                            self._failed = self._failed or why.startswith("failed")
                            if why:
                                self._note(f"[{why}]")

    @contextmanager
    def _interrupts_stop(self) -> Iterator[None]:
        """Let Ctrl-C stop the answer inside the block; twice, or without a terminal, the program, too."""
        loop, run = asyncio.get_running_loop(), asyncio.current_task()
        assert run is not None
        stops: list[asyncio.Task[None]] = []

        def interrupted() -> None:
            if stops:
                run.cancel()
            self._is_left = not self._is_interactive
            stops.append(loop.create_task(self._talk.stop(), name="stop"))

        loop.add_signal_handler(signal.SIGINT, interrupted)
        try:
            yield
        finally:
            loop.remove_signal_handler(signal.SIGINT)

    def _fresh_line(self) -> None:
        if not self._column_0:
            self._out.write("\n")
            self._out.flush()
        self._column_0 = True

    def _note(self, text: str) -> None:
        """Tell something that is no part of an answer."""
        self._fresh_line()
        if self._is_interactive:
            print_formatted_text(FormattedText([("ansibrightblack", clean(text))]))
        elif self._failed:
            sys.stderr.write(clean(text) + "\n")


async def _piped() -> AsyncIterator[str]:
    """Yield the lines of standard input. A thread of its own reads them: a file cannot be waited for otherwise."""
    loop = asyncio.get_running_loop()
    lines: asyncio.Queue[str | None] = asyncio.Queue()

    def read() -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
            for line in sys.stdin:
                loop.call_soon_threadsafe(lines.put_nowait, line)
            loop.call_soon_threadsafe(lines.put_nowait, None)

    threading.Thread(target=read, name="standard input", daemon=True).start()
    while (line := await lines.get()) is not None:
        yield line


async def chat(talk: Talk) -> int:
    """Run `tokenwire chat`; return its exit code. Raises TalkError, and BrokenPipeError where nobody reads any more."""
    for stream, name in ((sys.stdin, "input"), (sys.stdout, "output")):
        if stream is None:
            raise TalkError(f"standard {name} is closed")
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # bytes that are no text, text that the terminal does not know
    return await Screen(talk).run()
