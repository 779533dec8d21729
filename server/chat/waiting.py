"""What a turn waits for before it runs: its time in the conversation, the model, a place in the engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from protocol.errors import ProtocolError
from protocol.events import Waiting
from server.chat.patience import Patience
from server.chat.runtime import Runtime, conversation_topic, wait_at_most
from server.engine.base import Engine
from server.models.pool import Model, ModelState
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


@asynccontextmanager
async def admitted(model: Model, patience: Patience) -> AsyncIterator[Engine]:
    """Hold a place in a loaded engine. Raises QueueFullError, ProtocolError where the model is given up."""
    await _loaded(model, patience)
    assert model.admission is not None  # set before a model becomes ready for the first time
    ticket = model.admission.enter()
    try:
        while not ticket.is_admitted:
            patience.say(Waiting("admission", position=ticket.position))
            ticket.changed.clear()
            await ticket.changed.wait()
        yield await _loaded(model, patience)  # it may have died meanwhile
    finally:
        ticket.release()


async def _loaded(model: Model, patience: Patience) -> Engine:
    while (engine := model.ready_engine) is None:
        if model.state is not ModelState.LOADING:
            raise ProtocolError("model_unavailable", f"model '{model.name}' is {model.state.value}")
        patience.say(Waiting("model_loading", progress=model.progress, detail=model.detail))
        await model.changed.wait()
    return engine
