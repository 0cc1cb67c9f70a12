"""Many runs on two cores: fixed limits first, then the algorithms against the best of them.

A *static* figure is that of a server that is already as it will be in one phase of the scenario, watched over the second half of the run. An
algorithm's share is its throughput over the last half of the run, against the best static throughput of the last phase at the preset's list size.
"""

from __future__ import annotations

import gc
import importlib
import json
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.lab.algorithms import ALGORITHMS
from benchmarks.lab.driver import Trace, simulate
from benchmarks.lab.profiles import SCENARIOS

from batchclient._core.limits import FixedLimit

_STATIC_SKIP = 0.5
_KNEE_MODULES = (
    "knee",
    "descent",
    "bursts",
    "elasticity",
    "evidence",
    "opening",
    "bound",
    "refused",
    "short",
    "throughputs",
)
LIST_SIZES = (1, 8, 128)
"""Beside the preset's 32: tried with every limit, in the last phase."""


@dataclass(frozen=True, slots=True)
class StaticRun:
    """One fixed limit in one phase of one scenario."""

    scenario: str
    phase: int
    limit: int
    max_list: int | None
    seed: int
    tokens_per_s: float
    mean_s: float
    p95_s: float
    mean_list: float


@dataclass(frozen=True, slots=True)
class AlgorithmRun:
    """One algorithm on one scenario, over the last half of the run unless it says otherwise.

    Args:
        reached_s: for each phase, how long until 90 % of its best fixed limit's throughput was reached.
    """

    scenario: str
    algorithm: str
    seed: int
    tokens_per_s: float
    whole_tokens_per_s: float
    mean_s: float
    p95_s: float
    mean_limit: float
    mean_list: float
    requests: int
    failed: int
    rejected: int
    preemptions: int
    reached_s: tuple[float, ...]
    series: tuple[tuple[float, float, float], ...]
    """(second, limit, tokens/s of the last four seconds)."""
    best_limit: int
    best_tokens_per_s: float
    best_mean_s: float
    """Of the best fixed limit in the last phase."""
    wall_s: float

    @property
    def share(self) -> float:
        """Of the best fixed limit's throughput."""
        return self.tokens_per_s / self.best_tokens_per_s

    @property
    def latency_ratio(self) -> float:
        """To the best fixed limit's mean latency."""
        return self.mean_s / self.best_mean_s


@dataclass(frozen=True, slots=True)
class StaticJob:
    scenario: str
    phase: int
    limit: int
    max_list: int | None = None
    seed: int = 0

    def __call__(self) -> StaticRun:
        scenario = SCENARIOS[self.scenario].settled(self.phase)
        trace = simulate(scenario, FixedLimit(self.limit), self.seed, max_list=self.max_list)
        begin, end = _STATIC_SKIP * scenario.duration_s, scenario.duration_s
        mean_s, p95_s = trace.latency_s(begin, end)
        return StaticRun(
            self.scenario,
            self.phase,
            self.limit,
            self.max_list,
            self.seed,
            trace.throughput(begin, end),
            mean_s,
            p95_s,
            trace.prompts / max(1, trace.requests),
        )


@dataclass(frozen=True, slots=True)
class AlgorithmJob:
    scenario: str
    algorithm: str
    seed: int
    best: tuple[StaticRun, ...]
    """The best fixed limit of each phase."""
    constants: tuple[tuple[str, float], ...] = ()
    """Constants to be tried, such as ("_GAIN", 0.5), see ``set_constants``."""

    def __call__(self) -> AlgorithmRun:
        began = time.perf_counter()
        set_constants(self.constants)
        scenario = SCENARIOS[self.scenario]
        trace = simulate(scenario, ALGORITHMS[self.algorithm](), self.seed)
        end = scenario.duration_s
        mean_s, p95_s = trace.latency_s(end / 2, end)
        phases = (*scenario.phases(), end)
        return AlgorithmRun(
            self.scenario,
            self.algorithm,
            self.seed,
            trace.throughput(end / 2, end),
            trace.throughput(0.0, end),
            mean_s,
            p95_s,
            trace.mean_limit(end / 2, end),
            trace.prompts / max(1, trace.requests),
            trace.requests,
            trace.failed,
            trace.rejected,
            trace.preemptions,
            tuple(trace.reached_s(0.9 * run.tokens_per_s, at) for run, at in zip(self.best, phases, strict=False)),
            tuple(series(trace)),
            self.best[-1].limit,
            self.best[-1].tokens_per_s,
            self.best[-1].mean_s,
            time.perf_counter() - began,
        )


def set_constants(constants: Iterable[tuple[str, float]]) -> None:
    """Set constants in this process: of the knee's modules, wherever a name is, or of the one that stands before it ("load._KV_RATIO")."""
    for whole, value in constants:
        named, _, name = whole.rpartition(".")
        names = (named,) if named else _KNEE_MODULES
        modules = [importlib.import_module(f"batchclient._core.limits.{each}") for each in names]
        found = [module for module in modules if hasattr(module, name)]
        if not found:
            raise ValueError(f"no constant {name} in {', '.join(names)}")
        for module in found:
            # A count stays a count.
            setattr(module, name, type(getattr(module, name))(value))


def series(trace: Trace, every_s: float = 2.0, window_s: float = 4.0) -> Iterator[tuple[float, float, float]]:
    """(second, mean limit since the last one, throughput of the last ``window_s``)."""
    steps = int(trace.duration_s / every_s)
    for step in range(1, steps + 1):
        at = step * every_s
        begin = max(0.0, at - window_s)
        yield at, round(trace.mean_limit(at - every_s, at), 1), round(trace.throughput(begin, at), 1)


def _do(job: StaticJob | AlgorithmJob) -> StaticRun | AlgorithmRun:
    gc.disable()  # collections in the middle of a million small objects double the time
    try:
        return job()
    finally:
        gc.enable()
        gc.collect()


def run_all(jobs: Iterable[Any], processes: int) -> list[Any]:
    jobs = list(jobs)
    if processes == 1:
        return [_do(job) for job in jobs]
    with ProcessPoolExecutor(processes) as pool:
        return list(pool.map(_do, jobs))


def statics(names: Iterable[str], processes: int, cache: Path | None) -> list[StaticRun]:
    """Every fixed limit in every phase of the scenarios, from the cache where it knows them."""
    known: dict[str, list[dict[str, object]]] = {}
    if cache is not None and cache.exists():
        known = json.loads(cache.read_text())
    keys = {name: _key(name) for name in names}
    jobs = [
        StaticJob(name, phase, limit)
        for name, key in keys.items()
        if key not in known
        for phase in range(len(SCENARIOS[name].phases()))
        for limit in SCENARIOS[name].limits
    ]
    fresh: dict[str, list[StaticRun]] = {}
    for run in run_all(jobs, processes):
        fresh.setdefault(keys[run.scenario], []).append(run)
    if fresh and cache is not None:
        known.update({key: [asdict(run) for run in runs] for key, runs in fresh.items()})
        cache.parent.mkdir(parents=True, exist_ok=True)
        cache.write_text(json.dumps(known))
    out = []
    for key in keys.values():
        out += fresh[key] if key in fresh else [StaticRun(**run) for run in known[key]]  # type: ignore[arg-type]
    return out


def list_sizes(names: Iterable[str], processes: int) -> list[StaticRun]:
    """Every fixed limit with every list size, in the last phase of the scenarios."""
    jobs = [
        StaticJob(name, len(SCENARIOS[name].phases()) - 1, limit, size)
        for name in names
        for limit in SCENARIOS[name].limits
        for size in LIST_SIZES
    ]
    return run_all(jobs, processes)


def _key(name: str) -> str:
    """What the static figures of a scenario depend on, apart from the code."""
    return repr(SCENARIOS[name])


def best(runs: Iterable[StaticRun], scenario: str) -> tuple[StaticRun, ...]:
    """The best fixed limit of each phase: the smallest whose throughput is within 1 % of the highest."""
    found = []
    for phase in range(len(SCENARIOS[scenario].phases())):
        of_phase = [run for run in runs if run.scenario == scenario and run.phase == phase and run.max_list is None]
        most = max(run.tokens_per_s for run in of_phase)
        enough = [run for run in of_phase if run.tokens_per_s >= 0.99 * most]
        smallest = min(enough, key=lambda run: run.limit)
        found.append(smallest)
    return tuple(found)


def algorithms(
    names: Iterable[str],
    chosen: Iterable[str],
    seeds: int,
    static_runs: list[StaticRun],
    processes: int,
    constants: tuple[tuple[str, float], ...] = (),
) -> list[AlgorithmRun]:
    chosen = list(chosen)
    jobs = [
        AlgorithmJob(name, algorithm, seed, best(static_runs, name), constants)
        for name in names
        for algorithm in chosen
        for seed in range(seeds)
    ]
    return run_all(jobs, processes)
