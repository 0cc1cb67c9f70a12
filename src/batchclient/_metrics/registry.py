"""The metrics: names, help, units and labels, and where each number comes from.

Exporters, the page in the docs, dashboards and alert rules are made of this table.

Rules:
- A name is API. A renamed metric keeps the old name beside the new for a minor version.
- A counter's numbers never decrease while a client has one event loop.
- Labels are few: endpoints, kinds, the first 32 models, and words of the client's own.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from batchclient import EndpointStatistics, Histogram, Statistics
from batchclient._core.histograms import LABELS_OF_HISTOGRAMS
from batchclient._metrics.job import JobNumbers
from batchclient._metrics.snapshots import Snapshot
from batchclient._metrics.worker import WorkerNumbers

__all__ = ["METRICS", "PREFIX", "STATES", "Metric", "Sample", "View"]

PREFIX = "batchclient_"
STATES = ("healthy", "ejected", "probing", "recovering", "awaited", "leaving")
Sample = tuple[tuple[str, ...], float | Histogram]
"""The values of the labels, and the number."""


@dataclass(frozen=True, slots=True)
class View:
    """What a metric is read from.

    Args:
        snapshot: of the client.
        statistics: the snapshot's.
        tenants: the tenants which may be a label.
    """

    snapshot: Snapshot
    statistics: Statistics
    tenants: frozenset[str]


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric.

    Args:
        name: without the prefix.
        kind: as Prometheus has it.
        unit: what is counted, in the plural.
        labels: the names of its labels; ``client`` is added where a client has a name.
        help: one sentence.
        read: returns its samples.
    """

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    unit: str
    labels: tuple[str, ...]
    help: str
    read: Callable[[View], Iterable[Sample]]

    @property
    def full_name(self) -> str:
        """The name as it is exported."""
        return PREFIX + self.name


def _number(read: Callable[[Statistics], float]) -> Callable[[View], Iterable[Sample]]:
    return lambda view: [((), read(view.statistics))]


def _by_key(read: Callable[[Statistics], Mapping[tuple[str, ...], float]]) -> Callable[[View], Iterable[Sample]]:
    return lambda view: read(view.statistics).items()


def _by_word(read: Callable[[Statistics], Mapping[Any, float]]) -> Callable[[View], Iterable[Sample]]:
    return lambda view: [((word,), number) for word, number in read(view.statistics).items()]


def _of_endpoints(read: Callable[[EndpointStatistics], float]) -> Callable[[View], Iterable[Sample]]:
    def samples(view: View) -> Iterable[Sample]:
        # A server that was removed and added again is there twice until the first has left.
        sums: dict[str, float] = {}
        for endpoint in view.statistics.endpoints:
            sums[endpoint.base_url] = sums.get(endpoint.base_url, 0) + read(endpoint)
        return [((url,), number) for url, number in sums.items()]

    return samples


def _histogram(name: str) -> Callable[[View], Iterable[Sample]]:
    return lambda view: view.statistics.histograms[name].items()


def _states(view: View) -> Iterable[Sample]:
    # Of a server that was removed and added again, the later entry tells.
    states = {endpoint.base_url: endpoint.state for endpoint in view.statistics.endpoints}
    return [((url, state), float(state == its)) for url, its in states.items() for state in STATES]


def _blocked(view: View) -> Iterable[Sample]:
    now = view.snapshot.clock_s
    left: dict[str, float] = {}
    for endpoint in view.statistics.endpoints:
        until = endpoint.blocked_until
        blocked_s = 0.0 if until is None or now is None else max(0.0, until - now)
        left[endpoint.base_url] = max(left.get(endpoint.base_url, 0.0), blocked_s)
    return [((url,), seconds) for url, seconds in left.items()]


def _queued(view: View) -> Iterable[Sample]:
    classes = {priority: lane.queued for priority, lane in view.statistics.priorities.items()} or {0: 0}
    return [((str(priority),), queued) for priority, queued in classes.items()]


def _oldest_queued(view: View) -> Iterable[Sample]:
    now, classes = view.snapshot.clock_s, view.statistics.priorities
    if not classes:
        yield ("0",), 0.0
    for priority, lane in classes.items():
        if lane.oldest_since is None:
            yield (str(priority),), 0.0
        elif now is not None:
            yield (str(priority),), max(0.0, now - lane.oldest_since)


def _calls(view: View) -> Iterable[Sample]:
    now = view.statistics
    return [(("succeeded",), now.succeeded), (("failed",), now.failed), (("cancelled",), now.cancelled)]


def _tenants(view: View) -> dict[str, tuple[int, int, int, int]]:
    known = view.statistics.tenants
    numbers = {}
    for tenant in sorted(view.tenants):
        lane = known.get(tenant)
        numbers[tenant] = (
            (0, 0, 0, 0) if lane is None else (lane.queued, lane.in_flight, lane.prompt_tokens, lane.completion_tokens)
        )
    return numbers


def _tenant_tokens(view: View) -> Iterable[Sample]:
    for tenant, (_, _, prompt, completion) in _tenants(view).items():
        yield (tenant, "prompt"), prompt
        yield (tenant, "completion"), completion


def _of_job(read: Callable[[JobNumbers], Iterable[Sample]]) -> Callable[[View], Iterable[Sample]]:
    return lambda view: [] if view.snapshot.job is None else read(view.snapshot.job)


def _of_worker(read: Callable[[WorkerNumbers], Iterable[Sample]]) -> Callable[[View], Iterable[Sample]]:
    return lambda view: [] if view.snapshot.worker is None else read(view.snapshot.worker)


def _if_known(number: float | Histogram | None) -> Iterable[Sample]:
    return [] if number is None else [((), number)]


def _info(view: View) -> Iterable[Sample]:
    from batchclient._version import __version__

    servers = sorted({endpoint.server for endpoint in view.statistics.endpoints if endpoint.server is not None})
    return [((__version__, platform.python_version(), view.snapshot.preset, ", ".join(servers)), 1)]


def _observed(name: str, unit: str, help_: str) -> Metric:
    return Metric(name, "histogram", unit, LABELS_OF_HISTOGRAMS[name], help_, _histogram(name))


METRICS: tuple[Metric, ...] = (
    Metric("calls_total", "counter", "calls", ("outcome",), "Calls that ended.", _calls),
    Metric(
        "failures_total", "counter", "calls", ("error",),
        "Calls that ended with an error.", _by_word(lambda now: now.errors),
    ),
    Metric(
        "requests_total", "counter", "requests", ("endpoint", "kind", "outcome"),
        "Requests that reached a server and ended.", _by_key(lambda now: now.outcomes),
    ),
    Metric(
        "retries_total", "counter", "requests", (),
        "Requests sent again after a failure, without those of a split.", _number(lambda now: now.retries),
    ),
    Metric(
        "retries_delayed_total", "counter", "requests", (),
        "Retries that waited for the retry budget.", _number(lambda now: now.retries_delayed),
    ),
    Metric(
        "splits_total", "counter", "requests", (),
        "Lists split to find a bad prompt.", _number(lambda now: now.splits),
    ),
    Metric(
        "shared_total", "counter", "calls", (),
        "Calls that joined an equal call under way.", _number(lambda now: now.shared),
    ),
    Metric(
        "reused_total", "counter", "rows", (),
        "Rows of maps that were taken from a journal.", _number(lambda now: now.reused),
    ),
    Metric(
        "answers_total", "counter", "answers", ("health",),
        "Generated answers.", _by_word(lambda now: now.health),
    ),
    Metric(
        "alone_total", "counter", "requests", ("reason",),
        "Requests that ended and held one call.", _by_word(lambda now: now.alone),
    ),
    Metric(
        "tokens_total", "counter", "tokens", ("endpoint", "model", "direction"),
        "Tokens as the servers counted them.", _by_key(lambda now: now.tokens),
    ),
    Metric(
        "cost_total", "counter", "units of the prices' currency", ("endpoint",),
        "Cost of the answers of servers with a price.", _by_key(lambda now: now.costs),
    ),
    Metric(
        "overflows_total", "counter", "calls", ("endpoint", "reason"),
        "Calls sent to a server though another is cheaper.", _by_key(lambda now: now.overflows),
    ),
    Metric(
        "tokens_wasted_total", "counter", "tokens", ("reason",),
        "Tokens of answers that nobody got, and of attempts made again.",
        lambda view: [(("abandoned",), view.statistics.wasted_tokens), (("retry",), view.statistics.lost_tokens)],
    ),
    Metric(
        "adjustments_total", "counter", "changes", ("endpoint", "setting", "direction"),
        "Changes of limits and of list caps.", _by_key(lambda now: now.changes),
    ),
    Metric("queued", "gauge", "calls", ("priority",), "Calls that wait for a permit.", _queued),
    Metric(
        "oldest_queued_seconds", "gauge", "seconds", ("priority",),
        "Age of the oldest call that waits for a permit; 0 where none waits.", _oldest_queued,
    ),
    Metric(
        "waiting", "gauge", "calls", (),
        "Calls that wait for a place in the queue.", _number(lambda now: now.waiting),
    ),
    Metric(
        "backing_off", "gauge", "calls", (), "Calls that wait to be tried again.", _number(lambda now: now.backing_off)
    ),
    Metric("maps", "gauge", "maps", (), "Maps under way.", lambda view: [((), view.snapshot.maps)]),
    Metric(
        "in_flight", "gauge", "sequences", ("endpoint",),
        "Sequences on which the server works.", _of_endpoints(lambda endpoint: endpoint.in_flight),
    ),
    Metric(
        "abandoned", "gauge", "sequences", ("endpoint",),
        "Sequences in flight for which nobody waits any more.", _of_endpoints(lambda endpoint: endpoint.abandoned),
    ),
    Metric(
        "limit", "gauge", "sequences", ("endpoint",),
        "Sequences that may be in flight.", _of_endpoints(lambda endpoint: endpoint.limit),
    ),
    Metric(
        "batch_size_cap", "gauge", "prompts", ("endpoint",),
        "The most completions that are sent in one request.", _of_endpoints(lambda endpoint: endpoint.batch_size_cap),
    ),
    Metric(
        "retry_budget_tokens", "gauge", "tokens", ("endpoint",),
        "Tokens that may be sent again now; below 0 retries wait.",
        _of_endpoints(lambda endpoint: endpoint.retry_budget_tokens),
    ),
    Metric(
        "blocked_seconds", "gauge", "seconds", ("endpoint",),
        "How long calls are still held back despite free permits, at most.", _blocked,
    ),
    Metric(
        "endpoint_state", "gauge", "states", ("endpoint", "state"),
        "1 for the state that the server is in, 0 for the others.", _states,
    ),
    _observed("batch_size", "prompts", "Prompts of a request."),
    _observed("request_duration_seconds", "seconds", "Time of a request."),
    _observed("call_duration_seconds", "seconds", "Time of a call from its making to its end."),
    _observed("queue_duration_seconds", "seconds", "Time of a call from its making to its first request."),
    _observed("time_to_first_token_seconds", "seconds", "Time of a streamed answer to its first token."),
    _observed("time_per_output_token_seconds", "seconds", "Time of a streamed answer per token after the first."),
    _observed("prompt_tokens", "tokens", "Prompt tokens of an answered call."),
    _observed("completion_tokens", "tokens", "Output tokens of an answered call."),
    Metric(
        "tenant_queued", "gauge", "calls", ("tenant",), "Calls that wait for a permit, of the named tenants.",
        lambda view: [((tenant,), numbers[0]) for tenant, numbers in _tenants(view).items()],
    ),
    Metric(
        "tenant_in_flight", "gauge", "sequences", ("tenant",), "Sequences in flight, of the named tenants.",
        lambda view: [((tenant,), numbers[1]) for tenant, numbers in _tenants(view).items()],
    ),
    Metric(
        "tenant_tokens_total", "counter", "tokens", ("tenant", "direction"), "Tokens of the named tenants.",
        _tenant_tokens,
    ),
    Metric(
        "job_rows", "gauge", "rows", ("state",),
        "Rows that a job has handed to its output.",
        _of_job(lambda job: [((state,), getattr(job, state)) for state in ("answered", "failed", "reused")]),
    ),
    Metric(
        "job_rows_total_expected", "gauge", "rows", (),
        "Rows of a job's input, once they are counted.", _of_job(lambda job: _if_known(job.expected)),
    ),
    Metric(
        "job_commit_duration_seconds", "histogram", "seconds", (),
        "Time of a commit of rows to a job's journal.", _of_job(lambda job: _if_known(job.commits)),
    ),
    Metric(
        "worker_messages_total", "counter", "messages", ("outcome",),
        "Messages that a worker is done with.",
        _of_worker(lambda worker: [((outcome,), count) for outcome, count in worker.messages.items()]),
    ),
    Metric(
        "worker_message_duration_seconds", "histogram", "seconds", ("outcome",),
        "Time from the delivery of a message to its stored result or dead letter.",
        _of_worker(lambda worker: [((outcome,), histogram) for outcome, histogram in worker.durations.items()]),
    ),
    Metric(
        "worker_pending", "gauge", "messages", (), "Messages that workers of the group have.",
        _of_worker(lambda worker: _if_known(worker.pending)),
    ),
    Metric(
        "worker_lag", "gauge", "messages", (), "Messages that no worker of the group has had.",
        _of_worker(lambda worker: _if_known(worker.lag)),
    ),
    Metric(
        "worker_lease_renewals_total", "counter", "leases", (), "Leases that a worker has renewed.",
        _of_worker(lambda worker: _if_known(worker.renewals)),
    ),
    Metric(
        "event_loop_lag_seconds", "gauge", "seconds", (), "How long the event loop left the last scrape waiting.",
        lambda view: [((), view.snapshot.lag_s)],
    ),
    Metric(
        "snapshot_age_seconds", "gauge", "seconds", (), "How old the numbers of this page are.",
        lambda view: [((), view.snapshot.age_s)],
    ),
    Metric(
        "info", "gauge", "clients", ("version", "python", "preset", "server"),
        "1, with the versions of the client and of its servers.", _info,
    ),
)  # fmt: skip
