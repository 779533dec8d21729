"""Gateways watch each other: a heartbeat says that this one lives, and what a dead one left running is taken over."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

import msgspec
import orjson

from protocol.commands import ResponseCreate
from protocol.events import DELTA_TYPE, Usage
from protocol.response_stream import ResponseHead, State, failed_event
from server.chat.runtime import Runtime
from server.chat.turn import parameters
from server.store.base import FencedError, Finish, StoredResponse, StoreError, StoreUnavailableError

logger = logging.getLogger(__name__)

HEARTBEAT_S: Final = 2.0
HEARTBEAT_TTL_S: Final = 10.0  # a gateway silent this long is dead
JOURNAL_PAGE: Final = 1000  # events read at once


class Takeover:
    """Keep the heartbeat; end the responses of gateways that are gone, with the text that clients saw of them."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._store = runtime.store
        self.store_is_up = True

    async def run(self) -> None:
        """Beat and look after orphans until cancelled; a store that is away is noted and waited for."""
        while True:
            try:
                await self.beat()
                await self.adopt_orphans()
            except StoreUnavailableError as error:
                self._note_store(is_up=False, why=str(error))
            else:
                self._note_store(is_up=True, why="")
            await asyncio.sleep(HEARTBEAT_S)

    async def beat(self) -> None:
        """Say that this gateway lives."""
        await self._store.ping()
        await self._store.heartbeat(self._runtime.gateway_id, HEARTBEAT_TTL_S)

    async def retire(self) -> None:
        """Say that this gateway stops: what it leaves running may be taken over at once."""
        try:
            await self._store.heartbeat(self._runtime.gateway_id, 0)
        except StoreError as error:
            logger.warning("could not say good-bye to the store: %s", error)

    async def adopt_orphans(self) -> None:
        """Take over every response whose gateway is gone."""
        for response_id in await self._store.orphans():
            stored = await self._store.claim(response_id, self._runtime.gateway_id)
            if stored is None:
                continue
            try:
                await self._end(stored)
            except StoreUnavailableError:
                raise
            except Exception:  # one that cannot be read must not keep this gateway from its work
                logger.exception("orphan %s cannot be ended", response_id, extra={"response": response_id})

    async def _end(self, stored: StoredResponse) -> None:
        text, last = await self._read_journal(stored.id)
        command = msgspec.json.decode(stored.request, type=ResponseCreate)
        head = ResponseHead(
            id=stored.id,
            item_id=stored.id.replace("resp_", "msg_", 1),
            model=stored.model,
            created_at=stored.created_at,
            conversation=stored.conversation,
            previous_response_id=command.previous_response_id,
            parameters=parameters(command),
        )
        message = "the server stopped before the answer was complete"
        event, snapshot, output = failed_event(head, last + 1, text, "server_error", message, Usage())
        end = Finish(
            response_id=stored.id,
            epoch=stored.epoch,
            status=State.FAILED.value,
            output=output,
            snapshot=orjson.dumps(snapshot),
            events=((event.sequence_number, event.data),),
        )
        logger.info("ended an orphaned response", extra={"response": stored.id, "events": last + 1})
        try:
            await self._runtime.finish(end, stored.conversation, timeout_s=0)
        except FencedError:
            logger.info("orphan was taken by another gateway", extra={"response": stored.id})

    async def _read_journal(self, response_id: str) -> tuple[str, int]:
        """Return the text that clients saw, and the last sequence number (-1 for none)."""
        parts: list[str] = []
        last = -1
        while events := await self._store.read_events(response_id, after=last, count=JOURNAL_PAGE):
            for number, data in events:
                last = number
                event = orjson.loads(data)
                if event["type"] == DELTA_TYPE:
                    parts.append(event["delta"])
        return "".join(parts), last

    def _note_store(self, *, is_up: bool, why: str) -> None:
        self._runtime.metrics.store_up(up=is_up)
        if is_up is not self.store_is_up:
            logger.warning("the store answers again" if is_up else "the store is away: %s", *([] if is_up else [why]))
        self.store_is_up = is_up
