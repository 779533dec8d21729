"""What can be said of a turn before it runs: whether it is refused, and what its prompt will be."""

from __future__ import annotations

from typing import Final

from protocol.commands import no_such_call
from protocol.errors import ProtocolError
from protocol.items import unknown_call
from server.access.admission import Expected, QueueFullError
from server.access.fair_queue import Demand, ServiceClass
from server.chat.context import Context, fit
from server.chat.runtime import Runtime
from server.chat.turn import Turn, context_request
from server.engine.base import AnswerLostError, Engine, EngineDeadError
from server.store.base import History

CHARS_PER_TOKEN: Final = 4  # of English text, about
FLEX: Final = "flex"  # OpenAI's service tier for what may take its time


class Preparation:
    """One turn's history and prompt; made early, so that what cannot be answered is refused and not begun."""

    def __init__(self, turn: Turn, runtime: Runtime) -> None:
        self._turn = turn
        self._runtime = runtime
        self._prepared: tuple[str | None, Context] | None = None
        self.expected: Expected | None = None  # at the model's door

    @property
    def must_wait(self) -> bool:
        """Whether it is known that the turn cannot run at once."""
        model = self._turn.model
        if self._turn.command.generate is False:
            return False
        return model.ready_engine is None or model.admission.is_full(self.demand())

    def demand(self) -> Demand:
        """Return what the turn asks of admission. What the model has not tokenised yet is estimated.

        How urgent it is depends on what it brings itself: a chat with a long past is still a chat.
        """
        turn = self._turn
        new = sum(len(message.content) for message in turn.command.messages) // CHARS_PER_TOKEN
        is_long = new > self._runtime.config.admission.long_input_tokens
        service_class = ServiceClass.STANDARD if is_long else ServiceClass.INTERACTIVE
        if turn.command.service_tier == FLEX or turn.command.task is not None:
            service_class = ServiceClass.BATCH
        tokens = self._prepared[1].prompt.token_count if self._prepared else new
        return Demand(turn.owner, service_class, tokens)

    async def check(self) -> None:
        """Refuse a turn that cannot be answered while it can still be refused.

        Raises ProtocolError, PromptError, QueueFullError, and what reading the history raises.
        """
        try:
            self._check_queue()
            await self._check_context()
        except (ProtocolError, QueueFullError):
            # A repetition is not judged again: its conversation has grown since, by the very answer it asks for.
            if not await self._was_begun_before():
                raise

    async def read_history(self) -> History:
        """Return what the turn would follow now."""
        turn = self._turn
        if not (turn.head.conversation or turn.previous):
            return History((), None)
        return await self._runtime.store.history(
            turn.owner, conversation=turn.head.conversation, previous=turn.previous
        )

    async def context(self, engine: Engine, history: History) -> Context:
        """Return the prompt; the one made before the turn was acknowledged, if nothing was said since."""
        if self._prepared is not None and self._prepared[0] == history.head:
            return self._prepared[1]
        return await self._fit(engine, history)

    def leave(self) -> None:
        """Give up the place that was kept for the turn; harmless where it is used or there is none."""
        if self.expected is not None:
            self.expected.drop()

    def _check_queue(self) -> None:
        if self._turn.command.generate is not False:
            self.expected = self._turn.model.admission.expect(self.demand())

    async def _check_context(self) -> None:
        """Refuse a prompt that cannot fit; needs a loaded model."""
        engine = self._turn.model.ready_engine
        if engine is None or self._turn.command.generate is False or self._turn.command.task is not None:
            return  # a task makes prompts of its own, which fit
        history = await self.read_history()
        try:
            self._prepared = (history.head, await self._fit(engine, history))
        except EngineDeadError:
            self._turn.model.report_dead(engine)  # the turn waits for the next one
        except AnswerLostError:
            pass  # it is asked again when the turn runs

    async def _was_begun_before(self) -> bool:
        command = self._turn.command
        if command.id is None or not command.is_stored:
            return False
        return await self._runtime.store.find_command(self._turn.owner, command.id) is not None

    async def _fit(self, engine: Engine, history: History) -> Context:
        await engine.check(self._turn.command.options)
        request = context_request(self._turn, history.items, self._runtime.config.limits.default_max_output_tokens)
        if not engine.takes_images and any(message.images for message in (*request.history, *request.messages)):
            text = "this model takes text only, and what it would see has images; ask another, or leave them out"
            raise ProtocolError("invalid_request", text, param="input")
        unknown = unknown_call((*request.history, *request.messages))
        if unknown is not None:
            raise no_such_call(unknown)
        context = await fit(engine, request)
        least = self._turn.command.min_tokens or 0
        if least > context.max_tokens:
            text = f"min_tokens ({least}) is more than the {context.max_tokens} tokens that there is room for"
            raise ProtocolError("invalid_request", text, param="min_tokens")
        return context
