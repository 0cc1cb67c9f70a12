"""The laboratory's command line.

python -m benchmarks.lab                                        # everything, one seed
python -m benchmarks.lab --algorithms knee --seeds 10
python -m benchmarks.lab --profiles A,B --algorithms knee --series --set _GAIN=0.5
python -m benchmarks.lab --profiles A --static                  # the fixed limits alone
python -m benchmarks.lab --profiles A --seeds 3 --p95 10        # the knee under a latency objective of 10 s
python -m benchmarks.lab --once                                 # calls that are all asked at once
python -m benchmarks.lab --draws 40 --first-seed 1              # servers and work drawn at random
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.lab import drawn_command, once, results, sweep
from benchmarks.lab.algorithms import ALGORITHMS
from benchmarks.lab.driver import simulate
from benchmarks.lab.profiles import SCENARIOS

from batchclient._core.limits import KneeLimit, LatencyCap, LimitControl

_CACHE = Path(__file__).resolve().parents[2] / ".cache" / "lab_statics.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profiles", help="names, with commas; all if not given")
    parser.add_argument("--algorithms", help="names, with commas; all if not given")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--static", action="store_true", help="only the fixed limits, each shown")
    parser.add_argument("--series", action="store_true", help="limit and throughput over time, first seed")
    parser.add_argument("--changes", action="store_true", help="every change of the limit with its reason, first seed")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a constant of the knee's modules, or MODULE.NAME of another",
    )
    parser.add_argument(
        "--p95", type=float, metavar="SECONDS", help="only the knee under this latency objective, each seed shown"
    )
    parser.add_argument(
        "--once", action="store_true", help="only calls that are all asked at once, and how long they take"
    )
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument(
        "--write",
        action="store_true",
        help="keep the figures in benchmarks/results (see report.py); those of fixed limits without --algorithms",
    )
    parser.add_argument("--fresh", action="store_true", help="do not use fixed limits' figures of an earlier run")
    drawn_command.add_arguments(parser)
    options = parser.parse_args()
    if options.draws is not None:
        sys.exit(drawn_command.run(options))
    names = _chosen(options.profiles, SCENARIOS)
    if options.write and options.set:
        parser.error("--write keeps figures of the code as it is, without --set")
    if options.once and (options.set or options.write or options.profiles or options.algorithms):
        parser.error("--once has servers and limits of its own (benchmarks/lab/once.py)")
    if options.fresh:
        _CACHE.unlink(missing_ok=True)
    if options.once:
        _print_once(options.processes)
        return
    began = time.perf_counter()
    static_runs = sweep.statics(names, options.processes, _CACHE)
    if options.static:
        _print_statics(names, static_runs)
        return
    if options.p95 is not None:
        _print_objective(names, options.p95, options.seeds, static_runs)
        return
    chosen = _chosen(options.algorithms, ALGORITHMS)
    constants = tuple((name, float(value)) for name, _, value in (each.partition("=") for each in options.set))
    runs = sweep.algorithms(names, chosen, options.seeds, static_runs, options.processes, constants)
    _print_runs(names, chosen, static_runs, runs)
    if options.series:
        _print_series(runs)
    if options.changes:
        _print_changes(names, chosen, constants)
    if options.write:
        # An algorithm has nothing to do with what fixed limits and list sizes came to.
        fixed = static_runs + sweep.list_sizes(names, options.processes) if options.algorithms is None else []
        results.write(runs, fixed)
    print(f"{time.perf_counter() - began:.0f} s")


def _chosen(given: str | None, known: dict[str, object]) -> list[str]:
    names = list(known) if given is None else given.split(",")
    for name in names:
        if name not in known:
            raise SystemExit(f"no {name!r}; there are: {', '.join(known)}")
    return names


def _print_statics(names: Sequence[str], runs: Sequence[sweep.StaticRun]) -> None:
    for name in names:
        for phase, best in enumerate(sweep.best(runs, name)):
            print(f"{name} phase {phase} ({SCENARIOS[name].summary}): best {best.limit}")
            for run in runs:
                if (run.scenario, run.phase) == (name, phase):
                    share = run.tokens_per_s / best.tokens_per_s
                    print(
                        f"  {run.limit:5} {run.tokens_per_s:9.0f} tok/s {share:5.2f}"
                        f"  mean {run.mean_s:7.2f} p95 {run.p95_s:7.2f} s  lists of {run.mean_list:.1f}"
                    )


def _print_once(processes: int) -> None:
    print("calls that are all asked at once: how long until the last is answered, against no limit")
    print("| Server | Output tokens | Calls | No limit, s | Knee | Knee that does not open | Limit 64 |")
    print("|---|---|---:|---:|---:|---:|---:|")
    for run in once.runs(processes=processes):
        ratios = " | ".join(f"{taken / run.unlimited_s:.2f}" for taken in (run.knee_s, run.closed_s, run.fixed_s))
        print(f"| {run.server} | {run.outputs} | {run.count:,} | {run.unlimited_s:.1f} | {ratios} |")


def _print_objective(names: Sequence[str], p95_s: float, seeds: int, static_runs: Sequence[sweep.StaticRun]) -> None:
    print(
        f"the knee under a p95 of {p95_s:g} s: share of the best fixed limit's tokens/s over the last half; p95, limit"
    )
    for name in names:
        best = sweep.best(static_runs, name)[-1]
        for seed in range(seeds):
            trace = simulate(SCENARIOS[name], LimitControl(KneeLimit(opens=False), [LatencyCap(p95_s)]), seed)
            half, end = trace.duration_s / 2, trace.duration_s
            print(
                f"  {name:10} {trace.throughput(half, end) / best.tokens_per_s:5.2f}"
                f"  p95 {trace.latency_s(half, end)[1]:6.2f} s  limit {trace.mean_limit(half, end):6.0f}"
            )


def _print_runs(
    names: Sequence[str],
    chosen: Sequence[str],
    static_runs: list[sweep.StaticRun],
    runs: Sequence[sweep.AlgorithmRun],
) -> None:
    print("share of the best fixed limit's tokens/s over the last half: mean (worst); then limit, latency ratio, t90")
    for name in names:
        best = sweep.best(static_runs, name)
        print(
            f"{name} {SCENARIOS[name].summary}: best fixed"
            f" {', '.join(f'{run.limit} ({run.tokens_per_s:.0f} tok/s, {run.mean_s:.2f} s)' for run in best)}"
        )
        for algorithm in chosen:
            of_it = [run for run in runs if (run.scenario, run.algorithm) == (name, algorithm)]
            shares = [run.share for run in of_it]
            latency = statistics.mean(run.latency_ratio for run in of_it)
            limit = statistics.mean(run.mean_limit for run in of_it)
            reached = results.reached(of_it)
            print(
                f"  {algorithm:16} {statistics.mean(shares):5.2f} ({min(shares):.2f})  limit {limit:6.0f}"
                f"  latency x{latency:5.2f}  t90 {reached:>8} s  lists of {of_it[0].mean_list:4.1f}"
                f"  failed {of_it[0].failed} rejected {of_it[0].rejected} preempted {of_it[0].preemptions}"
            )


def _print_changes(names: Sequence[str], chosen: Sequence[str], constants: Sequence[tuple[str, float]]) -> None:
    sweep.set_constants(constants)
    for name in names:
        for algorithm in chosen:
            print(f"{name} {algorithm}: second, limit, reason")
            for at, limit, reason in simulate(SCENARIOS[name], ALGORITHMS[algorithm]()).changes:
                print(f"  {at:8.2f} {limit:5} {reason}")


def _print_series(runs: Sequence[sweep.AlgorithmRun]) -> None:
    for run in runs:
        if run.seed == 0:
            print(f"{run.scenario} {run.algorithm}: second, limit, tokens/s")
            for at, limit, tokens_per_s in run.series[::2]:
                print(f"  {at:6.0f} {limit:7.1f} {tokens_per_s:9.0f}")


if __name__ == "__main__":
    main()
