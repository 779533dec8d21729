"""What a turn waits for before it runs: its time in the conversation, the model, a place in the engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Protocol

from protocol.events import Waiting
from server.access.admission import Expected, Ticket
from server.access.fair_queue import Demand
from server.chat.patience import Patience
from server.chat.runtime import Runtime, conversation_topic, wait_at_most
from server.models.model import Model, Want
from server.models.replica import Lease
from server.store.base import History


async def wait_for_turn(
    runtime: Runtime, patience: Patience, response_id: str, conversation: str | None, epoch: int
) -> History:
    """Return what a stored turn follows, once it is its time in the conversation.

    Raises FencedError, NotFoundError (deleted meanwhile), StoreUnavailableError (for too long).
    """

    async def start() -> History | int:
        timeout_s = runtime.config.store.unavailable_timeout_s
        return await runtime.patiently(lambda: runtime.store.start(response_id, epoch), timeout_s=timeout_s)

    result = await start()
    if isinstance(result, History) or conversation is None:
        assert isinstance(result, History)  # without a conversation there is nobody to wait for
        return result
    changed = asyncio.Event()

    def wake(_message: dict[str, Any]) -> None:
        changed.set()

    topic = conversation_topic(conversation)
    await runtime.bus.subscribe(topic, wake)
    try:
        while True:
            changed.clear()
            result = await start()
            if isinstance(result, History):
                return result
            patience.say(Waiting("conversation", position=result))
            await wait_at_most(changed, runtime.config.limits.queued_repeat_s)
    finally:
        await asyncio.shield(runtime.bus.unsubscribe(topic, wake))


class Sayer(Protocol):
    """Who tells the client what a turn waits for."""

    def say(self, waiting: Waiting) -> None: ...


@asynccontextmanager
async def admitted(
    model: Model, demand: Demand, patience: Sayer, conversation: str | None, expected: Expected | None = None
) -> AsyncIterator[tuple[Lease, Ticket]]:
    """Hold a place in a loaded engine: of several, in the one that knows the conversation.

    expected: the place at the door that was kept for it. Raises ModelsError where the model cannot be loaded.
    """
    async with AsyncExitStack() as stack:
        with model.wanted() as want:
            await _loaded(model, want, patience)
            if expected is not None:
                expected.drop()
            ticket = model.admission.enter(demand, is_expected=True)
            stack.callback(ticket.release)
            while not ticket.is_admitted:
                wait_ms = ticket.estimated_wait_ms
                patience.say(Waiting("admission", position=ticket.position, estimated_wait_ms=wait_ms))
                ticket.changed.clear()
                await ticket.changed.wait()
            while (lease := model.lease(conversation)) is None:
                await _loaded(model, want, patience)  # it was unloaded or has died meanwhile
            stack.callback(lease.release)
        yield lease, ticket


async def _loaded(model: Model, want: Want, patience: Sayer) -> None:
    while model.ready_engine is None:
        want.check()
        patience.say(Waiting("model_loading", progress=model.progress, detail=model.detail))
        await model.changed.wait()
