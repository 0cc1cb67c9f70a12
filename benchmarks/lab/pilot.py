"""How often the intervals of ``batchclient map --pilot`` hold the truth. Exits with 1 past a bar.

    python benchmarks/lab/pilot.py --jobs 400

- Jobs of 400 to 1,600 rows, drawn by seed: prompts, answers, their order, the bound on the tokens,
  the limit (8 to 64, or found). The server is the embedded one with its profile ``gpu``, the client
  is the whole one, and time is virtual.
- The pilot has 200 rows. The truth is what its other rows then took: seconds, tokens of the
  answers, and the share of answers that were not cut off.
- Bars: 85 to 96.25 % of the intervals hold the truth, and half of them are no wider than 40 % of it.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
from collections import Counter
from dataclasses import dataclass
from multiprocessing import Pool
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks._common import machine, provenance, table

from batchclient import BatchClient
from batchclient._maps.forecast import Interval, share
from batchclient._maps.row_calls import RowCall
from batchclient.cli._dry_run import Reading
from batchclient.cli._map_options import MapOptions
from batchclient.cli._pilot import Pilot
from batchclient.jobs.rows import Row
from batchclient.simulator import SimulatedServer, SimulatorTransport
from batchclient.testing import VirtualLoop

PILOT = 200
LEAST, MOST, WIDEST = 0.85, 0.9625, 0.4


@dataclass(frozen=True)
class Told:
    """One interval, and the truth."""

    interval: Interval
    truth: float

    @property
    def holds(self) -> bool:
        return self.interval.low <= self.truth <= self.interval.high

    @property
    def width(self) -> float:
        return (self.interval.high - self.interval.low) / self.truth


async def job(seed: int, rows: int | None = None, pilot_rows: int = PILOT) -> dict[str, Told]:
    """Run a job that is drawn by a seed; return what its pilot told."""
    rng = random.Random(seed)
    mean, sigma = rng.choice([20, 60, 150]), rng.choice([0.2, 0.6, 1.0])
    limit, bound = rng.choice([8, 16, 32, 64, "auto", "auto"]), int(mean * rng.choice([1, 2, 4]))
    words, spread = rng.choice([3, 5]), rng.choice([0.0, 0.5, 1.0])
    count = rows or rng.randrange(400, 1600)
    texts = [f"{number} " + "word " * round(rng.lognormvariate(words, spread)) for number in range(count)]
    if rng.random() < 0.5:
        texts.sort(key=len)
    documents = [Row({"text": text}, number) for number, text in enumerate(texts, 1)]
    params = {"max_tokens": bound, "temperature": 0}

    def call_of(row: Row) -> RowCall:
        return RowCall("complete", row["text"], {})

    server = SimulatedServer("gpu", output_lengths=f"lognormal:{mean}:{sigma}", seed=seed)
    transport = SimulatorTransport(server)
    options = MapOptions(source="-", prompt="{text}", base_url="http://drawn/v1", max_tokens=bound, temperature=0)
    async with BatchClient(
        base_url="http://drawn/v1", http=lambda *_: transport, preset="throughput", limit=limit
    ) as client:
        read = Reading(documents, call_of, random_rows=pilot_rows)
        first = [each.row for each in read.drawn]
        pilot = Pilot(client, read, call_of, options, None)
        await pilot.run(lambda _: None)
        pilot.forecast()
        asked = {id(row) for row in first}
        others = [row for row in documents if id(row) not in asked]
        clock = asyncio.get_running_loop().time
        began_at, tokens, kinds = clock(), 0, Counter()
        async for result in client.stream_map(others, "{text}", **params):
            tokens += result.answer.usage.completion_tokens
            kinds[result.health] += 1
        took_s = clock() - began_at
    good = share(pilot.kinds["ok"], pilot_rows, len(others))
    return {
        "time": Told(pilot.seconds, took_s),
        "tokens": Told(pilot.answers, tokens),
        "health": Told(good, kinds["ok"] / len(others)),
    }


def run(seed: int, rows: int | None = None, pilot_rows: int = PILOT) -> dict[str, Told]:
    """Run a job in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(job(seed, rows, pilot_rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=400)
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    with Pool(options.processes) as pool:
        jobs = pool.map(run, range(options.first_seed, options.first_seed + options.jobs), chunksize=1)
    lines, misses = [], 0
    for name in ("time", "tokens", "health"):
        told = [each[name] for each in jobs]
        held, width = sum(each.holds for each in told), median(each.width for each in told)
        below = sum(each.truth < each.interval.low for each in told)
        misses += not (LEAST * len(jobs) <= held <= MOST * len(jobs) and width <= WIDEST)
        lines.append([name, f"{held} of {len(jobs)}", str(below), str(len(jobs) - held - below), f"{width:.1%}"])
    print(provenance(machine()))
    print(table(["of the other rows", "held", "truth below", "truth above", "median width"], lines))
    sys.exit(bool(misses))


if __name__ == "__main__":
    main()
