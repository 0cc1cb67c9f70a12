"""The limit of sequences in flight: how the number is found, by which evidence, and its bounds.

A ``Limit`` holds no permits (the endpoint does). ``LimitControl`` is one endpoint's limit in force:
a number, found by ``Search`` or given, under ``Bounds`` (refusals, late answers) and objectives.
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
