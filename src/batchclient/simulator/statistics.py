"""The embedded server's counts, and the page ``/metrics`` with vLLM's names for them.

Rules:
- Counters only grow. Gauges are read from the engine on request.
- ``requests`` are completion requests that passed validation; ``prompts`` are their prompts.
"""

from __future__ import annotations

from collections import Counter, deque

from batchclient.simulator.engine import Engine

__all__ = ["Counters", "metrics_text"]

_LOG_ENTRIES = 10_000


class Counters:
    """The counts so far.

    Attributes:
        log: the last 10,000 completion requests: (time in seconds, prompts, whether streamed).
    """

    def __init__(self) -> None:
        self.requests: int = 0
        self.prompts: int = 0
        self.streamed_requests: int = 0
        self.disconnects = 0
        self.aborted_sequences = 0
        self.rejections = 0
        self.list_sizes: Counter[int] = Counter()
        self.statuses: Counter[int] = Counter()
        self.finish_reasons: Counter[str] = Counter()
        self.log: deque[tuple[float, int, bool]] = deque(maxlen=_LOG_ENTRIES)

    def __repr__(self) -> str:
        return f"<Counters requests={self.requests} prompts={self.prompts}>"

    def note(self, now: float, prompts: int, *, is_stream: bool) -> None:
        """Count a completion request that has passed validation."""
        self.requests += 1
        self.prompts += prompts
        self.streamed_requests += is_stream
        self.list_sizes[prompts] += 1
        self.log.append((now, prompts, is_stream))

    def note_status(self, status: int) -> None:
        """Count the status of a reply that came from no engine."""
        self.statuses[status] += 1

    def snapshot(self) -> dict[str, object]:
        """Return all counts, for JSON."""
        return {
            "requests": self.requests,
            "prompts": self.prompts,
            "streamed_requests": self.streamed_requests,
            "disconnects": self.disconnects,
            "aborted_sequences": self.aborted_sequences,
            "rejections": self.rejections,
            "list_sizes": {str(size): count for size, count in sorted(self.list_sizes.items())},
            "statuses": {str(status): count for status, count in sorted(self.statuses.items())},
            "finish_reasons": dict(self.finish_reasons),
            "log": list(self.log),
        }


def metrics_text(engine: Engine, counters: Counters, model: str) -> str:
    """Return the Prometheus exposition."""
    labels = f'engine="0",model_name="{model}"'
    lines: list[str] = []

    def family(name: str, kind: str, samples: list[tuple[str, str, float]]) -> None:
        lines.append(f"# HELP vllm:{name} See vLLM.")
        lines.append(f"# TYPE vllm:{name} {kind}")
        lines.extend(f"vllm:{name}{suffix}{{{labelled}}} {float(value)}" for suffix, labelled, value in samples)

    def gauge(name: str, value: float) -> None:
        family(name, "gauge", [("", labels, value)])

    def counter(name: str, value: float) -> None:
        family(name, "counter", [("_total", labels, value)])

    gauge("num_requests_running", engine.running)
    gauge("num_requests_waiting", engine.waiting)
    gauge("kv_cache_usage_perc", engine.kv_usage_ratio)
    # A prefix cache that finds nothing: there is none yet.
    counter("prefix_cache_queries", engine.prompt_tokens)
    counter("prefix_cache_hits", 0)
    counter("num_preemptions", engine.preemptions)
    counter("prompt_tokens", engine.prompt_tokens)
    counter("generation_tokens", engine.generation_tokens)
    reasons = ("stop", "length", "abort", "error")
    successes = [
        ("_total", f'finished_reason="{each}",{labels}', float(counters.finish_reasons[each])) for each in reasons
    ]
    family("request_success", "counter", successes)
    refused = [("_total", f'reason="max_num_queued_reqs",model_name="{model}"', float(counters.rejections))]
    family("admission_rejections", "counter", refused)
    blocks = engine.profile.kv_tokens // 16
    cache = f'block_size="16",engine="0",kv_cache_size_tokens="{16 * blocks}",num_gpu_blocks="{blocks}"'
    family("cache_config_info", "gauge", [("", cache, 1.0)])
    return "\n".join(lines) + "\n"
