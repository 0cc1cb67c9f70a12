"""In which order queued calls are granted: everything but fairness is one number per request, its *rank*, a time.

Rules:
- The lowest rank goes first; equal ranks go in the order of submission.
- ``fcfs``: the rank is when the call was queued. ``shortest_first``: that plus the time the call is expected to take, so that
  an older long call gets ahead of younger short ones in bounded time. ``deadline``: the deadline; a call without one is
  ranked as if it had ``NO_DEADLINE_S`` left when it was queued, so that it ages in.
- A priority is a head start of ``aging_s`` per class: a higher class goes first, and nothing waits for ever.
- Ranks are absolute times that never change, so that nothing needs to be sorted again as time passes.
"""

from __future__ import annotations

from batchclient._core.learnt.lengths import OutputLengths, weighted_tokens
from batchclient._core.messages import Request

__all__ = ["Order"]

S_PER_TOKEN = 0.02
"""Head start per weighted token (``weighted_tokens``) under ``shortest_first``, seconds. An output token weighs 2: 25 output
tokens a second is what one sequence gets on a well loaded server. A choice, not a measurement: it only sets how fast calls age."""

NO_DEADLINE_S = 60.0
"""What a call without a deadline is given under ``deadline``, seconds. A choice: a patient caller's timeout."""


class Order:
    """Ranks requests.

    Args:
        kind: ``"fcfs"``, ``"shortest_first"`` or ``"deadline"``.
        aging_s: the head start of one priority class over the next, seconds.
        lengths: expected output lengths, for ``shortest_first``.
    """

    __slots__ = ("_aging_s", "_lengths", "kind")

    def __init__(self, kind: str = "fcfs", aging_s: float = 300.0, lengths: OutputLengths | None = None) -> None:
        self.kind = kind
        self._aging_s = aging_s
        self._lengths = lengths or OutputLengths()

    @property
    def is_arrival(self) -> bool:
        """Whether calls of one group go in the order of their arrival, so that a deque keeps them in order."""
        return self.kind == "fcfs"

    def rank(self, request: Request) -> float:
        """The request's rank, seconds. With ``shortest_first`` it rests on what is known of its key now."""
        shape, at = request.shape, request.queued_at
        if self.kind == "shortest_first":
            output = shape.weight * self._lengths.expected(shape.learnt_as, shape.max_output_tokens)
            at += S_PER_TOKEN * weighted_tokens(request.prompt_tokens, output)
        elif self.kind == "deadline":
            at = request.deadline if request.deadline is not None else at + NO_DEADLINE_S
        return at - shape.priority * self._aging_s
