"""One response's whole life, hence its length. Every end is a terminal event; no exception escapes `run`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import aclosing
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

import msgspec

from protocol.errors import ProtocolError
from protocol.events import Event, Logprob, Usage, Written
from protocol.items import Message
from protocol.output import Piece, PieceKind, spoken
from protocol.response_stream import ResponseStream, State, in_progress_again
from server.access.admission import Ticket
from server.chat.context import Context
from server.chat.ending import End, Ending
from server.chat.errors import translate
from server.chat.hub import Channel
from server.chat.intake import Intake
from server.chat.patience import Patience
from server.chat.preparation import Preparation
from server.chat.repetition import Repetition
from server.chat.runtime import Runtime
from server.chat.summary import Summary
from server.chat.tally import Tally
from server.chat.turn import Turn, generation_request, new_turn
from server.chat.waiting import admitted, wait_for_turn
from server.engine.base import AnswerLostError, Chunk, Engine, EngineDeadError, FinishReason, GenerationRequest
from server.models.replica import Lease
from server.store.base import Begun, FencedError, History, StoreError, StoreUnavailableError

logger = logging.getLogger(__name__)

FIRST_EPOCH: Final = 1
AWAY_REPEAT_S: Final = 5.0  # clients hear this often that the store is away
MAX_ENGINES: Final = 3  # engines that may die under one response, or lose it, before it fails


class Interrupt(Enum):
    """Why an answer was stopped from outside; the first one counts."""

    CANCELLED = "cancelled"  # by a user, or nobody listens
    ABANDONED = "abandoned"  # this gateway stops; the response is left as it is in Redis
    STORE_LOST = "store_lost"  # its events could not be stored in time
    FENCED = "fenced"  # another gateway answers it now


@dataclass(frozen=True, slots=True)
class Resumed:
    """What a takeover found of a response: its new epoch, and every event of its journal."""

    epoch: int
    events: list[Event]


class Generation:
    """Answer one turn: wait for its time, the model and a place; pull chunks; journal, publish, finish.

    It is the journal's source and the owner of the channel that subscribers read. `accepted` resolves to the id of
    the response that was made, or of the earlier one if the command is a repetition, or to a ProtocolError.
    """

    def __init__(self, turn: Turn, runtime: Runtime, resumed: Resumed | None = None) -> None:
        loop = asyncio.get_running_loop()
        self.turn = turn
        self.response_id = turn.head.id
        self.epoch = resumed.epoch if resumed else FIRST_EPOCH
        self.is_stored = turn.command.is_stored
        self.stream = ResponseStream.restore(turn.head, resumed.events if resumed else ())
        self.channel = Channel(turn.head.id, self.audience_changed)
        self.channel.events.extend(resumed.events if resumed else ())
        self.is_followed = False  # by clients of other gateways
        self.accepted: asyncio.Future[str] = loop.create_future()
        self.ended = asyncio.Event()
        self.error: str | None = None
        self.context_messages: tuple[Message, ...] = ()
        self._runtime = runtime
        self._journal = runtime.journal if turn.command.is_stored else runtime.relay
        self._tally = Tally(runtime.metrics.for_model(turn.model.name), runtime.traces)
        self._ending = Ending(turn, self.epoch, self.stream, self.channel, runtime)
        self._loop = loop
        self._interrupt: Interrupt | None = None
        self._refusal: StoreError | None = None
        self._scope: asyncio.Timeout | None = None
        self._unflushed: asyncio.Future[None] | None = None
        self._preparation = Preparation(turn, runtime)
        self._history: History | None = None  # what the turn follows, where it is known already
        self._repetition = Repetition(())
        options = turn.command.options
        self._is_plain = options.top_logprobs is None and not options.is_guided  # text without more is only added
        self._away_told_at: float | None = None
        self._intake: Intake | None = None  # while a request runs
        self._has_spoken = False  # clients have some of its text
        self._held: tuple[Logprob, ...] = ()  # of tokens whose text did not come yet
        limits = runtime.config.limits
        self._patience = Patience(
            self.stream,
            notify=self._notify,
            cancel=self.cancel,
            repeat_s=limits.queued_repeat_s,
            grace_s=limits.orphan_grace_s,
        )

    def __repr__(self) -> str:
        return f"<Generation {self.response_id} {self.stream.state.value}>"

    @property
    def usage(self) -> Usage:
        """Tokens so far."""
        return self._tally.usage

    @property
    def conversation(self) -> str | None:
        return self.turn.head.conversation

    @property
    def was_left(self) -> bool:
        """Whether this gateway let go of it before its end."""
        return self._interrupt in (Interrupt.ABANDONED, Interrupt.FENCED)

    @property
    def is_ended(self) -> bool:
        return self.ended.is_set()

    # What others may do to it

    async def settled(self) -> None:
        """Return when it has ended, or was never acknowledged."""
        await asyncio.wait([self.accepted])
        was_refused = self.accepted.cancelled() or self.accepted.exception() is not None
        if not was_refused and self.accepted.result() == self.response_id:
            await self.ended.wait()

    def interrupt(self, why: Interrupt) -> None:
        """Stop answering; harmless when it was stopped before or has ended."""
        if self._interrupt is not None or self.stream.state.is_terminal:
            return
        self._interrupt = why
        if self._scope is not None:
            self._scope.reschedule(self._loop.time())

    def cancel(self) -> None:
        """The user does not want more of it."""
        self.interrupt(Interrupt.CANCELLED)

    def follow(self) -> None:
        """Another gateway follows for clients of its own, and says so again and again."""
        self.is_followed = True
        self._patience.followed()

    # The journal's side

    def take_events(self) -> list[Event]:
        """Hand over what has gathered; the end itself goes out with `_finish`, in one write with the record."""
        if self._intake is not None:
            self._intake.ask()
        # Nor anything once a batch was refused: what came later may go through, and would leave a gap before it.
        is_over = self.stream.state.is_terminal or self._refusal is not None
        return [] if is_over else self.stream.take()

    def acknowledge(self, events: list[Event]) -> None:
        if events:
            self._publish(events)
            self._has_spoken = self._has_spoken or events[-1].delta is not None
        self._away_told_at = None
        self._resolve_flush()

    def store_is_away(self) -> None:
        """Tell the clients that it goes on later: with the last number, since this is not in the journal."""
        now = self._loop.time()
        if self._away_told_at is None:
            self._away_told_at = now  # a short silence needs no words
        elif self.channel.events and now - self._away_told_at >= AWAY_REPEAT_S:
            self._away_told_at = now
            self.channel.remark(in_progress_again(self.stream.snapshot(), self.channel.events[-1].sequence_number))

    def refuse(self, error: StoreError) -> None:
        self._refusal = error
        self.interrupt(Interrupt.FENCED if isinstance(error, FencedError) else Interrupt.STORE_LOST)
        self._resolve_flush()

    # Its life

    async def run(self) -> None:
        """Do all of it, to the terminal event."""
        try:
            if await self._accepted():
                await self._answer_to_the_end()
            else:
                self._patience.close()
                self.channel.close()
        finally:
            self._preparation.leave()

    async def resume(self) -> None:
        """Go on with a response that was taken over."""
        self.accepted.set_result(self.response_id)
        if self.stream.state is State.NEW:  # its gateway died before anything was said
            self.stream.create(waiting=True)
            self._notify()
        self._patience.audience_changed(0)
        await self._answer_to_the_end()

    async def _accepted(self) -> bool:
        """Acknowledge the turn; return whether it is ours to answer."""
        try:
            begun = await self._begin()
        except asyncio.CancelledError:
            self.accepted.cancel()
            raise
        except Exception as error:  # noqa: BLE001 whatever it is, it becomes the client's answer
            fault = translate(error)
            fault.__traceback__ = fault.__context__ = None  # the prompt is in there, and we are
            self.accepted.set_exception(fault)
            self.accepted.exception()  # its client may have left: the error counts as seen
            return False
        self.accepted.set_result(begun.response_id)
        if self.is_stored and not begun.duplicate:
            self._runtime.tell_conversation(self.conversation, begun=self.response_id)
        return not begun.duplicate

    async def _answer_to_the_end(self) -> None:
        try:
            await self._answer_interruptibly()
        finally:
            self._patience.close()
            await asyncio.shield(self._runtime.spawn(self._finish(), f"end {self.response_id}"))

    async def _begin(self) -> Begun:
        """Acknowledge the turn: check what can be checked before, then store it."""
        await self._preparation.check()
        begun = Begun(self.response_id, duplicate=False, position=0)
        if self.is_stored:
            begun = await self._runtime.store.begin(new_turn(self.turn, self._runtime.gateway_id))
            self._history = begun.history
        if not begun.duplicate:
            self.stream.create(waiting=begun.position > 0 or self._preparation.must_wait)
            self._notify(urgent=False)
        return begun

    async def _answer_interruptibly(self) -> None:
        """Answer; an interrupt ends the wait or the stream at once, and an error becomes a failed response."""
        try:
            async with asyncio.timeout(None) as self._scope:
                if self._interrupt is not None:
                    return
                self._patience.watch()
                await self._answer()
        except TimeoutError as error:
            if self._interrupt is None:
                self._fail(error)
        except asyncio.CancelledError:
            self._interrupt = self._interrupt or Interrupt.ABANDONED
            raise
        except (FencedError, StoreUnavailableError) as error:  # while it waited for its turn
            self._refusal = error
        except Exception as error:  # noqa: BLE001 every end is a terminal event
            self._fail(error)
        finally:
            self._scope = None  # what interrupts it now finds nothing to stop, until the end is written

    async def _answer(self) -> None:
        history = await self._wait_for_turn()
        before = (*(item.as_message() for item in history.items), *self.turn.before)
        self.context_messages = (*before, *self.turn.command.messages)
        if self.turn.command.generate is False:
            self.stream.complete(Usage())
            return
        if self.turn.command.task is not None:
            self._preparation.leave()  # its parts enter one by one
            summary = Summary(self.turn, self.epoch, self.stream, self._tally, self._patience, self._flushed)
            self._end(await summary.run(self._runtime.config.limits.default_max_output_tokens))
            return
        for attempt in range(1, MAX_ENGINES + 1):
            demand, expected = self._preparation.demand(), self._preparation.expected
            model, conversation = self.turn.model, self.conversation
            async with admitted(model, demand, self._patience, conversation, expected) as (lease, ticket):
                try:
                    await self._generate(lease, ticket, history)
                except (EngineDeadError, AnswerLostError) as error:
                    if isinstance(error, EngineDeadError):
                        lease.report_dead()
                    if attempt == MAX_ENGINES:
                        raise
                    why = str(error)  # not the error: its traceback would keep the prompt
                else:
                    return
            logger.warning("going on with an answer that was lost: %s", why, extra={"response": self.response_id})

    async def _wait_for_turn(self) -> History:
        history, self._history = self._history, None
        if history is not None:
            return history
        if not self.is_stored:
            return await self._preparation.read_history()
        return await wait_for_turn(self._runtime, self._patience, self.response_id, self.conversation, self.epoch)

    async def _generate(self, lease: Lease, ticket: Ticket, history: History) -> None:
        """Make the answer, or the rest of it where an engine or a gateway has died in the middle."""
        engine = lease.engine
        context = await self._preparation.context(engine, history)
        if self.stream.state is State.QUEUED:
            self.stream.start(context.notice)
            self._notify(urgent=False)
        is_guided = self.turn.command.options.is_guided
        self._tally.start(context.prompt.token_count, ticket, goes_on=not is_guided)
        self._repetition = Repetition(self.stream.output_items())
        # A grammar that guides the engine begins with the answer, so such an answer is made from its beginning again.
        if self.stream.written.text and not is_guided:
            context = await self._behind_the_text(engine, context)
        if context.max_tokens < 1:
            self._end(FinishReason.LENGTH)
            return
        request = generation_request(self.turn, self.epoch, context, self._tally.usage.output_tokens)
        await self._consume(lease, replace(request, priority=ticket.demand.service_class.rank))

    async def _behind_the_text(self, engine: Engine, context: Context) -> Context:
        """Return the context with what was written so far behind it."""
        prompt = await engine.extend(context.prompt, self.stream.written)
        # What a dead gateway has counted is lost; the text has about as many tokens.
        self._tally.suppose_said(prompt.token_count - context.prompt.token_count)
        # Tokenised again, the text may have more tokens than the engine made of it: the window has the last word.
        left = context.max_tokens - self._tally.usage.output_tokens
        return replace(context, prompt=prompt, max_tokens=min(left, engine.context_length - prompt.token_count))

    async def _consume(self, lease: Lease, request: GenerationRequest) -> None:
        """Take the answer's chunks: handed over, or pulled once a tick.

        Either way the stream gathers their text until the journal asks for it.
        """
        lease.asked()
        self._intake = intake = Intake(lease, self._receive, self._received)
        try:
            async with aclosing(lease.engine.generate(replace(request, sink=intake))) as chunks:
                async for chunk in chunks:
                    intake.receive(chunk)
                    if chunk.finish_reason is not None:
                        self._end(chunk.finish_reason)
                        return
                    await self._flushed(urgent=False)
        finally:
            self._intake = None  # they know each other
        raise ProtocolError("engine_error", "the engine stopped without saying why")

    def _receive(self, chunk: Chunk) -> None:
        """Take one chunk. It may be late: its request is aborted only after the stream has ended."""
        if self.stream.state is not State.RUNNING:
            return
        self._tally.count(chunk)
        self._journal.count(chunk.token_count)
        self._add(chunk)

    def _received(self) -> None:
        """Something has come in, or waits with the engine."""
        has_more = self.stream.has_pending or (self._intake is not None and self._intake.has_more)
        if has_more and self.stream.state is State.RUNNING:
            self._notify(urgent=not self._has_spoken)

    def _add(self, chunk: Chunk) -> None:
        """Give the stream what is new in a chunk."""
        if self._is_plain and chunk.pieces is None:
            self.stream.push(chunk.text)
            return
        options = self.turn.command.options
        if options.top_logprobs is not None:
            chunk = self._with_held(chunk)
        if chunk.pieces is None and not options.is_guided:
            self.stream.push(chunk.text, chunk.logprobs)
            return
        if not options.is_guided and chunk.text:
            self.stream.record(Written(chunk.text, chunk.token_ids))
        for piece in _pieces(chunk):
            if piece.text and (new := self._repetition.new(piece)) is not None:
                self.stream.add(new)

    def _with_held(self, chunk: Chunk) -> Chunk:
        """Return a chunk with the logprobs of all its text, also of what was held back when they came."""
        held = (*self._held, *chunk.logprobs)
        self._held = () if chunk.text else held
        return msgspec.structs.replace(chunk, logprobs=held if chunk.text else ())

    def _end(self, reason: FinishReason) -> None:
        match reason:
            case FinishReason.STOP:
                self.stream.complete(self._tally.usage)
            case FinishReason.LENGTH:
                self.stream.interrupt("max_output_tokens", self._tally.usage)
            case FinishReason.CONTENT_FILTER:
                self.stream.interrupt("content_filter", self._tally.usage)

    def _fail(self, error: Exception) -> None:
        if self.stream.state.is_terminal:
            logger.error("%r failed after its end", self, exc_info=error)
            return
        fault = translate(error)
        self.error = fault.message
        self.stream.fail(fault.code, fault.message, self._tally.usage)

    # Flushing

    def _notify(self, *, urgent: bool = True) -> None:
        self._journal.notify(self, urgent=urgent)

    def _publish(self, events: list[Event]) -> None:
        """Give acknowledged events to our own clients, and wake the gateways that follow for theirs."""
        self.channel.publish(events)
        if events:
            self._patience.heard()
        if self.is_followed:
            self._runtime.bus.publish(f"wake:{self.response_id}", {})

    async def _flushed(self, *, urgent: bool) -> None:
        """Return when the journal holds all that was pushed (or refused it)."""
        if not self.stream.has_pending:
            return
        if self._unflushed is None:
            self._unflushed = self._loop.create_future()
        self._notify(urgent=urgent)
        await asyncio.shield(self._unflushed)

    def _resolve_flush(self) -> None:
        if self._unflushed is not None:
            self._unflushed.set_result(None)
            self._unflushed = None

    # The end

    async def _finish(self) -> None:
        """Write and publish the end, whatever it is."""
        match self._interrupt:
            case Interrupt.CANCELLED if not self.stream.state.is_terminal:
                self.stream.interrupt("cancelled", self._tally.usage)
            case Interrupt.ABANDONED:
                self._close(End([]))
                return
        # Let a batch of ours that is on its way arrive: entries must reach the stream in order.
        await self._journal.settled(self)
        end = await self._ending.write(self._tally.usage, self._refusal)
        self.error = end.message or self.error
        self._close(end)

    def _close(self, end: End) -> None:
        """Publish the last events and let everybody go, or go on elsewhere from where they are."""
        self._publish(end.events)
        if end.is_elsewhere:
            self._runtime.go_on_elsewhere(self.channel, self.turn.owner)
        else:
            self.channel.close()
        self.ended.set()
        model = self.turn.model.name
        self._tally.close(self._end_word(end), response=self.response_id, conversation=self.conversation, model=model)

    def _end_word(self, end: End) -> str:
        """Return one of Metrics.ENDS."""
        if self._interrupt is Interrupt.ABANDONED or end.is_elsewhere:
            return "abandoned"
        if end.message is not None:
            return "failed"
        return self.stream.incomplete_reason or self.stream.state.value

    def audience_changed(self, listeners: int) -> None:
        """An unstored response ends with its connection; a stored one is given some time."""
        if listeners == 0 and not self.is_stored:
            self.cancel()
        else:
            self._patience.audience_changed(listeners)


def _pieces(chunk: Chunk) -> Iterator[Piece]:
    """Yield what a chunk adds; the tokens' logprobs go with its last text, as only text has any."""
    pieces = (Piece(PieceKind.TEXT, chunk.text),) if chunk.pieces is None else chunk.pieces
    if not chunk.logprobs:
        yield from pieces
        return
    last = max((index for index, piece in enumerate(pieces) if piece.kind is PieceKind.TEXT), default=None)
    for index, piece in enumerate(pieces):
        logprobs = spoken(chunk.logprobs, piece.text) if index == last else ()
        yield Piece(piece.kind, piece.text, piece.call_id, logprobs)
