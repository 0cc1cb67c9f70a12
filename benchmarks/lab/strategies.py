"""The textbook's batching strategies, side by side, as settings of the one rule.

    python benchmarks/lab/strategies.py [--quick]

The strategies are sequential, static, dynamic (by timeout), length-bucketed, a table by queue
depth, and continuous batching. They are not six schedulers here but six sets of numbers for
``batchclient``'s own (``_core/scheduler.py``). The real scheduler is driven against the
laboratory's servers in virtual time. A figure is the same on every machine: no figure measures the
machine itself.

The settings differ from the textbook in three points. The rule never holds an idle server back.
Where all waiting calls fit into free permits, the rule sends them. So with few calls a "static"
batch is all that waits, and the next may start beside it. The textbook's table is 1, 4 and 8; here
the table ends at the others' batch size.

Two servers: one that batches continuously (vLLM's kind; profile ``gpu``), and one that pads and
runs static batches (profile ``padding``). Two workloads: a job of so many texts at once, and calls
that arrive one by one.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks._common import machine, percentile, table, write_results
from benchmarks.lab.asker import limit_setup
from benchmarks.lab.driver import Run
from benchmarks.lab.profiles import SCENARIOS, Scenario
from benchmarks.lab.workloads import Calls, Lengths, Once, Running
from tests.core import (
    FixedLimit,
    Limit,
    Request,
    Retuned,
    Search,
)

from batchclient._settings import make_settings
from batchclient.dialects import make_dialect
from batchclient.simulator import PROFILES

BATCH = 32
"""The textbook's batch size (its examples have 8 to 32)."""
MANY = 1_000_000
Submit = Callable[[Request, float], None]
CALLS = Calls(Lengths(200, 0.6, 2048), Lengths(64, 0.9, 256), max_tokens=256)


def by_depth(queue_depth: int) -> int:
    """The textbook's table: small batches while few wait, large ones when many do."""
    return 1 if queue_depth < 5 else 8 if queue_depth < 20 else BATCH


@dataclass(frozen=True, slots=True)
class Strategy:
    """One of the textbook's, as settings.

    Args:
        name: the textbook's.
        settings: the numbers of the batching rule that differ from the ``balanced`` preset's.
        limit: sequences in flight.
        plain: a list answers as a whole, as the textbook's batches do; else each caller gets
            its own answer when that is done.
    """

    name: str
    settings: Mapping[str, Any]
    limit: Callable[[], Limit]
    plain: bool = True


# One batch at a time: all permits are granted together, when all of the last batch's are back.
ONE_BATCH: dict[str, Any] = {"max_size": BATCH, "size_for": lambda _: BATCH, "refill_ratio": 1.0, "refill_s": 3600.0}
STRATEGIES = (
    Strategy("sequential", {"max_size": 1, "refill_ratio": 0.0, "linger_s": 0.0}, lambda: FixedLimit(1)),
    Strategy(f"static, {BATCH}, full batches only", {**ONE_BATCH, "linger_s": 3600.0}, lambda: FixedLimit(BATCH)),
    Strategy(f"dynamic, {BATCH} or 50 ms", {**ONE_BATCH, "linger_s": 0.05}, lambda: FixedLimit(BATCH)),
    Strategy(
        f"dynamic, {BATCH} or 50 ms, one length bucket",
        {**ONE_BATCH, "linger_s": 0.05, "length_reach": 0},
        lambda: FixedLimit(BATCH),
    ),
    Strategy(
        "dynamic, size by queue depth",
        {**ONE_BATCH, "linger_s": 0.0, "size_for": by_depth},
        lambda: FixedLimit(BATCH),
    ),
    Strategy("continuous, 256 in flight", {}, lambda: FixedLimit(256), plain=False),
    Strategy("continuous, limit found (the default)", {}, lambda: Limit(Search()), plain=False),
)


@dataclass(frozen=True, slots=True)
class Job(Once):
    """So many texts at once.

    Args:
        lengths_known: whether the scheduler knows how long each text is; else it takes all for
            equally long.
    """

    lengths_known: bool = True

    def start(self, rng: random.Random, submit: Submit) -> Running:
        def submit_unknown(request: Request, now: float) -> None:
            request.prompt_tokens = round(self.calls.prompts.mean_tokens)
            submit(request, now)

        return Once.start(self, rng, submit if self.lengths_known else submit_unknown)


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Calls one by one, at random (Poisson), until ``until_s``."""

    calls: Calls
    calls_per_s: float
    until_s: float

    def start(self, rng: random.Random, submit: Submit) -> Running:
        return _Arrivals(self, rng, submit)


class _Arrivals(Running):
    latency_from_asked = True

    def __init__(self, data: Arrivals, rng: random.Random, submit: Submit) -> None:
        super().__init__(data.calls, rng, submit)
        self._data = data
        self.next_at = rng.expovariate(data.calls_per_s)

    def woke(self, now: float) -> None:
        self.ask(now)
        self.next_at = now + self.rng.expovariate(self._data.calls_per_s)
        if self.next_at > self._data.until_s:
            self.next_at = float("inf")


def run(scenario: Scenario, strategy: Strategy, seed: int) -> dict[str, Any]:
    """One strategy on one server with one workload."""
    scenario = replace(scenario, settings={})
    one = Run(scenario, limit_setup(scenario, strategy.limit()), seed)
    client = one.clients[0]
    rule = make_settings("balanced", {"base_url": "http://lab/v1"}).scheduler(make_dialect("vllm"))
    for workload in client.workloads:
        workload.shape = replace(workload.shape, plain_only=strategy.plain)
    # Sizes follow from the strategy alone; long answers are not taken out of its batches.
    client.core.handle(Retuned(replace(rule, **strategy.settings, list_tokens=MANY, chat_list_tokens=MANY)), 0.0)
    trace = one.run()[0]
    waits, seconds = trace.latencies_s, trace.ends[-1] if trace.ends else 0.0
    return {
        "answers": len(waits),
        "unanswered": trace.submitted - len(waits),
        "seconds": seconds,
        "answers_per_s": len(waits) / seconds if waits else 0.0,
        "mean_wait_s": statistics.fmean(waits) if waits else None,
        "p95_wait_s": percentile(waits, 0.95) if waits else None,
        "prompts_per_request": trace.prompts / trace.requests if trace.requests else 0.0,
    }


def cases(*, quick: bool) -> dict[str, Scenario]:
    """By title: a server and a workload."""
    texts, until_s = (256, 20.0) if quick else (2048, 120.0)
    gpu, padding = replace(SCENARIOS["A"], server=PROFILES["gpu"]), SCENARIOS["padding"]
    shown = {}
    for server, name, rate in ((gpu, "continuous batching", 8.0), (padding, "static padding", 8.0)):
        shown[f"a server with {name}: a job of {texts} texts"] = replace(
            server, workload=Job(CALLS, texts), duration_s=3600.0
        )
        shown[f"a server with {name}: {rate:g} calls a second"] = replace(
            server, workload=Arrivals(CALLS, rate, until_s), duration_s=until_s + 600.0
        )
    return shown


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="smaller workloads; nothing is written")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    data: dict[str, Any] = {"machine": machine(), "seed": arguments.seed, "cases": {}}
    parts = [
        "# The textbook's strategies as settings of the one rule",
        (
            f"The real scheduler against the laboratory's servers in virtual time, seed {arguments.seed}; "
            "the same on every machine. Prompts of 200 tokens and answers of 64 on average, lognormal. "
            f"Waits are from the call to its answer. `{data['machine']['command']}`"
        ),
    ]
    for title, scenario in cases(quick=arguments.quick).items():
        results = {strategy.name: run(scenario, strategy, arguments.seed) for strategy in STRATEGIES}
        data["cases"][title] = results
        rows = [
            (
                name,
                f"{one['answers_per_s']:.1f}",
                "-" if one["mean_wait_s"] is None else f"{one['mean_wait_s']:.1f}",
                "-" if one["p95_wait_s"] is None else f"{one['p95_wait_s']:.1f}",
                f"{one['prompts_per_request']:.1f}",
                one["unanswered"] or "",
            )
            for name, one in results.items()
        ]
        header = ("strategy", "answers/s", "mean wait, s", "p95 wait, s", "prompts per request", "not answered")
        part = f"## On {title}\n\n{table(header, rows)}"
        parts.append(part)
        print(part, end="\n\n", flush=True)
    if not arguments.quick:
        write_results("strategies", data, "\n\n".join(parts))


if __name__ == "__main__":
    main()
