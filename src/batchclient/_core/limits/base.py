"""What a limit algorithm is told and what it answers.

Fed with samples, an algorithm answers with a number and its reason. The unit is a sequence (prompts × n): that is what
every server schedules, never an HTTP request.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Protocol

__all__ = ["Limit", "LimitChange", "Outcome", "Sample"]


class Outcome(Enum):
    """What finished sequences say about the server.

    ``SUCCESS``: they were answered. ``WASTED``: their callers left while the server worked on them: time was spent and nothing
    came of it. ``LATE``: the same, because their deadlines passed. ``DROPPED``: the server refused work. ``IGNORED``: it says nothing (a caller's
    fault, a broken connection).
    """

    SUCCESS = "success"
    WASTED = "wasted"
    LATE = "late"
    IGNORED = "ignored"
    DROPPED = "dropped"


@dataclass(slots=True, eq=False)
class Sample:
    """One observation: some sequences of one batch have ended.

    Made once per reply event, so it is slotted but not frozen.

    Args:
        now: when they ended, seconds.
        sent_at: when their batch was granted.
        in_flight: the endpoint's sequences in flight just before they ended.
        mean_in_flight: its time-average from ``sent_at`` to ``now``: the load under which they were served.
        in_flight_at_sent: sequences in flight just after their batch was granted: the queue they joined.
        sequences: how many ended.
        prompt_tokens: of their prompts, as the server counted them; 0 if it did not.
        completion_tokens: what they generated; 0 if unknown.
        first_tokens_s: the sum of their times to first token, counted from ``sent_at``; 0 if unknown (plain replies).
        outcome: what it says.
        admitted_at: the limit in force when the batch was granted.
        shared_tokens: of the prompts' tokens, those of prefixes that the server had been sent before, at least; about.
        weight: sequences of one call (``n``), which are granted together.
    """

    now: float
    sent_at: float
    in_flight: int
    mean_in_flight: float
    in_flight_at_sent: int
    sequences: int
    prompt_tokens: int
    completion_tokens: int
    first_tokens_s: float
    outcome: Outcome
    admitted_at: int
    shared_tokens: float = 0.0
    weight: int = 1


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
