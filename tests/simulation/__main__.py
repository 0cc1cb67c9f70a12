"""Deterministic simulation's command line.

python -m tests.simulation --seeds 10000           # on all cores; the table of what met what
python -m tests.simulation --seed 123              # one seed again, with everything that happened in it
"""

import sys
from collections import Counter

from tests.fuzz import options, replay, search
from tests.simulation.pairs import Fault, State, cannot_be
from tests.simulation.run import run_seed, run_seeds

_LEAST = 20
"""How often each pair that can be is to be met in so many seeds."""
_IN_SEEDS = 10_000


def main():
    given = options(__doc__, _IN_SEEDS)
    if given.seed is not None:
        return replay(run_seed(given.seed))
    met = Counter()
    failed = search("simulation", run_seeds, given.first, given.seeds, 20, lambda outcome: met.update(outcome.met))
    print_table(met)
    impossible = [pair for pair in met if cannot_be(*pair)]
    for fault, state in sorted(impossible, key=str):
        print(f"met, and said to be impossible: {fault.value} x {state.value}")
    possible = ((fault, state) for fault in Fault for state in State if not cannot_be(fault, state))
    rare = [pair for pair in possible if met[pair] < _LEAST] if given.seeds >= _IN_SEEDS else []
    for fault, state in rare:
        print(f"met only {met[fault, state]} times: {fault.value} x {state.value}")
    return 1 if failed or impossible or rare else 0


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


if __name__ == "__main__":
    sys.exit(main())
