"""What answers that ended one after another say of the load they were served under: a rate, its error, and how long they waited.

Rules:
- By Little's law what is answered per second is the mean load ``N`` over the mean time ``T`` of an answer (Little 1961). Where first tokens are
  seen, ``T`` is taken apart into the wait ``w`` for the first and ``s`` for each of the others, so that tokens per second are
  ``N t / (w + s t)`` for answers of ``t`` tokens: the luck of long and short answers, which a count of tokens follows, is not in it.
  Two windows are compared at the same ``t``. Where answers come in one piece, it is ``N`` times the tokens over the sequence-seconds.
- Time that callers left, or came too late for, belongs to the wait; its tokens count as none.
- The error comes from slices of the window: the standard error of their mean. A slice is 0.7 s or an eighth of a mean latency; that
  neighbours are alike is allowed for.
- What waits: of the time before first tokens, that beyond the least that was seen. As a share of an answer's time it is the share of what is in
  flight that waits (Little's law again).
"""

from __future__ import annotations

import math
from operator import mul
from typing import NamedTuple

from batchclient._core.limits.base import Outcome, Sample

__all__ = ["ONE_PIECE", "Rate", "Settling", "Window"]

_SHORTEST_SLICE_S = 0.7
_SLICE_LATENCIES = 0.125
_LEAST_SLICES = 6
_MOST_ALIKE = 0.7
_LEAST_SLICE_ANSWERS = 4
_ALIKE = 0.18
"""A fifth, of logarithms."""
ONE_PIECE = 0.98
"""A stream that waits for its first token for a larger share of its time comes at its end, and shows no queue."""


class Rate(NamedTuple):
    """What a window says.

    Args:
        error: the relative standard error of ``per_s``.
        load: mean sequences in flight.
        peak: most of them.
        heaviest: sequences of the largest call.
        tokens: of a useful answer, on average; 1 where nobody counts them.
        first_s: seconds before the first of them.
        token_s: seconds for each of the others.
        prompt: mean prompt tokens, and
        output: mean output tokens, of their logarithms.
        waiting: the share of answers' time that was a wait beyond the least one; 0: none was seen.
        shared: the share of prompt tokens that the server had been sent before.
    """

    error: float
    load: float
    peak: int
    heaviest: int
    tokens: float
    first_s: float
    token_s: float
    prompt: float
    output: float
    waiting: float
    shared: float

    def per_s(self, tokens: float) -> float:
        """Tokens per second, with answers of so many."""
        return self.load * tokens / (self.first_s + self.token_s * (tokens - 1))

    def is_like(self, other: Rate) -> bool:
        """Whether prompts and outputs were alike."""
        return abs(self.prompt - other.prompt) < _ALIKE and abs(self.output - other.output) < _ALIKE


class _Sums:
    """Sums over answers."""

    __slots__ = ("area", "began", "count", "first_s", "spent_s", "timed", "timed_s", "timed_tokens", "tokens", "useful")

    def __init__(self, began: float) -> None:
        self.began = began
        self.count = self.useful = self.tokens = 0
        self.spent_s = self.area = 0.0
        self.timed = self.timed_tokens = 0
        """Of answers whose first token's time is known."""
        self.timed_s = self.first_s = 0.0

    def add(self, sample: Sample, spent_s: float) -> None:
        count = sample.sequences
        self.count += count
        self.spent_s += spent_s
        self.area += spent_s * sample.mean_in_flight
        if sample.outcome is Outcome.SUCCESS:
            tokens = sample.completion_tokens or count
            self.useful += count
            self.tokens += tokens
            if sample.first_tokens_s:
                self.timed += count
                self.timed_tokens += tokens
                self.timed_s += spent_s
                self.first_s += sample.first_tokens_s

    @property
    def load(self) -> float:
        return self.area / self.spent_s

    def parts_s(self) -> tuple[float, float]:
        """Seconds before the first token of an answer, and for each of the others; all of the time where they are not told apart."""
        later = self.timed_tokens - self.timed
        if self.shows_wait and later:
            token_s = (self.timed_s - self.first_s) / later
            first_s = (self.spent_s - self.timed_s + self.first_s) / self.useful
            # What came in one piece is taken to have had the others' tokens.
            later = (self.tokens - self.timed_tokens) - (self.useful - self.timed)
            return max(0.0, first_s - token_s * later / self.useful), token_s
        token_s = self.spent_s / max(1, self.tokens)
        return token_s, token_s

    @property
    def shows_wait(self) -> bool:
        """Whether first tokens came at all, and not only with the last."""
        return self.timed > self.useful / 2 and self.first_s < ONE_PIECE * self.timed_s


class Settling:
    """Until what is in flight is what the limit makes it.

    It is over when no more is in flight than the limit, and half of it, sent since, has ended; where calls share prefixes, when that has happened
    twice: they have then come once more.

    Args:
        limit: sequences in flight, at most.
        generations: how often.
    """

    __slots__ = ("_ended", "_generations", "_limit", "_since")

    def __init__(self, limit: int, generations: int) -> None:
        self._limit, self._generations = limit, generations
        self._since = math.inf
        """Since when what was sent is looked at."""
        self._ended = 0

    def __repr__(self) -> str:
        return f"<Settling at {self._limit}, {self._generations} to go>"

    def is_over(self, sample: Sample) -> bool:
        """Take in a sample; return whether it is over."""
        if self._since == math.inf:
            if sample.in_flight - sample.sequences <= self._limit:
                self._since = sample.now
            return False
        if sample.sent_at >= self._since:
            self._ended += sample.sequences
            if self._ended >= self._limit / 2:
                self._generations -= 1
                self._since, self._ended = sample.now, 0
        return self._generations <= 0


class Window:
    """Answers that ended since ``began``."""

    __slots__ = ("_all", "_heaviest", "_outputs", "_peak", "_prompts", "_shared", "_slice", "_slices", "began")

    def __init__(self, began: float) -> None:
        self.began = began
        self._all = _Sums(began)
        self._slice = _Sums(began)
        self._slices: list[_Sums] = []
        self._prompts = self._outputs = self._shared = 0.0
        """Sums of logarithms, and of shares, over useful answers."""
        self._peak, self._heaviest = 0, 1

    def __repr__(self) -> str:
        return f"<Window of {self._all.count} answers since {self.began:g}>"

    @property
    def useful(self) -> int:
        """How many answers somebody got."""
        return self._all.useful

    @property
    def latency_s(self) -> float:
        """What an answer takes on average."""
        return self._all.spent_s / max(1, self._all.count)

    def add(self, sample: Sample) -> None:
        """Take in a sample that took some time."""
        self._peak = max(self._peak, sample.in_flight)
        self._heaviest = max(self._heaviest, sample.weight)
        count = sample.sequences
        spent_s = count * (sample.now - sample.sent_at)
        self._all.add(sample, spent_s)
        if sample.outcome is Outcome.SUCCESS:
            self._shared += count * sample.shared_tokens / max(1, sample.prompt_tokens)
            self._prompts += count * math.log(max(1.0, sample.prompt_tokens / count))
            self._outputs += count * math.log((sample.completion_tokens or count) / count)
        part = self._slice
        part.add(sample, spent_s)
        least_s = max(_SHORTEST_SLICE_S, _SLICE_LATENCIES * self.latency_s)
        if part.useful >= _LEAST_SLICE_ANSWERS and sample.now - part.began >= least_s:
            self._slices.append(part)
            self._slice = _Sums(sample.now)

    @property
    def error(self) -> float:
        """The relative standard error of the rate so far; infinite before there are enough slices."""
        count = len(self._slices)
        if count < _LEAST_SLICES:
            return math.inf
        tokens = self._all.tokens / self._all.useful
        rates = []
        for part in self._slices:
            first_s, token_s = part.parts_s()
            rates.append(part.load * tokens / (first_s + token_s * (tokens - 1)))
        mean = sum(rates) / count
        off = [rate - mean for rate in rates]
        squares = sum(each * each for each in off)
        # What one slice has of the next one's luck (a machine's weather, calls that were in flight in both) makes the mean less certain.
        alike = min(_MOST_ALIKE, max(0.0, sum(map(mul, off, off[1:])) / squares)) if squares else 0.0
        return math.sqrt(squares / (count - 1) / count * (1 + alike) / (1 - alike)) / mean

    def rate(self, least_first_s: float) -> Rate:
        """What it says; some answer must have been useful.

        Args:
            least_first_s: what a first token takes where nothing waits.
        """
        sums = self._all
        first_s, token_s = sums.parts_s()
        waits_s = max(0.0, sums.first_s - sums.timed * least_first_s) if sums.shows_wait else 0.0
        return Rate(
            self.error,
            sums.load,
            self._peak,
            self._heaviest,
            sums.tokens / sums.useful,
            first_s,
            token_s,
            self._prompts / sums.useful,
            self._outputs / sums.useful,
            waits_s / sums.spent_s,
            self._shared / sums.useful,
        )
