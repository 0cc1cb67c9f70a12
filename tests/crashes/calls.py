"""System calls that kill or fail: the library ``calls.c``, and the plans that it follows.

Every call that may write counts, on every file below one folder. A plan names the call by its number, and what becomes of it.
"""

import ctypes
import errno
import os
import shutil
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

__all__ = ["FOR_EVER", "SYNC", "WRITE", "Plan", "arm", "build", "entries", "kind_of"]

WRITE, SYNC, NAME, CUT, MAKE = 1, 2, 4, 8, 16
KINDS = {
    WRITE: ("write", "pwrite", "writev"),
    SYNC: ("fsync", "fdatasync"),
    NAME: ("rename", "renameat", "link", "symlink", "symlinkat", "unlink", "unlinkat", "mkdir", "rmdir"),
    CUT: ("ftruncate",),
    MAKE: ("open", "openat"),
}
ALL = WRITE | SYNC | NAME | CUT | MAKE
HOWS = ("pass", "before", "after", "half", "error", "full")
"""Go through; kill before, after, or after half of the bytes; fail; fail as a full disk does."""
FOR_EVER = 2**31


@dataclass(frozen=True)
class Plan:
    """What the system calls of one process meet.

    Args:
        folder: only files below it count.
        name: only files whose name fits this pattern count, unless it is empty.
        kinds: of calls that count.
        first, last: the numbers, from 1, of the calls that meet with ``how``.
        how: one of ``HOWS``.
        error: of a call that fails.
        log: a file for one line a call.
        lock_error: of each ``flock``; -1: it succeeds and locks nothing.
        step_s: so far the wall clock goes back with each reading.
    """

    folder: str
    name: str = ""
    kinds: int = ALL
    first: int = 0
    last: int = 0
    how: str = "pass"
    error: int = errno.ENOSPC
    log: str = ""
    lock_error: int = 0
    step_s: int = 0

    def fields(self):
        return asdict(self)


def kind_of(call):
    """The kind that a call counts as."""
    return next(kind for kind, names in KINDS.items() if call.removesuffix("64") in names)


def build(folder):
    """Build the library in a folder; ``None``: this is no Linux, or has no compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None or sys.platform != "linux":
        return None
    library = folder / "calls.so"
    source = Path(__file__).with_suffix(".c")
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
    return library


def arm(plan):
    """Have this process's calls meet with the plan. The library was loaded when the process began."""
    library = ctypes.CDLL(None)
    log = -1
    if plan.log:
        log = os.open(plan.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    first, last = ctypes.c_long(plan.first), ctypes.c_long(plan.last)
    library.crash_locks(plan.lock_error)
    library.crash_clock(ctypes.c_long(plan.step_s))
    library.crash_plan(
        os.fsencode(os.path.realpath(plan.folder)),
        plan.name.encode(),
        plan.kinds,
        first,
        last,
        HOWS.index(plan.how),
        plan.error,
        log,
    )


@dataclass(frozen=True)
class Entry:
    """One line of a log."""

    number: int
    call: str
    file: str
    size: int
    met: bool


def entries(log):
    """The calls that a process made, in order."""
    lines = [line.split(" ") for line in Path(log).read_text().splitlines()]
    return [Entry(int(number), call, name, int(size), how != "0") for number, call, name, size, how in lines]
