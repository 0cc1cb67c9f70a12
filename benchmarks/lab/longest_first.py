"""``order="longest_first"``: how much sooner a job ends than with its rows as they come. Exits with 1 past a bar.

    python benchmarks/lab/longest_first.py [--draws 40]

- Jobs of 1,000 to 3,000 rows, drawn by seed; 256 in flight. The lengths of answers are lognormal, or
  nine of ten are short and the others long. The server is the embedded one with its profile
  ``gpu``, the client is the whole one, and time is virtual: the figures are the same everywhere.
- How the lengths can be foreseen: the prompt grows with its answer; the caller tells
  ``expected_tokens``; both right, or off by a factor of 1.6 (a standard deviation of 0.47 in the
  logarithm); or not at all, where prompts are as unequal as answers, and have nothing to do with
  them.
- The job's time is divided by that of the same job without the word.
- Bars: 0.92 on average where lengths can be foreseen, and 1.02 where they cannot.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import random
import sys
from hashlib import sha256
from multiprocessing import Pool
from pathlib import Path
from statistics import mean, median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks._common import machine, provenance, table, write_results

from batchclient import BatchClient, RowCall
from batchclient.simulator import OutputLengths, SimulatedServer, SimulatorTransport
from batchclient.testing import VirtualLoop

LIMIT, LONGEST = 256, 1024
FORESEEN, NOT_WORSE = 0.92, 1.02
OFF_BY = math.log(1.6)
WAYS = {
    "the prompt's size": True,
    "the prompt's size, off by 1.6 x": True,
    "`expected_tokens`": True,
    "`expected_tokens`, off by 1.6 x": True,
    "nothing": False,
}
"""What tells the length of an answer, and whether it can be foreseen so."""


class OwnLengths(OutputLengths):
    """Each prompt's answer has its own length; the server draws lengths from the prompt's hash."""

    def __init__(self, lengths: dict[str, int]) -> None:
        super().__init__(1.0)
        by_hash = {sha256(text.encode()).digest()[8:]: tokens for text, tokens in lengths.items()}
        object.__setattr__(self, "_by_hash", by_hash)

    def draw(self, entropy: bytes, max_tokens: int) -> tuple[int, bool]:
        tokens: int = self._by_hash[entropy]  # type: ignore[attr-defined]
        return (max_tokens, True) if tokens >= max_tokens else (tokens, False)


async def job(texts: list[str], lengths: list[int], expected: list[int] | None, order: Any) -> float:
    """Run a job; return how long it took, seconds."""
    server = SimulatedServer("gpu", output_lengths=OwnLengths(dict(zip(texts, lengths, strict=True))))
    transport = SimulatorTransport(server)

    def call_of(row: int) -> RowCall:
        return RowCall("complete", texts[row], {"expected_tokens": expected[row]} if expected else {})

    async with BatchClient("http://drawn/v1", http=lambda *_: transport, limit=LIMIT) as client:
        clock = asyncio.get_running_loop().time
        began_at = clock()
        await client.batch_map(range(len(texts)), call_of, max_tokens=LONGEST, temperature=0, order=order)
        return clock() - began_at


def timed(*arguments: Any) -> float:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(job(*arguments))


def draw(seed: int) -> dict[str, float]:
    """Return a drawn job's time with the word, by way, over its time without."""
    rng = random.Random(seed)
    count, kind = rng.randrange(1000, 3001), rng.choice(["even", "uneven", "two sorts"])

    def length() -> float:
        if kind == "two sorts":
            return rng.uniform(20, 60) if rng.random() < 0.9 else rng.uniform(700, LONGEST)
        return rng.lognormvariate(math.log(150), 0.5) if kind == "even" else rng.lognormvariate(math.log(120), 1.0)

    lengths = [min(LONGEST, max(2, round(length()))) for _ in range(count)]
    off = [max(1, round(tokens * rng.lognormvariate(0, OFF_BY))) for tokens in lengths]
    shuffled = rng.sample(lengths, count)
    of_size, of_size_off, of_others = (
        [f"{row} " + "x" * (4 * size) for row, size in enumerate(sizes)] for sizes in (lengths, off, shuffled)
    )
    plain = timed(of_others, lengths, None, None)
    return {
        "the prompt's size": timed(of_size, lengths, None, "longest_first") / timed(of_size, lengths, None, None),
        "the prompt's size, off by 1.6 x": (
            timed(of_size_off, lengths, None, "longest_first") / timed(of_size_off, lengths, None, None)
        ),
        "`expected_tokens`": timed(of_others, lengths, lengths, "longest_first") / plain,
        "`expected_tokens`, off by 1.6 x": timed(of_others, lengths, off, "longest_first") / plain,
        "nothing": timed(of_others, lengths, None, "longest_first") / plain,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=40)
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--write", action="store_true", help="write the result that the page shows")
    parser.add_argument("--processes", type=int, default=1)
    options = parser.parse_args()
    with Pool(options.processes) as pool:
        drawn = []
        for each in pool.imap(draw, range(options.first_seed, options.first_seed + options.draws)):
            drawn.append(each)
            print(len(drawn), *(f"{ratio:.3f}" for ratio in each.values()), file=sys.stderr, flush=True)
    rows, misses = [], 0
    for way, is_foreseen in WAYS.items():
        ratios = [each[way] for each in drawn]
        misses += mean(ratios) > (FORESEEN if is_foreseen else NOT_WORSE)
        figures = (mean(ratios), median(ratios), min(ratios), max(ratios))
        rows.append([way, *(f"{each:.2f}" for each in figures)])
    told = machine()
    header = ("what tells the lengths", "mean", "median", "least", "most")
    text = f"{table(header, rows)}\n\n{provenance(told)}"
    print(text)
    if options.write:
        write_results("longest_first", {"machine": told, "draws": drawn}, text)
    sys.exit(bool(misses))


if __name__ == "__main__":
    main()
