"""Names, labels and values at /metrics."""

from __future__ import annotations

import re

import pytest
from prometheus_client.parser import text_string_to_metric_families

from server.observe.metrics import SERVICE_CLASSES, Metrics


def samples(metrics: Metrics) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    families = text_string_to_metric_families(metrics.render().decode())
    return {(s.name, tuple(sorted(s.labels.items()))): s.value for family in families for s in family.samples}


def test_a_response():
    """Every step of a response is counted under its model."""
    metrics = Metrics()
    model = metrics.for_model("m")
    assert metrics.for_model("m") is model
    model.queued(0.2, "interactive")
    model.started()
    assert samples(metrics)["tokenwire_responses_running", (("model", "m"),)] == 1
    model.prompt(10, cached=4)
    model.first_token(0.3, "batch")
    model.output(1)
    model.tokens(4, 0.04, "standard")
    model.tokens(0, 5, "standard")
    model.ended("completed")
    model.ended("failed", ran=False)
    model.engine_up(up=True)
    found = samples(metrics)
    label = (("model", "m"),)
    assert found["tokenwire_responses_running", label] == 0
    assert found["tokenwire_responses_total", (("end", "completed"), ("model", "m"))] == 1
    assert found["tokenwire_responses_total", (("end", "failed"), ("model", "m"))] == 1
    assert found["tokenwire_responses_total", (("end", "cancelled"), ("model", "m"))] == 0
    assert found["tokenwire_input_tokens_total", label] == 10
    assert found["tokenwire_cached_tokens_total", label] == 4
    assert found["tokenwire_output_tokens_total", label] == 5
    interactive, standard, batch = ((("class", name), *label) for name in SERVICE_CLASSES)
    assert found["tokenwire_queue_wait_seconds_sum", interactive] == pytest.approx(0.2)
    assert found["tokenwire_time_to_first_token_seconds_sum", batch] == pytest.approx(0.3)
    assert found["tokenwire_inter_token_seconds_count", standard] == 1
    assert found["tokenwire_inter_token_seconds_sum", standard] == pytest.approx(0.01)
    assert found["tokenwire_engine_up", label] == 1


def test_the_gaps_between_tokens():
    """A histogram as any other: buckets hold what is at or below their bound, by model."""
    metrics = Metrics()
    for gap in (0.001, 0.03, 0.031, 9):
        metrics.for_model("m").tokens(1, gap, "standard")
    metrics.for_model("n").tokens(1, 0.5, "batch")
    found = samples(metrics)
    name = "tokenwire_inter_token_seconds_bucket"
    standard = (("class", "standard"), ("model", "m"))
    buckets = {dict(key[1])["le"]: v for key, v in found.items() if key[0] == name and set(standard) <= set(key[1])}
    assert [buckets[bound] for bound in ("0.001", "0.02", "0.03", "0.05", "2.5", "+Inf")] == [1, 1, 2, 3, 3, 4]
    assert found["tokenwire_inter_token_seconds_count", standard] == 4
    assert found["tokenwire_inter_token_seconds_sum", (("class", "batch"), ("model", "n"))] == 0.5


def test_unknown_end():
    """The label is a closed set."""
    with pytest.raises(KeyError):
        Metrics().for_model("m").ended("new")


def test_server_wide():
    """Connections, errors, the store."""
    metrics = Metrics()
    metrics.connection_opened()
    metrics.connection_opened()
    metrics.connection_closed()
    metrics.protocol_error("invalid_json")
    metrics.journal_flushed(0.002, events=7)
    metrics.store_up(up=True)
    found = samples(metrics)
    assert found["tokenwire_connections", ()] == 1
    assert found["tokenwire_connections_opened_total", ()] == 2
    assert found["tokenwire_protocol_errors_total", (("code", "invalid_json"),)] == 1
    assert found["tokenwire_journal_events_total", ()] == 7
    assert found["tokenwire_journal_flush_seconds_count", ()] == 1
    assert found["tokenwire_store_up", ()] == 1


def test_two_servers_in_one_process():
    """Nothing is registered globally: two servers count apart."""
    first, second = Metrics(), Metrics()
    first.connection_opened()
    assert samples(second)["tokenwire_connections", ()] == 0


def test_every_metric_has_help():
    """Operators read what a number means."""
    text = Metrics().render().decode()
    assert not re.findall(r"^# HELP tokenwire_\w+ *$", text, re.MULTILINE)
