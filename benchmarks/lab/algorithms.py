"""The algorithms that are compared, by name. Each call makes a new one."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from benchmarks.lab.classic import FailsafeLimit, Gradient2Limit, VectorLimit, VegasLimit

from batchclient._core.limits import FixedLimit, Limit

ALGORITHMS: dict[str, Callable[[], Limit]] = {
    # Each preset's knee begins where that preset begins: ``knee`` as ``balanced`` does.
    "knee": KneeLimit,
    "knee-from-32": partial(KneeLimit, 32),
    "knee-from-128": partial(KneeLimit, 128),
    "knee-throughput": partial(KneeLimit, 128, target=0.05),
    "knee-latency": partial(KneeLimit, 32, target=0.5, opens=False),
    "aimd": AimdLimit,
    "vegas": VegasLimit,
    "gradient2": Gradient2Limit,
    "gradient2-tokens": partial(Gradient2Limit, per_token=True),
    "vector": VectorLimit,
    "failsafe": FailsafeLimit,
    "fixed-64": partial(FixedLimit, 64),
    # The same under what the server's metrics page says.
    "knee+load": lambda: LimitControl(KneeLimit(), (LoadCap(),)),
    "fixed-1024+load": lambda: LimitControl(FixedLimit(1024), (LoadCap(),)),
}
"""``fixed-64`` is the limit of the ``balanced`` preset. One with ``on_load`` is given the server's load once a second (``server.Load``)."""
