"""Storms' command line.

python -m tests.storm --seeds 2000           # on all cores
python -m tests.storm --seed 123             # one seed again
python -m tests.storm --processes 50         # real processes with real signals
"""

import sys
import time

from tests.fuzz import options, replay, search
from tests.storm.run import run_seed, run_seeds
from tests.storm.signals import interrupt_many


def main():
    given = options(__doc__, 0, processes="how many to interrupt with signals")
    if given.seed is not None:
        return replay(run_seed(given.seed))
    wrong = search("storm", run_seeds, given.first, given.seeds, 20) if given.seeds else 0
    if given.processes:
        wrong += interrupt(given.first, given.processes)
    return 1 if wrong else 0


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
