"""Reads shared by the commands and the GET routes, in the wire's shapes."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, TypeVar

import orjson

from protocol.codec import encode
from protocol.errors import ProtocolError
from server.access.auth import User
from server.access.limits import Limits
from server.chat.errors import translate
from server.chat.rights import may_use
from server.models.model import Model
from server.models.pool import Pool
from server.models.registry import Registry
from server.models.replica import Replica
from server.store.base import Conversation, Store, StoredResponse

T = TypeVar("T")


class Reads:
    """What a user may see. Every method raises ProtocolError; another user's ids look missing."""

    def __init__(self, store: Store, pool: Pool, limits: Limits) -> None:
        self._limits = limits
        self._store = store
        self._pool = pool

    async def models(self, user: User) -> dict[str, Any]:
        models = [model for model in self._pool.models.values() if may_use(user, model)]
        return {"object": "list", "data": [wire_model(model, self._pool.registry) for model in models]}

    async def limits(self, user: User) -> dict[str, Any]:
        """Return the user's limits and what is left of each."""
        return {"object": "list", "data": await _translated(self._limits.read(user))}

    async def response(self, user: User, id: str) -> bytes:
        """Return the response object as the store has it, as JSON."""
        return (await _translated(self._store.get_response(user.id, id))).snapshot

    async def conversations(self, user: User, after: str | None, limit: int) -> dict[str, Any]:
        rows, more = await _translated(self._store.list_conversations(user.id, after=after, limit=limit))
        return {"object": "list", "data": [wire_conversation(row) for row in rows], "has_more": more}

    async def conversation(self, user: User, id: str) -> dict[str, Any]:
        return wire_conversation(await _translated(self._store.get_conversation(user.id, id)))

    async def items(self, user: User, conversation: str, after: str | None, limit: int) -> dict[str, Any]:
        rows, more = await _translated(self._store.list_items(user.id, conversation, after=after, limit=limit))
        return {"object": "list", "data": [row.as_wire() for row in rows], "has_more": more}


def wire_conversation(conversation: Conversation) -> dict[str, Any]:
    """Return the conversation object: OpenAI's, with what a list needs to be useful."""
    return {
        "id": conversation.id,
        "object": "conversation",
        "created_at": conversation.created_at,
        "updated_at": conversation.updated_at,
        "metadata": conversation.metadata,
        "running_response": conversation.running_response,
    }


def terminal_event(stored: StoredResponse) -> bytes:
    """Return the last event of an ended response, made again from what the store keeps of it."""
    return encode(
        {
            "type": f"response.{stored.status}",
            "sequence_number": max(stored.last_sequence_number, 0),
            "response": orjson.loads(stored.snapshot),
        }
    )


def wire_model(model: Model, registry: Registry) -> dict[str, Any]:
    """Return the model object: OpenAI's, with the state that honest waiting needs."""
    engine = model.ready_engine
    return {
        "id": model.name,
        "object": "model",
        "created": model.created_at,
        "owned_by": "tokenwire",
        "aliases": registry.aliases(model.name),
        "state": model.state.value,
        "detail": model.detail,
        "progress": model.progress,
        "context_length": engine.context_length if engine is not None else None,
        "pinned": model.needs.pinned,
        "running": model.in_flight,
        "waiting": len(model.wants),
        "replicas": [
            {
                "id": replica.id,
                "state": replica.phase.value,
                "devices": _devices(model, replica, registry),
                "running": replica.leases,
            }
            for replica in model.replicas
        ],
    }


def _devices(model: Model, replica: Replica, registry: Registry) -> list[str]:
    """Return where it is; an adapter is where its base model is."""
    base = registry.models.get(model.base or "")
    return list(
        dict.fromkeys(device.id for at in ([replica] if base is None else base.replicas) for device in at.devices)
    )


async def _translated(work: Awaitable[T]) -> T:
    try:
        return await work
    except ProtocolError:
        raise
    except Exception as error:  # translated for the wire; what nobody expected is logged there
        raise translate(error) from error
