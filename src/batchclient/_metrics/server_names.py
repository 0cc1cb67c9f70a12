"""The metrics of servers and of GPUs that queries name: each with its source, and where it is read.

Rules:
- A query never spells the name of another program's metric. It asks for a role, such as
  ``running``, and each server has a name for the role, or lacks the role.
- A name is here only if a page of the server has it: one that was recorded from the real server, or
  one that the simulator writes as the server's source has it. A test compares both.
- Counters and histograms have their exported names; a histogram's lacks ``_bucket``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

__all__ = ["GPU_METRICS", "SERVERS", "ForeignMetric"]


@dataclass(frozen=True, slots=True)
class ForeignMetric:
    """A metric of another program.

    Args:
        name: as it is exported.
        kind: as Prometheus has it.
        help: one sentence.
        source: the file that defines the metric, and the version that was read.
    """

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    source: str


_VLLM = "vllm/v1/metrics/loggers.py, vLLM 0.32.0; its page was recorded"
_SGLANG = "sglang/srt/observability/metrics_collector.py, SGLang 0.5.23"
_TGI = "docs/source/reference/metrics.md, TGI 3.3.6"
_LLAMACPP = "tools/server/server-task.cpp, llama.cpp of llama_cpp_python 0.3.36; its page was recorded"
_DCGM = "etc/default-counters.csv, dcgm-exporter"

_RUNNING = "Sequences that the server generates now."
_WAITING = "Sequences that wait within the server."
_OUTPUT_TOKENS = "Generated tokens."
_KV_USAGE = "The share of the KV cache that is in use, 0 to 1."
_PREEMPTIONS = "Sequences put back for want of KV cache; their work is done again."

SERVERS: Mapping[str, Mapping[str, ForeignMetric]] = {
    "vllm": {
        "running": ForeignMetric("vllm:num_requests_running", "gauge", _RUNNING, _VLLM),
        "waiting": ForeignMetric("vllm:num_requests_waiting", "gauge", _WAITING, _VLLM),
        "kv_usage": ForeignMetric("vllm:kv_cache_usage_perc", "gauge", _KV_USAGE, _VLLM),
        "output_tokens": ForeignMetric("vllm:generation_tokens_total", "counter", _OUTPUT_TOKENS, _VLLM),
        "preemptions": ForeignMetric("vllm:num_preemptions_total", "counter", _PREEMPTIONS, _VLLM),
        "first_token": ForeignMetric(
            "vllm:time_to_first_token_seconds", "histogram", "Time to the first token.", _VLLM
        ),
        "token_gap": ForeignMetric(
            "vllm:inter_token_latency_seconds", "histogram", "Time from one token to the next.", _VLLM
        ),
    },
    "sglang": {
        "running": ForeignMetric("sglang:num_running_reqs", "gauge", _RUNNING, _SGLANG),
        "waiting": ForeignMetric("sglang:num_queue_reqs", "gauge", _WAITING, _SGLANG),
        "kv_usage": ForeignMetric("sglang:token_usage", "gauge", _KV_USAGE, _SGLANG),
        "output_tokens": ForeignMetric("sglang:generation_tokens_total", "counter", _OUTPUT_TOKENS, _SGLANG),
        "preemptions": ForeignMetric("sglang:num_retracted_requests_total", "counter", _PREEMPTIONS, _SGLANG),
    },
    "tgi": {
        "running": ForeignMetric("tgi_batch_current_size", "gauge", _RUNNING, _TGI),
        "waiting": ForeignMetric("tgi_queue_size", "gauge", _WAITING, _TGI),
        "output_tokens": ForeignMetric("tgi_request_generated_tokens_sum", "counter", _OUTPUT_TOKENS, _TGI),
    },
    "llamacpp": {
        "running": ForeignMetric("llamacpp:requests_processing", "gauge", _RUNNING, _LLAMACPP),
        "waiting": ForeignMetric("llamacpp:requests_deferred", "gauge", _WAITING, _LLAMACPP),
        "output_tokens": ForeignMetric("llamacpp:tokens_predicted_total", "counter", _OUTPUT_TOKENS, _LLAMACPP),
    },
}
"""By server, and then by role."""

GPU_METRICS: Mapping[str, ForeignMetric] = {
    "sm_active": ForeignMetric(
        "DCGM_FI_PROF_SM_ACTIVE", "gauge",
        "The share of time in which a multiprocessor has work, on the mean of all, 0 to 1.", _DCGM,
    ),
    "tensor_active": ForeignMetric(
        "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "gauge", "The share of cycles in which the tensor cores work, 0 to 1.", _DCGM
    ),
    "gpu_util": ForeignMetric(
        "DCGM_FI_DEV_GPU_UTIL", "gauge", "The share of time in which any kernel runs, per cent.", _DCGM
    ),
    "memory_used": ForeignMetric("DCGM_FI_DEV_FB_USED", "gauge", "GPU memory in use, MiB.", _DCGM),
    "memory_free": ForeignMetric("DCGM_FI_DEV_FB_FREE", "gauge", "GPU memory that is free, MiB.", _DCGM),
}  # fmt: skip
"""By role: the metrics of NVIDIA's dcgm-exporter. Its file turns ``DCGM_FI_PROF_SM_ACTIVE`` off."""
