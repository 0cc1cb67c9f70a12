"""The algorithms that are compared, by name. Each call makes a new one."""

from __future__ import annotations

from collections.abc import Callable

from batchclient._core.limits import AimdLimit, FixedLimit, KneeLimit, Limit

ALGORITHMS: dict[str, Callable[[], Limit]] = {
    "knee": KneeLimit,
    "knee-throughput": lambda: KneeLimit(target=0.05),
    "knee-latency": lambda: KneeLimit(target=0.5),
    "aimd": AimdLimit,
}
for _limit in (32, 64, 1024):
    ALGORITHMS[f"fixed-{_limit}"] = lambda limit=_limit: FixedLimit(limit)  # type: ignore[misc]
