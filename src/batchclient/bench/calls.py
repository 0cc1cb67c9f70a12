"""What happened to each call of a measurement: five times, tokens, attempts, an outcome.

Arrays, not objects: a call takes 62 bytes, so a million calls fit anywhere.
"""

from __future__ import annotations

import math
from array import array
from dataclasses import dataclass, field

__all__ = ["ANSWERED", "FAILED", "NOT_YET", "Calls"]

NOT_YET = math.nan
"""A time that has not come."""
ANSWERED, FAILED = 1, 2


@dataclass(slots=True)
class Calls:
    """The calls of one measurement, in the order of their arrivals.

    Times are seconds of one clock; a time that has not come is not a number.

    Attributes:
        scheduled: when each call was to be made.
        begun: when the call was handed to the client.
        sent: when the request that was answered was sent.
        first: when the first token came.
        ended: when the answer or the error came.
        prompt_tokens, output_tokens: as the server counts; 0: it tells none.
        attempts: requests with an answered call that were sent.
        bad: 1: the answer is none: it is empty, or the server held it back.
        outcomes: 0: none yet; ``ANSWERED``; ``FAILED``.
        errors: the class of the error, by the places of failed calls.
    """

    scheduled: array[float] = field(default_factory=lambda: array("d"))
    begun: array[float] = field(default_factory=lambda: array("d"))
    sent: array[float] = field(default_factory=lambda: array("d"))
    first: array[float] = field(default_factory=lambda: array("d"))
    ended: array[float] = field(default_factory=lambda: array("d"))
    prompt_tokens: array[int] = field(default_factory=lambda: array("q"))
    output_tokens: array[int] = field(default_factory=lambda: array("q"))
    attempts: array[int] = field(default_factory=lambda: array("i"))
    bad: array[int] = field(default_factory=lambda: array("b"))
    outcomes: array[int] = field(default_factory=lambda: array("b"))
    errors: dict[int, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.scheduled)

    def begin(self, scheduled: float, begun: float) -> int:
        """Note a call; return its place."""
        self.scheduled.append(scheduled)
        self.begun.append(begun)
        for times in (self.sent, self.first, self.ended):
            times.append(NOT_YET)
        for counts in (self.prompt_tokens, self.output_tokens, self.attempts, self.bad, self.outcomes):
            counts.append(0)
        return len(self.scheduled) - 1

    def answered(self, place: int, at: float, prompt_tokens: int, output_tokens: int, *, is_bad: bool = False) -> None:
        """Note an answer."""
        self.ended[place] = at
        self.outcomes[place] = ANSWERED
        self.prompt_tokens[place] = prompt_tokens
        self.output_tokens[place] = output_tokens
        self.bad[place] = is_bad

    def failed(self, place: int, at: float, error: BaseException) -> None:
        """Note an error."""
        self.ended[place] = at
        self.outcomes[place] = FAILED
        self.errors[place] = type(error).__name__
