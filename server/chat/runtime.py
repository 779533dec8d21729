"""What every running response of this gateway shares."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, TypeVar

from server.access.access import Access
from server.chat.hub import Channel
from server.config import Config
from server.observe.metrics import Metrics
from server.observe.traces import Traces
from server.store.base import FencedError, Finish, Store, StoreUnavailableError
from server.store.bus import Bus
from server.store.journal import Journal

T = TypeVar("T")

logger = logging.getLogger(__name__)

RETRY_FIRST_S: Final = 0.1  # back-off while Redis does not take an end: doubled up to
RETRY_MAX_S: Final = 5.0


def conversation_topic(conversation: str) -> str:
    """Return the bus channel of a conversation's news."""
    return f"conversation:{conversation}"


async def wait_at_most(event: asyncio.Event, timeout_s: float) -> None:
    """Return when the event is set, or after the time all the same: a wake-up may have been lost."""
    try:
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        pass  # look again


class Runtime:
    """The gateway's store, journal and settings, and the writes that outlive a response's task."""

    def __init__(  # noqa: PLR0917 the composition root names them all
        self,
        config: Config,
        store: Store,
        journal: Journal,
        bus: Bus,
        metrics: Metrics,
        gateway_id: str,
        relay: Journal | None = None,
        access: Access | None = None,
        traces: Traces | None = None,
    ) -> None:
        self.config = config
        self.access = access or Access.without_store(config)
        self.store = store
        self.journal = journal
        # `store:false` answers tick on their own, so that they never wait for Redis behind a batch of others.
        self.relay = relay or journal
        self.bus = bus
        self.metrics = metrics
        self.traces = traces
        self.gateway_id = gateway_id
        # What becomes of the listeners of a response that another gateway has taken from us; the chat sets it.
        self.go_on_elsewhere: Callable[[Channel, str], None] = lambda channel, _owner: channel.close()
        self._background: set[asyncio.Task[None]] = set()
        self._late_ends: set[asyncio.Task[None]] = set()

    async def patiently(self, work: Callable[[], Awaitable[T]], *, timeout_s: float) -> T:
        """Return what `work` returns; repeat it while Redis is away, until the time is up.

        Raises StoreUnavailableError, and whatever else `work` raises.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        delay = RETRY_FIRST_S
        while True:
            try:
                return await work()
            except StoreUnavailableError:
                if loop.time() + delay > deadline:
                    raise
                await asyncio.sleep(delay)
                delay = min(delay * 2, RETRY_MAX_S)

    async def finish(self, end: Finish, conversation: str | None, *, timeout_s: float) -> None:
        """Write an end, again and again until Redis takes it or the time is up, and let the next turn go on.

        Raises StoreUnavailableError, FencedError.
        """
        await self.patiently(lambda: self.store.finish(end), timeout_s=timeout_s)
        self.tell_conversation(conversation, ended=end.response_id)

    def tell_conversation(self, conversation: str | None, **news: Any) -> None:
        """Tell every gateway that has waiting turns or subscribers of a conversation what happened in it."""
        if conversation is not None:
            self.bus.publish(conversation_topic(conversation), news)

    def when_store_is_back(self, work: Callable[[], Awaitable[None]], response_id: str) -> None:
        """Do what Redis could not take in time, as soon as it is back; `work` may be repeated."""
        task = self.spawn(self._repeat(work, response_id), f"finish {response_id}")
        self._late_ends.add(task)
        task.add_done_callback(self._late_ends.discard)

    async def late_ends_written(self, timeout_s: float) -> None:
        """Return when Redis has the ends that it could not take in time, or when the time is up.

        Clients were told of these ends: an answer whose end Redis does not have would be continued elsewhere.
        """
        if self._late_ends:
            await asyncio.wait(tuple(self._late_ends), timeout=timeout_s)

    async def _repeat(self, work: Callable[[], Awaitable[None]], response_id: str) -> None:
        delay = RETRY_FIRST_S
        while True:
            try:
                await work()
            except StoreUnavailableError:
                await asyncio.sleep(delay)
                delay = min(delay * 2, RETRY_MAX_S)
            except FencedError:
                logger.info("response %s was taken over", response_id, extra={"response": response_id})
                return
            else:
                return

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Run `work` in a task that is kept until it ends, whose failure is logged."""
        task = asyncio.create_task(work, name=name)
        self._background.add(task)
        task.add_done_callback(self._reap)
        return task

    async def close(self) -> None:
        """Stop what is left in the background."""
        for task in self._background:
            task.cancel()
        if self._background:
            await asyncio.wait(self._background)

    def _reap(self, task: asyncio.Task[None]) -> None:
        self._background.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("%s failed", task.get_name(), exc_info=error)
