"""All that has a hash, by name, and what differs from the committed hashes and surface.

A name is ``simulation/SEED``, ``playbook/FILE::TEST``, ``wire/SERVER/RECORDING`` or ``surface``.
``hashes.txt`` has a line a name. ``surface.txt`` has the public surface whole, so that a diff shows
how it changed.
"""

import hashlib
import os
from difflib import unified_diff
from multiprocessing import get_context
from pathlib import Path

from tests.snapshots.core import lines_of_seed
from tests.snapshots.playbooks import FOLDER, lines_of_playbooks
from tests.snapshots.surface import surface
from tests.snapshots.wire import lines_of_wire, names_of_wire

__all__ = [
    "SEEDS",
    "SURFACE",
    "differences",
    "hash_of",
    "lines_of",
    "read_hashes",
    "surface_differences",
    "write",
]

SEEDS = range(500)
SURFACE = "surface"
_FOLDER = Path(__file__).parent
_AT_A_TIME = 20


def hash_of(lines):
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def read_hashes():
    """Return the committed hashes by name."""
    lines = (_FOLDER / "hashes.txt").read_text("utf-8").splitlines()
    return {name: digest for digest, _, name in (line.partition(" ") for line in lines)}


def lines_of(wanted):
    """Return {name: lines} of the names wanted, or that begin so; of all, if none is wanted.

    Raises:
        LookupError: there is no such name.
    """
    found = _gathered(wanted, _lines_of)
    _check(wanted, found)
    return found


def differences(wanted):
    """Return {name: how it differs} of the committed hashes: ``changed``, ``new`` or ``gone``.

    Raises:
        LookupError: there is no such name.
    """
    now, then = _gathered(wanted, _hashes_of), _chosen(read_hashes(), wanted)
    _check(wanted, now | then)
    told = {name: "changed" for name in now.keys() & then.keys() if now[name] != then[name]}
    told |= dict.fromkeys(now.keys() - then.keys(), "new") | dict.fromkeys(then.keys() - now.keys(), "gone")
    return dict(sorted(told.items()))


def surface_differences():
    """Return the lines of a diff from the committed surface to the present one."""
    committed = (_FOLDER / "surface.txt").read_text("utf-8").splitlines()
    return list(unified_diff(committed, surface(), "committed", "now", lineterm=""))


def write(wanted):
    """Write the present hashes and surface to the files; return how many hashes are others."""
    if not wanted or SURFACE in wanted:
        (_FOLDER / "surface.txt").write_text("\n".join(surface()) + "\n", "utf-8")
    then = read_hashes()
    replaced = _chosen(then, wanted)
    now = {name: digest for name, digest in then.items() if name not in replaced} | _gathered(wanted, _hashes_of)
    text = "".join(f"{now[name]} {name}\n" for name in sorted(now, key=_in_order))
    (_FOLDER / "hashes.txt").write_text(text, "utf-8")
    return len(dict(now.items() ^ then.items()))


def _chosen(by_name, wanted):
    """The entries of the names wanted, or that begin with a wanted text that is no name itself."""
    return {name: value for name, value in by_name.items() if not wanted or _begins(name, wanted, by_name)}


def _begins(name, wanted, names):
    return any(name == one or (one not in names and name.startswith(one)) for one in wanted)


def _check(wanted, found):
    for one in wanted:
        if not _chosen(found, [one]):
            raise LookupError(f"no name begins with {one!r}")


def _in_order(name):
    kind, _, rest = name.partition("/")
    return (kind, int(rest), "") if rest.isdigit() else (kind, 0, rest)


def _gathered(wanted, make):
    """Have several processes make what is wanted."""
    seeds = [f"simulation/{seed}" for seed in SEEDS]
    seeds += [one for one in wanted if one.removeprefix("simulation/").isdigit() and one not in seeds]
    names = list(_chosen(dict.fromkeys(seeds + [f"wire/{name}" for name in names_of_wire()]), wanted))
    # The tests in a file are known once they have run.
    files = [f"playbook/{path.name}" for path in sorted(FOLDER.glob("test_*.py"))]
    files = [
        file for file in files if not wanted or any(file.startswith(one) or one.startswith(file) for one in wanted)
    ]
    tasks = [some[i : i + _AT_A_TIME] for some in (files, names) for i in range(0, len(some), _AT_A_TIME)]
    found = {}
    if tasks:
        with get_context("spawn").Pool(min(os.cpu_count() or 1, len(tasks))) as pool:
            for some in pool.imap_unordered(make, tasks):
                found |= some
    return _chosen(found, wanted)


def _hashes_of(names):
    return {name: hash_of(lines) for name, lines in _lines_of(names).items()}


def _lines_of(names):
    found = {}
    for name in names:
        kind, _, rest = name.partition("/")
        if kind == "playbook":
            found |= {f"playbook/{test}": lines for test, lines in lines_of_playbooks(rest).items()}
        else:
            found[name] = lines_of_seed(int(rest)) if kind == "simulation" else lines_of_wire(rest)
    return found
