"""The command line of the mutated replies.

python -m tests.mutations --seeds 10000           # on all cores
python -m tests.mutations --seed 123              # one seed again, with everything that was said in it
"""

import argparse
import os
import sys
import time
from collections import Counter
from multiprocessing import get_context

from tests.mutations.run import run_seed, run_seeds

_SEEDS_AT_A_TIME = 50


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10_000, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--seed", type=int, help="run this one alone and show what was said")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    options = parser.parse_args()
    if options.seed is not None:
        return replay(options.seed)
    return search(options.first, options.seeds, options.processes)


def replay(seed):
    """Show one run."""
    outcome = run_seed(seed)
    print(f"seed {seed}: {outcome.case}: {outcome.mutation}")
    for line in outcome.transcript:
        print(*line)
    for each in outcome.wrong:
        print("WRONG:", each)
    return 1 if outcome.wrong else 0


def search(first, seeds, processes):
    """Run many seeds; say what was wrong, and how often each kind of mutation was met."""
    began = time.perf_counter()
    met, failed = Counter(), 0
    last = first + seeds
    slices = [range(start, min(start + _SEEDS_AT_A_TIME, last)) for start in range(first, last, _SEEDS_AT_A_TIME)]
    with get_context("spawn").Pool(processes) as pool:
        for outcomes in pool.imap_unordered(run_seeds, slices):
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
