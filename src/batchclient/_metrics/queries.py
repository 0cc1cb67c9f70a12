"""The queries, and the panels that show them. The alert rules and the docs have the same text.

Rules:
- All windows are ``5m`` but where a longer one is written, so that an alert, a panel and the docs
  show the same number. A rate needs two scrapes within its window.
- A query sums before it divides, and adds up buckets before it takes a quantile. A mean of shares
  or of quantiles over several processes would be another number.
- A query of another program's metric asks for a role (``$running``); ``server_names`` has the
  names. A server that lacks a role of a panel or a rule lacks the panel or the rule.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from string import Template
from typing import Literal

from batchclient._metrics.server_names import GPU_METRICS, SERVERS, ForeignMetric

__all__ = [
    "FAILED",
    "MEDIAN_OF_CALLS",
    "OUT_OF_USE",
    "PERMITS_IN_USE",
    "QUEUE_PER_PERMIT",
    "QUEUE_PER_PERMIT_OF_CALLS",
    "TAIL_OF_CALLS",
    "WASTED",
    "Panel",
    "Query",
    "named",
    "panels_of",
]


@dataclass(frozen=True, slots=True)
class Query:
    """A query of a panel.

    Args:
        expression: in PromQL.
        legend: the name of a line, with labels as ``{{label}}``.
    """

    expression: str
    legend: str


@dataclass(frozen=True, slots=True)
class Panel:
    """A panel of the dashboard.

    Args:
        row: the row of panels that it stands in.
        title: what is shown.
        unit: Grafana's name of the unit.
        help: what the number says.
        queries: one or more.
    """

    row: str
    title: str
    unit: Literal["short", "s", "percentunit", "ops"]
    help: str
    queries: tuple[Query, ...]


_CALLS, _QUEUE, _BATCHES, _TOKENS, _SERVERS = "Calls", "Queue and limit", "Batches", "Tokens", "Servers"


def _quantile(level: str, metric: str, labels: str = "", by: str = "") -> str:
    sums = f"sum by (le{by and f', {by}'}) (rate(batchclient_{metric}_bucket{labels}[5m]))"
    return f"histogram_quantile({level}, {sums})"


_SUCCEEDED = '{outcome="succeeded"}'
TAIL_OF_CALLS = _quantile("0.99", "call_duration_seconds", _SUCCEEDED, "kind")
MEDIAN_OF_CALLS = _quantile("0.5", "call_duration_seconds", _SUCCEEDED, "kind")
FAILED = 'sum(rate(batchclient_calls_total{outcome="failed"}[5m])) / sum(rate(batchclient_calls_total[5m]))'
QUEUE_PER_PERMIT = "sum(batchclient_queued) / clamp_min(sum(batchclient_limit), 1)"
# A map keeps a thousand rows in the queue or more, so that its permits are always in use.
_NO_MAP = "unless on (job, instance, client) batchclient_maps > 0"
QUEUE_PER_PERMIT_OF_CALLS = f"sum(batchclient_queued {_NO_MAP}) / clamp_min(sum(batchclient_limit {_NO_MAP}), 1)"
PERMITS_IN_USE = "sum(batchclient_in_flight) / clamp_min(sum(batchclient_limit), 1)"
# Tokens of attempts made again are in no other metric. So the share is at most 1, and a little low.
WASTED = (
    "sum(rate(batchclient_tokens_wasted_total[10m]))"
    " / (sum(rate(batchclient_tokens_total[10m])) + sum(rate(batchclient_tokens_wasted_total[10m])))"
)
OUT_OF_USE = 'sum by (endpoint) (batchclient_endpoint_state{state=~"ejected|probing|awaited"})'

_PANELS: tuple[Panel, ...] = (
    Panel(
        _CALLS, "Calls that end", "ops", "By outcome. Failed calls raised an error to their caller.",
        (Query("sum by (outcome) (rate(batchclient_calls_total[5m]))", "{{outcome}}"),),
    ),
    Panel(
        _CALLS, "Share of calls that fail", "percentunit", "The next panel has the errors.",
        (Query(FAILED, "failed"),),
    ),
    Panel(
        _CALLS, "Calls that fail, by error", "ops", "By the class of the error. Empty while none has failed.",
        (Query("sum by (error) (rate(batchclient_failures_total[5m]))", "{{error}}"),),
    ),
    Panel(
        _CALLS, "Time of a call, 99th percentile", "s", "From its making to its answer, with the time in the queue.",
        (Query(TAIL_OF_CALLS, "{{kind}}"),),
    ),
    Panel(
        _CALLS, "Time of a call, median", "s", "Far below the 99th percentile: a few calls wait for others.",
        (Query(MEDIAN_OF_CALLS, "{{kind}}"),),
    ),
    Panel(
        _QUEUE, "Calls that wait", "short", "For a permit, for a place in the queue, or to be tried again.",
        (
            Query("sum(batchclient_queued)", "queued"),
            Query("sum(batchclient_waiting)", "waiting for a place"),
            Query("sum(batchclient_backing_off)", "backing off"),
        ),
    ),
    Panel(
        _QUEUE, "Queued calls per permit", "short",
        "Above 4 for long: more replicas would help a service. A map's queue is always long.",
        (Query(QUEUE_PER_PERMIT, "queued per permit"),),
    ),
    Panel(
        _QUEUE, "Age of the oldest queued call", "s", "By priority. A low one may wait for long.",
        (Query("max by (priority) (batchclient_oldest_queued_seconds)", "priority {{priority}}"),),
    ),
    Panel(
        _QUEUE, "Time in the queue, 95th percentile", "s", "From a call's making to its first request.",
        (Query(_quantile("0.95", "queue_duration_seconds"), "95 %"),),
    ),
    Panel(
        _QUEUE, "Sequences in flight, and the limit", "short", "Per server. The limit finds itself unless it is given.",
        (
            Query("sum by (endpoint) (batchclient_in_flight)", "in flight {{endpoint}}"),
            Query("sum by (endpoint) (batchclient_limit)", "limit {{endpoint}}"),
        ),
    ),
    Panel(
        _BATCHES, "Prompts per request, mean", "short", "Near 1: calls go alone; the next panel says why.",
        (Query("sum(rate(batchclient_batch_size_sum[5m])) / sum(rate(batchclient_batch_size_count[5m]))", "mean"),),
    ),
    Panel(
        _BATCHES, "Requests of a single call, by reason", "ops", "The reasons are in the reference of the drop-in.",
        (Query("sum by (reason) (rate(batchclient_alone_total[5m]))", "{{reason}}"),),
    ),
    Panel(
        _BATCHES, "Time of a request by its prompts, 95th percentile", "s",
        "Long lists that take much longer than short ones call for a smaller max_size.",
        (Query(_quantile("0.95", "request_duration_seconds", by="size"), "{{size}}"),),
    ),
    Panel(
        _TOKENS, "Tokens per second", "short", "As the servers count them in their answers.",
        (Query("sum by (direction) (rate(batchclient_tokens_total[5m]))", "{{direction}}"),),
    ),
    Panel(
        _TOKENS, "Share of tokens paid for nothing", "percentunit",
        "Of answers that nobody got, and of attempts that were made again.",
        (Query(WASTED, "wasted"),),
    ),
    Panel(
        _TOKENS, "Time to the first token, 95th percentile", "s", "Of streamed answers, without the time in the queue.",
        (Query(_quantile("0.95", "time_to_first_token_seconds"), "95 %"),),
    ),
    Panel(
        _TOKENS, "Time per further token, 95th percentile", "s", "Of streamed answers.",
        (Query(_quantile("0.95", "time_per_output_token_seconds"), "95 %"),),
    ),
    Panel(
        _SERVERS, "Servers out of use", "short", "Ejected, or being probed. 0 is right.",
        (Query(OUT_OF_USE, "{{endpoint}}"),),
    ),
    Panel(
        _SERVERS, "Requests, by outcome", "ops", "Overloaded: 429, 503, 529, or the server is out of memory.",
        (Query("sum by (outcome) (rate(batchclient_requests_total[5m]))", "{{outcome}}"),),
    ),
    Panel(
        _SERVERS, "Requests sent again", "ops", "Retries after a failure, and lists split to find a bad prompt.",
        (
            Query("sum(rate(batchclient_retries_total[5m]))", "retries"),
            Query("sum(rate(batchclient_splits_total[5m]))", "splits"),
        ),
    ),
    Panel(
        _SERVERS, "Changes of limits and list caps", "ops", "Changes down that go on: the servers refuse or slow down.",
        (
            Query("sum by (direction) (rate(batchclient_adjustments_total[5m]))", "{{direction}}"),
        ),
    ),
    Panel(
        _SERVERS, "Calls held back", "s", "By a rate limit, a server's Retry-After or refusals, despite free permits.",
        (Query("max by (endpoint) (batchclient_blocked_seconds)", "{{endpoint}}"),),
    ),
    Panel(
        _SERVERS, "Lag of the event loop", "s", "The program's own code blocks the loop: everything waits for it.",
        (
            Query("max(batchclient_event_loop_lag_seconds)", "lag"),
            Query("max(batchclient_snapshot_age_seconds)", "age of the numbers"),
        ),
    ),
)  # fmt: skip
"""What the client tells."""

_PANELS_OF_JOBS = (
    Panel(
        "Jobs", "Rows of jobs", "short", "Of this run, and those that were done before it. Expected: of the input.",
        (
            Query("sum by (state) (batchclient_job_rows)", "{{state}}"),
            Query("sum(batchclient_job_rows_total_expected)", "expected"),
        ),
    ),
    Panel(
        "Jobs", "Share of the rows that are done", "percentunit", "Of jobs whose input has been counted.",
        (Query(
            "sum(batchclient_job_rows and on (job, instance, client) batchclient_job_rows_total_expected)"
            " / sum(batchclient_job_rows_total_expected)",
            "done",
        ),),
    ),
    Panel(
        "Jobs", "Time of a commit, 95th percentile", "s", "Rows into the journal. A slow or full disk shows here.",
        (Query(_quantile("0.95", "job_commit_duration_seconds"), "95 %"),),
    ),
)  # fmt: skip
_PANELS_OF_A_SERVER = (
    Panel(
        "", "Sequences on a server", "short", "Running on the mean of the servers, and waiting on the worst of them.",
        (Query("avg($running)", "running, mean"), Query("max($waiting)", "waiting, most")),
    ),
    Panel(
        "", "KV cache in use", "percentunit", "On the fullest server. At 1 sequences are put back, and begun again.",
        (Query("max($kv_usage)", "most"),),
    ),
    Panel(
        "", "Preemptions", "ops", "Sequences put back for want of KV cache.",
        (Query("sum(rate($preemptions[5m]))", "preemptions"),),
    ),
    Panel(
        "", "Output tokens per second", "short", "Of all the servers' clients.",
        (Query("sum(rate($output_tokens[5m]))", "output"),),
    ),
    Panel(
        "", "Time to the first token, 95th percentile", "s", "With the time in the server's queue.",
        (Query("histogram_quantile(0.95, sum by (le) (rate(${first_token}_bucket[5m])))", "95 %"),),
    ),
    Panel(
        "", "Time between tokens, 95th percentile", "s", "Grows with the sequences that run.",
        (Query("histogram_quantile(0.95, sum by (le) (rate(${token_gap}_bucket[5m])))", "95 %"),),
    ),
)  # fmt: skip
_PANELS_OF_GPUS = (
    Panel(
        "GPU", "Share of the GPU that works", "percentunit",
        "Multiprocessors and tensor cores tell the load. The third is near 100 % with one request already.",
        (
            Query("avg($sm_active)", "multiprocessors"),
            Query("avg($tensor_active)", "tensor cores"),
            Query("avg($gpu_util) / 100", "any kernel"),
        ),
    ),
    Panel(
        "GPU", "GPU memory in use", "percentunit", "vLLM and SGLang take their share when they start: a level line.",
        (Query("sum($memory_used) / (sum($memory_used) + sum($memory_free))", "in use"),),
    ),
)  # fmt: skip

_SHOWN_NAMES = {"vllm": "vLLM", "sglang": "SGLang", "tgi": "TGI", "llamacpp": "llama.cpp"}


def panels_of(servers: Sequence[str] = (), *, gpu: bool = False, jobs: bool = False) -> Iterator[Panel]:
    """Yield the panels.

    Args:
        servers: the servers whose own metrics are scraped, too, by their names in ``SERVERS``.
        gpu: whether NVIDIA's dcgm-exporter is scraped.
        jobs: whether jobs of the command line are scraped.
    """
    yield from _PANELS
    if jobs:
        yield from _PANELS_OF_JOBS
    for server in servers:
        for panel in _PANELS_OF_A_SERVER:
            texts = [named(query.expression, SERVERS[server]) for query in panel.queries]
            if all(texts):
                yield replace(panel, row=_SHOWN_NAMES[server], queries=_with(panel.queries, texts))
    if gpu:
        for panel in _PANELS_OF_GPUS:
            texts = [named(query.expression, GPU_METRICS) for query in panel.queries]
            yield replace(panel, queries=_with(panel.queries, texts))


def named(expression: str, roles: Mapping[str, ForeignMetric]) -> str:
    """Put names in place of roles; an empty text if a role is missing."""
    template = Template(expression)
    if not set(template.get_identifiers()) <= roles.keys():
        return ""
    return template.substitute({role: metric.name for role, metric in roles.items()})


def _with(queries: Sequence[Query], texts: Sequence[str]) -> tuple[Query, ...]:
    return tuple(replace(query, expression=text) for query, text in zip(queries, texts, strict=True))
