"""CPU time of the scheduler per call, by the number of queued calls.

The core is measured alone, without I/O or event loop.

    python benchmarks/core_cost.py --depths 100,10000,1000000

Each run fills the queue to its depth, which is not measured. Then a window of calls goes through
the queue at that depth: 64 at a time are submitted, granted and answered. Freed permits are granted
together, as in the default mode. A cost that grows with the depth would show a scan of the queue.
"""

from __future__ import annotations

import argparse
import gc
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from _common import machine, median, provenance, spread, table
from tests.core import (
    Answered,
    FixedLimit,
    Request,
    Resolve,
    Scheduler,
    SchedulerSettings,
    SendBatch,
    Shape,
    Submitted,
    Woke,
)

from batchclient.types import Choice, Completion, Usage

LIST = 64
WINDOW = 300  # lists of 64 per measurement: 19,200 calls
KINDS: dict[str, tuple[int, float | None]] = {  # max_queued, timeout_s
    "all in the queue": (4_000_000, None),
    "each with a deadline": (4_000_000, 600.0),
    "all but 16,384 waiting outside": (16_384, None),
}
ANSWER = Completion(choices=(Choice(0, "x", "length"),), usage=Usage(12, 1))


class Driver:
    """Plays caller, server and clock to one scheduler."""

    def __init__(self, max_queued: int, timeout_s: float | None) -> None:
        self._core = Scheduler(
            SchedulerSettings(max_size=LIST, max_queued=max_queued, refill_s=0.1, refill_ratio=0.125),
            [FixedLimit(LIST)],
        )
        self._shape = Shape(key=b"k", body=b"{}", max_output_tokens=1)
        self._timeout_s = timeout_s
        self._now = 0.0
        self.resolved = 0

    def submit(self, count: int) -> None:
        core, now = self._core, self._now
        deadline = None if self._timeout_s is None else now + self._timeout_s
        for _ in range(count):
            core.handle(Submitted(Request(self._shape, b'"p"', prompt_tokens=12, deadline=deadline)), now)

    def step(self) -> None:
        """Grant as many calls as possible and answer them at once; the answers grant the next calls."""
        core = self._core
        self._now += 1e-3
        core.handle(Woke(), self._now)
        for command in core.commands():
            if isinstance(command, SendBatch):
                answers = [(position, ANSWER) for position in range(len(command.batch.requests))]
                core.handle(Answered(command.batch, answers, ended=True), self._now)
            elif isinstance(command, Resolve):
                self.resolved += len(command.answers)
        core.next_deadline()


def window_us(depth: int, max_queued: int, timeout_s: float | None) -> float:
    """CPU microseconds per call, with ``depth`` calls queued throughout."""
    driver = Driver(max_queued, timeout_s)
    driver.submit(depth)
    gc.collect()
    for _ in range(20):
        driver.submit(LIST)
        driver.step()
    before, started = driver.resolved, time.process_time()
    for _ in range(WINDOW):
        driver.submit(LIST)
        driver.step()
    return (time.process_time() - started) / (driver.resolved - before) * 1e6


def core_costs(depths: Sequence[int], repetitions: int) -> dict[str, dict[int, list[float]]]:
    """Per kind and depth, one figure a repetition."""
    costs: dict[str, dict[int, list[float]]] = {kind: {depth: [] for depth in depths} for kind in KINDS}
    for _ in range(repetitions):
        cases = [(kind, depth) for kind in KINDS for depth in depths]
        for kind, depth in random.sample(cases, len(cases)):
            costs[kind][depth].append(window_us(depth, *KINDS[kind]))
    return costs


def core_table(costs: dict[str, dict[int, list[float]]]) -> str:
    depths = list(next(iter(costs.values())))
    rows = [
        [kind, *(f"{median(by_depth[depth]):.2f} ({spread(by_depth[depth])})" for depth in depths)]
        for kind, by_depth in costs.items()
    ]
    return table(("CPU µs/call, median (min to max)", *(f"{depth:,} queued" for depth in depths)), rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--depths", default="100,10000,1000000")
    parser.add_argument("--repetitions", type=int, default=3)
    options = parser.parse_args()
    print(provenance(machine()))
    print(core_table(core_costs([int(depth) for depth in options.depths.split(",")], options.repetitions)))


if __name__ == "__main__":
    main()
