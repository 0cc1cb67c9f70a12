"""How many requests a process may have open at once, by `ulimit -n`.

Rules:
- Of the descriptors free before any client's sockets, a quarter, 64 at most, is left to the program
  and to questions beside the calls.
- If fewer are left than wanted, the log names the resource once.
- A client that is simulated within ``without_sockets`` opens none, and has what is wanted.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import cache
from pathlib import Path

from batchclient._common.log import log

__all__ = ["within_descriptors", "without_sockets"]

_MOST_SPARE = 64
_said: set[int] = set()
_opens_sockets: ContextVar[bool] = ContextVar("opens_sockets", default=True)


@contextmanager
def without_sockets() -> Iterator[None]:
    """Let clients that are used within have any limit: their servers are in the process."""
    token = _opens_sockets.set(False)
    try:
        yield
    finally:
        _opens_sockets.reset(token)


def within_descriptors(wanted: int, endpoints: int, *, warn_below: int) -> int:
    """Return the requests per endpoint: as many as wanted, or as the process may open sockets for.

    Args:
        wanted: the most.
        endpoints: the number of endpoints that share the descriptors.
        warn_below: with at least so many left, the log entry is no warning.
    """
    try:
        import resource
    except ImportError:  # Windows has no such bound
        return wanted
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY or not _opens_sockets.get():
        return wanted
    free = max(0, files - _open_at_first())
    most = max(1, (free - min(free // 4, _MOST_SPARE)) // endpoints)
    if wanted <= most:
        return wanted
    if wanted not in _said:
        _said.add(wanted)
        log(
            "open_files_bound",
            "the bound on open files (`ulimit -n`: %d, of which %d were free) holds the limit at %d per endpoint,"
            " not %d; raise it for more",
            files,
            free,
            most,
            wanted,
            level=logging.WARNING if most < warn_below else logging.INFO,
            limit=most,
            wanted=wanted,
            open_files=files,
        )
    return most


@cache
def _open_at_first() -> int:
    """Return how many descriptors were open before any client's sockets."""
    for place in ("/proc/self/fd", "/dev/fd"):
        with suppress(OSError):
            return len(list(Path(place).iterdir()))
    return 0
