"""Deterministic simulation's command line.

python -m tests.simulation --seeds 10000           # on all cores; the table of what met what
python -m tests.simulation --seed 123              # one seed again, with everything that happened in it
"""

import sys
import time
from collections import Counter

from tests.fuzz import on_all_cores, options
from tests.simulation.pairs import Fault, State, cannot_be
from tests.simulation.run import run_seed, run_seeds

_LEAST = 20
"""How often each pair that can be is to be met in so many seeds."""
_IN_SEEDS = 10_000


def main():
    given = options(__doc__, _IN_SEEDS)
    return search(given.first, given.seeds) if given.seed is None else replay(given.seed)


def replay(seed):
    """Show one run."""
    outcome = run_seed(seed)
    for line in outcome.transcript:
        print(*line)
    for each in outcome.wrong:
        print("WRONG:", each)
    print(f"seed {seed}: {outcome.calls} calls, digest {outcome.digest}")
    return 1 if outcome.wrong else 0


def search(first, seeds):
    """Run many seeds; show the table, and what was wrong."""
    began = time.perf_counter()
    met, failed, calls, done = Counter(), [], 0, 0
    for outcomes in on_all_cores(run_seeds, first, seeds, 20):
        for outcome in outcomes:
            met.update(outcome.met)
            calls += outcome.calls
            done += 1
            if outcome.wrong:
                failed.append(outcome)
                tell(outcome)
    print_table(met)
    rare = [pair for pair in _possible() if met[pair] < _LEAST]
    impossible = [pair for pair in met if cannot_be(*pair)]
    print(
        f"{done} seeds, {calls} calls, {met_in_all(met)} faults in {time.perf_counter() - began:.0f} s; {len(failed)} failed"
    )
    for fault, state in sorted(impossible, key=str):
        print(f"met, and said to be impossible: {fault.value} x {state.value}")
    if seeds >= _IN_SEEDS:
        for fault, state in rare:
            print(f"met only {met[fault, state]} times: {fault.value} x {state.value}")
    return 1 if failed or impossible or (seeds >= _IN_SEEDS and rare) else 0


def tell(outcome):
    """Show what was wrong with a run, and the command that shows all of it."""
    print(f"seed {outcome.seed}: {outcome.wrong[0]}")
    print(f"  to replay it: python -m tests.simulation --seed {outcome.seed}", flush=True)


def print_table(met):
    """How often each fault met each state; ``-`` where it cannot."""
    names = [state.value.replace(" ", "\n").split("\n") for state in State]
    for line in range(2):
        print(" " * 22 + "".join(f"{name[line] if line < len(name) else '':>10}" for name in names))
    for fault in Fault:
        cells = ("-" if cannot_be(fault, state) else str(met[fault, state]) for state in State)
        print(f"{fault.value:22}" + "".join(f"{cell:>10}" for cell in cells))
    for why in sorted({why for fault in Fault for state in State if (why := cannot_be(fault, state))}):
        print(f"-: {why}")


def met_in_all(met):
    """How many faults took effect on something in flight, at least."""
    return sum(count for (_, state), count in met.items() if state is State.IN_FLIGHT)


def _possible():
    return [(fault, state) for fault in Fault for state in State if not cannot_be(fault, state)]


if __name__ == "__main__":
    sys.exit(main())
