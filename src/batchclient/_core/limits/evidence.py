"""Evidence of answers that ended in succession: their rate under a load, its error, their wait.

Rules:
- By Little's law the answers per second are the mean load ``N`` over the mean time ``T`` of an
  answer (Little 1961). If first tokens are seen, ``T`` is a wait ``w`` for the first and ``s`` for
  each further token. Answers of ``t`` tokens make ``N t / (w + s t)`` tokens per second, without
  the luck of long and short answers in a count. Two windows are compared at one ``t``. For answers
  in one piece the rate is ``N`` times the tokens over the sequence-seconds.
- The time of calls left by callers, or answered too late, is a wait; their tokens count as none.
- The error is the standard error of the slices' mean, with an allowance for alike neighbours. A
  slice lasts 0.7 s or an eighth of a mean latency.
- The wait is the time before first tokens beyond the least seen. By Little's law again its share of
  an answer's time is the waiting share of the sequences in flight.
"""

from __future__ import annotations

import math
from operator import mul

from batchclient._core.limits.base import Outcome, Sample

__all__ = ["Window"]

_SHORTEST_SLICE_S = 0.7
_SLICE_LATENCIES = 0.125
_LEAST_SLICES = 6
_MOST_ALIKE = 0.7
_LEAST_SLICE_ANSWERS = 4
_ONE_PIECE = 0.98
"""A stream whose first token takes a larger share comes at its end, and shows no queue."""


class _Sums:
    __slots__ = (
        "_answers", "_area", "_first_s", "_outputs", "_prompts", "_shared", "_spent_s", "_timed", "_timed_s",
        "_timed_tokens", "_tokens", "began", "useful",
    )  # fmt: skip

    def __init__(self, began: float) -> None:
        self.began = began
        self._answers = self.useful = self._tokens = 0
        """All ended answers; the useful ones among them, and their tokens."""
        self._spent_s = self._area = 0.0
        """Sequence-seconds, also wasted; sequence-seconds times the mean load."""
        self._timed = self._timed_tokens = 0
        """The number and tokens of answers with a known time to first token."""
        self._timed_s = self._first_s = 0.0
        self._prompts = self._outputs = self._shared = 0.0
        """Logarithms of useful answers' tokens, and shares of prompts sent to the server before."""

    def add(self, sample: Sample) -> None:
        """Take in a sample of some duration."""
        count = sample.sequences
        spent_s = count * (sample.now - sample.sent_at)
        self._answers += count
        self._spent_s += spent_s
        self._area += spent_s * sample.mean_in_flight
        if sample.outcome is not Outcome.SUCCESS:
            return
        tokens, prompts = max(count, sample.completion_tokens), max(count, sample.prompt_tokens)
        self.useful += count
        self._tokens += tokens
        self._outputs += count * math.log(tokens / count)
        self._prompts += count * math.log(prompts / count)
        if sample.shared_tokens:
            self._shared += count * sample.shared_tokens / prompts
        if sample.first_tokens_s:
            self._timed += count
            self._timed_tokens += tokens
            self._timed_s += spent_s
            self._first_s += sample.first_tokens_s

    @property
    def load(self) -> float:
        """Mean sequences in flight."""
        return self._area / self._spent_s

    @property
    def tokens(self) -> float:
        """Mean tokens of a useful answer; 1 where nobody counts."""
        return self._tokens / self.useful

    def per_s(self, tokens: float) -> float:
        """Useful tokens per second, for answers of so many tokens."""
        first_s, token_s = self._parts_s()
        return self.load * tokens / (first_s + token_s * (tokens - 1))

    @property
    def _shows_wait(self) -> bool:
        """Whether first tokens came before the last ones."""
        return self._timed > self.useful / 2 and self._first_s < _ONE_PIECE * self._timed_s

    def _parts_s(self) -> tuple[float, float]:
        """Seconds before an answer's first token, and per further token; equal if unknown."""
        later = self._timed_tokens - self._timed
        if not (self._shows_wait and later > 0):
            token_s = self._spent_s / max(1, self._tokens)
            return token_s, token_s
        token_s = (self._timed_s - self._first_s) / later
        first_s = (self._spent_s - self._timed_s + self._first_s) / self.useful
        # Answers in one piece count as having had the others' tokens.
        whole = (self._tokens - self._timed_tokens) - (self.useful - self._timed)
        return max(0.0, first_s - token_s * whole / self.useful), token_s


_SUMMED = [name for name in _Sums.__slots__ if name != "began"]


class Window(_Sums):
    """Answers that ended in succession, by whole slices, once the load is of the limit's making.

    That is when no more than the limit is in flight, and ``rounds`` of half of the limit each, sent
    since, have ended. Without rounds the window begins at once.
    """

    __slots__ = (
        "_limit", "_next_look", "_round_ended", "_round_from", "_rounds", "_slice", "_slices", "heaviest", "peak",
    )  # fmt: skip

    def __init__(self, limit: int, rounds: int = 0, began: float = math.inf) -> None:
        super().__init__(began)
        self._limit, self._rounds = limit, rounds
        self._round_from, self._round_ended = math.inf, 0
        """Since when sent sequences count in a round, and how many of them have ended."""
        self._slice = _Sums(began)
        self._slices: list[_Sums] = []
        self._next_look = _LEAST_SLICES
        self.peak, self.heaviest = 0, 1
        """Most in flight, and sequences of the largest call."""

    def take_in(self, sample: Sample) -> bool:
        """Take in a sample of some duration; return whether the window tells more than before."""
        if self._rounds:
            self._settle(sample)
            if self._rounds:
                return False
            self.began = self._slice.began = sample.now
        self.peak = max(self.peak, sample.in_flight)
        self.heaviest = max(self.heaviest, sample.weight)
        part = self._slice
        part.add(sample)
        lasted_s = sample.now - part.began
        if lasted_s < _SHORTEST_SLICE_S or part.useful < _LEAST_SLICE_ANSWERS:
            return False
        if lasted_s < _SLICE_LATENCIES * part._spent_s / part._answers:
            return False
        self._slices.append(part)
        self._slice = _Sums(sample.now)
        for name in _SUMMED:
            setattr(self, name, getattr(self, name) + getattr(part, name))
        # A long window is judged less often: its error rests on all of its slices.
        if len(self._slices) < self._next_look:
            return False
        self._next_look = len(self._slices) + max(1, len(self._slices) // _LEAST_SLICES**2)
        return True

    def _settle(self, sample: Sample) -> None:
        if self._round_from == math.inf:
            if sample.in_flight - sample.sequences <= self._limit:
                self._round_from = sample.now
        elif sample.sent_at >= self._round_from:
            self._round_ended += sample.sequences
            if self._round_ended >= self._limit / 2:
                self._rounds -= 1
                self._round_from, self._round_ended = sample.now, 0

    @property
    def latency_s(self) -> float:
        """The mean time of an answer."""
        return self._spent_s / self._answers

    @property
    def shared(self) -> float:
        """The share of prompt tokens sent to the server before."""
        return self._shared / self.useful

    @property
    def error(self) -> float:
        """The relative standard error of the rate so far; infinite while slices are too few."""
        count = len(self._slices)
        if count < _LEAST_SLICES:
            return math.inf
        rates = [part.per_s(self.tokens) for part in self._slices]
        mean = sum(rates) / count
        off = [rate - mean for rate in rates]
        squares = sum(each * each for each in off)
        # Luck shared by neighbours (a machine's weather, calls in both) weakens the mean.
        alike = min(_MOST_ALIKE, max(0.0, sum(map(mul, off, off[1:])) / squares)) if squares else 0.0
        return math.sqrt(squares / (count - 1) / count * (1 + alike) / (1 - alike)) / mean

    def waiting(self, least_first_s: float) -> float:
        """The share of answers' time that was a wait beyond the least first token; 0: none seen."""
        return max(0.0, self._first_s - self._timed * least_first_s) / self._spent_s if self._shows_wait else 0.0

    def times_as_long(self, other: Window) -> float:
        """The ratio of the windows' prompts or outputs, the larger, by mean logarithms."""
        prompts = self._prompts / self.useful - other._prompts / other.useful
        outputs = self._outputs / self.useful - other._outputs / other.useful
        return math.exp(max(abs(prompts), abs(outputs)))
