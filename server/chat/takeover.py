"""Gateways watch each other: a heartbeat says that this one lives, and what a dead one left running is taken over."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from protocol.codec import encode
from protocol.events import Event, Usage
from protocol.response_stream import State, failed_event
from server.chat.following import read_journal
from server.chat.runtime import Runtime
from server.chat.turn import restored_head
from server.store.base import FencedError, Finish, StoredResponse, StoreError, StoreUnavailableError

logger = logging.getLogger(__name__)

HEARTBEAT_S: Final = 1.0
HEARTBEAT_TTL_S: Final = 5.0  # a gateway silent this long is dead
# Where our own beats were so far apart, the store (or we) stood still, and heartbeats of gateways that live may have
# run out. They get time to beat again before they count as dead.
STANDSTILL_S: Final = HEARTBEAT_TTL_S / 2
GRACE_S: Final = HEARTBEAT_TTL_S / 2
FOREIGN_S: Final = 5.0  # an orphan whose model is not here is left this long to gateways that have it
MAX_TAKEOVERS: Final = 4  # of one response; when its last gateway dies, too, it fails with what there is of it


class Takeover:
    """Keep the heartbeat; go on with the responses of gateways that are gone.

    adopt: goes on with a response, given its record and its journal; returns False where this gateway cannot.
    has_model: says whether it could, as far as the model goes.
    """

    def __init__(
        self,
        runtime: Runtime,
        adopt: Callable[[StoredResponse, list[Event]], bool],
        has_model: Callable[[str], bool],
    ) -> None:
        self._runtime = runtime
        self._store = runtime.store
        self._adopt = adopt
        self._has_model = has_model
        self.store_is_up = True
        self._last_beat: float | None = None  # loop time
        self._adopts_from = 0.0  # loop time
        # Orphans seen and not done with: once claimed, nobody else finds one that we could not go on with.
        self._orphans: dict[str, None] = {}
        self._foreign: dict[str, float] = {}  # those whose model is not here, and the loop time when we first saw them
        self._is_stopping = False

    async def run(self) -> None:
        """Beat and look after orphans until cancelled; a store that is away is noted and waited for."""
        while True:
            try:
                await self.beat()
                if asyncio.get_running_loop().time() >= self._adopts_from:
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
        now = asyncio.get_running_loop().time()
        if self._last_beat is not None and now - self._last_beat > STANDSTILL_S:
            self._adopts_from = now + GRACE_S
        self._last_beat = now

    def stop_adopting(self) -> None:
        """Leave what other gateways leave to others; the heart goes on beating."""
        self._is_stopping = True

    async def retire(self) -> None:
        """Say that this gateway stops: what it leaves running may be taken over at once."""
        try:
            await self._store.heartbeat(self._runtime.gateway_id, 0)
        except StoreError as error:
            logger.warning("could not say good-bye to the store: %s", error)

    async def adopt_orphans(self) -> None:
        """Take over every response whose gateway is gone.

        Where the store goes away in the middle, the rest is for the next time: claiming again what is ours already
        gives it again.
        """
        self._orphans.update(dict.fromkeys(self._ours(await self._store.orphans())))
        for response_id in tuple(self._orphans):
            if self._is_stopping:
                return
            await self._beat_in_time()
            stored = await self._store.claim(response_id, self._runtime.gateway_id)
            if stored is not None:
                await self._take_over_if_readable(stored)
            del self._orphans[response_id]

    def _ours(self, orphans: dict[str, str]) -> list[str]:
        """Return those that are for us to go on with, or to end where nobody could. orphans: and their models."""
        now = asyncio.get_running_loop().time()
        foreign = [orphan for orphan, model in orphans.items() if not self._has_model(model)]
        self._foreign = {orphan: self._foreign.get(orphan, now) for orphan in foreign}
        return [orphan for orphan in orphans if now - self._foreign.get(orphan, float("-inf")) >= FOREIGN_S]

    async def _beat_in_time(self) -> None:
        """Many orphans take longer than a heart may stand still."""
        if self._last_beat is None or asyncio.get_running_loop().time() - self._last_beat > HEARTBEAT_S:
            await self.beat()

    async def _take_over_if_readable(self, stored: StoredResponse) -> None:
        try:
            await self._take_over(stored)
        except StoreUnavailableError:
            raise
        except Exception:  # one that cannot be read must not keep this gateway from its work
            logger.exception("orphan %s cannot be taken over", stored.id, extra={"response": stored.id})

    async def _take_over(self, stored: StoredResponse) -> None:
        """Go on with a response, or end it with the text that clients have seen where that cannot be."""
        events = await read_journal(self._store, stored.id)
        if self._is_stopping:
            return  # when this gateway has stopped, it is an orphan again
        fields = {"response": stored.id, "epoch": stored.epoch, "events": len(events)}
        if stored.takeovers <= MAX_TAKEOVERS and self._adopt(stored, events):
            logger.info("took a response over", extra=fields)
            return
        logger.warning("ended an orphaned response", extra=fields)
        last = events[-1].sequence_number if events else -1
        fault = ("server_error", "the server stopped before the answer was complete")
        event, snapshot, output = failed_event(restored_head(stored), events, last + 1, fault, Usage())
        end = Finish(
            response_id=stored.id,
            epoch=stored.epoch,
            status=State.FAILED.value,
            output=output,
            snapshot=encode(snapshot),
            events=((event.sequence_number, event.journaled),),
        )
        try:
            await self._runtime.finish(end, stored.conversation, timeout_s=0)
        except FencedError:
            logger.info("orphan was taken by another gateway", extra=fields)

    def _note_store(self, *, is_up: bool, why: str) -> None:
        self._runtime.metrics.store_up(up=is_up)
        if is_up is not self.store_is_up:
            logger.warning("the store answers again" if is_up else "the store is away: %s", *([] if is_up else [why]))
        self.store_is_up = is_up
