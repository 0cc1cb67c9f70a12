"""How many sequences may be in flight: algorithms, what feeds them, and what bounds them.

A ``Limit`` is an algorithm; it holds no permits (the endpoint does). ``LimitControl`` is one endpoint's: an algorithm, the caps
that may lower it, and a pin.
"""

from batchclient._core.limits.aimd import AimdLimit, FixedLimit
from batchclient._core.limits.base import Limit, LimitChange, Outcome, Sample
from batchclient._core.limits.control import Cap, LimitControl
from batchclient._core.limits.knee import KneeLimit
from batchclient._core.limits.latency import LatencyCap
from batchclient._core.limits.load import LoadCap, ServerLoad

__all__ = [
    "AimdLimit",
    "Cap",
    "FixedLimit",
    "KneeLimit",
    "LatencyCap",
    "Limit",
    "LimitChange",
    "LimitControl",
    "LoadCap",
    "Outcome",
    "Sample",
    "ServerLoad",
]
