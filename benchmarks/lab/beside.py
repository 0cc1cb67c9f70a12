"""Two checkouts on the same draws, each by its own laboratory: a table by family.

    python -m benchmarks.lab.beside ../before --seeds 1 10
    python -m benchmarks.lab.beside ../before --seeds 1 40 --families once,refusing --arm throughput

The checkout at hand is *here*, the other one *beside*. The laboratory of each runs in a process of
its own, with that checkout's code: ``python -m benchmarks.lab --json``. The rows of a family are
printed once both are done with it.

- *share*: of the throughput of the best fixed limit in the same draw, by the same checkout.
- *refused*: mean share of requests that were answered with 429; *failed*: calls.
- *latency*: over that of the best fixed limit, at the median of the draws.
- *over beside's*: throughput of the arm, and of the best fixed limit, draw by draw: median, and
  from the least to the most. A share can stand still where both became faster.

Time is virtual, so a busy machine changes no figure. Each checkout keeps its fixed limits in its
own ``.cache/draws``. They are kept through changes of the client: delete them where a change makes
fixed limits faster or slower.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks._common import HERE, commit, median, spread
from benchmarks.lab.drawn_runs import ARMS, FixedRun, best
from benchmarks.lab.drawn_table import percentile
from benchmarks.lab.draws import FAMILIES

Run = dict[str, Any]
"""One draw of ``--json``, and ``best``: the throughput of its best fixed limit, or ``None``."""
COLUMNS = (
    "family",
    "checkout",
    "draws",
    "share: mean",
    "tenth",
    "worst",
    "refused",
    "failed",
    "latency",
    "over beside's: throughput",
    "best fixed",
)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path, help="another checkout of batchclient, with its benchmarks/lab")
    parser.add_argument("--seeds", type=int, nargs=2, default=(1, 10), metavar=("A", "B"), help="from A to B, both too")
    parser.add_argument(
        "--families", default=",".join(FAMILIES), help=f"with commas; all if not given: {', '.join(FAMILIES)}"
    )
    parser.add_argument("--arm", choices=ARMS, default="default")
    parser.add_argument("--processes", type=int, default=1)
    options = parser.parse_args()
    options.checkout = options.checkout.resolve()
    if not (options.checkout / "benchmarks" / "lab").is_dir():
        parser.error(f"{options.checkout}: there is no benchmarks/lab")
    if options.seeds[0] > options.seeds[1]:
        parser.error("--seeds: B is below A")
    options.families = options.families.split(",")
    if unknown := set(options.families) - set(FAMILIES):
        parser.error(f"--families: no {', '.join(unknown)}")
    return options


def looked(root: Path, family: str, options: argparse.Namespace) -> list[Run]:
    """A family's runs by the laboratory of a checkout."""
    first, last = options.seeds
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "runs.json"
        chosen = [
            "--draws",
            str(last - first + 1),
            "--first-seed",
            str(first),
            "--families",
            family,
            "--arms",
            options.arm,
        ]
        subprocess.run(
            [sys.executable, "-m", "benchmarks.lab", *chosen, "--processes", str(options.processes), "--json", file],
            cwd=root,
            env={**os.environ, "PYTHONPATH": str(root / "src")},
            stdout=subprocess.DEVNULL,
            check=True,
        )
        written = json.loads(file.read_text())
    for run in written["runs"]:
        grid = [FixedRun(**fixed) for fixed in written["grids"][f"{family}/{run['seed']}"]]
        run["best"] = best(grid).whole if grid else None
    return list(written["runs"])


def rows(here: Sequence[Run], beside: Sequence[Run]) -> list[list[str]]:
    """Two rows for each group of draws."""
    made = []
    for group in dict.fromkeys(map(_group, here)):
        ours, theirs = ([run for run in runs if _group(run) == group] for runs in (here, beside))
        made.append([group, "here", *_figures(ours), _over(ours, theirs, "whole"), _over(ours, theirs, "best")])
        made.append([group, "beside", *_figures(theirs), "", ""])
    return made


def _group(run: Run) -> str:
    if run["family"] != "once":
        return str(run["family"])
    return "once, known" if run["known"] else "once, not known"


def _figures(runs: Sequence[Run]) -> list[str]:
    shares = [run["share"] for run in runs]
    latencies = [run["latency_ratio"] for run in runs if not math.isnan(run["latency_ratio"])]
    failed = sum(run["failed"] for run in runs)
    calls = failed + sum(run["answered"] for run in runs)
    return [
        str(len(runs)),
        *(f"{share:.3f}" for share in (statistics.mean(shares), percentile(shares, 0.1), min(shares))),
        f"{statistics.mean(run['refused'] / max(1, run['requests']) for run in runs):.1%}",
        f"{failed:,} ({failed / max(1, calls):.1%})",
        f"{median(latencies):.2f} ×" if latencies else "",
    ]


def _over(ours: Sequence[Run], theirs: Sequence[Run], figure: str) -> str:
    ratios = [
        one[figure] / other[figure] for one, other in zip(ours, theirs, strict=True) if one[figure] and other[figure]
    ]
    return f"{median(ratios):.3f} ({spread(ratios)})" if ratios else ""


def main() -> None:
    options = _options()
    root, (first, last) = HERE.parent, options.seeds
    print(f"here {commit(root)}, beside {commit(options.checkout)}; arm {options.arm}; seeds {first} to {last}\n")
    print(f"| {' | '.join(COLUMNS)} |")
    print(f"| {' | '.join('-' for _ in COLUMNS)} |", flush=True)
    for family in options.families:
        for row in rows(looked(root, family, options), looked(options.checkout, family, options)):
            print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()
