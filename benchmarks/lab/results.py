"""The laboratory's figures on disk, and the tables made of them.

``results/lab.json`` holds one entry per scenario, algorithm and seed. A run replaces its own algorithms' entries on its own scenarios; entries of a
scenario that has changed since are dropped.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any
from zlib import crc32

from benchmarks.lab.algorithms import ALGORITHMS
from benchmarks.lab.profiles import SCENARIOS
from benchmarks.lab.sweep import LIST_SIZES, AlgorithmRun, StaticRun

RESULTS = Path(__file__).resolve().parents[1] / "results"
DRAWN = "knee"
"""Only this one's series are kept, of its first seed."""
_DRAWN_EVERY = 2


def write(runs: Sequence[AlgorithmRun], static_runs: Sequence[StaticRun]) -> None:
    """Merge ``runs`` into ``results/lab.json`` and make ``results/lab.md`` anew."""
    path = RESULTS / "lab.json"
    versions = {name: crc32(repr(scenario).encode()) for name, scenario in SCENARIOS.items()}
    replaced = {(run.scenario, run.algorithm) for run in runs}
    before: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"runs": [], "statics": []}
    statics = [one for one in before["statics"] if versions.get(one["scenario"]) == one["version"]]
    fresh = {run.scenario for run in static_runs}
    statics = [one for one in statics if one["scenario"] not in fresh]
    statics += [asdict(run) | {"version": versions[run.scenario]} for run in static_runs]
    statics.sort(
        key=lambda one: (list(SCENARIOS).index(one["scenario"]), one["phase"], one["max_list"] or 32, one["limit"])
    )
    kept = before["runs"]
    entries = [
        entry
        for entry in kept
        if versions.get(entry["scenario"]) == entry["version"]
        and (entry["scenario"], entry["algorithm"]) not in replaced
        and entry["algorithm"] in ALGORITHMS
    ]
    for run in runs:
        entry = asdict(run) | {"version": versions[run.scenario]}
        del entry["wall_s"]
        drawn = run.algorithm == DRAWN and run.seed == 0
        entry["series"] = run.series[::_DRAWN_EVERY] if drawn else []
        entries.append(entry)
    names = list(SCENARIOS)
    algorithms = list(ALGORITHMS)
    entries.sort(key=lambda one: (names.index(one["scenario"]), algorithms.index(one["algorithm"]), one["seed"]))
    lines = ",\n".join(json.dumps(_rounded(entry)) for entry in entries)
    static_lines = ",\n".join(json.dumps(_rounded(one)) for one in statics)
    summaries = {name: scenario.summary for name, scenario in SCENARIOS.items()}
    path.write_text(
        f'{{"summaries": {json.dumps(summaries)},\n"runs": [\n{lines}\n],\n"statics": [\n{static_lines}\n]}}\n'
    )
    (RESULTS / "lab.md").write_text(_markdown([_run(entry) for entry in entries], statics))


def reached(runs: Sequence[AlgorithmRun]) -> str:
    """For each phase the worst seed's time to 90 %, seconds; a dash: one of them never got there."""
    worst = [max(values) for values in zip(*(run.reached_s for run in runs), strict=True)]
    return " / ".join("–" if value == math.inf else f"{value:.0f}" for value in worst)


def _run(entry: dict[str, Any]) -> AlgorithmRun:
    fields = {name: value for name, value in entry.items() if name != "version"}
    fields["reached_s"] = tuple(math.inf if value is None else value for value in entry["reached_s"])
    return AlgorithmRun(**fields, wall_s=0.0)


def _rounded(entry: dict[str, Any]) -> dict[str, Any]:
    # JSON has no infinity and no NaN.
    def plain(value: Any) -> Any:
        if isinstance(value, float):
            return float(f"{value:.4g}") if math.isfinite(value) else None
        if isinstance(value, (tuple, list)):
            return [plain(each) for each in value]
        return value

    return {name: plain(value) for name, value in entry.items()}


def _markdown(runs: Sequence[AlgorithmRun], statics: Sequence[dict[str, Any]]) -> str:
    algorithms = [name for name in ALGORITHMS if any(run.algorithm == name for run in runs)]
    groups: dict[tuple[str, str], list[AlgorithmRun]] = {}
    for run in runs:
        groups.setdefault((run.scenario, run.algorithm), []).append(run)
    names = [name for name in SCENARIOS if any(run.scenario == name for run in runs)]
    seeds = {name: max(len(group) for key, group in groups.items() if key[1] == name) for name in algorithms}
    several = ", ".join(f"{name}: {count}" for name, count in seeds.items() if count > 1)

    def table(title: str, cell: Any) -> list[str]:
        lines = [f"**{title}**", "", f"| | {' | '.join(algorithms)} |", "|---" * (len(algorithms) + 1) + "|"]
        for name in names:
            cells = [cell(groups[name, each]) if (name, each) in groups else "" for each in algorithms]
            lines.append(f"| {name} | {' | '.join(cells)} |")
        return [*lines, ""]

    lines = ["# The limit algorithms in virtual time", ""]
    lines += ["| scenario | | best fixed limit | tokens/s | mean latency, s |", "|---|---|---|---|---|"]
    for name in names:
        one = next(run for run in runs if run.scenario == name)
        figures = f"{one.best_limit} | {one.best_tokens_per_s:,.0f} | {one.best_mean_s:.2f}"
        lines.append(f"| {name} | {SCENARIOS[name].summary} | {figures} |")
    lines.append("")
    lines += table("Throughput over the last half, as a share of the best fixed limit's", _share)
    lines += table("Mean latency, sent to answered, over the best fixed limit's", _latency)
    lines += table("Seconds to 90 % of the best fixed limit's throughput, from the start / after the change", reached)
    lines += table(
        "Mean limit over the last half", lambda group: f"{statistics.mean(run.mean_limit for run in group):.0f}"
    )
    lines += _list_table(names, statics)
    note = "One seed each" + (f", but {several} (then the mean, and the worst in brackets)." if several else ".")
    return "\n".join([*lines, note]) + "\n"


def _list_table(names: Sequence[str], statics: Sequence[dict[str, Any]]) -> list[str]:
    lines = ["**Fixed limits: tokens/s of the best with lists of at most so many prompts, and that limit**", ""]
    sizes = sorted([*LIST_SIZES, 32])
    lines += [f"| | {' | '.join(map(str, sizes))} |", "|---" * (len(sizes) + 1) + "|"]
    for name in names:
        cells = []
        for size in sizes:
            phase = len(SCENARIOS[name].phases()) - 1
            of_it = [
                one for one in statics if (one["scenario"], one["phase"], one["max_list"] or 32) == (name, phase, size)
            ]
            most = max((one["tokens_per_s"] for one in of_it), default=0.0)
            enough = [one for one in of_it if one["tokens_per_s"] >= 0.99 * most]
            smallest = min(enough, key=lambda one: one["limit"], default=None)
            cells.append(f"{smallest['tokens_per_s']:,.0f} at {smallest['limit']}" if smallest else "")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return [*lines, ""]


def _share(group: Sequence[AlgorithmRun]) -> str:
    shares = [max(0.0, run.share) for run in group]
    worst = f" ({min(shares):.2f})" if len(group) > 1 else ""
    return f"{statistics.mean(shares):.2f}{worst}"


def _latency(group: Sequence[AlgorithmRun]) -> str:
    known = [run.latency_ratio for run in group if run.mean_s is not None and math.isfinite(run.mean_s)]
    return f"{statistics.mean(known):.2f}" if known else "–"
