"""The client's limit on servers and work drawn at random.

    python -m benchmarks.lab --draws 40 --first-seed 1    # every family, the usual arms
    python -m benchmarks.lab --draws 40 --families once,closed --check
    python -m benchmarks.lab --draws 40 --arms default,no-page --json runs.json
    python -m benchmarks.lab --draws 40 --first-seed 1001 --write

``--check`` says whether the default client reaches its bars. ``--write`` writes into
``benchmarks/results`` and ``benchmarks/notes/laboratory.md``.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.lab import drawn_page
from benchmarks.lab.drawn_check import COMPARED_WITH, check, check_pages
from benchmarks.lab.drawn_runs import ARMS, ArmJob, ArmRun, GridJob, run_all
from benchmarks.lab.drawn_table import Result, lines, page_lines
from benchmarks.lab.draws import FAMILIES, draw

_USUAL_ARMS = tuple(drawn_page.ARMS)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, required=True, metavar="N", help="so many of each family")
    parser.add_argument("--first-seed", type=int, default=1, metavar="SEED")
    parser.add_argument("--families", help=f"with commas, of {', '.join(FAMILIES)}; all if not given")
    parser.add_argument("--arms", help=f"with commas, of {', '.join(ARMS)}; {', '.join(_USUAL_ARMS)} if not given")
    parser.add_argument("--pages", action="store_true", help="the default with and without the server's page, too")
    parser.add_argument("--check", action="store_true", help="say what the default misses, and exit with 1 if anything")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every run")
    parser.add_argument(
        "--write",
        action="store_true",
        help="the table of every family, and what the default misses, into benchmarks/notes/laboratory.md",
    )
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    if options.draws < 1:
        parser.error("--draws: at least 1")
    if options.write and (options.families or options.arms):
        parser.error("--write takes every family and the usual arms")
    return options


def main() -> int:
    """Run the draws, and return the exit status."""
    options, began = _options(), time.perf_counter()
    families = _chosen(options.families, FAMILIES, list(FAMILIES))
    arms = _chosen(options.arms, ARMS, list(_USUAL_ARMS))
    seeds = range(options.first_seed, options.first_seed + options.draws)
    checks = options.check or options.write
    results = _results(families, arms, seeds, options.processes, checks=checks)
    for line in lines(results):
        print(line)
    pairs: list[tuple[ArmRun, ArmRun]] = []
    if options.pages or options.write:
        pairs = _pages(families, seeds, options.processes)
        print()
        for line in page_lines(pairs):
            print(line)
    if options.json is not None:
        options.json.write_text(json.dumps(_written(results, pairs)))
    findings = [*check(results), *check_pages(pairs)] if checks else []
    if options.check:
        print()
        for finding in findings:
            print(finding)
    if options.write:
        drawn_page.write(results, findings, seeds)
    print(f"{time.perf_counter() - began:.0f} s")
    return int(options.check and not all(finding.reached for finding in findings))


def _results(families: list[str], arms: list[str], seeds: range, processes: int, *, checks: bool) -> list[Result]:
    """The arms on each draw, beside its fixed grid; ``checks``: with the arms that the bars need."""
    draws = [(family, seed) for family in families for seed in seeds]
    grids = dict(zip(draws, run_all([GridJob(*each) for each in draws], processes), strict=True))
    jobs = []
    for family, seed in draws:
        wanted = dict.fromkeys(arms)
        if checks:
            wanted |= dict.fromkeys(("default", *COMPARED_WITH.get(family, ())))
        for arm in wanted:
            jobs.append(ArmJob(family, seed, arm))
            if family == "siblings":
                jobs.append(ArmJob(family, seed, arm, clients=1))
    runs = dict(zip(jobs, run_all(jobs, processes), strict=True))
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


def _written(results: Sequence[Result], pairs: Sequence[tuple[ArmRun, ArmRun]]) -> dict[str, Any]:
    return {
        "runs": [
            asdict(each.run) | {"share": each.share, "half_share": each.half, "latency_ratio": each.latency}
            for each in results
        ],
        "grids": {f"{each.run.family}/{each.run.seed}": [asdict(fixed) for fixed in each.grid] for each in results},
        "pages": [[asdict(run) for run in pair] for pair in pairs],
    }


def _chosen(given: str | None, known: Mapping[str, Any], otherwise: list[str]) -> list[str]:
    names = otherwise if given is None else given.split(",")
    for name in names:
        if name not in known:
            raise SystemExit(f"no {name!r}; there are: {', '.join(known)}")
    return names


if __name__ == "__main__":
    sys.exit(main())
