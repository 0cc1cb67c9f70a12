"""The gate's answer: what holds calls back at an endpoint though permits are free.

For example after a 429 with ``Retry-After: 10``: nothing goes for 10 s, and a caller whose deadline
is sooner is told the server's words. Granting, statistics, errors and log read the same answer.
"""

from __future__ import annotations

from typing import NamedTuple

from batchclient._core.failures import Failure

__all__ = ["AWAITED", "GATEWAYS_LIMIT", "OUTAGE", "REFUSALS", "REST", "SLOW_START", "Hold"]

REST = "the server's Retry-After"
REFUSALS = "the server's refusals"
GATEWAYS_LIMIT = "the gateway's rate limit"
OUTAGE = "the server's outage"
SLOW_START = "the server's slow start"
AWAITED = "the wait for the server"


class Hold(NamedTuple):
    """What holds calls back.

    Args:
        until: its end at the latest, unless another refusal comes; ``inf``: only an event ends it.
        why: in words, as in ``blocked_by``.
        next_at: when a single request may go all the same, to find out.
        words: the server's own, if it asked for a rest.
    """

    until: float
    why: str
    next_at: float
    words: Failure | None = None
