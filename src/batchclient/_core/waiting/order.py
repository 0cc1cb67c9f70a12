"""The order in which queued calls are granted: each has a *rank*, a time.

Rules:
- The rank decides everything but fairness (see ``lanes``). The lowest goes first; equal ranks go in
  the order of submission.
- ``fcfs``: the rank is the time of queueing. ``shortest_first``: the time of queueing plus the
  expected time of the call, so an old long call gets ahead of young short calls in bounded time.
  ``deadline``: the deadline; a call without a deadline ranks as if it had ``NO_DEADLINE_S`` left
  when queued, so it ages in.
- A priority is a head start of ``aging_s`` per class: a higher class goes first, and nothing waits
  for ever.
- Ranks are absolute times which do not change, so time passing needs no new sorting.
"""

from __future__ import annotations

from batchclient._core.learnt.lengths import Lengths, weighted_tokens
from batchclient._core.messages import Request

__all__ = ["Order"]

S_PER_TOKEN = 0.02
"""Rank per weighted token (``weighted_tokens``) under ``shortest_first``, seconds. An output token
weighs 2: 25 a second, as for a sequence on a well loaded server. A choice, not a measurement: it
only sets how fast calls age."""

NO_DEADLINE_S = 60.0
"""Seconds which a call without a deadline ranks as having. A choice: a patient caller's timeout."""


class Order:
    """Ranks requests; ``aging_s`` is a priority class's head start over the next, seconds."""

    def __init__(self, kind: str, aging_s: float, lengths: Lengths) -> None:
        self.kind = kind
        self._aging_s = aging_s
        self._lengths = lengths

    @property
    def is_arrival(self) -> bool:
        """Whether calls of a group go in the order of arrival, so a deque keeps them in order."""
        return self.kind == "fcfs"

    def rank(self, request: Request) -> float:
        """The request's rank, seconds; under ``shortest_first`` by the lengths known now."""
        shape, at = request.shape, request.queued_at
        if self.kind == "shortest_first":
            output = shape.weight * self._lengths.expected_of(request)
            at += S_PER_TOKEN * weighted_tokens(request.prompt_tokens, output)
        elif self.kind == "deadline":
            at = request.deadline if request.deadline is not None else at + NO_DEADLINE_S
        return at - shape.priority * self._aging_s
