"""Arguments and names that are gone: what stands in their place now."""

from __future__ import annotations

from collections.abc import Iterable

from batchclient.errors import ConfigError

__all__ = ["OLD", "refuse_old"]

_THE_PRESETS = "is the preset's now: preset=…"
OLD = {
    "Schedule": "is Queue now: queue=Queue(…)",
    "alone_above_tokens": "is given as batching=Batching(list_tokens=…, chat_list_tokens=…), of which the second was an"
    " eighth of it",
    "count_tokens": "is gone: the server refuses a prompt that is too long",
    "detect": "is given as probe=…",
    "guest": "is given as limit=AdaptiveLimit(guest=True)",
    "http_client": "is given as http=…",
    "length_reach": "is gone: the server's dialect says which lengths may share a list",
    "max_model_len": "is gone: the servers tell it, and servers() shows it",
    "max_queued": "is given as queue=Queue(max_calls=…)",
    "max_response_bytes": "is gone: a response has 64 MiB at most",
    "on_adjustment": "is gone: story() and statistics().adjustments tell every change",
    "per_million_in": "is input now: Price(input=…)",
    "per_million_out": "is output now: Price(output=…)",
    "refill_ratio": _THE_PRESETS,
    "refill_s": _THE_PRESETS,
    "render_chat": "is gone: complete() takes the prompt that a template of yours made",
    "requests_per_minute": "is given as base_url=Server(url, requests_per_minute=…)",
    "schedule": "is given as queue=Queue(…)",
    "send_priority": "is given as queue=Queue(tell_server=…)",
    "server_metrics": "is given as probe=…",
    "single_flight": "is given as batching=Batching(single_flight=…)",
    "size_for": "is given as batching=Batching(max_size=…), which may be a function",
    "starvation_s": _THE_PRESETS,
    "tokens_per_minute": "is given as base_url=Server(url, tokens_per_minute=…)",
    "trace_rows": "is gone: rows have spans as the sampler says",
    "transport": "is given as http=…",
    "when_full": "is given as queue=Queue(when_full=…)",
}
"""By name: the rest of the sentence."""


def refuse_old(names: Iterable[str]) -> None:
    """Refuse a name that a former version had.

    Raises:
        ConfigError: there is such a name; the message says what stands in its place.
    """
    for name in names:
        if name in OLD:
            raise ConfigError(f"{name} {OLD[name]}", field=name)
