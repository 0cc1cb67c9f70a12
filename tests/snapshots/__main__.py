"""Shows that a refactoring changed nothing: the core's commands, the bytes sent, the public surface.

python -m tests.snapshots                           # check all; exit status 1 if anything differs
python -m tests.snapshots wire/vllm playbook        # check the names that begin so
python -m tests.snapshots --seed 17 --show          # the lines behind a hash, as plain text
python -m tests.snapshots --show wire/vllm/models
python -m tests.snapshots --write                   # after a change that was meant

- ``simulation/SEED``: events and commands of a run of ``tests/simulation``; see ``core``.
- ``playbook/FILE::TEST``: the same of a test in ``tests/playbook``.
- ``wire/SERVER/RECORDING``: bytes sent and outcomes told, with a reply of ``tests/wire``; see ``wire``.
- ``surface``: public names, signatures, fields and bases; see ``surface``.

Hashes and surface are the same on Python 3.11 to 3.14. A commit that writes them anew says why.
To find a difference, print the lines with ``--show`` in both trees, and diff them.

Timings are shown by other commands: ``benchmarks/core_cost.py`` times the core,
``benchmarks/overhead.py`` a client's calls and the drop-in's.
"""

import argparse
import sys

from tests.snapshots.snapshots import SURFACE, differences, lines_of, surface_differences, write
from tests.snapshots.surface import surface

_MOST_SHOWN = 40


def main():
    parser = argparse.ArgumentParser(
        prog="python -m tests.snapshots", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help="names, or beginnings of them; by default all")
    parser.add_argument("--seed", type=int, help="the same as simulation/SEED")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--check", action="store_true", help="say what differs (the default)")
    what.add_argument("--show", action="store_true", help="print the lines that are hashed")
    what.add_argument("--write", action="store_true", help="write the present hashes and surface to the files")
    options = parser.parse_args()
    names = options.names + ([] if options.seed is None else [f"simulation/{options.seed}"])
    try:
        if options.write:
            print(f"written; {write(names)} hashes are other than before")
            return 0
        return show(names) if options.show else check(names)
    except LookupError as error:
        parser.error(str(error))


def show(names):
    """Print what is hashed."""
    if not names or SURFACE in names:
        print(SURFACE, *surface(), sep="\n")
    others = _but_surface(names)
    for name, lines in lines_of(others).items() if others or not names else ():
        print(name, *lines, sep="\n")
    return 0


def check(names):
    """Say what differs; return the exit status."""
    others = _but_surface(names)
    changed = differences(others) if others or not names else {}
    for name, how in list(changed.items())[:_MOST_SHOWN]:
        print(f"{how}: {name}")
    if len(changed) > _MOST_SHOWN:
        print(f"and {len(changed) - _MOST_SHOWN} more")
    surfaces = surface_differences() if not names or SURFACE in names else []
    if surfaces:
        print(f"changed: {SURFACE}", *surfaces, sep="\n")
    if changed:
        print(f"to see how: python -m tests.snapshots --show '{next(iter(changed))}', in both trees, and diff the two")
    print(f"{len(changed)} hashes differ; the surface {'differs' if surfaces else 'does not'}")
    return 1 if changed or surfaces else 0


def _but_surface(names):
    return [name for name in names if name != SURFACE]


if __name__ == "__main__":
    sys.exit(main())
