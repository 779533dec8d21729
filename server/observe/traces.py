"""Traces of responses for OpenTelemetry, sent where the settings say. Ids, counts and times; never text."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from server.errors import StartError

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter

SERVICE: Final = "tokenwire"
_NS: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Times:
    """Of one response, by a monotonic clock in seconds. None: it did not come so far. now: the end."""

    began: float
    started: float | None
    first_token: float | None
    now: float


class Traces:
    """Each response is one trace: `response`, and in it `queue`, `first token` and `tokens`.

    endpoint: an OTLP collector's address for traces over HTTP. exporter: another way out, for tests.
    Raises StartError where OpenTelemetry is not installed.
    """

    def __init__(self, endpoint: str, exporter: SpanExporter | None = None) -> None:
        try:
            from opentelemetry import trace  # noqa: PLC0415 an extra: nobody else pays for it
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415
            from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
            from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
            from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415
        except ImportError as error:
            text = "tracing.endpoint is set, but OpenTelemetry is not installed: pip install 'tokenwire[otel]'"
            raise StartError(text) from error
        self._in_context = trace.set_span_in_context
        self._provider = TracerProvider(resource=Resource.create({"service.name": SERVICE}))
        self._provider.add_span_processor(BatchSpanProcessor(exporter or OTLPSpanExporter(endpoint=endpoint)))
        self._tracer = self._provider.get_tracer(SERVICE)

    def response(self, times: Times, attributes: Mapping[str, str | int]) -> None:
        """Record one response that has ended; all of its spans are made now, so that none costs anything before."""
        offset = time.time() - times.now

        def wall(when: float) -> int:
            return int((when + offset) * _NS)

        root = self._tracer.start_span("response", start_time=wall(times.began), attributes=dict(attributes))
        context = self._in_context(root)
        steps = (
            ("queue", times.began, times.started or times.now),
            ("first token", times.started, times.first_token or times.now),
            ("tokens", times.first_token, times.now),
        )
        for name, start, end in steps:
            if start is not None:
                self._tracer.start_span(name, context, start_time=wall(start)).end(wall(end))
        root.end(wall(times.now))

    def close(self) -> None:
        """Send what is left; blocks while the collector answers."""
        self._provider.shutdown()
