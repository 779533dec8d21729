"""What deploy/ says of our metrics is true: each metric, and each label of it, exists."""

from __future__ import annotations

import json
import re
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from server.observe.metrics import Metrics
from tests.unit.test_compose import SCHEMA

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
RULES = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text("utf-8"))["groups"]
DASHBOARD = json.loads((DEPLOY / "grafana" / "dashboards" / "tokenwire.json").read_text("utf-8"))

ALERTS = [rule for group in RULES for rule in group["rules"]]
TARGETS = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
QUERIES = [*(rule["expr"] for rule in ALERTS), *TARGETS]

# Names that Prometheus itself gives; `le` is a histogram's.
ADDED_LABELS = {"instance", "job", "le"}
METRIC = re.compile(r"\b((?:tokenwire|process)_\w+)(?:\{([^}]*)\})?")


def exported() -> dict[str, set[str]]:
    """Every sample that a busy server exports, with its labels."""
    metrics = Metrics()
    model = metrics.for_model("m")
    model.ended("failed", ran=False)
    metrics.protocol_error("invalid_json")
    samples: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(metrics.render().decode()):
        for sample in family.samples:
            samples.setdefault(sample.name, set()).update(sample.labels)
    return samples


EXPORTED = exported()


@pytest.mark.parametrize("query", QUERIES)
def test_every_metric_and_label_exists(query):
    """A name that was changed in the code and not here would leave a panel empty, or an alert silent for ever."""
    known = set(ADDED_LABELS)
    found = METRIC.findall(query)
    assert found or query.startswith("up{")
    for name, selector in found:
        assert name in EXPORTED, name
        known |= EXPORTED[name]
        for label in re.findall(r"(\w+)\s*[=!]~?", selector):
            assert label in EXPORTED[name] | ADDED_LABELS, (name, label)
    for labels in re.findall(r"by \(([^)]*)\)", query):
        assert {label.strip() for label in labels.split(",")} <= known, labels
    assert query.count("(") == query.count(")")


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule["alert"])
def test_alerts_say_what_is_wrong(rule):
    """With how bad it is and a sentence; labels in it are those of the query."""
    assert rule["labels"]["severity"] in {"critical", "warning"}
    assert re.fullmatch(r"\d+[sm]", rule["for"])
    summary = rule["annotations"]["summary"]
    assert summary.endswith(".")
    for label in re.findall(r"\$labels\.(\w+)", summary):
        grouped = re.findall(r"by \(([^)]*)\)", rule["expr"])
        assert all(label in group for group in grouped), label


def test_panels_have_their_places():
    """None lies on another, each has a title, a sentence and a unit."""
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for panel in panels:
        assert panel["title"]
        assert panel["description"].endswith(".")
        assert panel["fieldConfig"]["defaults"]["unit"]
    boxes = [panel["gridPos"] for panel in panels]
    assert all(box["x"] + box["w"] <= 24 for box in boxes)
    for one, other in combinations(boxes, 2):
        apart_x = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        apart_y = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert apart_x or apart_y


def test_legends_name_labels_of_their_query():
    """A legend of a label that the query has summed away would be empty."""
    for panel in DASHBOARD["panels"]:
        for target in panel["targets"]:
            groups = re.findall(r"by \(([^)]*)\)", target["expr"])
            for label in re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]):
                assert all(label in group for group in groups), (panel["title"], label)


def test_prometheus_scrapes_metrics_and_reads_the_rules():
    """The path that the server has, the file that is there."""
    config: dict[str, Any] = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text("utf-8"))
    (job,) = config["scrape_configs"]
    assert (job["job_name"], job["metrics_path"]) == ("tokenwire", "/metrics")
    assert [(DEPLOY / "prometheus" / name).is_file() for name in config["rule_files"]] == [True]


def test_the_compose_file():
    """Valid by the Compose specification; what it mounts is there; nothing but loopback is listened on."""
    compose = yaml.safe_load((DEPLOY / "monitoring.yml").read_text("utf-8"))
    jsonschema.validate(compose, SCHEMA)
    for service in compose["services"].values():
        sources = [volume.partition(":")[0] for volume in service["volumes"]]
        assert all((DEPLOY / source).is_dir() for source in sources if source.startswith("."))
        listens = [*service.get("command", ()), *service.get("environment", {}).values()]
        assert any("127.0.0.1" in word for word in listens)


def test_histograms_have_buckets_on_both_sides():
    """Of what alerts ask: a quantile above the last bucket would never be seen."""
    for rule in ALERTS:
        match = re.search(r"(\w+)_bucket.* > ([\d.]+)$", rule["expr"])
        if match is not None:
            text = Metrics()
            text.for_model("m")
            bounds = sorted(
                {
                    float(sample.labels["le"])
                    for family in text_string_to_metric_families(text.render().decode())
                    for sample in family.samples
                    if sample.name == f"{match[1]}_bucket"
                }
            )
            assert any(low <= float(match[2]) < high < float("inf") for low, high in pairwise(bounds)), rule["alert"]
