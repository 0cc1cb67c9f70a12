"""The facts told by a server's pages, beyond those that every client reads.

Rules:
- Any bytes give facts or none, never an exception. Nothing is guessed from a page that is half
  right.
- Only numbers and flags are taken: pages of arguments may hold a server's key, and slots prompts.

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
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from pydantic_core import from_json

from batchclient._doctor.facts import Facts, Queue
from batchclient.dialects._metrics import parse_metrics

__all__ = ["Sample", "busy_slots", "queue_in", "read_arguments", "read_metrics", "samples_in"]

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


@dataclass(frozen=True, slots=True)
class Sample:
    """A line of a page in Prometheus' text format."""

    labels: Mapping[str, str]
    value: float


def samples_in(page: bytes) -> dict[str, list[Sample]]:
    """Return the samples of a metrics page by name; values other than finite numbers are left out."""
    found: dict[str, list[Sample]] = {}
    for name, labels, text in _SAMPLE.findall(page.decode("utf-8", "replace").replace("\r\n", "\n")):
        try:
            value = float(text)
        except ValueError:
            continue
        if math.isfinite(value):
            found.setdefault(name, []).append(Sample(dict(_LABEL.findall(labels)), value))
    return found


def read_metrics(facts: Facts, page: bytes, model: str | None) -> Facts:
    """Return the facts with those of a metrics page."""
    load = parse_metrics(page, model)
    facts = replace(facts, tells_load=load is not None)
    if load is not None:
        if load.running is not None or load.waiting is not None:
            facts = replace(facts, others=int((load.running or 0) + (load.waiting or 0)))
        if load.preemptions is not None:
            facts = replace(facts, preempted=int(load.preemptions))
    found = samples_in(page)
    match facts.kind:
        case "vllm":
            facts = _vllm_cache(facts, found.get("vllm:cache_config_info", []))
        case "llamacpp":
            return _llamacpp(facts, found)
        case "sglang":
            return _sglang(facts, found)
    names = _LENGTHS.get(facts.kind or "")
    return facts if names is None else _lengths(facts, *(_histogram(found, name) for name in names))


def queue_in(page: bytes, model: str | None) -> Queue | None:
    """Return the queue told by a metrics page; ``None``: there is none, or it is not told."""
    load = parse_metrics(page, model)
    if load is None or load.running is None or not load.waiting or load.kv_usage_ratio is None:
        return None
    waiting = load.waiting
    reasons = samples_in(page).get("vllm:num_requests_waiting_by_reason")
    if reasons is not None:
        waiting = sum(each.value for each in reasons if each.labels.get("reason") == "capacity")
    return Queue(int(load.running), int(waiting), load.kv_usage_ratio) if waiting else None


def read_arguments(facts: Facts, page: bytes) -> Facts:
    """Return the facts with those of a page of the server's arguments."""
    told = _object(page)
    match facts.kind:
        case "sglang":
            return replace(
                facts,
                slots=facts.slots or _count(told.get("max_running_requests")),
                kv_tokens=_count(told.get("max_total_num_tokens")),
                kv_share=_share(told.get("mem_fraction_static")),
                prefix_caching=_not(told.get("disable_radix_cache")),
            )
        case "vllm":
            config = _within(told, "vllm_config")
            scheduler, cache = _within(config, "scheduler_config"), _within(config, "cache_config")
            caching = cache.get("enable_prefix_caching")
            return replace(
                facts,
                slots=facts.slots or _count(scheduler.get("max_num_seqs")),
                prefix_caching=caching if isinstance(caching, bool) else facts.prefix_caching,
            )
    return facts


def busy_slots(page: bytes) -> int | None:
    """Return how many of llama.cpp's slots are at work; ``None``: not told."""
    try:
        slots = from_json(page)
    except ValueError:
        return None
    if not isinstance(slots, list):
        return None
    told = [slot.get("is_processing") for slot in slots if isinstance(slot, dict)]
    return told.count(True) if told and all(isinstance(each, bool) for each in told) else None


def _vllm_cache(facts: Facts, samples: list[Sample]) -> Facts:
    if not samples:
        return facts
    sizes = [_kv_tokens(each.labels) for each in samples]
    labels = samples[0].labels
    # A size that is given leaves the share of the memory without effect.
    given = (
        labels.get("kv_cache_memory_bytes", "None") != "None" or labels.get("num_gpu_blocks_override", "None") != "None"
    )
    caching = {"True": True, "False": False}.get(labels.get("enable_prefix_caching", ""))
    return replace(
        facts,
        kv_tokens=sum(size for size in sizes if size is not None) if None not in sizes else None,
        kv_share=None if given else _share(_number(labels.get("gpu_memory_utilization"))),
        prefix_caching=facts.prefix_caching if caching is None else caching,
    )


def _kv_tokens(labels: Mapping[str, str]) -> int | None:
    size = _number(labels.get("kv_cache_size_tokens"))
    if size is None:
        blocks, each = _number(labels.get("num_gpu_blocks")), _number(labels.get("block_size"))
        size = None if blocks is None or each is None else blocks * each
    return int(size) if size is not None and 0 < size < _LARGEST else None


def _llamacpp(facts: Facts, found: Mapping[str, list[Sample]]) -> Facts:
    longest = int(_total(found, "llamacpp:n_tokens_max") or 0)
    if not longest:
        return facts
    tokens = (_total(found, "llamacpp:prompt_tokens_total") or 0) + (
        _total(found, "llamacpp:tokens_predicted_total") or 0
    )
    # Requests are not counted: there were at least as many as the longest would make.
    return replace(facts, longest=longest, served=int(tokens / longest))


def _sglang(facts: Facts, found: Mapping[str, list[Sample]]) -> Facts:
    served = _total(found, "sglang:num_requests_total")
    prompts, answers = (_total(found, f"sglang:{name}_tokens_total") for name in ("prompt", "generation"))
    if not served or prompts is None or answers is None:
        return facts
    return replace(facts, served=int(served), mean_len=(prompts + answers) / served)


@dataclass(frozen=True, slots=True)
class _Histogram:
    count: float
    total: float
    most: float | None
    """A bound that no value exceeds; ``None``: the last bucket has values."""


def _histogram(found: Mapping[str, list[Sample]], name: str) -> _Histogram | None:
    count, total = _total(found, f"{name}_count"), _total(found, f"{name}_sum")
    if not count or total is None:
        return None
    by_bound: dict[float, float] = {}
    for each in found.get(f"{name}_bucket", ()):
        bound = _number(each.labels.get("le"))
        if bound is not None:
            by_bound[bound] = by_bound.get(bound, 0.0) + each.value
    most = min((bound for bound, below in by_bound.items() if below >= count), default=None)
    return _Histogram(count, total, most)


def _lengths(facts: Facts, prompts: _Histogram | None, answers: _Histogram | None) -> Facts:
    if prompts is None or answers is None:
        return facts
    longest = None if prompts.most is None or answers.most is None else int(prompts.most + answers.most)
    mean = prompts.total / prompts.count + answers.total / answers.count
    return replace(facts, served=int(min(prompts.count, answers.count)), longest=longest, mean_len=mean)


def _total(found: Mapping[str, list[Sample]], name: str) -> float | None:
    samples = found.get(name)
    return None if not samples else sum(each.value for each in samples)


def _object(page: bytes) -> dict[str, Any]:
    try:
        told = from_json(page)
    except ValueError:
        return {}
    return told if isinstance(told, dict) else {}


def _within(told: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    part = told.get(name)
    return part if isinstance(part, dict) else {}


def _number(text: str | None) -> float | None:
    try:
        number = float(text or "")
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _count(value: object) -> int | None:
    return value if type(value) is int and 0 < value < _LARGEST else None


def _share(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= 1 else None


def _not(value: object) -> bool | None:
    return not value if isinstance(value, bool) else None
