"""Throughput of calls grouped by length, beside calls in the order in which they came.

    python benchmarks/lab/length_grouping.py  # virtual time: the same on every machine

The server is the laboratory's static batcher, which pads (``benchmarks/lab/padding.py``, batches of
64). A job has 2,048 texts, lognormal with sigma 1 about a mean of 400 tokens; no two share a prefix.
Replies come as a whole. Answers have 1 token each, 16 tokens each, or unequal lengths that nobody
knows before. Figures are the mean of the seeds. The arms are each the real scheduler with the same
texts.

- ``arrival order``: the scheduler takes all calls for equally long, so lists are filled first come,
  first served.
- ``nearest lengths``: the default. A list is filled from its oldest call's length bucket, then from
  the nearest buckets.
- ``one bucket``: ``length_reach=0``, as for a server that pads.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks._common import machine, provenance, table, write_results
from benchmarks.lab.profiles import SCENARIOS
from benchmarks.lab.strategies import Job, Strategy, run
from benchmarks.lab.workloads import Calls, Lengths
from tests.core import (
    FixedLimit,
    Limit,
    Search,
)

ARMS: Mapping[str, tuple[bool, Mapping[str, Any]]] = {
    "arrival order": (False, {}),
    "nearest lengths": (True, {}),
    "one bucket": (True, {"length_reach": 0}),
}
"""Whether the scheduler knows lengths, and numbers of the batching rule."""

TEXTS = Lengths(400, 1.0, 8192)
STATIC_ANSWERS = {
    "1 token": Calls(TEXTS, Lengths(1), max_tokens=1),
    "16 tokens": Calls(TEXTS, Lengths(16), max_tokens=16),
    "64 on average, unequal": Calls(TEXTS, Lengths(64, 0.9, 256), max_tokens=256),
}
STATIC_LIMITS: Mapping[str, Callable[[], Limit]] = {
    "64": lambda: FixedLimit(64),
    "found (the default)": lambda: Limit(Search()),
}


def static_rates(arm: str, calls: Calls, limit: Callable[[], Limit], texts: int, seeds: int) -> list[float]:
    """Answers per second, by seed."""
    known, settings = ARMS[arm]
    scenario = replace(SCENARIOS["padding"], workload=Job(calls, texts, known), duration_s=36_000.0)
    runs = [run(scenario, Strategy(arm, settings, limit), seed) for seed in range(seeds)]
    if any(one["answers"] != texts for one in runs):
        raise AssertionError("not every text was answered")
    return [one["answers_per_s"] for one in runs]


def markdown(data: dict[str, Any]) -> str:
    """The shares of the rates in order of arrival, with the default limit."""
    rows = []
    for answers, limits in data["rates"].items():
        arms = limits["found (the default)"]
        shares = [fmean(arms[arm]) / fmean(arms["arrival order"]) for arm in ("nearest lengths", "one bucket")]
        rows.append([answers, *(f"{share:.2f}" for share in shares)])
    header = ("answers", "nearest lengths (the default)", "one bucket")
    return f"{table(header, rows)}\n\n{provenance(data['machine'])}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--texts", type=int, default=2048, help="of a job; nothing is written with fewer")
    options = parser.parse_args()
    rates = {
        answers: {
            name: {arm: static_rates(arm, calls, limit, options.texts, options.seeds) for arm in ARMS}
            for name, limit in STATIC_LIMITS.items()
        }
        for answers, calls in STATIC_ANSWERS.items()
    }
    data = {"machine": machine(), "rates": rates}
    print(markdown(data))
    if options.texts >= 2048:
        write_results("length_grouping", data, markdown(data))


if __name__ == "__main__":
    main()
