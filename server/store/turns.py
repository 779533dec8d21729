"""Turns and responses in Redis, and the gateways that answer them."""

from __future__ import annotations

from server.config import LimitsConfig, StoreConfig
from server.store import records
from server.store.base import Begun, Finish, History, NewTurn, StoredResponse
from server.store.client import FIRST_TIME, RedisClient


class TurnStore:
    """The turn and gateway parts of `Store`; see there.

    `{p}:response:<id>` is a response's hash: its input and output items, its parent, its conversation, its thread.
    A thread is all that lives and goes together: a conversation, or the chain of a first turn outside of any.
    `{p}:running` maps each response that has not ended to its gateway; `{p}:gateway:<id>` lives while that gateway
    does.
    """

    _client: RedisClient
    _config: StoreConfig
    _limits: LimitsConfig

    async def history(self, owner: str, *, conversation: str | None, previous: str | None) -> History:
        """Return what a turn begun now would follow. Raises as `begin` does."""
        head, lists = await self._client.run("history", owner, conversation or "", previous or "")
        return _history(head, lists)

    async def begin(self, turn: NewTurn) -> Begun:
        """Acknowledge a turn.

        Raises NotFoundError, NotInConversationError, ResponseRunningError, TurnQueueFullError.
        """
        response, duplicate, position, *history = await self._client.run(
            "begin",
            turn.response_id,
            turn.owner,
            turn.conversation or "",
            turn.previous or "",
            turn.command_id or "",
            turn.model,
            turn.created_at,
            records.encode_items(turn.items),
            turn.request,
            turn.snapshot,
            turn.gateway,
            self._limits.max_waiting_per_conversation,
            self._config.command_id_ttl_s,
        )
        return Begun(response.decode(), bool(duplicate), position, _history(*history) if history else None)

    async def start(self, response_id: str, epoch: int) -> History | int:
        """Claim the turn's time: return what it follows, or its position (> 0) while others are before it.

        Raises FencedError also when the response has ended (it was cancelled while it waited), NotFoundError.
        """
        status, *answer = await self._client.run("start", response_id, epoch)
        return answer[0] if status == b"waiting" else _history(*answer)

    async def turns(self, conversation: str) -> list[str]:
        """Return the responses of a conversation that have not ended, in their order."""
        queue = await self._client.command("LRANGE", self._client.key("queue", conversation), 0, -1)
        return [response.decode() for response in queue]

    async def finish(self, end: Finish) -> str | None:
        """Write the end of a response; return the one whose turn has come by it and that has not been started."""
        events = [part for number, data in end.events for part in (number, data)]
        (following,) = await self._client.run(
            "finish",
            end.response_id,
            end.epoch,
            end.status,
            records.encode_items(end.output),
            end.snapshot,
            end.events[-1][0] if end.events else "",
            self._config.journal_ttl_s,
            *events,
        )
        return records.optional(following)

    async def get_response(self, owner: str, response_id: str) -> StoredResponse:
        """Return one; raises NotFoundError."""
        (fields,) = await self._client.run("get_response", response_id, owner)
        return records.response(response_id, fields)

    async def find_command(self, owner: str, command_id: str) -> str | None:
        """Return the response id that this command id made, or None."""
        key = self._client.key("turn-command", f"{len(owner.encode())}:{owner}:{command_id}")
        found = await self._client.command("GET", key)
        return None if found is None else found.decode()

    async def heartbeat(self, gateway: str, ttl_s: float) -> None:
        """Say that a gateway lives; it counts as gone when it has not said so for `ttl_s`."""
        await self._client.command("SET", self._client.key("gateway", gateway), 1, "PX", max(1, int(ttl_s * 1000)))

    async def orphans(self) -> dict[str, str]:
        """Return responses not ended whose gateway's heartbeat is gone, and the model of each."""
        (orphans,) = await self._client.run("orphans")
        return {orphan.decode(): model.decode() for orphan, model in zip(orphans[::2], orphans[1::2], strict=True)}

    async def claim(self, response_id: str, gateway: str) -> StoredResponse | None:
        """Take over an orphan; None if it is no orphan any more.

        A gateway that holds the response already gets it again with the same epoch: the reply to its claim was lost.
        """
        answer = await self._client.run("claim", response_id, gateway, FIRST_TIME)
        return records.response(response_id, answer[0]) if answer else None


def _history(head: bytes, lists: list[bytes]) -> History:
    return History(records.decode_items(lists), records.optional(head))
