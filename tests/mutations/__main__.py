"""The command line of the mutated replies.

python -m tests.mutations --seeds 10000           # on all cores
python -m tests.mutations --seed 123              # one seed again, with everything that was said in it
"""

import sys
from collections import Counter

from tests.fuzz import options, replay, search
from tests.mutations.run import run_seed, run_seeds


def main():
    given = options(__doc__, 10_000)
    if given.seed is not None:
        return replay(run_seed(given.seed))
    met = Counter()
    failed = search("mutations", run_seeds, given.first, given.seeds, 50, lambda outcome: met.update([outcome.kind]))
    for kind, times in met.most_common():
        print(f"{times:7} {kind}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
