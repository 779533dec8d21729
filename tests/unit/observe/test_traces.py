"""Traces as a collector gets them."""

from __future__ import annotations

import gzip
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from server.errors import StartError
from server.observe.traces import Times, Traces


class Collector(HTTPServer):
    """Takes traces over HTTP."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), CollectorHandler)
        self.service = ""
        self.spans: list[Span] = []

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1/traces"


class CollectorHandler(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            names = {pair.key: pair.value.string_value for pair in resource.resource.attributes}
            self.server.service = names["service.name"]
            self.server.spans += [span for scope in resource.scope_spans for span in scope.spans]
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


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
