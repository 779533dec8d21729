"""What one response has cost so far, in tokens and time: for its usage, the metrics and the log."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from protocol.events import Usage
from server.access.admission import Ticket
from server.engine.base import Chunk
from server.observe.metrics import ModelMetrics

logger = logging.getLogger(__name__)


class Tally:
    """Count as it happens; times are the event loop's."""

    def __init__(self, metrics: ModelMetrics) -> None:
        self.usage = Usage()
        self._metrics = metrics
        self._loop = asyncio.get_running_loop()
        self._began_at = self._loop.time()
        self._started_at: float | None = None
        self._first_token_at: float | None = None
        self._last_chunk_at = 0.0
        self._ticket: Ticket | None = None

    def start(self, input_tokens: int, ticket: Ticket) -> None:
        """The engine gets the prompt; not for the first time where an engine died under the answer."""
        self._ticket = ticket
        self.usage = Usage(input_tokens=input_tokens, output_tokens=self.usage.output_tokens)
        if self._started_at is None:
            self._started_at = self._loop.time()
            self._metrics.queued(self._started_at - self._began_at, ticket.demand.service_class)
            self._metrics.started()

    def suppose_said(self, output_tokens: int) -> None:
        """Take the number of tokens from the text where who counted them is gone."""
        if not self.usage.output_tokens:
            self.usage = Usage(self.usage.input_tokens, self.usage.cached_tokens, output_tokens)

    def count(self, chunk: Chunk) -> None:
        """Count a chunk's tokens and the gap before it."""
        usage = self.usage
        self.usage = Usage(usage.input_tokens, chunk.cached_tokens, usage.output_tokens + chunk.token_count)
        if not chunk.token_count:
            return
        assert self._ticket is not None  # `start` came before
        service_class = self._ticket.demand.service_class
        now = self._loop.time()
        if self._first_token_at is None:
            self._first_token_at = now
            wait_s = now - (self._started_at or self._began_at)
            self._metrics.first_token(wait_s, service_class)
            self._metrics.output(chunk.token_count)
            self._ticket.first_token(chunk.token_count, wait_s)
        else:
            gap_s = now - self._last_chunk_at
            self._metrics.tokens(chunk.token_count, gap_s, service_class)
            self._ticket.tokens(chunk.token_count, gap_s)
        self._last_chunk_at = now

    def close(self, end: str, **fields: Any) -> None:
        """The response has ended. end: one of Metrics.ENDS. fields: what the log shall say besides."""
        usage = self.usage
        self._metrics.ended(end, ran=self._started_at is not None)
        self._metrics.prompt(usage.input_tokens, usage.cached_tokens)
        counts = {
            "end": end,
            "input_tokens": usage.input_tokens,
            "cached_tokens": usage.cached_tokens,
            "output_tokens": usage.output_tokens,
            "first_token_ms": self._since_begin_ms(self._first_token_at),
            "total_ms": self._since_begin_ms(self._loop.time()),
        }
        logger.info("response ended", extra=fields | counts)

    def _since_begin_ms(self, when: float | None) -> int | None:
        return None if when is None else round((when - self._began_at) * 1000)
