"""The speed of one server: the time of a unit of work while the server is otherwise idle.

A unit of work is an output token. ``choice`` compares servers by their speeds. The effect of load
is left out: at its limit a server takes twice as long per call as an idle server.
"""

from __future__ import annotations

__all__ = ["Speed", "work"]

_FIXED_WORK = 16
"""The fixed work of a call, in output tokens. At vLLM's usual step times a prefill of a few hundred
tokens takes about as long as 16 decode steps (20 µs a prompt token, 12 ms a step)."""
_WEIGHT_PER_SEQUENCE = 0.1
_HEAVIEST_WEIGHT = 0.5
_STALE_AFTER_S = 10.0
"""A measure under light load may stem from a burst, which says little of an idle server. One call
in ten seconds is a small price for a new measure."""


def work(expected_tokens: int) -> int:
    """Return a call's work in output tokens: comparable between calls of different lengths."""
    return _FIXED_WORK + expected_tokens


class Speed:
    """The time of a unit of work on one otherwise idle server: an exponential mean.

    An answer weighs more, the more sequences the answer has and the older the mean is.
    """

    def __init__(self) -> None:
        self._seconds: float | None = None
        self._measured_at = 0.0

    def __repr__(self) -> str:
        return "<Speed unknown>" if self._seconds is None else f"<Speed {self._seconds * 1e3:.3g} ms>"

    @property
    def is_known(self) -> bool:
        """Whether anything was measured."""
        return self._seconds is not None

    def measure(self, seconds: float, units: int, load_ratio: float, sequences: int, now: float) -> None:
        """Take in some answers.

        Args:
            seconds: from the grant to the answer.
            units: ``work`` of one call.
            load_ratio: mean sequences in flight meanwhile, divided by the limit.
        """
        idle_s = seconds / (units * (1.0 + load_ratio))
        before = self._seconds
        age = min(1.0, (now - self._measured_at) / _STALE_AFTER_S)
        weight = max(age, min(_HEAVIEST_WEIGHT, _WEIGHT_PER_SEQUENCE * sequences))
        self._seconds = idle_s if before is None else before + weight * (idle_s - before)
        self._measured_at = now

    def forget(self) -> None:
        """Forget the measure: the server was restarted."""
        self._seconds = None

    def seconds(self, now: float, *, idle: bool) -> float | None:
        """Seconds per unit of work; ``None``: unknown, or idle and due for a new measure."""
        if idle and now - self._measured_at > _STALE_AFTER_S:
            return None
        return self._seconds
