"""Storms' command line.

python -m tests.storm --seeds 2000           # on all cores
python -m tests.storm --seed 123             # one seed again
python -m tests.storm --processes 50         # real processes with real signals
"""

import argparse
import os
import sys
import time
from multiprocessing import get_context

from tests.storm.run import run_seed, run_seeds
from tests.storm.signals import interrupt_many

_SEEDS_AT_A_TIME = 20


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=0, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--seed", type=int, help="run this one alone")
    parser.add_argument("--processes", type=int, default=0, help="how many to interrupt with signals")
    options = parser.parse_args()
    wrong = 0
    if options.seed is not None:
        wrong += tell({options.seed: run_seed(options.seed)})
        print(f"seed {options.seed}: {'something was wrong' if wrong else 'everything ended'}")
    if options.seeds:
        wrong += search(options.first, options.seeds)
    if options.processes:
        wrong += interrupt(options.first, options.processes)
    return 1 if wrong else 0


def search(first, seeds):
    """Raise many storms; return how many went wrong."""
    began, last, wrong = time.perf_counter(), first + seeds, 0
    slices = [range(start, min(start + _SEEDS_AT_A_TIME, last)) for start in range(first, last, _SEEDS_AT_A_TIME)]
    with get_context("spawn").Pool(os.cpu_count()) as pool:
        for told in pool.imap_unordered(run_seeds, slices):
            wrong += tell(told)
    print(f"{seeds} storms in {time.perf_counter() - began:.0f} s; {wrong} went wrong")
    return wrong


def tell(told):
    """Show what was wrong, and the command that shows it again; return in how many storms something was."""
    for seed, wrong in told.items():
        for each in wrong:
            print(f"seed {seed}: {each}", flush=True)
        if wrong:
            print(f"  to see it again: python -m tests.storm --seed {seed}", flush=True)
    return sum(bool(wrong) for wrong in told.values())


def interrupt(first, processes):
    """Interrupt many processes; return how many ended wrongly."""
    began, wrong = time.perf_counter(), 0
    for name, complaint in interrupt_many(range(first, first + processes)):
        wrong += complaint is not None
        print(f"{name}: {complaint or 'ended'}", flush=True)
    print(f"{processes} processes in {time.perf_counter() - began:.0f} s; {wrong} ended wrongly")
    return wrong


if __name__ == "__main__":
    sys.exit(main())
