"""From settings to the limit of one endpoint: which algorithm, within which bounds, under which caps.

Rules:
- ``limit`` is a number, or the name of an algorithm that finds one.
- Neither is ever more than the process may open sockets for: where outputs are long, every sequence has its own.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from batchclient._core.limits import (
    AimdLimit,
    Cap,
    FixedLimit,
    KneeLimit,
    LatencyCap,
    Limit,
    LimitControl,
    LoadCap,
)
from batchclient._core.limits.knee import OBJECTIVES

if TYPE_CHECKING:
    from batchclient.config import Settings

__all__ = ["make_limit"]

_log = logging.getLogger("batchclient")
_FILES_FOR_OTHERS = 64
"""Descriptors left for everything else in the process."""
_said: set[int] = set()


def make_limit(settings: Settings, *, hears_load: bool) -> LimitControl:
    """Return a fresh limit for one endpoint; ``hears_load``: its server is asked for its load."""
    caps: list[Cap] = [LoadCap()] if hears_load else []
    if settings.p95_latency_s is not None:
        caps.append(LatencyCap(settings.p95_latency_s))
    if settings.time_to_first_token_s is not None:
        caps.append(LatencyCap(settings.time_to_first_token_s, first_token=True))
    return LimitControl(_algorithm(settings), caps)


def _algorithm(settings: Settings) -> Limit:
    files = _most_sockets(len(settings.base_url))
    if isinstance(settings.limit, int):
        if files is None or settings.limit <= files:
            return FixedLimit(settings.limit)
        if settings.limit not in _said:
            _said.add(settings.limit)
            _log.warning(
                "limit=%d is more than the sockets this process may open per endpoint; %d is used; raise `ulimit -n`",
                settings.limit,
                files,
            )
        return FixedLimit(files)
    ceiling = settings.max_limit if files is None else min(settings.max_limit, files)
    start = min(settings.initial_limit, ceiling)
    if settings.limit == "aimd":
        return AimdLimit(start, ceiling=ceiling)
    return KneeLimit(start, ceiling=ceiling, target=OBJECTIVES[settings.objective], opens=not _wants_latency(settings))


def _wants_latency(settings: Settings) -> bool:
    """Whether a burst had better wait here than be served slowly."""
    return (
        settings.objective == "latency"
        or settings.p95_latency_s is not None
        or settings.time_to_first_token_s is not None
    )


def _most_sockets(endpoints: int) -> int | None:
    try:
        import resource
    except ImportError:  # Windows has no such bound
        return None
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return None
    return max(1, (files - _FILES_FOR_OTHERS) // endpoints)
