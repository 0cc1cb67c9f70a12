"""How fast one server is: the time of a unit of work on it while it is otherwise idle. ``choice`` compares servers by it.

A unit of work is an output token. What load does to a server is left out: a server that runs its limit takes twice as long
per call as an idle one.
"""

from __future__ import annotations

__all__ = ["Speed", "work"]

_FIXED_WORK = 16
"""What a call costs besides its output tokens, in output tokens: with vLLM's usual step times a prefill of a few hundred
tokens takes about as long as this many decode steps do (20 µs a prompt token, 12 ms a step)."""
_WEIGHT_PER_SEQUENCE = 0.1
_HEAVIEST_WEIGHT = 0.5
_STALE_AFTER_S = 10.0
"""Under light load a measure may stem from a burst, which says little of an idle server; and one call in ten seconds is a small price."""


def work(expected_tokens: int) -> int:
    """A call's work in output tokens, so that calls of different lengths can be compared."""
    return _FIXED_WORK + expected_tokens


class Speed:
    """How long one server takes for a unit of work when nothing else is there: an exponential mean of what was seen.

    An answer weighs the more, the more sequences it has and the older the mean is.
    """

    __slots__ = ("_measured_at", "_seconds")

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
            load_ratio: mean sequences in flight meanwhile, by the limit.
            sequences: how many were answered.
            now: the time.
        """
        idle_s = seconds / (units * (1.0 + load_ratio))
        before = self._seconds
        age = min(1.0, (now - self._measured_at) / _STALE_AFTER_S)
        weight = max(age, min(_HEAVIEST_WEIGHT, _WEIGHT_PER_SEQUENCE * sequences))
        self._seconds = idle_s if before is None else before + weight * (idle_s - before)
        self._measured_at = now

    def forget(self) -> None:
        """The server was started anew."""
        self._seconds = None

    def seconds(self, now: float, *, idle: bool) -> float | None:
        """Seconds per unit of work; ``None``: not known, or to be found out again."""
        if idle and now - self._measured_at > _STALE_AFTER_S:
            return None
        return self._seconds
