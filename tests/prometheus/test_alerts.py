"""The alert rules: promtool takes them, each fires on its symptom, and is silent short of it."""

import json
import re
from pathlib import Path

import pytest

pytest.importorskip(
    "prometheus_client",
    reason="prometheus_client is not installed here: make setup, or make test-extra WHICH=integrations",
)

from batchclient._metrics.dashboards import PROGRAMS, SERVERS, alerts_of, panels_of, rules_of
from tests.prometheus.pages import of_a_client, of_a_server, samples_of
from tests.prometheus.programs import needs_promtool, promtool

ALERTS = list(alerts_of(["client", "jobs", "worker", *SERVERS, "dcgm"]))
PAGE = Path(__file__).parents[2] / "docs/guide/watch.md"
QUEUE = {'queued{priority="0"}': "100x90", 'limit{endpoint="e"}': "16x90"}
WORK = {"tokens_total": "0+1000x90"}


def durations(fast, slow):
    """Calls a minute that take about a second, and about a minute."""
    count = f"0+{fast + slow}x90"
    bounds = {"1.28": f"0+{fast}x90", "40.96": f"0+{fast}x90", "81.92": count, "+Inf": count}
    return {
        f'call_duration_seconds_bucket{{kind="chat",outcome="succeeded",le="{le}"}}': told
        for le, told in bounds.items()
    }


def states(**told):
    return {f'endpoint_state{{endpoint="{name}",state="{state}",job="j",instance="i"}}': f"{number}x90"
            for name, pair in told.items() for state, number in zip(("healthy", "ejected"), pair, strict=True)}  # fmt: skip


FIRES = {
    "BatchclientLatencyP99High": durations(98, 2),
    "BatchclientQueueDeep": QUEUE | {'requests_total{outcome="answered"}': "0+9x90"},
    "BatchclientPermitsIdle": QUEUE | {'in_flight{endpoint="e"}': "2x90"},
    "BatchclientServersOverloaded": {
        'requests_total{outcome="overloaded"}': "0+10x90", 'requests_total{outcome="answered"}': "0+90x90"
    },
    "BatchclientServerOut": states(a=(1, 0), b=(0, 1)),
    # Another client of the same program has its server.
    "BatchclientNoServer": {
        key.replace('job="j"', f'client="{client}",job="j"'): value
        for client, state in (("chats", (0, 1)), ("vectors", (1, 0)))
        for key, value in states(a=state).items()
    },
    "BatchclientCallsFail": {'calls_total{outcome="failed"}': "0+10x90", 'calls_total{outcome="succeeded"}': "0+90x90"},
    "BatchclientTokensWasted": WORK | {'tokens_wasted_total{reason="abandoned"}': "0+200x90"},
    "BatchclientAnswersBad": {
        'answers_total{health="runaway"}': "0+4x90", 'answers_total{health="empty"}': "0+4x90",
        'answers_total{health="ok"}': "0+92x90",
    },
    "BatchclientEventLoopBlocked": {"snapshot_age_seconds": "30x90"},
    "BatchclientJobStands": {'job_rows{state="answered"}': "70x90", "job_rows_total_expected": "100x90"},
    "BatchclientDeadLetters": {'worker_messages_total{outcome="dead"}': "0+0x65 1x25"},
    "BatchclientWorkersStand": {
        'worker_lag{job="w"}': "100x90", 'worker_messages_total{job="w",outcome="results"}': "7x90",
        'worker_messages_total{job="w",outcome="left"}': "0+9x90",
    },
    "BatchclientGpuUnderused": {"DCGM_FI_PROF_SM_ACTIVE": "0.2x90", "in_flight": "3x90"},
}  # fmt: skip
"""By alert: numbers by series, for an hour and a half. The prefix of ours is left out."""
SILENT = {
    # All calls wait as long, as a job's do.
    "BatchclientLatencyP99High": durations(0, 100),
    # A map on servers of 64 slots and 256, as their clients show it.
    "BatchclientQueueDeep": {
        'queued{priority="0",instance="i"}': "1000x90", 'limit{endpoint="e",instance="i"}': "64x90",
        'maps{instance="i"}': "1x90", 'queued{priority="0",instance="j"}': "768x90",
        'limit{endpoint="e",instance="j"}': "256x90", 'maps{instance="j"}': "0x90",
        'requests_total{outcome="answered"}': "0+9x90",
    },
    "BatchclientPermitsIdle": QUEUE | {'in_flight{endpoint="e"}': "15x90"},
    "BatchclientServersOverloaded": {
        'requests_total{outcome="overloaded"}': "0+1x90", 'requests_total{outcome="answered"}': "0+99x90"
    },
    "BatchclientServerOut": states(a=(1, 0), b=(1, 0)),
    "BatchclientNoServer": states(a=(1, 0), b=(0, 1)),
    "BatchclientCallsFail": {'calls_total{outcome="failed"}': "0+1x90", 'calls_total{outcome="succeeded"}': "0+99x90"},
    "BatchclientTokensWasted": WORK | {'tokens_wasted_total{reason="abandoned"}': "0+20x90"},
    # Answers of few tokens end at their bound.
    "BatchclientAnswersBad": {
        'answers_total{health="truncated"}': "0+90x90", 'answers_total{health="empty"}': "0+1x90",
        'answers_total{health="ok"}': "0+9x90",
    },
    "BatchclientEventLoopBlocked": {"snapshot_age_seconds": "1x90"},
    # A job of ten minutes, whose first row is slow.
    "BatchclientJobStands": {
        'job_rows{state="answered"}': "_x80 0x9", "job_rows_total_expected": "_x80 100x9"
    },
    "BatchclientDeadLetters": {'worker_messages_total{outcome="dead"}': "3x90"},
    # One of two workers works, and a third waits for messages of another stream.
    "BatchclientWorkersStand": {
        'worker_lag{instance="a",job="w"}': "100x90", 'worker_lag{instance="b",job="w"}': "100x90",
        'worker_messages_total{instance="a",job="w",outcome="results"}': "0+1x90",
        'worker_messages_total{instance="b",job="w",outcome="results"}': "7x90",
        'worker_lag{job="v"}': "0x90", 'worker_messages_total{job="v",outcome="results"}': "7x90",
    },
    "BatchclientGpuUnderused": {"DCGM_FI_PROF_SM_ACTIVE": "0.2x90", "in_flight": "0x90"},
}  # fmt: skip
"""By alert: numbers that come near."""
for server in SERVERS:
    roles = PROGRAMS[server]
    running, waiting = roles["running"].name, roles["waiting"].name
    FIRES[f"Batchclient{server.capitalize()}QueueDeep"] = {running: "8x90", waiting: "100x90"}
    SILENT[f"Batchclient{server.capitalize()}QueueDeep"] = {running: "8x90", waiting: "24x90"}
    if "kv_usage" in roles:
        usage, preemptions = roles["kv_usage"].name, roles["preemptions"].name
        FIRES[f"Batchclient{server.capitalize()}KvCacheFull"] = {usage: "0.99x90", preemptions: "0+3x90"}
        SILENT[f"Batchclient{server.capitalize()}KvCacheFull"] = {usage: "0.99x90", preemptions: "7x90"}


def name_of(series):
    return series if re.match(r"DCGM|tgi_|\w+:", series) else f"batchclient_{series}"


def scenario(series, *firing, silent=None):
    """A test of promtool: after an hour these alerts fire, or that one does not."""
    names = {*firing} if silent is None else {silent}
    return {
        "interval": "1m",
        "input_series": [{"series": name_of(name), "values": values} for name, values in series.items()],
        "promql_expr_test": [
            {
                "expr": f'count(ALERTS{{alertstate="firing",alertname="{name}"}}) > bool 0',
                "eval_time": "80m",
                "exp_samples": [{"labels": "{}", "value": 1}] if firing else [],
            }
            for name in names
        ],
    }


def test_each_alert_has_a_symptom_and_a_near_miss():
    assert FIRES.keys() == SILENT.keys() == {alert.name for alert in ALERTS}
    assert len({alert.name for alert in ALERTS}) == len(ALERTS)


def test_a_rule_says_what_to_do():
    for alert in ALERTS:
        assert alert.summary.endswith(".") and alert.description.endswith(".")


@needs_promtool
def test_promtool_takes_the_configuration_of_the_docs(tmp_path):
    text = PAGE.read_text()
    told = [re.search(r"```yaml\n(.*?)```", text, re.DOTALL)[1], re.search(r"`(rule_files: .*?)`", text)[1]]
    (tmp_path / "prometheus.yml").write_text("\n".join(told) + "\n")
    (tmp_path / "batchclient.rules.yml").write_text(rules_of(ALERTS))
    assert f"{len(ALERTS)} rules found" in promtool("check", "config", tmp_path / "prometheus.yml")


@needs_promtool
def test_promtool_takes_the_rules(tmp_path):
    rules = tmp_path / "rules.yml"
    rules.write_text(rules_of(ALERTS))
    promtool("check", "rules", "--lint-fatal", rules)


@needs_promtool
def test_each_alert_fires_on_its_symptom_and_not_short_of_it(tmp_path):
    (tmp_path / "rules.yml").write_text(rules_of(ALERTS))
    tests = [scenario(series, name) for name, series in FIRES.items()]
    tests += [scenario(series, silent=name) for name, series in SILENT.items()]
    file = tmp_path / "tests.yml"
    file.write_text(json.dumps({"rule_files": ["rules.yml"], "evaluation_interval": "5m", "tests": tests}))
    promtool("test", "rules", file)


@needs_promtool
def test_jobs_without_a_total_are_in_no_share_of_rows(tmp_path):
    [panel] = [panel for panel in panels_of(["jobs"]) if panel.title == "Share of the rows that are done"]
    series = {
        'job_rows{instance="a",state="answered"}': "60x9", 'job_rows{instance="a",state="reused"}': "40x9",
        'job_rows_total_expected{instance="a"}': "1000x9", 'job_rows{instance="b",state="answered"}': "5000x9",
    }  # fmt: skip
    asked = {"expr": panel.queries["done"], "eval_time": "5m", "exp_samples": [{"labels": "{}", "value": 0.1}]}
    told = [{"series": name_of(name), "values": values} for name, values in series.items()]
    file = tmp_path / "tests.yml"
    file.write_text(json.dumps({"tests": [{"interval": "1m", "input_series": told, "promql_expr_test": [asked]}]}))
    promtool("test", "rules", file)


@needs_promtool
def test_no_alert_fires_for_a_client_and_a_vllm_that_work(tmp_path):
    """The pages go on growing as they did between two scrapes, and nothing waits."""
    (tmp_path / "rules.yml").write_text(rules_of(ALERTS))
    told = {}
    for pages in (of_a_client(), of_a_server("vllm")):
        first, second = map(samples_of, pages)
        for (name, labels), number in second.items():
            grown = number - first.get((name, labels), 0)
            step = grown if name.endswith(("_total", "_bucket", "_count", "_sum")) else 0
            told[f"{name}{{{labels}}}"] = f"{number}+{step}x90"
    # The client's traffic has a call that fails in 100, and one that is given up.
    silent = [scenario({}, silent=alert.name)["promql_expr_test"][0] for alert in ALERTS]
    series = [{"series": name, "values": values} for name, values in told.items()]
    file = tmp_path / "tests.yml"
    tests = [{"interval": "1m", "input_series": series, "promql_expr_test": silent}]
    file.write_text(json.dumps({"rule_files": ["rules.yml"], "evaluation_interval": "5m", "tests": tests}))
    promtool("test", "rules", file)
