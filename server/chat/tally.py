"""What one response has cost so far, in tokens and time: for its usage, the metrics and the log."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from protocol.events import Usage
from server.access.admission import Ticket
from server.engine.base import Chunk
from server.observe.metrics import ModelMetrics
from server.observe.traces import Times, Traces

logger = logging.getLogger(__name__)


class _Pace:
    """The times between the tokens of one request to the engine, for the metrics and for admission."""

    def __init__(self, metrics: ModelMetrics, ticket: Ticket) -> None:
        self._metrics = metrics
        self._ticket = ticket
        self._class = ticket.demand.service_class
        self._time = asyncio.get_running_loop().time
        self._last_at = self._time()
        self._has_spoken = False

    def note(self, tokens: int) -> None:
        """So many tokens have come now."""
        now = self._time()
        gap_s = now - self._last_at
        if self._has_spoken:
            self._metrics.tokens(tokens, gap_s, self._class)
            self._ticket.tokens(tokens, gap_s)
        else:
            self._metrics.first_token(gap_s, self._class)
            self._metrics.output(tokens)
            self._ticket.first_token(tokens, gap_s)
        self._has_spoken = True
        self._last_at = now


class Tally:
    """Count as it happens; times are the event loop's."""

    def __init__(self, metrics: ModelMetrics, traces: Traces | None = None) -> None:
        self.usage = Usage()
        self._traces = traces
        self._metrics = metrics
        self._loop = asyncio.get_running_loop()
        self._began_at = self._loop.time()
        self._started_at: float | None = None
        self._first_token_at: float | None = None
        self._pace: _Pace | None = None

    def start(self, input_tokens: int, ticket: Ticket, *, goes_on: bool = True) -> None:
        """The engine gets the prompt; not for the first time where an engine died under the answer.

        goes_on: it goes on with the answer; else it begins anew.
        """
        said, thought = (self.usage.output_tokens, self.usage.reasoning_tokens) if goes_on else (0, 0)
        self.usage = Usage(input_tokens=input_tokens, output_tokens=said, reasoning_tokens=thought)
        self._pace = self._start(ticket)

    def part(self, input_tokens: int, ticket: Ticket) -> PartTally:
        """The engine gets one of several prompts; they all count together."""
        self.add(Usage(input_tokens=input_tokens))
        return PartTally(self, self._start(ticket))

    def suppose_said(self, output_tokens: int) -> None:
        """Take the number of tokens from the text where who counted them is gone."""
        if not self.usage.output_tokens:
            self.usage = Usage(self.usage.input_tokens, self.usage.cached_tokens, output_tokens)

    def count(self, chunk: Chunk) -> None:
        """Count a chunk's tokens and the gap before it."""
        assert self._pace is not None  # `start` came before
        usage = self.usage
        self.usage = Usage(
            usage.input_tokens,
            chunk.cached_tokens,
            usage.output_tokens + chunk.token_count,
            usage.reasoning_tokens + chunk.reasoning_tokens,
        )
        self.note(chunk.token_count, self._pace)

    def add(self, usage: Usage) -> None:
        """Count tokens of one of several requests."""
        mine = self.usage
        self.usage = Usage(
            mine.input_tokens + usage.input_tokens,
            mine.cached_tokens + usage.cached_tokens,
            mine.output_tokens + usage.output_tokens,
            mine.reasoning_tokens + usage.reasoning_tokens,
        )

    def note(self, tokens: int, pace: _Pace) -> None:
        """Note when tokens have come."""
        if not tokens:
            return
        if self._first_token_at is None:
            self._first_token_at = self._loop.time()
        pace.note(tokens)

    def _start(self, ticket: Ticket) -> _Pace:
        if self._started_at is None:
            self._started_at = self._loop.time()
            self._metrics.queued(self._started_at - self._began_at, ticket.demand.service_class)
            self._metrics.started()
        return _Pace(self._metrics, ticket)

    def close(self, end: str, **fields: Any) -> None:
        """The response has ended. end: one of Metrics.ENDS. fields: what the log shall say besides."""
        usage = self.usage
        self._metrics.ended(end, ran=self._started_at is not None)
        self._metrics.prompt(usage.input_tokens, usage.cached_tokens)
        counts = {
            "end": end,
            "queued_ms": self._since_begin_ms(self._started_at),
            "input_tokens": usage.input_tokens,
            "cached_tokens": usage.cached_tokens,
            "output_tokens": usage.output_tokens,
            "first_token_ms": self._since_begin_ms(self._first_token_at),
            "total_ms": self._since_begin_ms(self._loop.time()),
        }
        logger.info("response ended", extra=fields | counts)
        if self._traces is not None:
            times = Times(self._began_at, self._started_at, self._first_token_at, self._loop.time())
            known = {name: value for name, value in (fields | counts).items() if value is not None}
            self._traces.response(times, known)

    def _since_begin_ms(self, when: float | None) -> int | None:
        return None if when is None else round((when - self._began_at) * 1000)


class PartTally:
    """One request to the engine of several that make one response."""

    def __init__(self, tally: Tally, pace: _Pace) -> None:
        self._tally = tally
        self._pace = pace
        self._cached = 0

    def count(self, chunk: Chunk) -> None:
        """Count a chunk's tokens and the gap before it."""
        self._tally.add(Usage(cached_tokens=chunk.cached_tokens - self._cached, output_tokens=chunk.token_count))
        self._cached = chunk.cached_tokens
        self._tally.note(chunk.token_count, self._pace)
