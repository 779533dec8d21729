"""What a turn takes of its user's quotas: taken before it runs, settled when it has ended."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from functools import partial
from typing import Any, Final

from server.access.limits import Hold
from server.chat.generation import Generation
from server.chat.runtime import Runtime
from server.store.base import StoreUnavailableError

SERVER_FAULTS: Final = 500  # statuses from here on are no fault of the client's


async def settled(generation: Generation, life: Coroutine[Any, Any, None], hold: Hold, runtime: Runtime) -> None:
    """Live a response's life, then give back its place and write its tokens down.

    1. It was answered, to whatever end: its tokens are spent.
    2. It was refused for what the client sent: it counts as a turn without tokens, or refusals would cost nothing.
    3. It was refused for a fault of ours, or was the repetition of another one: it never was.
    4. It goes on at another gateway: that one writes its tokens down.
    """
    try:
        await life
    finally:
        if hold.quotas:
            await asyncio.shield(runtime.spawn(_settle(generation, hold, runtime), f"settle {generation.response_id}"))


async def _settle(generation: Generation, hold: Hold, runtime: Runtime) -> None:
    limits, accepted = runtime.access.limits, generation.accepted
    error = None if accepted.cancelled() else accepted.exception()
    usage = generation.usage
    work = partial(limits.end_turn, hold, usage.input_tokens, usage.output_tokens)  # 1, 2
    is_ours = error is None and not accepted.cancelled() and accepted.result() == generation.response_id
    if not is_ours and getattr(error, "status", SERVER_FAULTS) >= SERVER_FAULTS:
        work = partial(limits.undo_turn, hold)  # 3
    elif generation.was_left:
        work = partial(limits.leave_turn, hold)  # 4
    try:
        await work()
    except StoreUnavailableError:
        runtime.when_store_is_back(work, generation.response_id)
