"""Two views of one client, in virtual time: a person's calls amid the rows of a map that never ends.

    python benchmarks/lab/views.py [--write]

The engine is the simulator's, with its own constants for a GPU; rows of 200 and answers of 150
tokens, lengths of both wander. A call of the view ``priority=1, preset="latency"`` comes every half
second; the rows are those of ``preset="throughput"``. The latency of the calls is compared with the
same calls at a server that has nothing else to do, under the same limit; what the map answers with
the same map without them.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from statistics import mean, quantiles

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks._common import machine, provenance, table, write_results
from benchmarks.lab.asker import limit_setup
from benchmarks.lab.driver import Run
from benchmarks.lab.profiles import Scenario
from benchmarks.lab.trace import Trace
from benchmarks.lab.workloads import Calls, Closed, Every, Lengths
from tests.core import Limit

from batchclient._settings import PRESETS
from batchclient.simulator import PROFILES

_SECONDS = 240.0
_FROM_S = 20.0
_EVERY_S = 0.5
_ROWS = Calls(Lengths(200, 0.5, 2048), Lengths(150, 0.7, 1024), 1024, numbers=PRESETS["throughput"])
_PERSON = Calls(Lengths(200, 0.5, 2048), Lengths(50, 0.5, 200), 200, priority=1, numbers=PRESETS["latency"])
_LIMITS = (32, 64, 128, 256)


def _run(scenario: Scenario, limit: int) -> Trace:
    return Run(scenario, limit_setup(scenario, Limit(limit)), 1).run()[0]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the result that the page shows")
    options = parser.parse_args()
    base = Scenario("views", PROFILES["gpu"], Closed(_ROWS), _SECONDS)
    rows = []
    for limit in _LIMITS:
        both = _run(replace(base, urgent=Every(_PERSON, _EVERY_S)), limit)
        bulk = _run(base, limit)
        empty = _run(replace(base, workload=Every(_PERSON, _EVERY_S)), limit)
        calls = [seconds for _, seconds in both.urgent]
        alone = mean(empty.latencies_s)
        share = both.throughput(_FROM_S, _SECONDS) / bulk.throughput(_FROM_S, _SECONDS)
        seconds = (mean(calls), quantiles(calls, n=20)[-1], mean(both.urgent_queued_s), alone)
        rows.append([str(limit), *(f"{each:.3f}" for each in seconds), f"{mean(calls) / alone:.2f}", f"{share:.3f}"])
    told = machine()
    header = ("limit", "call: mean s", "p95 s", "queued s", "empty: mean s", "mean over empty", "tokens of both")
    text = f"{table(header, rows)}\n\n{provenance(told)}"
    print(text)
    if options.write:
        write_results("views", {"machine": told, "rows": rows}, text)


if __name__ == "__main__":
    main()
