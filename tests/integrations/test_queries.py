"""The queries of the docs: each names what is exported, and has an answer in a real promtool."""

import json
import re
import subprocess
from pathlib import Path

import pytest

pytest.importorskip(
    "prometheus_client", reason="prometheus_client is not installed here: make setup, or make test-integrations"
)

from prometheus_client.parser import text_string_to_metric_families as parse

from batchclient.testing import MockLLM
from tests.integrations.test_prometheus import LONGEST_S, PROMTOOL, a_page, samples


@pytest.fixture
def mock():
    return MockLLM()


def queries():
    text = (Path(__file__).parents[2] / "docs/how-to/watch.md").read_text()
    return [block.strip() for block in re.findall(r"```promql\n(.*?)```", text, re.DOTALL)]


@pytest.mark.parametrize("query", queries())
def test_a_query_of_the_docs_names_what_is_exported(mock, query):
    exported = {name for name, _ in samples(a_page(mock))}
    named = set(re.findall(r"batchclient_\w+", query))
    assert named and named <= exported


@pytest.mark.skipif(
    PROMTOOL is None, reason="promtool is not here: it comes with Prometheus; or BATCHCLIENT_PROMTOOL=…"
)
def test_the_queries_of_the_docs_have_answers(mock, tmp_path):
    """Each is evaluated over a page that grows as a client's does, and gives a number."""
    text, rules = a_page(mock), tmp_path / "rules.yml"
    rules.write_text(json.dumps({"groups": [{"name": "docs", "rules": [
        {"record": f"query{number}", "expr": query} for number, query in enumerate(queries())
    ]}]}))  # fmt: skip
    series = []
    for family in parse(text):
        for sample in family.samples:
            labels = ",".join(f'{name}="{value}"' for name, value in sample.labels.items())
            # Queued calls stay; counts go on growing by what they are.
            step = sample.value if family.type != "gauge" else 0
            value = 1e6 if sample.name == "batchclient_queued" else sample.value
            value = 1 if sample.labels.get("state") == "ejected" else value
            series.append({"series": f"{sample.name}{{{labels}}}", "values": f"{value}+{step}x30"})
    asked = [{"expr": f"count(query{number})", "eval_time": "20m"} for number in range(len(queries()))]
    told = {"rule_files": [str(rules)], "evaluation_interval": "1m", "tests": [
        {"interval": "1m", "input_series": series, "promql_expr_test": [
            # Two directions of tokens; sizes as there are; else one.
            {**one, "expr": f"({one['expr']}) > bool 0", "exp_samples": [{"labels": "{}", "value": 1}]} for one in asked
        ]}
    ]}  # fmt: skip
    tests = tmp_path / "tests.yml"
    tests.write_text(json.dumps(told))
    done = subprocess.run([PROMTOOL, "test", "rules", str(tests)], capture_output=True, text=True, timeout=LONGEST_S)
    assert done.returncode == 0, done.stdout + done.stderr
