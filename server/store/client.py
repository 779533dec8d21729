"""One Redis, asked through redis-py: pool, scripts, deadlines, errors in our words."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Coroutine
from functools import cache, partial
from importlib import resources
from typing import Any, Final
from uuid import uuid4

import hiredis
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.connection import AbstractConnection
from redis.exceptions import ConnectionError as NoConnectionError
from redis.exceptions import MasterDownError, NoScriptError, ReadOnlyError, RedisError

from server.config import StoreConfig
from server.store.base import (
    FencedError,
    NotFoundError,
    NotInConversationError,
    ResponseRunningError,
    StoreError,
    StoreUnavailableError,
    TurnQueueFullError,
)
from server.store.connection import RETRY_PAUSE_S, bulk_connection, connection_options
from server.store.errors import masked, translated
from server.store.pipeline import NOTHING_USUAL, Note, Pipeline, Usual
from server.store.redo import Redo

Argument = bytes | str | int | float

NEVER: Final = 0
FIRST_TIME: Final = 0
EARLY_S: Final = 0.1  # between two tries while a Redis that has just started gets back what it has lost
WRITES: Final = frozenset(
    {
        "begin",
        "claim",
        "create_conversation",
        "delete_conversation",
        "finish",
        "start",
        "update_conversation",
    }
)
WRITTEN: Final = 3  # values that run.lua puts behind what a write answers
ORDERED: Final = frozenset({"begin", "claim", "start"})  # what decides which turn is before which, and whose it is
_NO_MASTER: Final = (ReadOnlyError, MasterDownError)  # after a failover: look the name up again
_ELSEWHERE: Final = (NoConnectionError, OSError)  # another connection may lead to who can help


@cache
def script_source(name: str) -> str:
    """Return a script with common.lua before it, and run.lua around it."""
    scripts = resources.files("server.store") / "scripts"
    common, own, run = ((scripts / f"{part}.lua").read_text("utf-8") for part in ("common", name, "run"))
    return f"{common}\nlocal function main()\n{own}\nend\n{run}"


@cache
def script_digest(name: str) -> str:
    """Return the name that Redis gives a script."""
    return hashlib.sha1(script_source(name).encode(), usedforsecurity=False).hexdigest()


class RedisClient:
    """Runs commands and scripts; any fault comes out as a StoreError, soon after `operation_timeout_s` of silence.

    Scripts go through one connection (pipeline.py), the few plain commands through redis-py and its pool. There each
    runs in a task of its own, and a cancelled caller leaves it alone: its reply is still read, so no connection goes
    back to the pool in the middle of one. (redis-py would close the connection instead, but its `wait_for` may swallow
    the cancellation on Python 3.11.)

    Raises ValueError when the URL is malformed.
    """

    def __init__(self, url: str, config: StoreConfig) -> None:
        for script in (resources.files("server.store") / "scripts").iterdir():
            script_source(script.name.removesuffix(".lua"))  # now: a running server outlives an upgrade of its files
        self.shown_url: Final = masked(url)
        self._config = config
        self.redo: Final = Redo(self.key("written", uuid4().hex), f"{config.key_prefix}:lost", config.redo_s)
        self.options: Final = connection_options(url, config) | {"redis_connect_func": self.redo.greet}
        # The pool has a connection for everyone who has a place.
        self._places = asyncio.Semaphore(config.max_connections)
        self._answered_at = float("-inf")  # loop time
        self._pool = BlockingConnectionPool(max_connections=config.max_connections, timeout=None, **self.options)
        self._redis: Any = Redis(connection_pool=self._pool)  # redis-py leaves execute_command untyped
        self._tasks: set[asyncio.Task[Any]] = set()
        self._scripts = self.pipeline()
        self._closed = False

    async def close(self) -> None:
        """Stop what runs and close every connection; idempotent."""
        self._closed = True
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self._scripts.close()
        try:
            await self._pool.aclose()
        except (RedisError, OSError):
            pass  # the connections are gone either way

    def key(self, kind: str, name: str) -> str:
        """Return a key as common.lua makes it."""
        return f"{self._config.key_prefix}:{kind}:{name}"

    def pipeline(self) -> Pipeline:
        """Return a connection of its own for packed commands; whoever asks for it closes it."""
        return Pipeline(bulk_connection(self.options), self._config.operation_timeout_s)

    async def command(self, *arguments: Argument) -> Any:
        """Run one command."""
        return await self._shielded(self._perform(arguments))

    async def run(self, script: str, *arguments: Argument) -> list[Any]:
        """Run a script of `scripts/` and return what it answers after `ok`; raise what it refuses."""
        packed = (0, self._config.key_prefix, self._config.retention_s, *arguments)
        values: list[Any]
        status, *values = await self._run(script, packed)
        if status != b"ok":
            raise _REFUSALS[status](*(value.decode() for value in values))
        return values

    async def _run(self, script: str, packed: tuple[Argument, ...]) -> list[Any]:
        """Return what a script answers at last."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._config.operation_timeout_s
        answer = await self._try_to_run(script, packed)
        while answer[0] in {b"early", b"late"}:
            if answer[0] == b"early":
                await asyncio.sleep(EARLY_S)
            else:
                self.redo.set_clock(answer[1])
                if loop.time() >= deadline:  # else it is Redis's clock that has jumped
                    raise StoreUnavailableError(f"Redis at {self.shown_url} took the command after its time")
            answer = await self._try_to_run(script, packed)
        return answer[:-WRITTEN] if answer[0] == b"ok" and script in WRITES else answer

    async def _try_to_run(self, script: str, packed: tuple[Argument, ...]) -> list[Any]:
        is_ordered = "1" if script in ORDERED else ""
        deadline, counter, note = NEVER, "", None
        if script in WRITES:
            deadline, counter = self.redo.deadline(self._config.operation_timeout_s), self.redo.counter
            note = partial(self._note, script, packed)
        arguments = (*packed, self.redo.since_us, is_ordered, FIRST_TIME, deadline, counter)
        try:
            return await self._ask(("EVALSHA", script_digest(script), *arguments), note)
        except NoScriptError:
            # Redis was restarted, or sees this script for the first time: EVAL loads it.
            return await self._ask(("EVAL", script_source(script), *arguments), note)

    async def _ask(self, arguments: tuple[Argument, ...], note: Note | None) -> list[Any]:
        """Return a script's answer. Raises StoreError, NoScriptError."""
        packed: bytes = hiredis.pack_command(arguments)  # type: ignore[arg-type]  # annotated for tuples of one
        (answer,) = await self.exchange(self._scripts, packed, note=note)
        if isinstance(answer, NoScriptError):
            raise answer
        if not isinstance(answer, list):
            raise translated(answer, self.shown_url)
        return answer

    async def exchange(
        self,
        pipeline: Pipeline,
        packed: bytes,
        *,
        count: int = 1,
        note: Note | None = None,
        usual: Usual = NOTHING_USUAL,
    ) -> list[Any]:
        """Return the replies to packed commands, as `Pipeline.send` does; once more where a connection led nowhere.

        Raises StoreUnavailableError.
        """
        replies = await self._send(pipeline, packed, count, note, usual)
        is_refused = isinstance(replies, list) and count == 1 and isinstance(replies[0], _NO_MASTER)
        if is_refused or isinstance(replies, _ELSEWHERE):
            if is_refused:
                pipeline.drop()
            await asyncio.sleep(RETRY_PAUSE_S)
            replies = await self._send(pipeline, packed, count, note, usual)
        if not isinstance(replies, list):
            raise translated(replies, self.shown_url)
        return replies

    async def _send(
        self, pipeline: Pipeline, packed: bytes, count: int, note: Note | None, usual: Usual
    ) -> list[Any] | RedisError | OSError:
        """Return the replies, or the error that came instead of them."""
        self.require_open()
        try:
            replies = await pipeline.send(packed, count, note, usual)
        except TimeoutError:
            raise self.timed_out() from None
        except (RedisError, OSError) as error:
            self.require_open()
            return error
        self._has_answered()
        return replies

    def _note(self, script: str, packed: tuple[Argument, ...], answer: Any) -> None:
        """Remember a write that Redis has done, whether or not its caller still waits."""
        if not isinstance(answer, list) or answer[0] != b"ok":
            return
        *answer, position, place, time_us = answer
        self.redo.set_clock(time_us)
        size = sum(len(argument) for argument in packed if isinstance(argument, bytes | str))
        self.redo.remember(position, size, partial(self._run_again, script, _as_done(script, packed, answer), place))

    async def _run_again(
        self, script: str, packed: tuple[Argument, ...], place: int, connection: AbstractConnection
    ) -> int:
        """Run a script once more whose effect Redis has lost; return its new position in our count.

        What it refuses now was changed by others meanwhile.
        """
        end = (self.redo.since_us, "", place, NEVER, self.redo.counter)
        while True:
            await connection.send_command("EVAL", script_source(script), *packed, *end)
            answer = await connection.read_response()
            if answer[0] != b"early":
                return int(answer[-3]) if answer[0] == b"ok" else 0
            await asyncio.sleep(EARLY_S)

    async def _shielded(self, operation: Coroutine[Any, Any, Any]) -> Any:
        task = asyncio.create_task(operation, name="store operation")
        self._tasks.add(task)
        task.add_done_callback(self._forget)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():  # by `close`, not our caller
                raise StoreUnavailableError("the store was closed") from None
            raise

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # its caller may be gone: the error counts as seen

    async def _perform(self, arguments: tuple[Argument, ...]) -> Any:
        self.require_open()
        await self._wait_for_place()
        try:
            async with asyncio.timeout(self._config.operation_timeout_s):
                answer = await self._redis.execute_command(*arguments)
        except TimeoutError:
            raise self.timed_out() from None
        except (RedisError, OSError) as error:
            raise translated(error, self.shown_url) from error
        else:
            self._has_answered()
            return answer
        finally:
            self._places.release()

    def _has_answered(self) -> None:
        self._answered_at = asyncio.get_running_loop().time()
        self.redo.prune()

    async def _wait_for_place(self) -> None:
        """Wait for one of the connections: as long as Redis answers others, it is not silent, we ask much.

        Raises StoreUnavailableError when it has answered nobody for `operation_timeout_s`.
        """
        if not self._places.locked():
            await self._places.acquire()
            return
        loop, timeout_s = asyncio.get_running_loop(), self._config.operation_timeout_s
        place = loop.create_task(self._places.acquire())
        try:
            while not (await asyncio.wait([place], timeout=timeout_s))[0]:
                if loop.time() - self._answered_at >= timeout_s:
                    raise self.timed_out()
        except BaseException:
            if not place.cancel():
                self._places.release()
            raise

    def require_open(self) -> None:
        """Raise StoreUnavailableError after `close`."""
        if self._closed:
            raise StoreUnavailableError("the store is closed")

    def timed_out(self) -> StoreUnavailableError:
        """Return the error of an operation that met its deadline."""
        return StoreUnavailableError(
            f"Redis at {self.shown_url} did not answer within {self._config.operation_timeout_s:g} s"
        )


def _as_done(script: str, packed: tuple[Argument, ...], answer: list[Any]) -> tuple[Argument, ...]:
    """Return the arguments with which a script does once more what it has done."""
    _, *told = answer
    if script != "claim" or not told:
        return packed
    fields = told[0]
    return (*packed[:-1], dict(zip(fields[::2], fields[1::2], strict=True))[b"epoch"])


def _not_found(kind: str, missing: str) -> StoreError:
    return NotFoundError(kind, missing)  # type: ignore[arg-type]  # the scripts name no other kinds


_REFUSALS: Final[dict[bytes, Callable[..., StoreError]]] = {
    b"not_found": _not_found,
    b"not_in_conversation": lambda response, conversation: NotInConversationError(
        f"response {response} does not belong to conversation {conversation}"
    ),
    b"running": lambda response: ResponseRunningError(
        f"response {response} has not ended yet; wait for its end, or cancel it"
    ),
    b"full": lambda conversation, most: TurnQueueFullError(
        f"{most} turns wait in conversation {conversation} already; wait for an answer"
    ),
    b"fenced": lambda response: FencedError(f"response {response} has ended or was taken over by another gateway"),
}
