"""Calls that are all asked at once: how long until the last is answered, against no limit at all.

Rules:
- Nothing comes after them, so that what a limit learns of the first answers is too late for most: how it begins is what counts.
- Equal lengths are what calls come to that all reach ``max_tokens``: there the first answer ends when all could have ended. With mixed lengths the
  longest answer decides, and it takes as long in any company.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import product

from benchmarks.lab.driver import simulate
from benchmarks.lab.profiles import PROFILES, Scenario
from benchmarks.lab.workloads import Calls, Lengths, Once

from batchclient._core.limits import FixedLimit, KneeLimit, Limit

__all__ = ["OnceRun", "runs"]

OUTPUTS = {
    "200 each": Lengths(200),
    "200 on average": Lengths(200, 1.0, 16384),
    "1,000 each": Lengths(1000),
    "1,000 on average": Lengths(1000, 0.8, 16384),
}
COUNTS = (64, 256, 1000)
_NO_LIMIT = 1024
_LONGEST_S = 1000.0


@dataclass(frozen=True, slots=True)
class OnceRun:
    """How long until the last of them was answered, in seconds."""

    server: str
    outputs: str
    count: int
    knee_s: float
    closed_s: float
    """With a knee that first tokens do not open."""
    fixed_s: float
    """With 64, where the knee begins."""
    unlimited_s: float


def takes_s(server: str, outputs: str, count: int, limit: Limit, seed: int = 0) -> float:
    """How long they take under a limit.

    Raises:
        RuntimeError: they took more than a quarter of an hour.
    """
    calls = Calls(Lengths(200, 0.6, 4096), OUTPUTS[outputs], max_tokens=16384)
    trace = simulate(Scenario("once", "", PROFILES[server], Once(calls, count), duration_s=_LONGEST_S), limit, seed)
    if trace.resolved != count:
        raise RuntimeError(f"{count - trace.resolved} of {count} calls were not answered within {_LONGEST_S:g} s")
    return max(trace.ends)


def _run(server: str, outputs: str, count: int) -> OnceRun:
    limits = (KneeLimit(), KneeLimit(opens=False), FixedLimit(64), FixedLimit(_NO_LIMIT))
    return OnceRun(server, outputs, count, *(takes_s(server, outputs, count, limit) for limit in limits))


def runs(servers: tuple[str, ...] = ("compute-knee", "kv-cliff"), processes: int = 2) -> Iterator[OnceRun]:
    """Every server with every kind of answers, each count of them."""
    with ProcessPoolExecutor(processes) as pool:
        yield from pool.map(_run, *zip(*product(servers, OUTPUTS, COUNTS), strict=True))
