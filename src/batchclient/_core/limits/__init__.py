"""The limit of sequences in flight: how the number is found, by which evidence, and its bounds.

A ``Limit`` (``control``) holds no permits (the endpoint does). It is one endpoint's limit in force:
a number, found by ``Search`` or given, under ``Bounds`` (refusals, late answers) and objectives.
The first client imports these from their modules; here are the names that all of the core needs.
"""

from batchclient._core.limits.base import REFUSALS, Outcome, Sample, ServerLoad

__all__ = ["REFUSALS", "Outcome", "Sample", "ServerLoad"]
