"""The alert rules: the queries of ``queries`` beyond a bound for some time, and what to do then.

Rules:
- Each name begins with ``Batchclient``, and says the symptom.
- A rule says in its description what to do. Its bound is for the user to change.
- A rule that a healthy service or a job breaks is no rule: tests hold both.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from batchclient._metrics.queries import (
    FAILED,
    MEDIAN_OF_CALLS,
    OUT_OF_USE,
    PERMITS_IN_USE,
    QUEUE_PER_PERMIT_OF_CALLS,
    TAIL_OF_CALLS,
    WASTED,
    named,
)
from batchclient._metrics.server_names import GPU_METRICS, SERVERS

__all__ = ["Alert", "alerts_of"]


@dataclass(frozen=True, slots=True)
class Alert:
    """An alert rule.

    Args:
        name: in capitals, as Prometheus' users write them.
        expression: in PromQL.
        lasts: how long the expression holds before the alert fires.
        severity: the label of that name.
        summary: one sentence.
        description: what to do.
    """

    name: str
    expression: str
    lasts: str
    severity: Literal["critical", "warning", "info"]
    summary: str
    description: str


_OVERLOADED = (
    'sum(rate(batchclient_requests_total{outcome="overloaded"}[5m])) / sum(rate(batchclient_requests_total[5m]))'
)

_ALERTS: tuple[Alert, ...] = (
    Alert(
        "BatchclientLatencyP99High",
        f"{TAIL_OF_CALLS} > 30 and {TAIL_OF_CALLS} > 5 * {MEDIAN_OF_CALLS}",
        "10m", "warning",
        "A few calls of the kind {{ $labels.kind }} take {{ $value | humanizeDuration }}, five times the median.",
        "Look at the time by batch size: are long lists slow, lower batching max_size. Give urgent calls a priority,"
        " and calls a timeout_s. Is the time in the queue, more replicas help.",
    ),
    Alert(
        "BatchclientQueueDeep",
        f"{QUEUE_PER_PERMIT_OF_CALLS} > 4 and sum(rate(batchclient_requests_total[5m])) > 0",
        "10m", "warning",
        "{{ $value | humanize }} calls wait per permit while the servers work: more replicas would help.",
        "Add a server, or raise a limit that was given as a number. The queues of clients with a map under way are not"
        " counted: they are always long.",
    ),
    Alert(
        "BatchclientPermitsIdle",
        f"{PERMITS_IN_USE} < 0.5 and sum(batchclient_queued) > 0",
        "10m", "warning",
        "Calls wait although {{ $value | humanizePercentage }} of the permits are in use.",
        "Look at the calls held back: a rate limit or a server's Retry-After holds them. Or a server is out of use.",
    ),
    Alert(
        "BatchclientServersOverloaded",
        f"{_OVERLOADED} > 0.05",
        "10m", "warning",
        "{{ $value | humanizePercentage }} of the requests are refused: 429, 503, 529, or out of memory.",
        "Out of memory stands in the server's log: give the server less (vLLM: --max-num-seqs, --max-model-len)."
        " Otherwise other clients fill the server, or a limit was given too high: let it find itself.",
    ),
    Alert(
        "BatchclientServerOut",
        f"{OUT_OF_USE} > 0",
        "2m", "warning",
        "The server {{ $labels.endpoint }} is out of use for {{ $value }} client(s).",
        "The client's log says since when and why. A server that ran out of memory dies: look at its own log.",
    ),
    Alert(
        "BatchclientNoServer",
        'sum by (job, instance, client) (batchclient_endpoint_state{state=~"healthy|recovering"}) == 0'
        " and sum by (job, instance, client) (batchclient_endpoint_state) > 0",
        "1m", "critical",
        "The client {{ $labels.client }} at {{ $labels.instance }} has no server in use; its calls wait or fail.",
        "Start a server. Calls wait for one as long as outage_patience_s and their timeout_s say.",
    ),
    Alert(
        "BatchclientCallsFail",
        f"{FAILED} > 0.05",
        "10m", "warning",
        "{{ $value | humanizePercentage }} of the calls fail.",
        "The panel of calls that fail has the errors by class; the reference of errors says whose fault each is.",
    ),
    Alert(
        "BatchclientTokensWasted",
        f"{WASTED} > 0.1",
        "30m", "warning",
        "{{ $value | humanizePercentage }} of the tokens are paid for nothing.",
        "Attempts fail half-way and are made again: look at the servers. Or callers give up before their"
        " answer: raise timeout_s, ask for fewer tokens, or lower the load. Or a map's answers do not fit their"
        " response_model.",
    ),
    Alert(
        "BatchclientEventLoopBlocked",
        "max by (job, instance) (batchclient_snapshot_age_seconds) > 5",
        "1m", "warning",
        "The event loop at {{ $labels.instance }} stands still for {{ $value | humanizeDuration }}.",
        "The program's own code blocks its event loop. Move that code into a thread, or use SyncBatchClient.",
    ),
)  # fmt: skip
"""What the client tells."""

_ALERTS_OF_JOBS = (
    Alert(
        "BatchclientJobStands",
        "sum by (job, instance) (delta(batchclient_job_rows[15m])) == 0"
        " and sum by (job, instance) (batchclient_job_rows)"
        " < sum by (job, instance) (batchclient_job_rows_total_expected)"
        # The job is as old as that.
        " and sum by (job, instance) (batchclient_job_rows offset 15m) >= 0",
        "5m", "warning",
        "The job at {{ $labels.instance }} has written no row for a quarter of an hour.",
        "Its standard error says what it waits for: a server, or room on the disk.",
    ),
)  # fmt: skip
_ALERTS_OF_A_SERVER = (
    Alert(
        "QueueDeep",
        "sum($waiting) > 4 * clamp_min(sum($running), 1)",
        "10m", "warning",
        "Four times as many sequences wait within the servers as run.",
        "There they know no priority. Lower limit to what the servers run at once (vLLM: --max-num-seqs). Or other"
        " clients fill the servers: more replicas help.",
    ),
    Alert(
        "KvCacheFull",
        "max($kv_usage) > 0.9 and sum(rate($preemptions[5m])) > 0",
        "5m", "warning",
        "The KV cache is full, and sequences are put back: their work is done twice.",
        "Lower the client's limit or the server's number of sequences (vLLM: --max-num-seqs), ask for fewer tokens,"
        " or give the cache more memory (vLLM: --gpu-memory-utilization, while nothing else uses the GPU).",
    ),
)  # fmt: skip
_ALERTS_OF_GPUS = (
    Alert(
        "BatchclientGpuUnderused",
        "avg($sm_active) < 0.5 and sum(batchclient_in_flight) > 0",
        "15m", "warning",
        "The GPU's multiprocessors work {{ $value | humanizePercentage }} of the time while calls are in flight.",
        "Are prompts per request few, keep more calls under way at once. Is the limit low though"
        " it finds itself, the server is slow elsewhere: its CPU, its tokeniser, short answers.",
    ),
)  # fmt: skip
_NAMES = {"vllm": "Vllm", "sglang": "Sglang", "tgi": "Tgi", "llamacpp": "Llamacpp"}


def alerts_of(servers: Sequence[str] = (), *, gpu: bool = False, jobs: bool = False) -> Iterator[Alert]:
    """Yield the alert rules.

    Args:
        servers: the servers whose own metrics are scraped, too, by their names in ``SERVERS``.
        gpu: whether NVIDIA's dcgm-exporter is scraped.
        jobs: whether jobs of the command line are scraped.
    """
    yield from _ALERTS
    if jobs:
        yield from _ALERTS_OF_JOBS
    for server in servers:
        for alert in _ALERTS_OF_A_SERVER:
            expression = named(alert.expression, SERVERS[server])
            if expression:
                yield replace(alert, name=f"Batchclient{_NAMES[server]}{alert.name}", expression=expression)
    if gpu:
        for alert in _ALERTS_OF_GPUS:
            yield replace(alert, expression=named(alert.expression, GPU_METRICS))
