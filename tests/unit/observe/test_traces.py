"""Traces as a collector gets them."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from server.errors import StartError
from server.observe.traces import Times, Traces
from tests.support.collector import Collector, collecting


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as server:
        yield server


def seconds(span: Span) -> float:
    return round((span.end_time_unix_nano - span.start_time_unix_nano) / 1e9, 3)


def test_a_response_is_one_trace(collector: Collector):
    """Its steps lie in it, one after the other, at the time of day; ids and counts are with it."""
    traces = Traces(collector.endpoint)
    traces.response(Times(10.0, 12.0, 12.5, 20.0), {"response": "resp_1", "output_tokens": 7})
    traces.close()
    spans = {span.name: span for span in collector.spans}
    assert collector.service == "tokenwire"
    assert {name: seconds(span) for name, span in spans.items()} == {
        "response": 10,
        "queue": 2,
        "first token": 0.5,
        "tokens": 7.5,
    }
    root = spans.pop("response")
    assert {span.parent_span_id for span in spans.values()} == {root.span_id}
    assert {span.trace_id for span in spans.values()} == {root.trace_id}
    assert {pair.key for pair in root.attributes} == {"response", "output_tokens"}
    assert abs(root.end_time_unix_nano / 1e9 - time.time()) < 60


def test_one_that_never_ran(collector: Collector):
    """Has waited, and nothing else."""
    traces = Traces(collector.endpoint)
    traces.response(Times(1.0, None, None, 4.0), {"end": "cancelled"})
    traces.close()
    assert sorted(span.name for span in collector.spans) == ["queue", "response"]


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch):
    """The start says what to install."""
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(StartError, match=r"tokenwire\[otel\]"):
        Traces("http://localhost:4318/v1/traces")
