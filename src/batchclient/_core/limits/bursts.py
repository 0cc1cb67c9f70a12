"""Whether a server runs one batch after another, each as long as its longest answer, and how many sequences it takes at once.

Why. Such a server (a static batcher: it pads, or waits for all of a batch) works on at most ``b`` sequences at a time. With ``2 b`` in flight a full batch
waits whenever one ends, and what is beyond that waits for longer. Its answers come in one piece, so that no first token shows the queue; but they show
it by how they end: all of a batch at once, long and short ones after the same time.

Rules:
- Answers belong to one burst while they end within 2 % of a mean latency of each other.
- The server runs batches if the last bursts are short (a tenth of the time from one to the next) and few (four in the time that an answer takes, at most), if
  more than one request ended in each, if who was sent first ended first, and if, while lengths differ, longer answers took no longer.
- On a server that batches continuously a long answer takes longer (even where a step makes many tokens, so that several end with it), the answers of one
  request end together, and so do answers of equal length that were sent together.
- Where more than two batches are in flight every batch is full, and so as large as the others. Several such servers behind one address need two batches each: with fewer, their bursts
  follow the load, as those of any server do that takes all that is there; with more, there are four bursts and more in an answer's time.
- Answers with the same times of sending and of ending, to the clock's tick, count as one request's: on a coarse clock nothing is recognised.
- What it takes at once is the largest of the last bursts: with fewer than ``2 b`` in flight every other batch is a small one.
- Once answers end one after another there are no bursts, and those before are forgotten.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from batchclient._core.limits.base import Outcome, Sample

__all__ = ["Bursts"]

_GAP_RATIO = 0.02
_LATENCY_SHARE = 0.1
_KEPT = 6
_LEAST = 4
"""Bursts: of fewer nothing is said."""
_SPAN_RATIO = 0.1
_MOST_PER_LATENCY = 4.0
_FULL_RATIO = 0.95
_ALONE = 1
"""Of the last bursts so many may be a single request's."""
_ANSWERS_KEPT = 64
_LEAST_ANSWERS = 16
_ONE_PIECE_SHARE = 0.98
"""What waits for its first token for a smaller share of its time comes piece by piece."""
_UNEQUAL = 0.2
"""The standard deviation of the logarithm of lengths, at least; of fewer different ones nothing is said."""
_SAME = 0.01
_UNRELATED = 0.5
"""The correlation of length and time, at most. Of 64 answers noise makes 0.13 (1 / sqrt(64)), and a server that batches continuously 0.9."""


class _Burst(NamedTuple):
    began: float
    ended: float
    sequences: int
    alone: bool
    """Whether one request made it."""
    sent: tuple[float, float]
    """When its first and its last were sent."""


class Bursts:
    """How answers ended lately."""

    __slots__ = ("_alone", "_answers", "_began", "_ended", "_kept", "_key", "_latency_s", "_sent", "_sequences")

    def __init__(self) -> None:
        self._latency_s = 0.0
        self._kept: deque[_Burst] = deque(maxlen=_KEPT)
        # The burst under way.
        self._began = self._ended = -math.inf
        self._sequences = 0
        self._key = (0.0, 0)
        self._alone = True
        self._sent = (0.0, 0.0)
        self._answers: deque[tuple[float, float]] = deque(maxlen=_ANSWERS_KEPT)
        """Tokens and seconds."""

    def __repr__(self) -> str:
        return f"<Bursts batch {self.batch}>"

    def add(self, sample: Sample) -> None:
        """Take in answers in one piece that somebody got; others say nothing here. They must have taken some time."""
        seconds = sample.now - sample.sent_at
        if (
            sample.outcome is not Outcome.SUCCESS
            or 0 < sample.first_tokens_s < _ONE_PIECE_SHARE * seconds * sample.sequences
        ):
            return
        key = sample.sent_at, sample.in_flight_at_sent
        if sample.now - self._ended > _GAP_RATIO * self._latency_s:
            if self._sequences:
                self._kept.append(_Burst(self._began, self._ended, self._sequences, self._alone, self._sent))
            self._began, self._sequences, self._key, self._alone = sample.now, 0, key, True
            self._sent = sample.sent_at, sample.sent_at
        elif sample.now - self._began > _SPAN_RATIO * self._latency_s:
            self._kept.clear()
        self._ended = sample.now
        self._sequences += sample.sequences
        self._alone = self._alone and key == self._key
        self._sent = min(self._sent[0], sample.sent_at), max(self._sent[1], sample.sent_at)
        self._latency_s += _LATENCY_SHARE * (seconds - self._latency_s) if self._latency_s else seconds
        if sample.completion_tokens > 0:
            self._answers.append((sample.completion_tokens / sample.sequences, seconds))

    @property
    def batch(self) -> int | None:
        """Sequences that the server runs at once; ``None``: it does not run batches, or it is not known."""
        kept = self._kept
        if len(kept) < _LEAST:
            return None
        period_s = (kept[-1].began - kept[0].began) / (len(kept) - 1)
        span_s = sum(burst.ended - burst.began for burst in kept) / len(kept)
        if (
            span_s > _SPAN_RATIO * period_s
            or period_s * _MOST_PER_LATENCY < self._latency_s
            or sum(burst.alone for burst in kept) > _ALONE
            or any(burst.sent[1] - after.sent[0] > _SPAN_RATIO * period_s for burst, after in pairwise(kept))
            or not self._length_is_nothing()
        ):
            return None
        return max(burst.sequences for burst in kept)

    @property
    def full(self) -> bool:
        """Whether the last batches were all as large."""
        sizes = [burst.sequences for burst in self._kept]
        return min(sizes, default=0) >= _FULL_RATIO * max(sizes, default=1)

    def _length_is_nothing(self) -> bool:
        """Whether lengths differ, and longer answers took no longer."""
        if len(self._answers) < _LEAST_ANSWERS:
            return False
        lengths, times = zip(*((math.log(tokens), math.log(seconds)) for tokens, seconds in self._answers), strict=True)
        # Times that are all the same say it most clearly, and have no correlation.
        length, time = math.sqrt(_covariance(lengths, lengths)), max(_SAME, math.sqrt(_covariance(times, times)))
        return length >= _UNEQUAL and _covariance(lengths, times) <= _UNRELATED * length * time


def _covariance(xs: Sequence[float], ys: Sequence[float]) -> float:
    mean_x, mean_y = sum(xs) / len(xs), sum(ys) / len(ys)
    return sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True)) / len(xs)
