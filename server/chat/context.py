"""What fits the model's window: the prompt of a turn, trimmed by whole turns where the client allows it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
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

    instructions: shown first, never dropped. history, messages: earlier ones, then the new ones, oldest first.
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


class _Turns:
    """A prompt's messages by turns, the oldest of which may go.

    The last question stays, and what the client put before its first one: a system message, outputs of functions.
    """

    def __init__(self, request: ContextRequest) -> None:
        new = request.messages
        begin = next((index for index, message in enumerate(new) if message.role == "user"), len(new))
        *own, last = [*_split_turns(new[begin:])] or [[]]
        self._before = _split_turns(request.history)
        self._own = own
        self._first, self._last = new[:begin], last

    @property
    def droppable(self) -> int:
        """How many oldest turns may go: what a function gave says nothing without its call."""
        turns = [*self._before, *self._own]
        made = {call.call_id: index for index, turn in enumerate(turns) for message in turn for call in message.calls}
        needed = [made[message.call_id] for message in (*self._first, *self._last) if message.call_id in made]
        return min(needed, default=len(turns))

    def without(self, count: int) -> list[Message]:
        """Return all messages but those of so many oldest turns."""
        before = chain.from_iterable(self._before[count:])
        own = chain.from_iterable(self._own[max(0, count - len(self._before)) :])
        return [*before, *self._first, *own, *self._last]


async def fit(engine: Engine, request: ContextRequest) -> Context:
    """Return the longest recent context that leaves room for the answer.

    1. All of it fits: nothing is dropped.
    2. It does not and may not be trimmed: refuse with the numbers.
    3. Drop the fewest whole oldest turns that make it fit, but none whose calls the new messages bring outputs of. A
       client that keeps the history itself sends it with the new question: its turns go in the same way.
    4. Not even what must stay leaves room for one token: refuse with the numbers.

    Raises ProtocolError (`context_length_exceeded`), PromptError.
    """
    window = engine.context_length
    prompt = await _render(engine, request, (*request.history, *request.messages))
    room = window - prompt.token_count
    if not request.may_trim:
        wanted = request.max_output_tokens or 1
        if room < wanted:
            raise _too_long(prompt.token_count, request.max_output_tokens, window, "send truncation 'auto'")
        return Context(prompt, request.max_output_tokens or room)
    # A wish longer than half the window must not push the whole conversation out of it.
    wanted = min(request.max_output_tokens or request.reserve, request.reserve, window // 2)
    if room >= wanted:
        return Context(prompt, _answer_length(request, room))
    dropped, prompt = await _drop_oldest(engine, request, window - wanted)
    room = window - prompt.token_count
    if room < 1:
        raise _too_long(prompt.token_count, None, window)
    return Context(prompt, _answer_length(request, room), dropped, window)


async def _drop_oldest(engine: Engine, request: ContextRequest, limit: int) -> tuple[int, Prompt]:
    """Return how many oldest turns must go so that the prompt has at most `limit` tokens, and that prompt.

    Bisects, since each probe renders: 1,000 turns cost ten probes. All that may go do, if nothing less is enough.
    """
    turns = _Turns(request)

    async def without(count: int) -> Prompt:
        return await _render(engine, request, turns.without(count))

    low, high = 1, turns.droppable
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


async def _render(engine: Engine, request: ContextRequest, messages: Sequence[Message]) -> Prompt:
    first = (Message("system", request.instructions),) if request.instructions else ()
    return await engine.render((*first, *messages), request.options)


def _answer_length(request: ContextRequest, room: int) -> int:
    return min(request.max_output_tokens or room, room)


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


def _too_long(prompt_tokens: int, max_output_tokens: int | None, window: int, way_out: str = "") -> ProtocolError:
    """Return the refusal. way_out: what else than a shorter input would help."""
    answer = f" plus max_output_tokens {max_output_tokens}" if max_output_tokens else ""
    ways = ["ask for fewer max_output_tokens" if answer and prompt_tokens < window else "shorten the input", way_out]
    return ProtocolError(
        "context_length_exceeded",
        f"the input has {prompt_tokens} tokens{answer}, but the model's window is {window} tokens; "
        + ", or ".join(filter(None, ways)),
        param="input",
    )
