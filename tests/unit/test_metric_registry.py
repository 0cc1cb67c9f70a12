"""The table of metrics: names as Prometheus asks for them, and no more series than one can keep."""

import subprocess
import sys
import weakref
from dataclasses import replace

import pytest

from batchclient import Histogram, LaneStatistics, errors
from tests.core import FixedLimit, Scheduler, SchedulerSettings
from batchclient._metrics.job import JobNumbers, attach, numbers_of
from batchclient._metrics.registry import METRICS, View
from batchclient._metrics.snapshots import Snapshot
from batchclient.testing import MockLLM

ENDPOINTS = [f"http://server-{number}:8000/v1" for number in range(8)]
FULL = {
    "endpoint": ENDPOINTS,
    "kind": ["completion", "chat"],
    "size": ["1", "2-4", "5-8", "9-16", "17-32", "33-64", "65+"],
    "outcome": ["succeeded", "failed", "cancelled"],
}
"""All values of the labels of a client with two kinds of calls."""


def test_a_metric_is_named_as_prometheus_asks():
    for metric in METRICS:
        assert (metric.kind == "counter") == metric.name.endswith("_total")
        if metric.unit == "seconds":
            assert metric.name.endswith("_seconds")
        assert metric.unit and metric.help.endswith(".") and "\n" not in metric.help
        assert "client" not in metric.labels


def keys(labels):
    combined = [()]
    for label in labels:
        combined = [(*key, value) for key in combined for value in FULL[label]]
    return combined


def fullest():
    """The statistics of 8 endpoints on which everything has happened that can."""
    made = Scheduler(SchedulerSettings(), [FixedLimit(4) for _ in ENDPOINTS], ENDPOINTS).statistics()
    labels_of = {metric.name: metric.labels for metric in METRICS if metric.name in made.histograms}
    directions = ("prompt", "completion")
    outcomes = ("answered", "refused", "overloaded", "broken", "timed_out", "cancelled")
    classes = [name for name in errors.__all__ if name[0].isupper()]
    return replace(
        made,
        histograms={
            name: dict.fromkeys(keys(labels), Histogram((1.0,) * bounds, (1,) * (bounds + 1), 1.0))
            for name, labels in labels_of.items()
            for bounds in [18 if name.endswith("_seconds") else 10]
        },
        outcomes={(url, kind, outcome): 1 for url in ENDPOINTS for kind in FULL["kind"] for outcome in outcomes},
        tokens={(url, f"m{n}", direction): 1 for url in ENDPOINTS for n in range(33) for direction in directions},
        errors=dict.fromkeys(classes, 1),
        changes={(url, f"setting {n}", way): 1 for url in ENDPOINTS for n in range(3) for way in ("up", "down")},
        alone={f"reason {number}": 1 for number in range(16)},
    )


def test_eight_endpoints_have_at_most_4000_series():
    statistics = fullest()
    job = JobNumbers(1, 1, 1, 3, Histogram((1.0,) * 18, (1,) * 19, 1.0))
    view = View(Snapshot(statistics, 0.0, "balanced", 0.0, 0.0, job), statistics, frozenset())
    series = 0
    for metric in METRICS:
        for values, number in metric.read(view):
            assert len(values) == len(metric.labels), metric.name
            # Buckets, the sum and the count.
            series += len(number.counts) + 2 if isinstance(number, Histogram) else 1
    assert 3_000 < series <= 4_000


def read(name, statistics, clock_s=None, job=None):
    """The samples of a metric."""
    [metric] = [metric for metric in METRICS if metric.name == name]
    view = View(Snapshot(statistics, clock_s, "balanced", 0.0, 0.0, job), statistics, frozenset())
    return dict(metric.read(view))


def test_retries_splits_and_shared_calls_are_each_their_own_number():
    names = ("retries", "retries_delayed", "splits", "shared", "reused", "waiting", "backing_off")
    numbers = {name: place for place, name in enumerate(names, 1)}
    made = replace(Scheduler(SchedulerSettings(), [FixedLimit(4)]).statistics(), **numbers)
    totals = [*(f"{name}_total" for name in names[:5]), *names[5:]]
    assert [read(name, made) for name in totals] == [{(): place} for place in numbers.values()]


def test_the_oldest_call_is_as_old_as_the_snapshots_clock_says():
    made = Scheduler(SchedulerSettings(), [FixedLimit(4)]).statistics()
    assert read("oldest_queued_seconds", made, 100.0) == {("0",): 0.0}
    classes = {2: LaneStatistics(queued=1, oldest_since=97.5), 0: LaneStatistics(in_flight=3)}
    queued = replace(made, priorities=classes)
    assert read("oldest_queued_seconds", queued, 100.0) == {("2",): 2.5, ("0",): 0.0}
    # Without the client's clock the age is not known, and is not said to be 0.
    assert read("oldest_queued_seconds", queued) == {("0",): 0.0}


def test_the_pages_keep_no_job_alive():
    class Job:
        def numbers(self):
            return JobNumbers(1, 0, 0, None, None)

    client, job = MockLLM().client(), Job()
    attach(client, job.numbers)
    assert numbers_of(client) == job.numbers()
    gone = weakref.ref(job)
    del job
    assert (gone(), numbers_of(client)) == (None, None)


def test_a_client_without_a_job_has_no_rows():
    made = Scheduler(SchedulerSettings(), [FixedLimit(4)]).statistics()
    names = ("job_rows", "job_rows_total_expected", "job_commit_duration_seconds")
    assert [read(name, made) for name in names] == [{}, {}, {}]
    commits = Histogram((1.0,), (2, 1), 5.0)
    whole = JobNumbers(answered=5, failed=2, reused=3, expected=12, commits=commits)
    assert [read(name, made, job=whole) for name in names] == [
        {("answered",): 5, ("failed",): 2, ("reused",): 3},
        {(): 12},
        {(): commits},
    ]
    unknown = JobNumbers(answered=5, failed=2, reused=3, expected=None, commits=None)
    assert [read(name, made, job=unknown) for name in names[1:]] == [{}, {}]


@pytest.mark.parametrize("word", ["prometheus_client", "opentelemetry"])
def test_a_client_without_telemetry_imports_none_of_it(word):
    script = f"""
import asyncio, sys
import batchclient
from batchclient.testing import MockLLM

async def main():
    async with MockLLM().client() as client:
        await client.complete("p", max_tokens=1)
        client.statistics()

asyncio.run(main())
assert not [name for name in sys.modules if name.split(".")[0] == "{word}" or name.startswith("batchclient._metrics")]
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
