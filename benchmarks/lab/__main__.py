"""The client's limit on servers and work drawn at random.

    python -m benchmarks.lab --draws 40 --first-seed 1    # every family, the usual arms
    python -m benchmarks.lab --draws 40 --families once,closed --check
    python -m benchmarks.lab --draws 40 --arms default,no-page --check  # what the server's page is worth, too
    python -m benchmarks.lab --draws 40 --first-seed 1001 --write

``--check`` says whether the default client reaches its bars. ``--write`` writes into
``benchmarks/results`` and ``benchmarks/notes/laboratory.md``. Virtual time gives the same figures
on every machine.

Two checkouts, each by its own laboratory and its own ``.cache/draws``: the other one writes its
runs, and this one compares. Delete the other's kept limits where a change makes fixed limits faster
or slower.

    python -m benchmarks.lab --draws 10 --arms default --json before.json  # in the other checkout
    python -m benchmarks.lab --draws 10 --arms default --beside before.json
"""

from __future__ import annotations

import argparse
import json
import sys
import textwrap
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks._common import HERE, commit, merged, section_text, write_results
from benchmarks.lab.drawn_check import COMPARED_WITH, Finding, check
from benchmarks.lab.drawn_runs import ARMS, VERSION, ArmJob, FixedRun, GridJob, best, run_all
from benchmarks.lab.drawn_table import Result, beside_table, figures_table, worst
from benchmarks.lab.draws import FAMILIES, draw

_USUAL_ARMS = ("default", "fixed-256", "no-limit")
_PAGE = HERE / "notes" / "laboratory.md"
_NAME = "draws"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, required=True, metavar="N", help="so many of each family")
    parser.add_argument("--first-seed", type=int, default=1, metavar="SEED")
    parser.add_argument("--families", help=f"with commas, of {', '.join(FAMILIES)}; all if not given")
    parser.add_argument("--arms", help=f"with commas, of {', '.join(ARMS)}; {', '.join(_USUAL_ARMS)} if not given")
    parser.add_argument("--check", action="store_true", help="say what the default misses, and exit with 1 if anything")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every run")
    parser.add_argument("--beside", type=Path, metavar="FILE", help="compare with what another checkout wrote so")
    parser.add_argument("--write", action="store_true", help="every family and bar, into the laboratory's page")
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
    arms = _chosen(options.arms, ARMS, [*_USUAL_ARMS, "no-page"] if options.write else list(_USUAL_ARMS))
    seeds = range(options.first_seed, options.first_seed + options.draws)
    results = _results(families, arms, seeds, options.processes, checks=options.check or options.write)
    print(figures_table(results))
    for line in worst(results):
        print(line)
    written = _written(results)
    if options.json is not None:
        options.json.write_text(json.dumps(written))
    if options.beside is not None:
        print(f"\n{beside_table(_with_best(written), _with_best(json.loads(options.beside.read_text())))}")
    findings = list(check(results)) if options.check or options.write else []
    for finding in findings:
        print(finding)
    if options.write:
        bars = [asdict(finding) | {"reached": finding.reached} for finding in findings]
        data = {"version": VERSION, "first_seed": seeds[0], "draws": len(seeds), "findings": bars}
        write_results(_NAME, data, _text(results, findings, seeds))
        _PAGE.write_text(merged(_PAGE.read_text(), _NAME, section_text(_NAME)))
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


def _written(results: Sequence[Result]) -> dict[str, Any]:
    return {
        "runs": [
            asdict(each.run) | {"share": each.share, "half_share": each.half, "latency_ratio": each.latency}
            for each in results
        ],
        "grids": {f"{each.run.family}/{each.run.seed}": [asdict(fixed) for fixed in each.grid] for each in results},
    }


def _with_best(written: dict[str, Any]) -> list[dict[str, Any]]:
    """Every run of ``--json`` by the first arm, with the throughput of the best fixed limit on its draw."""
    first = written["runs"][0]["arm"]
    runs = [run for run in written["runs"] if run["arm"] == first]
    grids = {name: [FixedRun(**fixed) for fixed in grid] for name, grid in written["grids"].items()}
    return [
        run | {"best": best(grid).whole if (grid := grids[f"{run['family']}/{run['seed']}"]) else None} for run in runs
    ]


def _text(results: Sequence[Result], findings: Sequence[Finding], seeds: range) -> str:
    """The page's part, in Markdown."""
    missed = [finding.described for finding in findings if not finding.reached]
    reached = f"Of {len(findings)} bars {len(findings) - len(missed)} are reached."
    said = f"{reached} Missed: {'; '.join(missed)}." if missed else reached
    command = f"python -m benchmarks.lab --draws {len(seeds)} --first-seed {seeds[0]} --write"
    return "\n\n".join(
        [
            "# What the draws came to",
            f"Seeds {seeds[0]} to {seeds[-1]}: `{command}` at commit `{commit()}`.",
            figures_table(results),
            textwrap.fill(said, 100, break_long_words=False, break_on_hyphens=False),
        ]
    )


def _chosen(given: str | None, known: Mapping[str, Any], otherwise: list[str]) -> list[str]:
    names = otherwise if given is None else given.split(",")
    for name in names:
        if name not in known:
            raise SystemExit(f"no {name!r}; there are: {', '.join(known)}")
    return names


if __name__ == "__main__":
    sys.exit(main())
