"""The algorithms that are compared, by name. Each call makes a new one."""

from __future__ import annotations

from collections.abc import Callable

from batchclient._core.limits import AimdLimit, FixedLimit, KneeLimit, Limit, LimitControl, LoadCap

ALGORITHMS: dict[str, Callable[[], Limit]] = {
    "knee": KneeLimit,
    "knee-throughput": lambda: KneeLimit(target=0.05),
    "knee-latency": lambda: KneeLimit(target=0.5),
    "aimd": AimdLimit,
    # The same under what the server's metrics page says.
    "knee+load": lambda: LimitControl(KneeLimit(), (LoadCap(),)),
    "fixed-1024+load": lambda: LimitControl(FixedLimit(1024), (LoadCap(),)),
}
for _limit in (32, 64, 1024):
    ALGORITHMS[f"fixed-{_limit}"] = lambda limit=_limit: FixedLimit(limit)  # type: ignore[misc]
