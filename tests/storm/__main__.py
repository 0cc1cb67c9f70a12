"""Storms' command line.

python -m tests.storm --seeds 2000           # on all cores
python -m tests.storm --seed 123             # one seed again
python -m tests.storm --processes 50         # real processes with real signals
"""

import sys
import time

from tests.fuzz import on_all_cores, options
from tests.storm.run import run_seed, run_seeds
from tests.storm.signals import interrupt_many


def main():
    given = options(__doc__, 0, processes="how many to interrupt with signals")
    wrong = 0
    if given.seed is not None:
        wrong += tell({given.seed: run_seed(given.seed)})
        print(f"seed {given.seed}: {'something was wrong' if wrong else 'everything ended'}")
    if given.seeds:
        wrong += search(given.first, given.seeds)
    if given.processes:
        wrong += interrupt(given.first, given.processes)
    return 1 if wrong else 0


def search(first, seeds):
    """Raise many storms; return how many went wrong."""
    began, wrong = time.perf_counter(), 0
    for told in on_all_cores(run_seeds, first, seeds, 20):
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
