"""How many sequences may be in flight: how the number is found, what it is found by, and what bounds it.

A ``Limit`` holds no permits (the endpoint does). ``LimitControl`` is one endpoint's limit in force: a number that ``Search`` finds or
that was given, under what refusals, late answers (``Bounds``) and the caller's objectives leave of it.
"""

from batchclient._core.limits.base import FixedLimit, Limit, LimitChange, Outcome, Sample, ServerLoad
from batchclient._core.limits.control import LimitControl
from batchclient._core.limits.objective import Objective
from batchclient._core.limits.search import Search
from batchclient._core.limits.trial import Turn

__all__ = [
    "FixedLimit",
    "Limit",
    "LimitChange",
    "LimitControl",
    "Objective",
    "Outcome",
    "Sample",
    "Search",
    "ServerLoad",
    "Turn",
]
