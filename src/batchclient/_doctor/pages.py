"""The facts of a server's pages, beyond those that the client reads.

Rules:
- Any bytes give facts or none, never an exception. Nothing is guessed from a page that is half
  right.
- Only numbers and flags are taken: pages of arguments may hold a server's key.

Sources:
- vLLM 0.32: ``vllm:cache_config_info``, whose labels are the fields of ``CacheConfig``, and the
  histograms ``vllm:request_prompt_tokens`` and ``vllm:request_generation_tokens``
  (``v1/metrics/loggers.py``; pages in ``tests/wire/vllm``). ``/server_info?config_format=json`` has
  the whole configuration, in development mode alone (``entrypoints/serve/dev/server_info``).
- SGLang: ``/server_info`` has the arguments (``srt/server_args.py``) and the scheduler's sizes;
  ``sglang:num_requests_total`` counts the requests that are done (``srt/metrics/collector.py``).
- TGI: the histograms ``tgi_request_input_length`` and ``tgi_request_generated_tokens``
  (``docs/source/reference/metrics.md``).
- llama.cpp: ``llamacpp:n_tokens_max`` is the longest sequence so far, prompt and answer together.
- Headers that no LLM server sends tell of a proxy. Of ``Server`` the product's name is shown, of
  the other headers the name alone: a value may hold an address.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic_core import from_json

from batchclient import ServerLoad
from batchclient._doctor.facts import Facts, Queue

__all__ = ["Sample", "proxies_in", "queue_in", "read_arguments", "read_metrics", "samples_in"]

_SAMPLE = re.compile(
    r"^([A-Za-z_:][A-Za-z0-9_:]{0,200})(?:\{([^\n]{0,8192})\})?[ \t]{1,8}([0-9.eE+-]{1,32})(?=\s|\Z)", re.MULTILINE
)
_LABEL = re.compile(r'([A-Za-z_][A-Za-z0-9_]{0,80})="((?:[^"\\]|\\.)*)"')
_LENGTHS = {
    "vllm": ("vllm:request_prompt_tokens", "vllm:request_generation_tokens"),
    "tgi": ("tgi_request_input_length", "tgi_request_generated_tokens"),
}
"""By server: the histograms of requests' lengths, prompts and answers."""
_LARGEST = 1 << 50
_PRODUCTS = frozenset(
    {"nginx", "openresty", "envoy", "istio-envoy", "cloudflare", "caddy", "traefik", "haproxy", "kong", "apache"}
    | {"awselb", "varnish", "litellm", "google frontend", "gws"}
)
"""Named by ``Server``. vLLM, SGLang and trtllm-serve send ``uvicorn``, llama-server ``llama.cpp``,
TGI and TEI none.
"""
_HEADERS = (
    "via", "x-envoy-upstream-service-time", "x-kong-proxy-latency", "x-litellm-version", "x-litellm-call-id", "cf-ray",
    "x-amz-cf-id", "x-amzn-trace-id", "x-served-by", "x-cache", "x-traefik-router",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Sample:
    """A line of a page in Prometheus' text format."""

    labels: Mapping[str, str]
    value: float


def proxies_in(headers: Mapping[str, str]) -> tuple[str, ...]:
    """Return the signs of proxies among a reply's headers, whose names are in lower case."""
    product = headers.get("server", "").partition("/")[0].strip().lower()
    found = [f"server: {product}"] if product in _PRODUCTS else []
    return tuple(found + [name for name in _HEADERS if name in headers])


def samples_in(page: bytes) -> dict[str, list[Sample]]:
    """Return the samples of a metrics page by name; values other than finite numbers are left out."""
    found: dict[str, list[Sample]] = {}
    for name, labels, text in _SAMPLE.findall(page.decode("utf-8", "replace").replace("\r\n", "\n")):
        value = _number(text)
        if value is not None:
            found.setdefault(name, []).append(Sample(dict(_LABEL.findall(labels)), value))
    return found


def read_metrics(facts: Facts, page: bytes) -> None:
    """Take in the facts of a metrics page."""
    found = samples_in(page)
    if facts.kind == "llamacpp":
        facts.longest = int(_total(found, "llamacpp:n_tokens_max") or 0) or None
        tokens = _total(found, "llamacpp:prompt_tokens_total", "llamacpp:tokens_predicted_total") or 0
        # Requests are not counted: there were at least as many as the longest would make.
        facts.served = None if facts.longest is None else int(tokens // facts.longest)
    elif facts.kind == "sglang":
        served = _total(found, "sglang:num_requests_total")
        generated = _total(found, "sglang:prompt_tokens_total", "sglang:generation_tokens_total")
        if served and generated is not None:
            facts.served, facts.mean_len = int(served), generated / served
    elif facts.kind in _LENGTHS:
        _read_lengths(facts, *(_histogram(found, name) for name in _LENGTHS[facts.kind]))
    if facts.kind == "vllm" and (caches := found.get("vllm:cache_config_info")):
        _read_caches(facts, [each.labels for each in caches])


def queue_in(load: ServerLoad | None, page: bytes) -> Queue | None:
    """Return the queue of a load and its page; ``None``: there is none, or it is not known."""
    if load is None or load.running is None or not load.waiting or load.kv_usage_ratio is None:
        return None
    waiting = load.waiting
    reasons = samples_in(page).get("vllm:num_requests_waiting_by_reason")
    if reasons is not None:
        waiting = sum(each.value for each in reasons if each.labels.get("reason") == "capacity")
    return Queue(int(load.running), int(waiting), load.kv_usage_ratio) if waiting else None


def read_arguments(facts: Facts, page: bytes) -> None:
    """Take in the facts of a page of the server's arguments."""
    try:
        page_fields = from_json(page)
    except ValueError:
        return
    if facts.kind == "sglang":
        facts.slots = facts.slots or _count(_at(page_fields, "max_running_requests"))
        facts.kv_tokens = _count(_at(page_fields, "max_total_num_tokens"))
        share, off = _at(page_fields, "mem_fraction_static"), _at(page_fields, "disable_radix_cache")
        facts.kv_share = _share(share) if isinstance(share, int | float) else None
        facts.prefix_caching = not off if isinstance(off, bool) else None
    elif facts.kind == "vllm":
        facts.slots = facts.slots or _count(_at(page_fields, "vllm_config", "scheduler_config", "max_num_seqs"))
        caching = _at(page_fields, "vllm_config", "cache_config", "enable_prefix_caching")
        facts.prefix_caching = caching if isinstance(caching, bool) else facts.prefix_caching


def _read_caches(facts: Facts, caches: list[Mapping[str, str]]) -> None:
    sizes = [_kv_tokens(labels) for labels in caches]
    labels = caches[0]
    # A size that is given leaves the share of the memory without effect.
    is_given = any(labels.get(name, "None") != "None" for name in ("kv_cache_memory_bytes", "num_gpu_blocks_override"))
    facts.kv_tokens = sum(size for size in sizes if size is not None) if None not in sizes else None
    facts.kv_share = None if is_given else _share(_number(labels.get("gpu_memory_utilization")))
    caching = {"True": True, "False": False}.get(labels.get("enable_prefix_caching", ""))
    facts.prefix_caching = facts.prefix_caching if caching is None else caching


def _kv_tokens(labels: Mapping[str, str]) -> int | None:
    size = _number(labels.get("kv_cache_size_tokens"))
    if size is None:
        blocks, each = _number(labels.get("num_gpu_blocks")), _number(labels.get("block_size"))
        size = None if blocks is None or each is None else blocks * each
    return int(size) if size is not None and 0 < size < _LARGEST else None


_Histogram = tuple[float, float, float | None]
"""Count, sum, and a bound that no value exceeds; ``None``: the last bucket has values."""


def _histogram(found: Mapping[str, list[Sample]], name: str) -> _Histogram | None:
    count, total = _total(found, f"{name}_count"), _total(found, f"{name}_sum")
    if not count or total is None:
        return None
    by_bound: dict[float, float] = {}
    for each in found.get(f"{name}_bucket", ()):
        bound = _number(each.labels.get("le"))
        if bound is not None:
            by_bound[bound] = by_bound.get(bound, 0.0) + each.value
    return count, total, min((bound for bound, below in by_bound.items() if below >= count), default=None)


def _read_lengths(facts: Facts, prompts: _Histogram | None, answers: _Histogram | None) -> None:
    if prompts is None or answers is None:
        return
    facts.longest = None if prompts[2] is None or answers[2] is None else int(prompts[2] + answers[2])
    facts.served = int(min(prompts[0], answers[0]))
    facts.mean_len = prompts[1] / prompts[0] + answers[1] / answers[0]


def _total(found: Mapping[str, list[Sample]], *names: str) -> float | None:
    samples = [each.value for name in names for each in found.get(name, ())]
    return sum(samples) if samples else None


def _at(page_fields: Any, *names: str) -> Any:
    for name in names:
        page_fields = page_fields.get(name) if isinstance(page_fields, dict) else None
    return page_fields


def _number(text: str | None) -> float | None:
    try:
        number = float(text or "")
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _count(value: object) -> int | None:
    return value if type(value) is int and 0 < value < _LARGEST else None


def _share(value: float | None) -> float | None:
    return float(value) if value is not None and not isinstance(value, bool) and 0 < value <= 1 else None
