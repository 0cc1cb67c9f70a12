"""``python -m benchmarks.lab --draws 40``: the client's limit on servers and work drawn at random."""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.lab.drawn_check import COMPARED_WITH, check, check_pages
from benchmarks.lab.drawn_runs import ARMS, ArmJob, ArmRun, GridJob, run_all
from benchmarks.lab.drawn_table import Result, lines, page_lines
from benchmarks.lab.draws import FAMILIES, draw

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What draws take."""
    group = parser.add_argument_group("servers and work drawn at random")
    group.add_argument("--draws", type=int, metavar="N", help="so many of each family, and nothing else")
    group.add_argument("--first-seed", type=int, default=1, metavar="SEED")
    group.add_argument("--families", help=f"with commas, of {', '.join(FAMILIES)}; all if not given")
    group.add_argument(
        "--arms", help=f"with commas, of {', '.join(ARMS)}; default, fixed-256 and no-limit if not given"
    )
    group.add_argument("--pages", action="store_true", help="the default with and without the server's page, too")
    group.add_argument("--check", action="store_true", help="say what the default misses, and exit with 1 if anything")
    group.add_argument("--json", type=Path, metavar="FILE", help="write every run")


def run(options: argparse.Namespace) -> int:
    """Do what was asked for; return the exit status."""
    began = time.perf_counter()
    families = _chosen(options.families, FAMILIES, list(FAMILIES))
    arms = _chosen(options.arms, ARMS, ["default", "fixed-256", "no-limit"])
    seeds = range(options.first_seed, options.first_seed + options.draws)
    results = _results(families, arms, seeds, options)
    for line in lines(results):
        print(line)
    pairs: list[tuple[ArmRun, ArmRun]] = []
    if options.pages:
        pairs = _pages(families, seeds, options.processes)
        print()
        for line in page_lines(pairs):
            print(line)
    if options.json is not None:
        options.json.write_text(json.dumps(_written(results, pairs)))
    missed = 0
    if options.check:
        print()
        for finding in (*check(results), *check_pages(pairs)):
            print(finding)
            missed += not finding.reached
    print(f"{time.perf_counter() - began:.0f} s")
    return 1 if missed else 0


def _results(families: list[str], arms: list[str], seeds: range, options: argparse.Namespace) -> list[Result]:
    draws = [(family, seed) for family in families for seed in seeds]
    grids = dict(zip(draws, run_all([GridJob(*each) for each in draws], options.processes), strict=True))
    jobs = []
    for family, seed in draws:
        wanted = dict.fromkeys(arms)
        if options.check:
            wanted |= dict.fromkeys(("default", *COMPARED_WITH.get(family, ())))
        for arm in wanted:
            jobs.append(ArmJob(family, seed, arm))
            if family == "siblings":
                jobs.append(ArmJob(family, seed, arm, clients=1))
    runs = dict(zip(jobs, run_all(jobs, options.processes), strict=True))
    return [
        Result(
            draw(job.family, job.seed),
            made,
            grids[job.family, job.seed],
            runs.get(ArmJob(job.family, job.seed, job.arm, clients=1)),
        )
        for job, made in runs.items()
        if job.clients is None
    ]


def _pages(families: list[str], seeds: range, processes: int) -> list[tuple[ArmRun, ArmRun]]:
    jobs = [ArmJob(family, seed, "default", page) for family in families for seed in seeds for page in (True, False)]
    runs = run_all(jobs, processes)
    return list(zip(runs[::2], runs[1::2], strict=True))


def _written(results: list[Result], pairs: list[tuple[ArmRun, ArmRun]]) -> dict[str, Any]:
    return {
        "runs": [
            asdict(each.run) | {"share": each.share, "half_share": each.half, "latency_ratio": each.latency}
            for each in results
        ],
        "grids": {f"{each.run.family}/{each.run.seed}": [asdict(fixed) for fixed in each.grid] for each in results},
        "pages": [[asdict(run) for run in pair] for pair in pairs],
    }


def _chosen(given: str | None, known: dict[str, Any], otherwise: list[str]) -> list[str]:
    names = otherwise if given is None else given.split(",")
    for name in names:
        if name not in known:
            raise SystemExit(f"no {name!r}; there are: {', '.join(known)}")
    return names
