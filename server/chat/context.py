"""What fits the model's window: the prompt of a turn, trimmed by whole turns where the client allows it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from protocol.errors import ProtocolError
from protocol.items import Message
from protocol.options import PLAIN, Options
from server.engine.base import Engine, Prompt


@dataclass(frozen=True, slots=True)
class Context:
    """A prompt that fits, and how long the answer may be (tokens). dropped_turns: oldest turns left out."""

    prompt: Prompt
    max_tokens: int
    dropped_turns: int = 0
    context_length: int = 0

    @property
    def notice(self) -> dict[str, Any] | None:
        """Return what the client is told about it, or None when nothing was left out."""
        if not self.dropped_turns:
            return None
        return {"context": {"dropped_turns": self.dropped_turns, "context_length": self.context_length}}


@dataclass(frozen=True, slots=True)
class ContextRequest:
    """What is to fit.

    instructions: shown first, never dropped. turns: earlier messages, then the new ones, oldest first.
    max_output_tokens: as the client asked; None leaves it to us. reserve: tokens kept free for the answer when
    trimming (used where the client named no number). may_trim: `truncation: "auto"`. options: what the template shows
    of them takes room, too.
    """

    instructions: str | None
    history: Sequence[Message]
    messages: Sequence[Message]
    max_output_tokens: int | None
    reserve: int
    may_trim: bool
    options: Options = PLAIN


async def fit(engine: Engine, request: ContextRequest) -> Context:
    """Return the longest recent context that leaves room for the answer.

    1. All of it fits: nothing is dropped.
    2. It does not and may not be trimmed: refuse with the numbers.
    3. Drop the fewest whole oldest turns that make it fit, but none whose calls the new messages bring outputs of.
    4. Not even what must stay leaves room for one token: refuse with the numbers.

    Raises ProtocolError (`context_length_exceeded`), PromptError.
    """
    window = engine.context_length
    prompt = await _render(engine, request, request.history)
    room = window - prompt.token_count
    if not request.may_trim:
        wanted = request.max_output_tokens or 1
        if room < wanted:
            raise _too_long(prompt.token_count, request.max_output_tokens, window)
        return Context(prompt, request.max_output_tokens or room)
    # A wish longer than half the window must not push the whole conversation out of it.
    wanted = min(request.max_output_tokens or request.reserve, request.reserve, window // 2)
    if room >= wanted:
        return Context(prompt, _answer_length(request, room))
    turns = _split_turns(request.history)
    dropped, prompt = await _drop_oldest(engine, request, turns, window - wanted)
    room = window - prompt.token_count
    if room < 1:
        raise _too_long(prompt.token_count, None, window)
    return Context(prompt, _answer_length(request, room), dropped, window)


async def _drop_oldest(
    engine: Engine, request: ContextRequest, turns: list[list[Message]], limit: int
) -> tuple[int, Prompt]:
    """Return how many oldest turns must go so that the prompt has at most `limit` tokens, and that prompt.

    Bisects, since each probe renders: 1,000 turns cost ten probes. All that may go do, if nothing less is enough.
    """

    async def without(count: int) -> Prompt:
        return await _render(engine, request, [message for turn in turns[count:] for message in turn])

    low, high = 1, _droppable(turns, request.messages)
    best = (high, await without(high))
    while low <= high:
        middle = (low + high) // 2
        prompt = await without(middle)
        if prompt.token_count <= limit:
            best = (middle, prompt)
            high = middle - 1
        else:
            low = middle + 1
    return best


async def _render(engine: Engine, request: ContextRequest, history: Sequence[Message]) -> Prompt:
    first = (Message("system", request.instructions),) if request.instructions else ()
    return await engine.render((*first, *history, *request.messages), request.options)


def _answer_length(request: ContextRequest, room: int) -> int:
    return min(request.max_output_tokens or room, room)


def _droppable(turns: list[list[Message]], new: Sequence[Message]) -> int:
    """Return how many oldest turns may go: what a function gave says nothing without its call."""
    made = {call.call_id: index for index, turn in enumerate(turns) for message in turn for call in message.calls}
    needed = [made[message.call_id] for message in new if message.call_id in made]
    return min(needed, default=len(turns))


def _split_turns(history: Sequence[Message]) -> list[list[Message]]:
    """Group messages into turns: each begins with a user's message that follows something else."""
    turns: list[list[Message]] = []
    previous = None
    for message in history:
        if not turns or (message.role == "user" and previous != "user"):
            turns.append([])
        turns[-1].append(message)
        previous = message.role
    return turns


def _too_long(prompt_tokens: int, max_output_tokens: int | None, window: int) -> ProtocolError:
    answer = f" plus max_output_tokens {max_output_tokens}" if max_output_tokens else ""
    return ProtocolError(
        "context_length_exceeded",
        f"the input has {prompt_tokens} tokens{answer}, but the model's window is {window} tokens; "
        "shorten the input, or send truncation 'auto' to drop the oldest turns",
        param="input",
    )
