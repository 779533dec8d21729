"""Wake-ups between gateways over Redis pub/sub. They only wake: what counts is read from the store afterwards."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final

import orjson
from redis.asyncio import Redis
from redis.asyncio.client import Pipeline, PubSub
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError

from server.config import StoreConfig
from server.store.connection import connection_options

logger = logging.getLogger(__name__)

RECONNECT_FIRST_S: Final = 0.1  # back-off while Redis is away: doubled up to
RECONNECT_MAX_S: Final = 2.0
POLL_S: Final = 5.0  # who says nothing for so long is pinged, and left when it does not answer for as long again
SUBSCRIBE_TIMEOUT_S: Final = 5.0

Handler = Callable[[dict[str, Any]], None]


class Bus:
    """Named channels of small JSON messages, at most once.

    A handler is called with each message of its channel, and with `{"gap": true}` whenever messages may have been
    missed: after every reconnection. Messages are sent in batches, and lost while Redis is away.
    """

    def __init__(self, url: str, config: StoreConfig) -> None:
        options = connection_options(url, config)  # raises where the URL is malformed
        is_network = "host" in options
        self._redis: Redis = Redis.from_url(
            url,
            protocol=2,
            client_name="tokenwire-bus",
            socket_timeout=None,  # silence is no fault, until a ping is not answered
            socket_connect_timeout=config.operation_timeout_s,
            retry=Retry(NoBackoff(), 0),  # redis-py would connect again and tell nobody of the gap
            **({"socket_keepalive": True} if is_network else {}),  # but a machine that is gone is noticed
        )
        self._prefix = f"{config.key_prefix}:bus:"
        self._handlers: dict[str, set[Handler]] = {}
        self._confirmed: dict[str, asyncio.Event] = {}
        self._outgoing: dict[tuple[str, bytes], None] = {}
        self._has_outgoing = asyncio.Event()
        self._pubsub: PubSub | None = None
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin to listen and to send."""
        self._tasks = [
            asyncio.create_task(self._listen(), name="bus listener"),
            asyncio.create_task(self._send(), name="bus sender"),
        ]

    async def close(self) -> None:
        """Stop; idempotent."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        try:
            await self._redis.aclose()
        except (RedisError, OSError):
            pass  # the connections are gone either way

    def publish(self, channel: str, message: dict[str, Any]) -> None:
        """Send soon; equal messages that meet are sent once. Never blocks, never raises."""
        self._outgoing[channel, orjson.dumps(message)] = None
        self._has_outgoing.set()

    async def subscribe(self, channel: str, handler: Handler) -> None:
        """Call `handler` from now on; return when Redis has confirmed it, or after a bounded wait without Redis."""
        self._handlers.setdefault(channel, set()).add(handler)
        confirmed = self._confirmed.setdefault(channel, asyncio.Event())
        try:
            await self._ask("subscribe", channel)
            async with asyncio.timeout(SUBSCRIBE_TIMEOUT_S):
                await confirmed.wait()
        except TimeoutError:
            pass  # Redis is away: the listener subscribes when it is back, and tells of the gap
        except BaseException:
            await self.unsubscribe(channel, handler)
            raise

    async def unsubscribe(self, channel: str, handler: Handler) -> None:
        """Call `handler` no more; idempotent."""
        handlers = self._handlers.get(channel, set())
        handlers.discard(handler)
        if not handlers and self._handlers.pop(channel, None) is not None:
            self._confirmed.pop(channel, None)
            await self._ask("unsubscribe", channel)

    async def _ask(self, what: str, channel: str) -> None:
        """Tell the listener's connection; without one, the listener says it all again when it connects."""
        if self._pubsub is None:
            return
        try:
            await getattr(self._pubsub, what)(self._prefix + channel)
        except (RedisError, OSError, RuntimeError) as error:  # the last is uvloop's, of a transport just closed
            logger.debug("bus: %s failed: %s", what, error)

    async def _listen(self) -> None:
        delay = RECONNECT_FIRST_S
        while True:
            pubsub = self._redis.pubsub()
            try:
                await self._subscribe_all(pubsub)
                self._pubsub = pubsub
                self._tell_gap()
                delay = RECONNECT_FIRST_S
                await self._receive_all(pubsub)
            except (RedisError, OSError) as error:
                logger.debug("bus: reconnecting: %s", error)
            finally:
                self._pubsub = None
                await asyncio.shield(_closed(pubsub))
            await asyncio.sleep(delay)
            delay = min(delay * 2, RECONNECT_MAX_S)

    async def _receive_all(self, pubsub: PubSub) -> None:
        """Hand out what comes. Raises ConnectionError where nobody is there any more.

        A machine that is gone, or a failover that leaves the old one alone, closes no connection.
        """
        is_asked = False
        while True:
            message = await pubsub.get_message(timeout=POLL_S)
            if message is not None:
                is_asked = False
                self._receive(message)
            elif is_asked:
                raise RedisConnectionError(f"no answer to a ping for {POLL_S:g} s")
            else:
                is_asked = True
                await pubsub.ping()

    async def _subscribe_all(self, pubsub: PubSub) -> None:
        """Ask for every channel; also for one that somebody subscribes to meanwhile."""
        asked: set[str] = set()
        missing = {self._prefix}  # something to listen to where nobody has subscribed yet
        while missing:
            await pubsub.subscribe(*missing)
            asked |= missing
            missing = {self._prefix + channel for channel in self._handlers} - asked

    def _receive(self, message: dict[str, Any]) -> None:
        if message["type"] == "pong":
            return
        channel = message["channel"].decode().removeprefix(self._prefix)
        if message["type"] == "subscribe":
            if channel in self._confirmed:
                self._confirmed[channel].set()
        elif message["type"] == "message":
            try:
                news = orjson.loads(message["data"])
            except orjson.JSONDecodeError:
                return  # not from one of us
            if isinstance(news, dict):
                self._call(channel, news)

    def _tell_gap(self) -> None:
        for channel in tuple(self._handlers):
            self._call(channel, {"gap": True})

    def _call(self, channel: str, message: dict[str, Any]) -> None:
        for handler in tuple(self._handlers.get(channel, ())):
            try:
                handler(message)
            except Exception:  # one handler's fault must not end the news of all others
                logger.exception("bus: a handler of %s failed", channel)

    async def _send(self) -> None:
        """Send what has gathered, in one round trip; while it is under way, the next batch gathers."""
        while True:
            await self._has_outgoing.wait()
            self._has_outgoing.clear()
            outgoing, self._outgoing = self._outgoing, {}
            pipeline = self._redis.pipeline(transaction=False)
            for channel, message in outgoing:
                pipeline.publish(self._prefix + channel, message)
            try:
                async with asyncio.timeout(SUBSCRIBE_TIMEOUT_S):
                    await _executed(pipeline)
            except (RedisError, OSError, TimeoutError) as error:
                logger.debug("bus: %d messages lost: %s", len(outgoing), error)


async def _executed(pipeline: Pipeline) -> None:
    """Send a batch, a second time where its connection was cut by a restart: hearing it twice is harmless."""
    commands = list(pipeline.command_stack)
    try:
        await pipeline.execute()
    except (RedisConnectionError, OSError):
        pipeline.command_stack = commands
        await pipeline.execute()


async def _closed(pubsub: PubSub) -> None:
    try:
        await pubsub.aclose()  # type: ignore[no-untyped-call]  # so in redis-py
    except (RedisError, OSError):
        pass  # its connection is gone either way
