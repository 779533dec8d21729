"""`"task": "summarize"`: documents far longer than the window, in parts side by side, then one summary of them all."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import Final, Protocol, TypeVar

import msgspec

from protocol.errors import ProtocolError
from protocol.events import Waiting, Written
from protocol.options import PLAIN
from protocol.response_stream import ResponseStream, State
from server.access.admission import Ticket
from server.access.fair_queue import Demand, ServiceClass
from server.chat.context import Context
from server.chat.document import WHOLE, Document, Progress, merge_text
from server.chat.tally import Tally
from server.chat.turn import Turn, generation_request
from server.chat.waiting import Sayer, admitted
from server.engine.base import AnswerLostError, EngineDeadError, FinishReason
from server.models.replica import Lease

T = TypeVar("T")

SIDE_BY_SIDE: Final = 4  # parts of one response in the queue or in the engine at once
ANSWER_WINDOW: Final = 4  # the last summary gets a quarter of the window at most
MAX_ENGINES: Final = 3  # engines that may die under one part before the response fails


class Flushed(Protocol):
    """Returns when the journal holds what was pushed."""

    async def __call__(self, *, urgent: bool) -> None: ...


class Silent:
    """Takes what a part waits for and says nothing: the response itself is under way."""

    def say(self, waiting: Waiting) -> None:
        """Say nothing."""


class Part:
    """One order to the engine, and its answer as it grows.

    told: what an earlier gateway has told of it, behind its title; None where it has not come so far.
    """

    def __init__(self, key: str, order: str, max_tokens: int, told: str | None = None) -> None:
        self.key = key
        self.order = order
        self.max_tokens = max_tokens
        self.text = told or ""
        self.sent = len(self.text)  # characters that were told
        self.has_title = told is not None
        self.is_done = False
        self.finish_reason = FinishReason.STOP
        self.changed = asyncio.Event()


class Summary:
    """Make one summary.

    1. Cut the documents. What fits as a whole is one order, and that is all.
    2. Summarize the parts side by side; tell their summaries in the order of the parts, the first one as it grows.
    3. Merge: while the summaries do not fit one order, merge groups of them, unseen. Tell the last one as it grows.

    After a takeover it goes on behind the text so far: the response's notice says which parts are done.
    """

    def __init__(  # noqa: PLR0917 what a response lends it
        self, turn: Turn, epoch: int, stream: ResponseStream, tally: Tally, patience: Sayer, flushed: Flushed
    ) -> None:
        self._turn = turn
        # What shapes the answer has no meaning for each part of it.
        self._part_turn = replace(
            turn, command=msgspec.structs.replace(turn.command, min_tokens=None, ignore_eos=None, stop=None)
        )
        self._epoch = epoch
        self._stream = stream
        self._tally = tally
        self._patience = patience
        self._flushed = flushed
        messages = turn.command.messages
        system = [turn.command.instructions or turn.model.system_prompt or ""]
        system += [message.content for message in messages if message.role == "system"]
        texts = [message.content for message in messages if message.role != "system" and message.content.strip()]
        self._document = Document(texts, "\n\n".join(filter(None, system)))
        self._progress = Progress(0)
        self._told = len(stream.text)  # characters of the answer
        self._tasks: set[asyncio.Task[None]] = set()
        self._places = asyncio.Semaphore(SIDE_BY_SIDE)  # wakes its waiters in their order
        self._fault: BaseException | None = None
        self._awaited: Part | None = None  # whom the answer waits for

    async def run(self, room: int) -> FinishReason:
        """Return why the last summary ended. room: how long it may be where the client did not say, in tokens.

        Raises what the engine, admission and the journal raise.
        """
        try:
            room = await self._using(partial(self._cut, self._turn.command.max_output_tokens or room), self._patience)
            order = WHOLE + self._document.whole
            if self._progress.parts:
                order = merge_text(await self._merge(await self._summarize_parts(), room))
            last = self._part("last", order, room, self._progress.parts)
            self._begin(last, self._turn)
            await self._tell(last, self._progress.parts)
            return last.finish_reason
        finally:
            for task in self._tasks:
                task.cancel()
            if self._tasks:
                await asyncio.wait(self._tasks)

    # 1

    async def _cut(self, room: int, lease: Lease, _ticket: Ticket) -> int:
        """Cut the document, and return how long the last summary may be."""
        room = min(room, max(1, lease.engine.context_length // ANSWER_WINDOW))
        await self._document.cut(lease.engine, room)
        parts = len(self._document.parts)
        noted = Progress.of(self._stream.notice)
        if noted is not None and noted.parts != parts:
            text = f"this gateway's model cuts the document into {parts} parts, the one before into {noted.parts}"
            raise ProtocolError("server_error", f"the summary cannot be continued: {text}")
        self._progress = noted or Progress(parts)
        if noted is not None:
            self._tally.usage = noted.usage
        if self._stream.state is State.QUEUED:
            self._stream.start(self._progress.as_notice())
            await self._flushed(urgent=True)
        return room

    # 2

    async def _summarize_parts(self) -> list[str]:
        """Return the summaries of all parts; they have been told."""
        progress, document = self._progress, self._document
        summaries = progress.texts(self._stream.text)
        first = len(progress.ends)
        parts = [
            self._part(f"part{number}", document.order(number), document.summary_tokens, number)
            for number in range(first, progress.parts)
        ]
        for part in parts:
            self._begin(part, self._part_turn)
        for number, part in enumerate(parts, start=first):
            await self._tell(part, number)
            summaries.append(part.text)
            progress.ends.append(self._told)
            progress.usage = self._tally.usage
            self._stream.note(progress.as_notice())
            await self._flushed(urgent=True)
        return summaries

    # 3

    async def _merge(self, summaries: Sequence[str], room: int) -> Sequence[str]:
        """Return few enough summaries for one order."""
        level = 0
        while True:
            groups = await self._using(partial(self._groups, summaries, room), Silent())
            if len(groups) == 1:
                return summaries
            parts = [
                Part(f"merge{level}.{number}", merge_text(group), self._document.summary_tokens)
                for number, group in enumerate(groups)
            ]
            for part in parts:
                self._begin(part, self._part_turn)
            for part in parts:
                while not part.is_done:
                    await self._grown(part)
            summaries = [part.text for part in parts]
            level += 1

    async def _groups(self, summaries: Sequence[str], room: int, lease: Lease, _ticket: Ticket) -> list[list[str]]:
        return await self._document.groups(lease.engine, summaries, room)

    # Telling

    def _part(self, key: str, order: str, max_tokens: int, number: int) -> Part:
        """Return a part with what is told of it already; number: its place in the answer's text."""
        rest, lead = self._progress.rest(self._stream.text), self._progress.lead(number)
        is_begun = number == len(self._progress.ends) and rest.startswith(lead)
        return Part(key, order, max_tokens, rest[len(lead) :] if is_begun else None)

    async def _tell(self, part: Part, number: int) -> None:
        """Add a part's summary to the answer as it grows, with its title."""
        if not part.has_title:
            self._push(self._progress.lead(number))
        while True:
            if new := part.text[part.sent :]:
                part.sent += len(new)
                self._push(new)
                await self._flushed(urgent=False)
            elif part.is_done:
                return
            else:
                await self._grown(part)

    def _push(self, text: str) -> None:
        self._stream.push(text)
        self._told += len(text)

    async def _grown(self, part: Part) -> None:
        """Return when there is more of it. Raises what has ended any part."""
        self._awaited = part
        if self._fault is None:
            await part.changed.wait()
        part.changed.clear()
        if self._fault is not None:
            raise self._fault

    # Making

    def _begin(self, part: Part, turn: Turn) -> None:
        task = asyncio.create_task(self._make(part, turn), name=f"{part.key} of {turn.head.id}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _make(self, part: Part, turn: Turn) -> None:
        """Make one part; a fault is told to who waits for any, since without one part there is no summary."""
        try:
            async with self._places:
                await self._using(partial(self._ask, part, turn), Silent(), len(part.order) // 4)
        except Exception as error:  # noqa: BLE001 it is raised where somebody waits
            self._fault = self._fault or error
            if self._awaited is not None:
                self._awaited.changed.set()
        part.is_done = True
        part.changed.set()

    async def _using(self, work: Callable[[Lease, Ticket], Awaitable[T]], patience: Sayer, tokens: int = 0) -> T:
        """Return what `work` does in a place in the engine; again where the engine died or lost it."""
        turn = self._turn
        demand = Demand(turn.owner, ServiceClass.BATCH, tokens)
        for left in reversed(range(MAX_ENGINES)):
            async with admitted(turn.model, demand, patience, turn.head.conversation) as (lease, ticket):
                try:
                    return await work(lease, ticket)
                except (EngineDeadError, AnswerLostError) as error:
                    if isinstance(error, EngineDeadError):
                        lease.report_dead()
                    if not left:
                        raise
        raise AssertionError("the loop returns or raises")

    async def _ask(self, part: Part, turn: Turn, lease: Lease, ticket: Ticket) -> None:
        engine = lease.engine
        prompt = await self._document.prompt(engine, part.order)
        left = part.max_tokens
        if part.text:
            longer = await engine.extend(prompt, Written(part.text))
            left -= longer.token_count - prompt.token_count
            prompt = longer
        left = min(left, engine.context_length - prompt.token_count)
        if left < 1:
            part.finish_reason = FinishReason.LENGTH
            return
        request = generation_request(turn, self._epoch, Context(prompt, left), 0)
        request = replace(
            request, id=f"{request.id}-{part.key}", priority=ticket.demand.service_class.rank, options=PLAIN
        )
        tally = self._tally.part(prompt.token_count, ticket)
        lease.asked()
        async with aclosing(engine.generate(request)) as chunks:
            async for chunk in chunks:
                lease.heard()
                tally.count(chunk)
                part.text += chunk.answer
                part.changed.set()
                if chunk.finish_reason is not None:
                    part.finish_reason = chunk.finish_reason
                    return
        raise ProtocolError("engine_error", "the engine stopped without saying why")
