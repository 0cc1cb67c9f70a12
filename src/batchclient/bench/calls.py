"""What happened to each call of a cell: five times, two counts of tokens, attempts, an outcome.

Arrays, not objects: a call takes 61 bytes, so a million calls fit anywhere.
"""

from __future__ import annotations

import math
from array import array
from dataclasses import dataclass, field

__all__ = ["NOT_YET", "Calls"]

NOT_YET = math.nan
"""A time that has not come."""


@dataclass(slots=True)
class Calls:
    """The calls of one cell, in the order of their arrivals.

    Times are seconds of one clock; a time that has not come is not a number.

    Attributes:
        scheduled: when each call was to be made.
        begun: when the call was handed to the client.
        sent: when the first request with the call was sent.
        first: when the first token came.
        ended: when the answer or the error came.
        prompt_tokens, output_tokens: as the server counts; 0: it told none.
        attempts: requests with the call that were sent.
        outcomes: 0: none yet; 1: answered; 2: failed.
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
    outcomes: bytearray = field(default_factory=bytearray)
    errors: dict[int, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.scheduled)

    def begin(self, scheduled: float, begun: float) -> int:
        """Note a call; return its place."""
        self.scheduled.append(scheduled)
        self.begun.append(begun)
        for times in (self.sent, self.first, self.ended):
            times.append(NOT_YET)
        self.prompt_tokens.append(0)
        self.output_tokens.append(0)
        self.attempts.append(0)
        self.outcomes.append(0)
        return len(self.scheduled) - 1

    def note_request(self, place: int, at: float) -> None:
        """Note a request with the call: the first one, or another attempt."""
        if not self.attempts[place]:
            self.sent[place] = at
        self.attempts[place] += 1

    def answered(self, place: int, at: float, prompt_tokens: int, output_tokens: int) -> None:
        """Note an answer."""
        self.ended[place] = at
        self.outcomes[place] = 1
        self.prompt_tokens[place] = prompt_tokens
        self.output_tokens[place] = output_tokens

    def failed(self, place: int, at: float, error: BaseException) -> None:
        """Note an error."""
        self.ended[place] = at
        self.outcomes[place] = 2
        self.errors[place] = type(error).__name__
