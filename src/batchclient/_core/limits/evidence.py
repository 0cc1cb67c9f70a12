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

from batchclient._core.limits.base import Outcome, Sample

__all__ = ["ONE_PIECE", "Settling", "Window"]

_SHORTEST_SLICE_S = 0.7
_SLICE_LATENCIES = 0.125
_LEAST_SLICES = 6
_MOST_ALIKE = 0.7
_LEAST_SLICE_ANSWERS = 4
ONE_PIECE = 0.98
"""A stream that waits for its first token for a larger share of its time comes at its end, and shows no queue."""


class Settling:
    """Until what is in flight is what the limit makes it.

    It is over when no more is in flight than the limit, and half of it, sent since, has ended; where calls share prefixes, when that has happened
    twice: they have then come once more.
    """

    __slots__ = ("_ended", "_generations", "_limit", "_since")

    def __init__(self, limit: int, generations: int) -> None:
        self._limit, self._generations = limit, generations
        self._since = math.inf
        """Since when what was sent is looked at."""
        self._ended = 0

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


class _Sums:
    """Sums over answers."""

    __slots__ = (
        "_answers", "_area", "_first_s", "_outputs", "_prompts", "_shared", "_spent_s", "_timed", "_timed_s", "_timed_tokens", "_tokens", "began", "useful",
    )  # fmt: skip

    def __init__(self, began: float) -> None:
        self.began = began
        self._answers = self.useful = self._tokens = 0
        """All that ended; those that somebody got, and their tokens."""
        self._spent_s = self._area = 0.0
        """Sequence-seconds, wasted ones too; the same times the mean load."""
        self._timed = self._timed_tokens = 0
        """Of answers whose first token's time is known."""
        self._timed_s = self._first_s = 0.0
        self._prompts = self._outputs = self._shared = 0.0
        """Logarithms of useful answers' tokens, and the shares of prompts that the server had been sent before."""

    def add(self, sample: Sample) -> None:
        """Take in a sample that took some time."""
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
        """Of a useful answer, on average; 1 where nobody counts them."""
        return self._tokens / self.useful

    def per_s(self, tokens: float) -> float:
        """Useful tokens per second, with answers of so many."""
        first_s, token_s = self._parts_s()
        return self.load * tokens / (first_s + token_s * (tokens - 1))

    @property
    def _shows_wait(self) -> bool:
        """Whether first tokens came at all, and not only with the last."""
        return self._timed > self.useful / 2 and self._first_s < ONE_PIECE * self._timed_s

    def _parts_s(self) -> tuple[float, float]:
        """Seconds before the first token of an answer, and for each of the others; the same where they are not told apart."""
        later = self._timed_tokens - self._timed
        if not (self._shows_wait and later > 0):
            token_s = self._spent_s / max(1, self._tokens)
            return token_s, token_s
        token_s = (self._timed_s - self._first_s) / later
        first_s = (self._spent_s - self._timed_s + self._first_s) / self.useful
        # What came in one piece is taken to have had the others' tokens.
        whole = (self._tokens - self._timed_tokens) - (self.useful - self._timed)
        return max(0.0, first_s - token_s * whole / self.useful), token_s


_SUMMED = [name for name in _Sums.__slots__ if name != "began"]


class Window(_Sums):
    """Answers that ended since ``began``, by whole slices."""

    __slots__ = ("_next_look", "_slice", "_slices", "heaviest", "peak")

    def __init__(self, began: float) -> None:
        super().__init__(began)
        self._slice = _Sums(began)
        self._slices: list[_Sums] = []
        self._next_look = _LEAST_SLICES
        self.peak, self.heaviest = 0, 1
        """Most in flight, and sequences of the largest call."""

    def take_in(self, sample: Sample) -> bool:
        """Take in a sample that took some time; return whether the window says more than before."""
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
        # A long window is looked at less often: its error rests on all of its slices.
        if len(self._slices) < self._next_look:
            return False
        self._next_look = len(self._slices) + max(1, len(self._slices) // _LEAST_SLICES**2)
        return True

    @property
    def latency_s(self) -> float:
        """What an answer takes on average."""
        return self._spent_s / self._answers

    @property
    def shared(self) -> float:
        """The share of prompt tokens that the server had been sent before."""
        return self._shared / self.useful

    @property
    def error(self) -> float:
        """The relative standard error of the rate so far; infinite before there are enough slices."""
        count = len(self._slices)
        if count < _LEAST_SLICES:
            return math.inf
        rates = [part.per_s(self.tokens) for part in self._slices]
        mean = sum(rates) / count
        off = [rate - mean for rate in rates]
        squares = sum(each * each for each in off)
        # What one slice has of the next one's luck (a machine's weather, calls that were in flight in both) makes the mean less certain.
        alike = min(_MOST_ALIKE, max(0.0, sum(map(mul, off, off[1:])) / squares)) if squares else 0.0
        return math.sqrt(squares / (count - 1) / count * (1 + alike) / (1 - alike)) / mean

    def waiting(self, least_first_s: float) -> float:
        """The share of answers' time that was a wait beyond what a first token takes where nothing waits; 0: none was seen."""
        return max(0.0, self._first_s - self._timed * least_first_s) / self._spent_s if self._shows_wait else 0.0

    def times_as_long(self, other: Window) -> float:
        """How many times as long prompts or outputs are as the other's, or the other's as these, by their mean logarithms."""
        prompts = self._prompts / self.useful - other._prompts / other.useful
        outputs = self._outputs / self.useful - other._outputs / other.useful
        return math.exp(max(abs(prompts), abs(outputs)))
