"""From settings to the limit of one endpoint: which algorithm, within which bounds, under which caps.

Rules:
- ``limit`` is a number, or ``"auto"``: it is found.
- Neither is ever more than the process may open sockets for (``descriptors``): where outputs are long, every sequence has its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from batchclient._core.limits import FixedLimit, Limit, LimitControl, Objective, Search, Turn
from batchclient._core.limits.search import OPENS_TO, START
from batchclient._shell.descriptors import within_descriptors

if TYPE_CHECKING:
    from batchclient.config import Settings

__all__ = ["make_limit"]

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
    highest = settings.highest_limit
    # A limit that is found seldom goes as far as it may.
    warn_below = OPENS_TO if settings.limit == "auto" else highest
    ceiling = within_descriptors(highest, len(settings.base_url), warn_below=warn_below)
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
