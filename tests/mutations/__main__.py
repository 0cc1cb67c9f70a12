"""The command line of the mutated replies.

python -m tests.mutations --seeds 10000           # on all cores
python -m tests.mutations --seed 123              # one seed again, with everything that was said in it
"""

import sys
import time
from collections import Counter

from tests.fuzz import on_all_cores, options
from tests.mutations.run import run_seed, run_seeds


def main():
    given = options(__doc__, 10_000)
    return search(given.first, given.seeds) if given.seed is None else replay(given.seed)


def replay(seed):
    """Show one run."""
    outcome = run_seed(seed)
    print(f"seed {seed}: {outcome.case}: {outcome.mutation}")
    for line in outcome.transcript:
        print(*line)
    for each in outcome.wrong:
        print("WRONG:", each)
    return 1 if outcome.wrong else 0


def search(first, seeds):
    """Run many seeds; say what was wrong, and how often each kind of mutation was met."""
    began = time.perf_counter()
    met, failed = Counter(), 0
    for outcomes in on_all_cores(run_seeds, first, seeds, 50):
        for outcome in outcomes:
            met[outcome.kind] += 1
            if outcome.wrong:
                failed += 1
                tell(outcome)
    for kind, times in met.most_common():
        print(f"{times:7} {kind}")
    print(f"{seeds} mutations in {time.perf_counter() - began:.0f} s; {failed} failed")
    return 1 if failed else 0


def tell(outcome):
    """Show what was wrong with a run, and the command that shows all of it."""
    print(f"seed {outcome.seed}: {outcome.case}: {outcome.mutation}: {outcome.wrong[0]}")
    print(f"  to see it again: python -m tests.mutations --seed {outcome.seed}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
