"""The queries of dashboard, rules and docs: each names what is exported, and has an answer in a real promtool."""

import json
import re
from pathlib import Path

import pytest

pytest.importorskip(
    "prometheus_client",
    reason="prometheus_client is not installed here: make setup, or make test-extra WHICH=integrations",
)

from batchclient._metrics.dashboards import PROGRAMS, SERVERS, alerts_of, panels_of
from batchclient._metrics.registry import METRICS, STATES
from tests.prometheus.pages import GUISES, RECORDED, of_a_client, of_a_job, of_a_server, of_a_worker, samples_of
from tests.prometheus.programs import needs_promtool, promtool
from tests.prometheus.promql import labels_in, metrics_in

PAGE = Path(__file__).parents[2] / "docs/guide/watch.md"
BLOCK = re.compile(r"```promql\n(.*?)```", re.DOTALL)
PARTS = ["client", "jobs", "worker", *SERVERS, "dcgm"]
OF_PANELS = [" ".join(query.split()) for panel in panels_of(PARTS) for query in panel.queries.values()]
OF_ALERTS = [alert.expression for alert in alerts_of(PARTS)]
ADDED_BY_PROMETHEUS = {"job", "instance"}


def of_the_docs():
    """The queries of the page, a line each; the other lines are comments."""
    lines = [line for block in BLOCK.findall(PAGE.read_text()) for line in block.splitlines()]
    return [line for line in lines if not line.startswith("#")]


def series():
    """All numbers of all pages, two scrapes of each."""
    both = {}
    for pages in (of_a_job(), of_a_worker(), of_a_client(), *map(of_a_server, (*RECORDED, *GUISES))):
        first, second = map(samples_of, pages)
        both |= {key: (first.get(key), number) for key, number in second.items()}
    return both


def test_every_query_names_what_a_page_has():
    told = {name for name, _ in series()}
    for query in OF_PANELS + OF_ALERTS:
        assert metrics_in(query), query
        assert metrics_in(query) <= told, f"{query} names {metrics_in(query) - told}: nobody exports that"


def test_every_query_asks_for_labels_that_its_metrics_have():
    own = {}
    for metric in METRICS:
        labels = {*metric.labels, "client", *ADDED_BY_PROMETHEUS}
        own |= {metric.full_name: labels} if metric.kind != "histogram" else {}
        own |= {f"{metric.full_name}_{part}": labels for part in ("count", "sum") if metric.kind == "histogram"}
        own |= {f"{metric.full_name}_bucket": {*labels, "le"} if metric.kind == "histogram" else set()}
    for query in (part for whole in OF_PANELS + OF_ALERTS for part in re.split(r"\sand\s(?!on\b)", whole)):
        for name in metrics_in(query) & own.keys():
            assert labels_in(query) <= own[name], f"{query}: {name} lacks {labels_in(query) - own[name]}"


def test_the_states_in_queries_are_states():
    asked = {
        state
        for query in OF_ALERTS + OF_PANELS
        for text in re.findall(r'state=~"([^"]*)"', query)
        for state in text.split("|")
    }
    assert asked and asked <= {*STATES}


def test_the_docs_have_the_queries_of_the_table():
    asked = of_the_docs()
    assert len(asked) == 2
    for query in asked:
        assert query in {*OF_PANELS, *OF_ALERTS}, f"{query}: neither a panel nor a rule has this"


def test_a_panel_or_a_rule_asks_for_the_metrics_of_each_server():
    asked = set().union(*map(metrics_in, OF_PANELS + OF_ALERTS))
    for metric in (metric for roles in PROGRAMS.values() for metric in roles.values()):
        exported = f"{metric.name}_bucket" if metric.kind == "histogram" else metric.name
        assert exported in asked
        assert metric.source


@pytest.mark.parametrize(
    ("query", "metrics", "labels"),
    [
        ('sum by (le, a) (rate(x_bucket{b=~"c|d", e!="f"}[5m])) > 3 and on (g) y:z', {"x_bucket", "y:z"}, set("abeg") | {"le"}),
        ("histogram_quantile(0.95, sum(rate(x[10m]))) / clamp_min(avg(y), 1)", {"x", "y"}, set()),
    ],
)  # fmt: skip
def test_names_and_labels_are_found(query, metrics, labels):
    assert metrics_in(query) == metrics
    assert labels_in(query) == labels


@needs_promtool
def test_every_query_has_an_answer(tmp_path):
    """Each is evaluated over two scrapes, and gives numbers."""
    queries = dict.fromkeys(OF_PANELS)
    named = set().union(*map(metrics_in, queries))
    told = [
        {"series": f"{name}{{{labels}}}", "values": f"{'_' if first is None else first} {second}"}
        for (name, labels), (first, second) in series().items()
        if name in named
    ]
    # A number is equal to itself; NaN is not.
    asked = [
        {"expr": f"count(({query}) == ({query})) > bool 0", "eval_time": "1m", "exp_samples": [{"labels": "{}", "value": 1}]}
        for query in queries
    ]  # fmt: skip
    tests = tmp_path / "tests.yml"
    tests.write_text(json.dumps({"tests": [{"interval": "1m", "input_series": told, "promql_expr_test": asked}]}))
    promtool("test", "rules", tests)
