"""One endpoint's limit: an algorithm, the caps that may lower it, and a pin.

Rules:
- The limit in force is the pin if there is one, else the smallest of the algorithm's number and the caps'; never below 1.
- A cap only ever lowers. One that has nothing to say, or nothing fresh, is not there.
- So does the bound, a number that the server itself has named; but it does not lower a limit that the caller gave.
- While a cap lowers it, the algorithm is told (``hold``, if it has that): what it knows is from more load than there is now, and the cap may be gone in
  a moment, with the report it rests on. A pin is the caller's affair, and tells it nothing.
- The reason of a change is that of the number in force; of a cap and an algorithm that say the same number, the cap's. A cap that has given up may say
  why (``gave_up``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from batchclient._core.limits.aimd import FixedLimit
from batchclient._core.limits.base import Limit, LimitChange, Sample

__all__ = ["Cap", "LimitControl"]

_GONE = "no cap any more"


class Cap(Protocol):
    """Something that may lower a limit."""

    def on_sample(self, sample: Sample) -> None:
        """Take in one observation."""
        ...

    def cap(self, now: float) -> tuple[int, str] | None:
        """The most sequences in flight, and why; ``None``: no opinion."""
        ...


class LimitControl:
    """The limit in force on one endpoint.

    Args:
        algorithm: proposes a limit.
        caps: each may lower it.
    """

    __slots__ = ("_bound", "_caps", "_hold", "_pinned", "algorithm", "limit", "reason")

    def __init__(self, algorithm: Limit, caps: Sequence[Cap] = ()) -> None:
        self.algorithm = algorithm
        self._caps = tuple(caps)
        self._hold = getattr(algorithm, "hold", None)
        self._pinned: int | None = None
        self._bound: tuple[int, str] | None = None
        self.limit = algorithm.limit
        """Sequences that may be in flight now."""
        self.reason = "the start"

    def __repr__(self) -> str:
        return f"<LimitControl {self.limit}: {self.reason}>"

    @property
    def pinned(self) -> bool:
        """Whether a pin holds it."""
        return self._pinned is not None

    def on_sample(self, sample: Sample) -> LimitChange | None:
        """Take in one observation; return the change it caused, if any."""
        proposed = self.algorithm.on_sample(sample)
        for cap in self._caps:
            cap.on_sample(sample)
        if proposed is None and not self._caps:
            return None  # neither a bound nor a pin changes with a sample
        return self._decide(sample.now, proposed)

    @property
    def opening(self) -> bool:
        """Whether the algorithm is to be told when batches have begun."""
        return getattr(self.algorithm, "opening", False)

    def on_begun(self, running: int, hurry: float, now: float) -> LimitChange | None:
        """All prompts of a batch have their first token (``KneeLimit.on_begun``)."""
        begin = getattr(self.algorithm, "on_begun", None)
        return self._decide(now, begin(running, hurry, now)) if begin is not None else None

    def on_load(self, load: object, in_flight: int, now: float) -> LimitChange | None:
        """Take in what the server says of itself, for the caps that listen to it."""
        for cap in self._caps:
            listen = getattr(cap, "on_load", None)
            if listen is not None:
                listen(load, in_flight, now)
        return self._decide(now, None)

    def on_restart(self, now: float) -> LimitChange | None:
        """The server was started anew: the algorithm and the caps forget what they learnt of it."""
        for part in (self.algorithm, *self._caps):
            forget = getattr(part, "on_restart", None)
            if forget is not None:
                forget(now)
        return self._decide(now, None)

    def pin(self, limit: int | None, now: float) -> LimitChange | None:
        """Hold the limit at a number, whatever the algorithm and the caps say; they go on learning. ``None`` lets go."""
        if limit is not None and limit < 1:
            raise ValueError("a limit is at least 1")
        if limit is None and self._pinned is None:
            return None
        self._pinned = limit
        return self._set_anew(now, "unpinned")

    def bound(self, limit: int | None, reason: str, now: float) -> LimitChange | None:
        """Never go above a number that the server itself has named; ``None``: it names none (any more)."""
        self._bound = (max(1, limit), reason) if limit is not None else None
        return self._decide(now, None)

    def replace(self, other: LimitControl, now: float) -> None:
        """Take the place of one that the caller wants no more, and its bound."""
        self._bound = other._bound
        self._set_anew(now, "set by the caller")

    def _decide(self, now: float, proposed: LimitChange | None) -> LimitChange | None:
        limit, reason = self._in_force(now, proposed.reason if proposed is not None else _GONE)
        if reason is _GONE and limit != self.limit:
            reason = next(filter(None, (getattr(cap, "gave_up", "") for cap in self._caps)), _GONE)
        if self._hold is not None and self._pinned is None and limit < self.algorithm.limit:
            self._hold(limit)
        return self._set(limit, reason)

    def _set_anew(self, now: float, reason: str) -> LimitChange | None:
        # Somebody has said so: that is the reason from now on, of the same number too.
        limit, reason = self._in_force(now, reason)
        change = self._set(limit, reason)
        self.reason = reason
        return change

    def _in_force(self, now: float, reason: str) -> tuple[int, str]:
        """The limit that is to hold, and why; ``reason`` is why if that is the algorithm's number."""
        if self._pinned is not None:
            return self._pinned, "pinned"
        limit = self.algorithm.limit
        if self._bound is not None and self._bound[0] < limit and not isinstance(self.algorithm, FixedLimit):
            limit, reason = self._bound
        for cap in self._caps:
            verdict = cap.cap(now)
            if verdict is not None and verdict[0] <= limit:
                limit, reason = verdict
        return max(1, limit), reason

    def _set(self, limit: int, reason: str) -> LimitChange | None:
        if limit == self.limit:
            return None
        self.limit, self.reason = limit, reason
        return LimitChange(limit, reason)
