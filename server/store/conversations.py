"""Conversations in Redis."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import uuid4

from protocol.items import Item
from server.config import StoreConfig
from server.store import records
from server.store.base import Conversation
from server.store.client import RedisClient


class ConversationStore:
    """The conversation part of `Store`; see there.

    A conversation is a tree of responses with a head: the items of the chain from the head to the root are what is
    shown. `{p}:conversation:<id>` is its hash, `{p}:queue:<id>` the list of its turns that have not ended (the first
    one is being answered), `{p}:thread:<id>` the set of its responses, `{p}:conversations:<owner>` a sorted set of an
    owner's conversations by last use.
    """

    _client: RedisClient
    _config: StoreConfig

    async def create_conversation(
        self, conversation: Conversation, items: Sequence[Item], command_id: str | None
    ) -> Conversation:
        """Make it with its first items; the same owner and command_id again return the first one's."""
        (fields,) = await self._client.run(
            "create_conversation",
            conversation.id,
            conversation.owner,
            conversation.created_at,
            records.encode_metadata(conversation.metadata),
            records.encode_items(items),
            command_id or "",
            self._config.command_id_ttl_s,
        )
        return records.conversation(fields)

    async def get_conversation(self, owner: str, conversation: str) -> Conversation:
        """Return one; raises NotFoundError."""
        (fields,) = await self._client.run("get_conversation", conversation, owner)
        return records.conversation(fields)

    async def update_conversation(self, owner: str, conversation: str, metadata: dict[str, str]) -> Conversation:
        """Replace the metadata; raises NotFoundError."""
        encoded = records.encode_metadata(metadata)
        (fields,) = await self._client.run("update_conversation", conversation, owner, encoded)
        return records.conversation(fields)

    async def delete_conversation(self, owner: str, conversation: str) -> None:
        """Delete it with its responses and journals; raises NotFoundError when it is not there."""
        await self._client.run("delete_conversation", conversation, owner, uuid4().hex)

    async def list_conversations(self, owner: str, *, after: str | None, limit: int) -> tuple[list[Conversation], bool]:
        """Return at most `limit`, most recently used first, after the one named, and whether more follow."""
        (listed,) = await self._client.run("list_conversations", owner, after or "", limit)
        return [records.conversation(fields) for fields in listed[:limit]], len(listed) > limit

    async def list_items(
        self, owner: str, conversation: str, *, after: str | None, limit: int
    ) -> tuple[list[Item], bool]:
        """Return at most `limit` items of the shown branch, oldest first, and whether more follow.

        The whole branch is read for each page, as it is for each turn. Nothing follows an `after` that is not on the
        shown branch. Raises NotFoundError.
        """
        (lists,) = await self._client.run("list_items", conversation, owner)
        items = records.decode_items(lists)
        first = 0 if after is None else _index(items, after) + 1
        return list(items[first : first + limit]), len(items) > first + limit


def _index(items: Sequence[Item], wanted: str) -> int:
    """Return where an item stands, or the last index where it does not."""
    return next((index for index, item in enumerate(items) if item.id == wanted), len(items) - 1)
