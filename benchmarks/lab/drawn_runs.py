"""Draws under arms and under fixed limits.

Rules:
- An *arm* is a set of ``BatchClient`` arguments; its limit is made by the client's own function.
- The *fixed grid* of a draw are the limits 1, 2, 4 … 1,024 as a client makes them of a number. Only
  refusals lower those limits, so the grid hardly depends on the limit's code. The grid is computed
  once and kept in ``.cache/draws`` by family, seed and ``VERSION``.
- The grid goes downwards. A limit is left out if it could not reach the best so far even with every
  call as quick as a lone one. Limits above which no more calls are ever in flight are left out as
  well.
- *Best* is the smallest limit whose throughput is within 1 % of the highest. For ``once``
  throughput is calls over the time until the last answer.
- The latency of ``closed`` is that of the last half: such a job never ends, and its beginning soon
  counts for nothing.
"""

from __future__ import annotations

import gc
import json
import math
import time
import zlib
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.lab.asker import client_setup, limit_setup
from benchmarks.lab.draws import Draw, draw
from benchmarks.lab.driver import Run
from benchmarks.lab.trace import Trace
from tests.core import (
    Limit,
)

from batchclient import AdaptiveLimit

__all__ = ["ARMS", "VERSION", "ArmJob", "ArmRun", "FixedRun", "GridJob", "best", "grid", "run_all", "run_arm"]

VERSION = 3
"""Of draws, server, driver and workloads together: with another one every kept grid is void."""
_CACHE = Path(__file__).resolve().parents[2] / ".cache" / "draws"
_LIMITS = tuple(2**power for power in range(10, -1, -1))
_WITHIN_RATIO = 0.99
_LONE_RATIO = 0.85
"""Calls of mean size take this share of ``lone_s`` at least: noise, and a mean that is cut."""

ARMS: dict[str, Mapping[str, Any]] = {
    "default": {},
    "fixed-64": {"limit": 64},
    "fixed-256": {"limit": 256},
    "no-limit": {"limit": 1024},
    "no-page": {"probe": False},
    "latency": {"preset": "latency"},
    "throughput": {"preset": "throughput"},
    "guest": {"limit": AdaptiveLimit(guest=True)},
}
_GRIDLESS = ("rated", "siblings")
"""Families that are not judged against fixed limits."""


@dataclass(frozen=True, slots=True)
class FixedRun:
    """One fixed limit on one draw.

    Args:
        whole: useful tokens per second from ``Draw.judged_from_s`` to the end; for ``once``
            calls per second until the last answer.
        half: useful tokens per second in the last half.
        mean_s: latency of the answers from ``Draw.judged_from_s`` on; of ``closed`` from the
            middle on.
        urgent_s: wait of the calls of a higher class in the last half; not a number where there
            are none.
    """

    limit: int
    whole: float
    half: float
    mean_s: float
    urgent_s: float


@dataclass(frozen=True, slots=True)
class ArmRun:
    """One arm on one draw.

    Args:
        page: whether the server had its page.
        whole, half, mean_s, urgent_s: as ``FixedRun``'s; of several clients the sum of the
            rates, and the mean of the waits.
        least: of several clients, the smallest one's share of the mean in the last half; else
            1.
        answered, failed: calls.
        requests, refused, cut: all requests; those answered with 429; those that ended with a
            504 or a closed connection.
        limit: its mean in the last quarter.
        reason: of its last change.
    """

    family: str
    seed: int
    arm: str
    page: bool
    known: bool
    whole: float
    half: float
    mean_s: float
    urgent_s: float
    least: float
    answered: int
    failed: int
    requests: int
    refused: int
    cut: int
    limit: float
    limits: tuple[tuple[float, int], ...]
    reason: str
    duration_s: float
    wall_s: float


def _rates(drawn: Draw, traces: Sequence[Trace]) -> tuple[float, float]:
    first = traces[0]
    if drawn.family == "once":
        rate = first.resolved / first.ends[-1] if first.ends else 0.0
        return rate, rate
    end = drawn.scenario.duration_s
    return tuple(  # type: ignore[return-value]
        sum(trace.throughput(begin, end) for trace in traces) for begin in (drawn.judged_from_s, end / 2)
    )


def _latency_s(drawn: Draw, trace: Trace) -> float:
    begin_s = drawn.scenario.duration_s / 2 if drawn.family == "closed" else drawn.judged_from_s
    return trace.latency_s(begin_s, math.inf)[0]


def _mean(values: Sequence[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return sum(known) / len(known) if known else math.nan


def run_fixed(drawn: Draw, limit: int) -> FixedRun:
    """A fixed limit on a draw."""
    scenario = replace(drawn.scenario, has_page=False)
    traces = Run(scenario, limit_setup(scenario, Limit(limit)), drawn.seed).run()
    end = scenario.duration_s
    latency_s = _latency_s(drawn, traces[0])
    return FixedRun(limit, *_rates(drawn, traces), latency_s, traces[0].urgent_wait_s(end / 2, end))


def run_arm(drawn: Draw, arm: str, arguments: Mapping[str, Any]) -> ArmRun:
    """An arm on a draw."""
    began = time.perf_counter()
    traces = Run(drawn.scenario, client_setup(arguments), drawn.seed).run()
    first, end = traces[0], drawn.scenario.duration_s
    halves = [trace.throughput(end / 2, end) for trace in traces]
    whole, half = _rates(drawn, traces)
    over = first.duration_s
    return ArmRun(
        drawn.family,
        drawn.seed,
        arm,
        drawn.has_page,
        drawn.known,
        whole,
        half,
        _mean([_latency_s(drawn, trace) for trace in traces]),
        first.urgent_wait_s(end / 2, end),
        min(halves) * len(halves) / sum(halves) if sum(halves) else 1.0,
        sum(trace.resolved for trace in traces),
        sum(trace.failed for trace in traces),
        sum(trace.requests for trace in traces),
        sum(trace.refused for trace in traces),
        sum(trace.cut for trace in traces),
        first.mean_limit(0.75 * over, over),
        tuple((round(at, 2), limit) for at, limit in first.limits[-20:]),
        first.changes[-1][2] if first.changes else "it never changed",
        over,
        time.perf_counter() - began,
    )


def grid(drawn: Draw) -> list[FixedRun]:
    """The fixed limits of a draw, from the cache if they are there."""
    # The file's name holds the draw's own numbers. Draws that change without a new ``VERSION`` get
    # no other draw's grid.
    drawn_as = zlib.crc32(repr(replace(drawn, scenario=replace(drawn.scenario, has_page=False))).encode())
    kept = _CACHE / f"v{VERSION}" / f"{drawn.family}-{drawn.seed}-{drawn_as:08x}.json"
    if kept.exists():
        return [FixedRun(**run) for run in json.loads(kept.read_text())]
    runs: list[FixedRun] = []
    for limit in _LIMITS:
        if limit > drawn.most_fixed:
            continue
        if runs and not _may_be_best(drawn, limit, max(run.whole for run in runs)):
            break
        runs.append(run_fixed(drawn, limit))
    kept.parent.mkdir(parents=True, exist_ok=True)
    # Another process may do the same.
    fresh = kept.with_suffix(f".{time.monotonic_ns()}")
    fresh.write_text(json.dumps([asdict(run) for run in runs]))
    fresh.replace(kept)
    return runs


def _may_be_best(drawn: Draw, limit: int, most: float) -> bool:
    if limit == drawn.slots:
        # It is what the wait of a higher class is compared with.
        return True
    tokens = 1.0 if drawn.family == "once" else drawn.capacity.output_tokens
    return limit * tokens / (_LONE_RATIO * drawn.capacity.lone_s) >= _WITHIN_RATIO * most


def best(runs: Sequence[FixedRun], *, half: bool = False) -> FixedRun:
    """The smallest limit whose throughput is within 1 % of the highest.

    Throughput is that of the whole run, or with ``half`` that of its last half.
    """

    def rate(run: FixedRun) -> float:
        return run.half if half else run.whole

    enough = _WITHIN_RATIO * max(map(rate, runs))
    return min((run for run in runs if rate(run) >= enough), key=lambda run: run.limit)


@dataclass(frozen=True, slots=True)
class GridJob:
    """One draw's fixed grid."""

    family: str
    seed: int

    def __call__(self) -> list[FixedRun]:
        return [] if self.family in _GRIDLESS else grid(draw(self.family, self.seed))


@dataclass(frozen=True, slots=True)
class ArmJob:
    """Run one arm on one draw; ``clients``: so many of them."""

    family: str
    seed: int
    arm: str
    clients: int | None = None

    def __call__(self) -> ArmRun:
        drawn = draw(self.family, self.seed)
        if self.clients is not None:
            drawn = replace(drawn, scenario=replace(drawn.scenario, clients=self.clients))
        return run_arm(drawn, self.arm, ARMS[self.arm])


def _do(job: GridJob | ArmJob) -> Any:
    gc.disable()  # collections in the middle of a million small objects double the time
    try:
        return job()
    finally:
        gc.enable()
        gc.collect()


def run_all(jobs: Sequence[GridJob | ArmJob], processes: int) -> list[Any]:
    """Return the jobs' results, in the order of the jobs."""
    if processes == 1:
        return [_do(job) for job in jobs]
    with ProcessPoolExecutor(processes) as pool:
        return list(pool.map(_do, jobs))
