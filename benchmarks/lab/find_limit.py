"""How often ``batchclient bench --find limit`` names the right limit. Exits with 1 past a bar.

    python benchmarks/lab/find_limit.py --seeds 1001 1040

- The servers are those of the laboratory's family ``closed``, drawn by seed, in virtual time. Each
  has an objective that a limit, also drawn, just keeps: 1.1 times its 95th percentile.
- The truth: every limit of the search's grid is measured with four times as many calls, and the
  rule of the search chooses among them.
- Right: the found limit is the true one or next to it on the grid; or it keeps the objective and
  has 0.95 of the true one's answers per second, as on a plateau, where the best place is noise.
- Undecided: the search says so. Wrong: neither.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks._common import machine, provenance, table
from benchmarks.lab.draws import Draw, draw

from batchclient.bench import Measurement, Setting, Slo, Times, Workload
from batchclient.bench.find import find_in
from batchclient.bench.session import Run, Session, begin
from batchclient.simulator import SimulatedServer, SimulatorTransport
from batchclient.testing import VirtualLoop

GRID = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512]
CALLS = 1200
"""Calls of a window at the server's highest throughput, on the mean."""
MOST_OUTPUT = 100
LEAST_RIGHT, MOST_WRONG = 36, 1
AS_GOOD, AS_MANY = 0.97, 0.95


def suitable(seed: int) -> Draw | None:
    drawn = draw("closed", seed)
    return drawn if drawn.capacity.output_tokens <= MOST_OUTPUT else None


async def session_on(drawn: Draw, slo: Slo | None, times: Times, seed: int) -> Session:
    capacity = drawn.capacity
    workload = Workload(
        prompt_tokens=max(1, round(capacity.prompt_tokens)), output_tokens=max(1, round(capacity.output_tokens))
    )
    transport = SimulatorTransport(SimulatedServer(drawn.scenario.server, seed=seed))
    return await begin(
        "http://drawn/v1",
        workload,
        times,
        [] if slo is None else [slo],
        seed=seed,
        transport=lambda *_: transport,
        cpu_s=lambda: 0.0,
    )


def times_of(drawn: Draw, calls: int) -> Times:
    window_s = max(calls / drawn.capacity.most_per_s, 4 * drawn.capacity.lone_s)
    return Times(2 * drawn.capacity.busy_s, window_s, 20 * drawn.capacity.busy_s)


def virtually(coroutine):
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(coroutine)


async def truth(drawn: Draw, seed: int) -> tuple[Slo, dict[int, Measurement]]:
    """Measure the grid; draw an objective that one of its limits just keeps."""
    begun = await session_on(drawn, None, times_of(drawn, 4 * CALLS), seed)
    rates: dict[int, float] = {}
    latencies: dict[int, float] = {}
    for limit in GRID:
        cell = await begun.measure(Setting("fixed", concurrency=limit))
        rates[limit], latencies[limit] = cell.calls_per_s, cell.times["latency"].percentiles[0.95]
        if limit >= 32 and rates[limit] < 1.01 * max(rates[each] for each in GRID if each <= limit / 4):
            break
    bound_s = 1.1 * latencies[random.Random(seed).choice([each for each in latencies if each >= 4])]
    return Slo(f"p95<{bound_s * 1000:.1f}ms"), {each: (rates[each], latencies[each]) for each in latencies}


def best_of(measured, bound_s):
    holding = {limit: rate for limit, (rate, latency) in measured.items() if latency <= bound_s}
    if not holding:
        return None
    most = max(holding.values())
    return min(limit for limit, rate in holding.items() if rate >= AS_GOOD * most)


def one(drawn: Draw, seed: int) -> dict:
    slo, measured = virtually(truth(drawn, seed))
    true = best_of(measured, slo.bound_s)

    async def run():
        begun = await session_on(drawn, slo, times_of(drawn, CALLS), seed + 50_000)
        return await find_in(Run(begun), most=GRID[-1])

    result = virtually(run())
    found = None if result.recommended is None else result.recommended.limit
    near = abs(GRID.index(found) - GRID.index(true)) <= 1 if found and true else found == true
    rate, latency = measured.get(found, (0.0, 0.0))
    as_good = true is not None and latency <= slo.bound_s and rate >= AS_MANY * measured[true][0]
    decided = result.found.decided if result.recommended is None else result.recommended.decided
    return {
        "seed": seed,
        "objective": slo.text,
        "true": true,
        "found": found,
        "verdict": "right" if near or as_good else "wrong" if decided else "undecided",
        "near": near,
        "cells": len(result.measurements),
        "minutes": sum(cell.window_s for cell in result.measurements) / 60,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs=2, default=(1001, 1040), metavar=("FIRST", "LAST"))
    parser.add_argument("--json")
    options = parser.parse_args()
    rows, seed, wanted = [], options.seeds[0], options.seeds[1] - options.seeds[0] + 1
    began = time.monotonic()
    while len(rows) < wanted:
        drawn = suitable(seed)
        if drawn is not None:
            rows.append(one(drawn, seed))
            print(f"{len(rows)}/{wanted} {rows[-1]}", file=sys.stderr, flush=True)
        seed += 1
    print(provenance(machine()))
    print(table(list(rows[0]), [[str(value) for value in row.values()] for row in rows]))
    right = sum(row["verdict"] == "right" for row in rows)
    undecided = sum(row["verdict"] == "undecided" for row in rows)
    near = sum(row["near"] for row in rows)
    print(
        f"right {right} ({near} by steps alone), undecided {undecided}, wrong {wanted - right - undecided} of {wanted},"
        f" {time.monotonic() - began:.0f} s"
    )
    if options.json:
        Path(options.json).write_text(json.dumps(rows, indent=1) + "\n")
    missed = right + undecided < LEAST_RIGHT * wanted / 40 or wanted - right - undecided > MOST_WRONG
    sys.exit(missed)


if __name__ == "__main__":
    main()
