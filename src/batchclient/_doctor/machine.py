"""The share of a core that this process gets.

Rules:
- The best of three spins counts: a short disturbance is no finding.
- A container's quota and other processes lessen the share alike. The spin says how much of a core
  is there, not who has the rest.
"""

from __future__ import annotations

import time

__all__ = ["core_share"]

_SPINS = 3
_SPIN_S = 0.1
"""The kernel hands out a container's quota in periods of 0.1 s."""


def core_share() -> float:
    """Spin for 0.3 s; return the CPU time of this process per second, at most 1."""
    return max(_spin() for _ in range(_SPINS))


def _spin() -> float:
    began, used = time.perf_counter(), time.process_time()
    while time.perf_counter() - began < _SPIN_S:
        pass
    return min(1.0, (time.process_time() - used) / (time.perf_counter() - began))
