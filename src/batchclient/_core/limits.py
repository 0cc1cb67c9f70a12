"""How many sequences may be in flight. A ``Limit`` is an algorithm; it holds no permits (the endpoint does).

Fed with samples, an algorithm answers with a number and its reason. The unit is a sequence (prompts × n): that is what
every server schedules, never an HTTP request.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Protocol

__all__ = ["FixedLimit", "Limit", "LimitChange", "Outcome", "Sample"]


class Outcome(Enum):
    """What a finished batch, or part of one, says about the server.

    ``IGNORED``: it says nothing (a caller's fault, a cancelled call). ``DROPPED``: the server refused work.
    """

    SUCCESS = "success"
    IGNORED = "ignored"
    DROPPED = "dropped"


@dataclass(frozen=True, slots=True)
class Sample:
    """One observation.

    Args:
        now: when it was made, seconds.
        sent_at: when the batch was granted.
        in_flight: sequences in flight just before it.
        sequences: how many finished.
        completion_tokens: their tokens.
        outcome: what it says.
    """

    now: float
    sent_at: float
    in_flight: int
    sequences: int
    completion_tokens: int
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class LimitChange:
    """A new limit and why."""

    limit: int
    reason: str


class Limit(Protocol):
    """The algorithm: samples in, a number and its reason out. Pure: no clock, no randomness."""

    @property
    def limit(self) -> int:
        """Sequences that may be in flight, at least 1."""
        ...

    def on_sample(self, sample: Sample) -> LimitChange | None:
        """Take in one observation; return the change it caused, if any."""
        ...


class FixedLimit:
    """Always the same number."""

    __slots__ = ("_limit",)

    def __init__(self, limit: int) -> None:
        if limit < 1:
            raise ValueError("a limit is at least 1")
        self._limit = limit

    @property
    def limit(self) -> int:
        """Sequences that may be in flight."""
        return self._limit

    def on_sample(self, sample: Sample) -> LimitChange | None:
        """Take no notice."""
        return None

    def __repr__(self) -> str:
        return f"FixedLimit({self._limit})"
