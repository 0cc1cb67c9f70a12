"""System calls that kill or fail: the library ``calls.c``, and the plans that it follows.

Every call that may write counts, on every file below one folder. A plan names the call by its number, and what becomes of it.
"""

import ctypes
import errno
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

__all__ = ["FOR_EVER", "NAME", "SYNC", "WRITE", "Plan", "arm", "build", "entries", "kind_of"]

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
    """What the system calls of one process meet: the calls numbered ``first`` to ``last``, from 1, meet with ``how``.

    Calls of ``kinds`` count, on files below ``folder`` whose name fits the pattern ``name``, if it has one; ``log`` gets a
    line for each. ``lock_error`` is that of each ``flock``; with -1 it succeeds and locks nothing. The wall clock goes
    back ``step_s`` with each reading.
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
    folder, first, last = os.path.realpath(plan.folder), ctypes.c_long(plan.first), ctypes.c_long(plan.last)
    how = HOWS.index(plan.how)
    library.crash_locks(plan.lock_error)
    library.crash_clock(ctypes.c_long(plan.step_s))
    library.crash_plan(os.fsencode(folder), plan.name.encode(), plan.kinds, first, last, how, plan.error, log)


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
