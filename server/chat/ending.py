"""The end of one response: one write, or what is done where that cannot be."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from protocol.codec import encode
from protocol.events import Event, Usage
from protocol.items import Item
from protocol.response_stream import ResponseStream, State, failed_event
from server.chat.following import read_journal
from server.chat.hub import Channel
from server.chat.runtime import Runtime
from server.chat.turn import Turn
from server.store.base import FencedError, Finish, NotFoundError, StoreError, StoreUnavailableError

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class End:
    """How a response ended for its listeners.

    events: the last ones, to be published. message: what went wrong while ending, or None.
    is_elsewhere: the response goes on at another gateway, and so do its listeners.
    """

    events: list[Event]
    message: str | None = None
    is_elsewhere: bool = False


class Ending:
    """Write the end of one response whose stream is terminal, or whose events the store has refused."""

    def __init__(self, turn: Turn, epoch: int, stream: ResponseStream, channel: Channel, runtime: Runtime) -> None:
        self._turn = turn
        self._epoch = epoch
        self._stream = stream
        self._channel = channel
        self._runtime = runtime

    async def write(self, usage: Usage, refusal: StoreError | None) -> End:
        """Store and return the end. refusal: why the journal did not take the response's events, or None.

        1. Redis takes it: the stream's last events.
        2. Redis is away too long, or refuses it: a failed end now, which Redis gets when it is back.
        3. Another gateway has the response: none of ours.
        4. It was deleted: nobody else tells its end.
        """
        try:
            if refusal is not None:
                raise refusal
            events = self._stream.take()
            await self._store(events)
        except StoreUnavailableError:
            return self._without_store(usage)  # 2
        except FencedError:
            if not await self._is_deleted():
                return End([], is_elsewhere=True)  # 3
            message = "the conversation was deleted"
            return End([self._failed("conversation_not_found", message, usage, self._channel.events)[0]], message)  # 4
        except StoreError as error:  # refused, and waiting does not help; listeners must hear of an end all the same
            logger.error("the store refused the end of a response: %s", error, extra={"response": self._turn.head.id})
            return self._without_store(usage)  # 2
        return End(events)  # 1

    async def _store(self, events: list[Event]) -> None:
        if not self._turn.command.is_stored:
            return
        stream = self._stream
        end = self._record(stream.snapshot(), stream.output_items(), stream.state, events)
        timeout_s = self._runtime.config.store.unavailable_timeout_s
        await self._runtime.finish(end, self._turn.head.conversation, timeout_s=timeout_s)

    def _record(self, snapshot: dict[str, Any], output: tuple[Item, ...], state: State, events: list[Event]) -> Finish:
        return Finish(
            response_id=self._turn.head.id,
            epoch=self._epoch,
            status=state.value,  # type: ignore[arg-type]  # the values of terminal states are the store's words
            output=output,
            snapshot=encode(snapshot),
            events=tuple((event.sequence_number, event.journaled) for event in events),
        )

    async def _is_deleted(self) -> bool:
        try:
            await self._runtime.store.get_response(self._turn.owner, self._turn.head.id)
        except NotFoundError:
            return True
        except StoreError:
            pass  # unknown: whoever holds it tells its end
        return False

    def _failed(
        self, code: str, message: str, usage: Usage, events: list[Event]
    ) -> tuple[Event, dict[str, Any], tuple[Item, ...]]:
        """Return a failed end that fits these events: what else the stream has made is lost."""
        number = self._stream.last_sequence_number + 1
        return failed_event(self._turn.head, events, number, (code, message), usage)

    def _without_store(self, usage: Usage) -> End:
        """Tell the clients, keep what Redis holds, and write the end when it is back."""
        code, message = "store_unavailable", "the store did not answer in time"
        if self._turn.command.is_stored:
            self._runtime.when_store_is_back(lambda: self._write_late(code, message, usage), self._turn.head.id)
        return End([self._failed(code, message, usage, self._channel.events)[0]], message)

    async def _write_late(self, code: str, message: str, usage: Usage) -> None:
        """Write the end with the text that Redis has: it may have taken events whose reply was lost."""
        events = await read_journal(self._runtime.store, self._turn.head.id)
        event, snapshot, output = self._failed(code, message, usage, events)
        end = self._record(snapshot, output, State.FAILED, [event])
        await self._runtime.finish(end, self._turn.head.conversation, timeout_s=0)
