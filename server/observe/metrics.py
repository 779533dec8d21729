"""What Prometheus reads at /metrics. One `Metrics` per server: nothing is registered at import."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from server.observe.histogram import TokenCounter, TokenHistogram

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"  # Prometheus text exposition format

# How urgent turns are (`server.access.fair_queue`): a closed set, so that the label cannot grow.
SERVICE_CLASSES: Final = ("interactive", "standard", "batch")

# Bounds in seconds. A token takes 1 ms on a big GPU with many streams and a second on a small CPU.
_TOKEN_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5)
# First tokens and queues: from a cached prompt to a model that has to load first.
_WAIT_BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
# A flush over a unix socket takes under a millisecond; the store gives up after about ten seconds.
_FLUSH_BUCKETS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0, 10.0)


class ModelMetrics:
    """One model's metrics with the label already bound: a lookup per token would cost more than the count."""

    __slots__ = (
        "_admission_wait",
        "_background_limit",
        "_cached_tokens",
        "_ends",
        "_evictions",
        "_input_tokens",
        "_inter_token",
        "_limit",
        "_load",
        "_output_tokens",
        "_queue_wait",
        "_refused",
        "_running",
        "_time_to_first_token",
        "_up",
        "_waiting",
    )

    def __init__(self, metrics: Metrics, model: str) -> None:
        self._ends = {end: metrics.responses.labels(model, end) for end in Metrics.ENDS}
        self._running = metrics.running.labels(model)
        self._queue_wait = _by_class(metrics.queue_wait, model)
        self._admission_wait = _by_class(metrics.admission_wait, model)
        self._time_to_first_token = _by_class(metrics.time_to_first_token, model)
        self._inter_token = {name: metrics.inter_token.labels(model, name) for name in SERVICE_CLASSES}
        self._waiting = _by_class(metrics.waiting, model)
        self._refused = _by_class(metrics.refused, model)
        self._limit = metrics.admission_limit.labels(model)
        self._background_limit = metrics.background_limit.labels(model)
        self._input_tokens = metrics.input_tokens.labels(model)
        self._output_tokens = metrics.output_tokens.labels(model)
        self._cached_tokens = metrics.cached_tokens.labels(model)
        self._up = metrics.engine_up.labels(model)
        self._load = metrics.load_time.labels(model)
        self._evictions = metrics.evictions.labels(model)

    def queued(self, wait_s: float, service_class: str) -> None:
        """Count the wait of a turn that now runs: for its conversation, for admission and for the model, in seconds."""
        self._queue_wait[service_class].observe(wait_s)

    def admitted(self, service_class: str, wait_s: float) -> None:
        """Count the wait for a place in the engine alone, in seconds."""
        self._admission_wait[service_class].observe(wait_s)

    def refused(self, service_class: str) -> None:
        """Count a turn that found the queue full."""
        self._refused[service_class].inc()

    def waiting(self, service_class: str, turns: int) -> None:
        """Say how many turns wait for a place in the engine."""
        self._waiting[service_class].set(turns)

    def admission_limits(self, limit: int, background: int) -> None:
        """Say how many turns the engine gets at once, and how many of them may be other than interactive."""
        self._limit.set(limit)
        self._background_limit.set(background)

    def started(self) -> None:
        """A response began to run; `ended` must follow."""
        self._running.inc()

    def ended(self, end: str, *, ran: bool = True) -> None:
        """Count how a response ended. ran: whether `started` was called. Raises KeyError unless in Metrics.ENDS."""
        self._ends[end].inc()
        if ran:
            self._running.dec()

    def first_token(self, wait_s: float, service_class: str) -> None:
        """Count the time from the engine's start on a prompt to its first token, in seconds."""
        self._time_to_first_token[service_class].observe(wait_s)

    def tokens(self, count: int, gap_s: float, service_class: str) -> None:
        """Count `count` tokens that came `gap_s` seconds after the ones before; their mean gap is one observation."""
        if count > 0:
            self._output_tokens.add(count)
            self._inter_token[service_class].observe(gap_s / count)

    def prompt(self, tokens: int, cached: int) -> None:
        """Count a prompt's tokens, and those of them that the prefix cache had."""
        self._input_tokens.inc(tokens)
        self._cached_tokens.inc(cached)

    def output(self, tokens: int) -> None:
        """Count output tokens without a gap: an answer's first ones."""
        self._output_tokens.add(tokens)

    def engine_up(self, *, up: bool) -> None:
        """Say whether the model can answer."""
        self._up.set(up)

    def loaded(self, seconds: float) -> None:
        """Count a load that took `seconds`."""
        self._load.observe(seconds)

    def evicted(self) -> None:
        """Count a replica that was unloaded to make room for another model."""
        self._evictions.inc()


@dataclass(frozen=True, slots=True)
class ModelSample:
    """A model at the moment of a scrape. replicas: (device, answers that run in it) of each."""

    name: str
    state: str
    waiting: int
    replicas: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class DeviceSample:
    """A device at the moment of a scrape. memory: bytes, infinite where none are declared; taken: by models."""

    name: str
    memory: float
    taken: float


class Fleet(Protocol):
    """What is asked for its models and devices at each scrape."""

    def model_samples(self) -> Iterable[ModelSample]: ...

    def device_samples(self) -> Iterable[DeviceSample]: ...


class _FleetCollector(Collector):
    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    def collect(self) -> Iterator[Metric]:
        state = GaugeMetricFamily("tokenwire_model_state", "1 for the state that it is in.", labels=("model", "state"))
        waiting = GaugeMetricFamily("tokenwire_model_waiting", "Turns that wait for the model.", labels=("model",))
        running = GaugeMetricFamily(
            "tokenwire_replica_running", "Answers that run in a replica.", labels=("model", "replica", "device")
        )
        for model in self._fleet.model_samples():
            state.add_metric((model.name, model.state), 1)
            waiting.add_metric((model.name,), model.waiting)
            for number, (place, count) in enumerate(model.replicas, start=1):
                running.add_metric((model.name, str(number), place), count)
        memory = GaugeMetricFamily("tokenwire_device_memory_bytes", "Memory of a device.", labels=("device",))
        taken = GaugeMetricFamily("tokenwire_device_taken_bytes", "Of it, taken by models.", labels=("device",))
        for device in self._fleet.device_samples():
            memory.add_metric((device.name,), device.memory)
            taken.add_metric((device.name,), device.taken)
        yield from (state, waiting, running, memory, taken)


_Labelled = TypeVar("_Labelled", Counter, Gauge, Histogram)


def _by_class(metric: _Labelled, model: str) -> dict[str, _Labelled]:
    return {name: metric.labels(model, name) for name in SERVICE_CLASSES}


class Metrics:
    """All metrics of one server, in a registry of their own."""

    # How a response can end; a closed set, so that the label cannot grow.
    ENDS: Final = ("completed", "max_output_tokens", "cancelled", "content_filter", "incomplete", "failed", "abandoned")

    def __init__(self) -> None:
        self.registry = CollectorRegistry(auto_describe=True)
        ProcessCollector(registry=self.registry)
        self._by_model: dict[str, ModelMetrics] = {}
        self._make_connection_metrics()
        self._make_response_metrics()
        self._make_admission_metrics()
        self._make_store_metrics()

    def _counter(self, name: str, text: str, labels: tuple[str, ...] = ()) -> Counter:
        return Counter(f"tokenwire_{name}", text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str, labels: tuple[str, ...] = ()) -> Gauge:
        return Gauge(f"tokenwire_{name}", text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...], labels: tuple[str, ...] = ()) -> Histogram:
        return Histogram(f"tokenwire_{name}", text, labels, registry=self.registry, buckets=buckets)

    def _make_connection_metrics(self) -> None:
        self._connections = self._gauge("connections", "Open WebSocket connections.")
        self._connections_total = self._counter("connections_opened_total", "WebSocket connections accepted.")
        self._protocol_errors = self._counter("protocol_errors_total", "Errors sent to clients.", ("code",))

    def _make_response_metrics(self) -> None:
        model = ("model",)
        self.responses = self._counter("responses_total", "Responses by how they ended.", ("model", "end"))
        self.running = self._gauge("responses_running", "Responses being made.", model)
        self.queue_wait = self._histogram(
            "queue_wait_seconds", "Wait before a turn runs, for whatever.", _WAIT_BUCKETS, ("model", "class")
        )
        self.time_to_first_token = self._histogram(
            "time_to_first_token_seconds",
            "From the engine's start to the first token.",
            _WAIT_BUCKETS,
            ("model", "class"),
        )
        self.inter_token = TokenHistogram(
            "tokenwire_inter_token_seconds",
            "Gap between tokens, averaged over what came together.",
            _TOKEN_BUCKETS,
            ("model", "class"),
        )
        self.registry.register(self.inter_token)
        self.input_tokens = self._counter("input_tokens_total", "Prompt tokens.", model)
        self.output_tokens = TokenCounter("tokenwire_output_tokens", "Tokens made.", model)
        self.registry.register(self.output_tokens)
        self.cached_tokens = self._counter("cached_tokens_total", "Prompt tokens the prefix cache had.", model)
        self.load_time = self._histogram("model_load_seconds", "Loading a model.", _WAIT_BUCKETS, model)
        self.evictions = self._counter("model_evictions_total", "Unloaded to make room for another model.", model)
        self.engine_up = self._gauge("engine_up", "1 while the model can answer.", model)

    def _make_admission_metrics(self) -> None:
        both = ("model", "class")
        self.admission_wait = self._histogram(
            "admission_wait_seconds", "Wait for a place in the engine.", _WAIT_BUCKETS, both
        )
        self.waiting = self._gauge("admission_waiting", "Turns that wait for a place in the engine.", both)
        self.refused = self._counter("admission_refused_total", "Turns that found the queue full.", both)
        self.admission_limit = self._gauge("admission_limit", "Turns that the engine gets at once.", ("model",))
        self.background_limit = self._gauge(
            "admission_background_limit", "How many of them may be other than interactive.", ("model",)
        )

    def _make_store_metrics(self) -> None:
        self._flush = self._histogram("journal_flush_seconds", "One journal write, acknowledged.", _FLUSH_BUCKETS)
        self._events = self._counter("journal_events_total", "Events written to journals.")
        self._tick = self._gauge("journal_tick_seconds", "Time between journal writes; stretched under load.")
        self._store_up = self._gauge("store_up", "1 while Redis answers.")

    def watch(self, fleet: Fleet) -> None:
        """Show its models and devices at each scrape."""
        self.registry.register(_FleetCollector(fleet))

    def for_model(self, name: str) -> ModelMetrics:
        """Return the metrics of one configured model; never call it with a name that a client made up."""
        if name not in self._by_model:
            self._by_model[name] = ModelMetrics(self, name)
        return self._by_model[name]

    def connection_opened(self) -> None:
        """Count a connection; `connection_closed` must follow."""
        self._connections.inc()
        self._connections_total.inc()

    def connection_closed(self) -> None:
        """One connection less."""
        self._connections.dec()

    def protocol_error(self, code: str) -> None:
        """Count an error by its code, a key of `protocol.errors.ERROR_CODES`."""
        self._protocol_errors.labels(code).inc()

    def journal_flushed(self, seconds: float, events: int) -> None:
        """Count one write of `events` events that Redis acknowledged after `seconds`."""
        self._flush.observe(seconds)
        self._events.inc(events)

    def journal_tick(self, seconds: float) -> None:
        """Say how long the journal's tick is now."""
        self._tick.set(seconds)

    def store_up(self, *, up: bool) -> None:
        """Say whether Redis answers."""
        self._store_up.set(up)

    def render(self) -> bytes:
        """Return everything in Prometheus' text format."""
        return generate_latest(self.registry)
