"""From settings to the limit of one endpoint: which algorithm, which bounds, which caps.

Rules:
- ``limit`` is a number, or ``"auto"`` for a search, with which the client may be a guest.
- No limit is ever more than the process may open sockets for (``descriptors``): where outputs are
  long, every sequence has a socket of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from batchclient._common.descriptors import within_descriptors
from batchclient._core.limits.control import Limit
from batchclient._core.limits.guest import GUEST_START
from batchclient._core.limits.objective import Objective
from batchclient._core.limits.search import START, Search
from batchclient._core.limits.trial import Turn

if TYPE_CHECKING:
    from batchclient._settings import Settings
    from batchclient.options import AdaptiveLimit

__all__ = ["make_limit"]

_URGENT = 64
"""The start under an objective: a burst had better wait here than be served too slowly."""


def make_limit(settings: Settings, *, turn: Turn | None = None) -> Limit:
    """Return a fresh limit for an endpoint.

    Args:
        settings: the client's.
        turn: shared by the limits of a client.
    """
    given = settings.limit
    return Limit(_number(settings, turn), _objectives(given), guest=not isinstance(given, int) and given.guest)


def _number(settings: Settings, turn: Turn | None) -> int | Search:
    limit, servers = settings.limit, len(settings.base_url)
    if isinstance(limit, int):
        return within_descriptors(limit, servers, warn_below=limit)
    # A limit that is found seldom goes as far as it may.
    ceiling = within_descriptors(limit.max, servers, warn_below=START)
    if limit.start is not None:
        start = limit.start
    elif _objectives(limit):
        start = _URGENT
    else:
        start = START
    # A number that a person gave is a guest's, too.
    return Search(min(start, ceiling), ceiling, turn, guest_start=limit.start or GUEST_START)


def _objectives(limit: int | AdaptiveLimit) -> list[Objective]:
    objectives = []
    if not isinstance(limit, int):
        if limit.p95_latency_s is not None:
            objectives.append(Objective(limit.p95_latency_s))
        if limit.time_to_first_token_s is not None:
            objectives.append(Objective(limit.time_to_first_token_s, first_token=True))
    return objectives
