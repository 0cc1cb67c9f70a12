"""openai's timeouts as the scheduler's.

Rules:
- The read part bounds a whole call, with the waiting here. openai's default of ten minutes bounds
  the server's silence alone.
- ``None``, infinity and more than thirty years are no bound.
- A timeout with a part that is no positive number is not judged here: the call goes through
  openai's own code.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from openai import DEFAULT_TIMEOUT, Timeout

__all__ = ["Bounds", "bounds_of"]

_NO_BOUND_S = 1e9


@dataclass(frozen=True, slots=True)
class Bounds:
    """Seconds; ``None``: no bound.

    Args:
        connect_s: for a connection.
        read_s: for the server's silence.
        whole_s: for a call.
    """

    connect_s: float | None
    read_s: float | None
    whole_s: float | None

    def settings(self, least_silence_s: float) -> dict[str, float | None]:
        """The bounds as fields of ``Http``.

        Args:
            least_silence_s: the shortest silence, seconds: calls have bounds of their own.
        """
        return {
            "connect_timeout_s": self.connect_s,
            "read_timeout_s": None if self.read_s is None else max(self.read_s, least_silence_s),
        }


_DEFAULT = Bounds(DEFAULT_TIMEOUT.connect, DEFAULT_TIMEOUT.read, None)


def bounds_of(timeout: Any) -> Bounds | None:
    """Read a timeout in any form of openai's; ``None``: the scheduler cannot keep to it."""
    if timeout is DEFAULT_TIMEOUT or timeout == DEFAULT_TIMEOUT:
        return _DEFAULT
    if isinstance(timeout, tuple):
        try:
            timeout = Timeout(timeout)
        except (TypeError, ValueError):
            return None
    if timeout is None or isinstance(timeout, (int, float)):
        parts = [timeout]
    else:
        parts = [getattr(timeout, name, 0) for name in ("connect", "read", "write", "pool")]
    bounds: list[float | None] = []
    for part in parts:
        if part is not None and not (isinstance(part, (int, float)) and part > 0):
            return None
        bounds.append(None if part is None or part >= _NO_BOUND_S else float(part))
    connect_s, read_s = bounds[0], bounds[min(1, len(bounds) - 1)]
    return Bounds(connect_s, read_s, read_s)
