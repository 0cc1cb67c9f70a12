"""How an argument of ``BatchClient`` is given, by the names that programs try."""

from __future__ import annotations

__all__ = ["GIVEN_AS", "OTHER_WORDS"]

GIVEN_AS = {
    **{name: f"limit=AdaptiveLimit({field}=…)" for name, field in (
        ("initial_limit", "start"), ("max_limit", "max"), ("p95_latency_s", "p95_latency_s"),
        ("time_to_first_token_s", "time_to_first_token_s"),
    )},
    **{name: f"batching=Batching({field}=…)" for name, field in (
        ("max_list", "max_size"), ("batch_size", "size_for"), ("singles_above_tokens", "alone_above_tokens"),
        ("alone_above_tokens", "alone_above_tokens"), ("linger_s", "linger_s"), ("refill_s", "refill_s"),
        ("refill_ratio", "refill_ratio"), ("length_reach", "length_reach"),
    )},
    **{name: f"schedule=Schedule({name}=…)" for name in (
        "order", "aging_s", "starvation_s", "tenant_weights", "group_prefixes", "send_priority",
    )},
    **{name: f"http=Http({field}=…)" for name, field in (
        ("connect_timeout_s", "connect_timeout_s"), ("read_timeout_s", "read_timeout_s"),
        ("max_response_bytes", "max_response_bytes"), ("http_backend", "backend"), ("trust_env", "trust_env"),
    )},
}  # fmt: skip
"""Names of arguments that are fields of a group, and how the group is given."""

_RETRY = "retry=Backoff(max_attempts=…), where the first attempt counts"
OTHER_WORDS = {
    **dict.fromkeys(("max_retries", "retries", "num_retries", "max_attempts"), _RETRY),
    **dict.fromkeys(("concurrency", "max_concurrency", "max_connections", "n_jobs"), "limit=…"),
    "timeout": "timeout_s=…",
    **dict.fromkeys(("key", "token"), "api_key=…"),
}
"""Other libraries' words for an argument, and how the argument is given."""
