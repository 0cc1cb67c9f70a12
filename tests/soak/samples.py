"""What the kernel and the event loop hold for this process, now. Linux."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import Counter
from pathlib import Path

__all__ = ["STATES", "descriptors", "resident_bytes", "sockets", "tasks"]

# include/net/tcp_states.h
STATES = {1: "established", 2: "syn_sent", 3: "syn_recv", 4: "fin_wait1", 5: "fin_wait2", 6: "time_wait", 7: "close",
          8: "close_wait", 9: "last_ack", 10: "listen", 11: "closing"}  # fmt: skip
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE_BYTES


def descriptors() -> list[str]:
    """What each open descriptor leads to."""
    found = []
    for entry in os.listdir("/proc/self/fd"):
        # The one that lists the others is gone already.
        with contextlib.suppress(OSError):
            found.append(os.readlink(f"/proc/self/fd/{entry}"))
    return found


def sockets(held: list[str]) -> Counter[str]:
    """TCP sockets among our descriptors, by state; those that no table knows are ``close``."""
    own = {int(each[8:-1]) for each in held if each.startswith("socket:[")}
    states: Counter[str] = Counter()
    for table in ("/proc/self/net/tcp", "/proc/self/net/tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(table).read_text().splitlines()[1:]:
                fields = line.split()
                inode = int(fields[9])
                if inode in own:
                    own.discard(inode)
                    states[STATES.get(int(fields[3], 16), "other")] += 1
    return states


def tasks() -> int:
    """The number of asyncio tasks but for those of the soak's own callers, of which there are as many as they like."""
    return sum(not _is_ours(task) for task in asyncio.all_tasks())


def _is_ours(task: asyncio.Task[object]) -> bool:
    code = getattr(task.get_coro(), "cr_code", None)
    return code is not None and Path(code.co_filename).parent == Path(__file__).parent
