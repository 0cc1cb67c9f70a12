"""From settings to the limit of one endpoint: which algorithm, within which bounds, under which caps.

Rules:
- ``limit`` is a number, or ``"auto"``: it is found.
- Neither is ever more than the process may open sockets for: where outputs are long, every sequence has its own. Of the descriptors
  that were free at the first limit, a quarter, 64 at most, is left to the program and to what is asked beside the calls.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from batchclient._core.limits import FixedLimit, Limit, LimitControl, Objective, Search, Turn
from batchclient._core.limits.search import OPENS_TO, START

if TYPE_CHECKING:
    from batchclient.config import Settings

__all__ = ["make_limit"]

_log = logging.getLogger("batchclient")
_MOST_SPARE = 64
_said: set[int] = set()


_URGENT = 32, 64
"""Where it begins, and where it opens to, where a burst had better wait here than be served slowly."""


def make_limit(settings: Settings, *, turn: Turn | None = None, engine: bool = False) -> LimitControl:
    """Return a fresh limit for one endpoint.

    Args:
        settings: the client's.
        turn: shared by the limits of one client.
        engine: whether its server is known to be an engine that batches hundreds of sequences.
    """
    objectives = []
    if settings.p95_latency_s is not None:
        objectives.append(Objective(settings.p95_latency_s))
    if settings.time_to_first_token_s is not None:
        objectives.append(Objective(settings.time_to_first_token_s, first_token=True))
    limit = LimitControl(_number(settings, turn), objectives)
    if engine:
        limit.on_known(None, 0.0, engine=True)
    return limit


def _number(settings: Settings, turn: Turn | None) -> Limit:
    ceiling = _within_descriptors(settings)
    if isinstance(settings.limit, int):
        return FixedLimit(ceiling)
    urgent = (
        settings.preset == "latency" or settings.p95_latency_s is not None or settings.time_to_first_token_s is not None
    )
    if settings.initial_limit is not None:
        start = opens_to = settings.initial_limit
    elif urgent:
        start, opens_to = _URGENT
    else:
        start, opens_to = START, OPENS_TO
    return Search(min(start, ceiling), opens_to, ceiling, turn)


def _within_descriptors(settings: Settings) -> int:
    """Return the highest limit of an endpoint: what the settings want, or what the process may open sockets for."""
    wanted = settings.highest_limit
    try:
        import resource
    except ImportError:  # Windows has no such bound
        return wanted
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return wanted
    free = max(0, files - _open_at_first())
    most = max(1, (free - min(free // 4, _MOST_SPARE)) // len(settings.base_url))
    if wanted <= most:
        return wanted
    if wanted not in _said:
        _said.add(wanted)
        # A limit that is found seldom goes as far as it may.
        seldom = settings.limit == "auto" and most >= OPENS_TO
        _log.log(
            logging.INFO if seldom else logging.WARNING,
            "the bound on open files (`ulimit -n`: %d, of which %d were free) holds the limit at %d per endpoint, not %d; raise it for more",
            files,
            free,
            most,
            wanted,
        )
    return most


@cache
def _open_at_first() -> int:
    """How many descriptors were open before any client's sockets."""
    for place in ("/proc/self/fd", "/dev/fd"):
        with suppress(OSError):
            return len(list(Path(place).iterdir()))
    return 0
