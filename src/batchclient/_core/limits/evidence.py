"""What answers say about the load they were served under: samples gathered into points, and a line through the points.

Rules:
- An answer's time is spread over its tokens and over ``overhead`` more, so that short answers and long ones compare: the overhead is what
  the wait for the first token comes to, in tokens. Only the whole time is believed, point by point: events reach a client in bunches, and a
  first token that is read late makes the wait look longer and the tokens shorter by the same time.
- Time that somebody's request took and nobody had anything of (its caller left, its deadline passed) is added to the others'.
- Nothing is assumed to be steady: a point carries the mean load its own answers saw, so that answers begun before a change of the limit
  count like any others.
- The line is one of time against load, not of their logarithms: a server that batches continuously takes ``a + b N``, one that queues ``N / X``,
  and both are straight lines wherever they are looked at from.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import mul
from typing import NamedTuple

from batchclient._core.limits.base import Outcome, Sample

__all__ = ["Cohort", "Line", "Point", "Timed", "Wait", "waiting"]

_SHORT_TOKENS = 8
"""Plain answers of up to this many tokens on average are made in a few steps: their tokens say nothing of their time."""
_ONE_PIECE_SHARE = 0.98
"""A stream that waits for its first token for a larger share of its time comes at its end, and shows no queue; but that it waited is seen. A queue of
nine times what is served has 0.9."""
_UNSEEN_SHARE = 0.3
"""Of a plain reply, the share taken for a wait. Time in a queue follows the load that was met, time in a batch the load that was shared;
which of them is not known, and as the limit swings the one lags behind the other. With this share a plateau's slope comes out within 0.02 of what
it is in either case (tests/unit/test_evidence.py); with all or nothing it may be off by more than half."""
_MOSTLY = 0.5
"""Whether a queue would be seen is a matter of where most of the time went, where some answers come piece by piece and others in one."""
_HUBER = 1.5
"""Beyond so many standard deviations a point's pull no longer grows (Huber 1964 has 1.5 as the usual value)."""


class Timed(NamedTuple):
    """Answers whose first token's time is known.

    Args:
        answers: how many they are.
        tokens: they made.
        seconds: sequence-seconds they took.
        first_s: the sum of their times to first token.
    """

    answers: int = 0
    tokens: int = 0
    seconds: float = 0.0
    first_s: float = 0.0


class Point(NamedTuple):
    """Some answers that ended one after another.

    Args:
        at: when the last of them ended.
        answers: how many they were.
        load: the mean sequences in flight while they were served.
        queue: sequences in flight that they met.
        tokens: they made; 0 if the answers are too short to say.
        seconds: sequence-seconds they took, and what was wasted beside them.
        timed: those of them whose first token's time is known.
        untimed_s: sequence-seconds that the others took.
    """

    at: float
    answers: int
    load: float
    queue: float
    tokens: int
    seconds: float
    timed: Timed
    untimed_s: float

    def cost_s(self, overhead: float) -> float:
        """Time per token, an answer's overhead counted as that many tokens more."""
        return self.seconds / self.answers / self.units(overhead)

    def units(self, overhead: float) -> float:
        """What an answer is made of: tokens, and its overhead in tokens."""
        return self.tokens / self.answers + overhead

    def felt(self, wait_share: float) -> float:
        """The load that made their time what it was: as much of it as is waiting is a matter of the queue they met."""
        return float(self.queue**wait_share * self.load ** (1 - wait_share))


class Cohort:
    """Sums over some samples."""

    __slots__ = (
        "_area", "_late_queue", "_queue", "_served_s", "_timed", "answered", "began", "heaviest", "late", "peak", "seconds", "sequences", "tokens",
    )  # fmt: skip

    def __init__(self) -> None:
        self.began = math.inf
        """When the first of them ended."""
        self.sequences = 0
        self.late = 0
        """Those whose deadline passed meanwhile."""
        self.answered = 0
        """Those somebody got the answer of."""
        self.tokens = 0
        self.seconds = 0.0
        """Sequence-seconds, wasted ones too."""
        self.peak = 0
        """Most in flight when one of them ended."""
        self.heaviest = 1
        """Sequences of the call that has most of them."""
        self._served_s = 0.0
        self._timed = Timed()
        self._area = 0.0
        self._queue = 0
        self._late_queue = 0

    def add(self, sample: Sample) -> None:
        """Take in a sample that took some time."""
        seconds = sample.sequences * (sample.now - sample.sent_at)
        self.began = min(self.began, sample.now)
        self.sequences += sample.sequences
        self.seconds += seconds
        self.peak = max(self.peak, sample.in_flight)
        self.heaviest = max(self.heaviest, sample.weight)
        self._area += seconds * sample.mean_in_flight
        self._queue += sample.sequences * sample.in_flight_at_sent
        if sample.outcome is Outcome.SUCCESS:
            self.answered += sample.sequences
            self.tokens += sample.completion_tokens
            self._served_s += seconds
            if sample.first_tokens_s:
                answers, tokens, timed_s, first_s = self._timed
                self._timed = Timed(
                    answers + sample.sequences,
                    tokens + sample.completion_tokens,
                    timed_s + seconds,
                    first_s + sample.first_tokens_s,
                )
        elif sample.outcome is Outcome.LATE:
            self.late += sample.sequences
            self._late_queue += sample.sequences * sample.in_flight_at_sent

    @property
    def late_load(self) -> float:
        """Mean sequences in flight that the late ones met."""
        return self._late_queue / self.late

    def point(self, now: float) -> Point:
        """What they say; somebody must have got an answer."""
        # At most as much again as was served: a burst of callers who leave must not outweigh everything else.
        wasted_s = min(self.seconds - self._served_s, self._served_s)
        tokens = self.tokens if self._timed.answers or self.tokens > _SHORT_TOKENS * self.answered else 0
        load = max(1.0, self._area / self.seconds)
        queue = max(1.0, self._queue / self.sequences)
        return Point(
            now,
            self.answered,
            load,
            queue,
            tokens,
            self._served_s + wasted_s,
            self._timed,
            self._served_s - self._timed.seconds,
        )


class Wait(NamedTuple):
    """How much of an answer is the wait for its first token.

    Args:
        tokens: in later tokens' time, that first one left out.
        share: of its time.
        seen: whether that is known: an answer that comes in one piece does not show it.
    """

    tokens: float
    share: float
    seen: bool


def waiting(points: Sequence[Point]) -> Wait:
    """What the answers' first tokens say; of those that came in one piece nothing is known."""
    answers, tokens, seconds, first_s = (sum(column) for column in zip(*(point.timed for point in points), strict=True))
    making_s = seconds - first_s
    if tokens <= answers or making_s <= 0:
        return Wait(1.0, _UNSEEN_SHARE, seen=False)
    overhead = max(1.0, first_s / answers * (tokens - answers) / making_s - 1)
    known = seconds / (seconds + sum(point.untimed_s for point in points))
    share = known * first_s / seconds + (1 - known) * _UNSEEN_SHARE
    return Wait(overhead, share, seen=known > _MOSTLY and first_s < _ONE_PIECE_SHARE * seconds)


class Line:
    """A straight line through points, robustly: weighted ridge regression of a value on a load, on time, on a mix and on a lag, twice.

    The slope is drawn to a prior where the loads hardly differ. A drift over time is allowed for, but only a small one, so that a ramp
    of the load is not taken for a drift of the server (ridge regression: Hoerl and Kennard 1970). The second time, points far off the first
    line count less (Huber 1964).

    Args:
        loads: relative to the present one: 0 there, 1 at twice as much.
        times: 0 now, -1 at the far end of what is looked at.
        mixes: what else may have made a value what it is; 0 is usual.
        lags: what else may have made it what it is: the logarithm of the queue that was met over the load.
        values: one per point; their noise is taken to be in proportion to them.
        weights: one per point.
        prior: the slope expected, relative to the value at the present load.
        noise: of a point's value, relative.
        spreads: how far the slope may well be from the prior, and the effects of time, mix and lag from none: standard deviations.
    """

    __slots__ = ("noise", "residuals", "slope")

    def __init__(
        self,
        loads: Sequence[float],
        times: Sequence[float],
        mixes: Sequence[float],
        lags: Sequence[float],
        values: Sequence[float],
        weights: Sequence[float],
        prior: float,
        noise: float,
        spreads: tuple[float, float, float, float],
    ) -> None:
        expected = [max(0.2, 1 + prior * load) for load in loads]
        total = sum(weights) or 1e-9
        # In units of what is expected the noise is the same everywhere.
        rows = [
            (1 / unit, load / unit, time / unit, mix / unit, lag / unit)
            for unit, load, time, mix, lag in zip(expected, loads, times, mixes, lags, strict=True)
        ]
        mean = sum(w * y / unit for w, y, unit in zip(weights, values, expected, strict=True)) / total
        ys = [y / unit / mean for y, unit in zip(values, expected, strict=True)]
        priors = (0.0, prior, 0.0, 0.0, 0.0)
        ridges = (0.0, *((noise / spread) ** 2 for spread in spreads))
        off = _off(rows, ys, _ridge(rows, ys, weights, priors, ridges))
        self.noise = sum(w * abs(r) for w, r in zip(weights, off, strict=True)) / total * 1.25
        """Relative standard deviation of a value, from the mean distance to the line."""
        far = _HUBER * max(noise, self.noise)
        pulls = [w * min(1.0, far / abs(r)) if r else w for w, r in zip(weights, off, strict=True)]
        fit = _ridge(rows, ys, pulls, priors, ridges)
        self.slope = fit[1] / max(fit[0], 1e-9)
        """Its relative growth per relative growth of the load, there."""
        self.residuals = _off(rows, ys, fit)
        """How far above the line each point lies, relative."""


def _off(rows: Sequence[Sequence[float]], ys: Sequence[float], fit: Sequence[float]) -> list[float]:
    return [y - sum(map(mul, fit, row)) for row, y in zip(rows, ys, strict=True)]


def _ridge(
    rows: Sequence[Sequence[float]],
    ys: Sequence[float],
    weights: Sequence[float],
    priors: Sequence[float],
    ridges: Sequence[float],
) -> list[float]:
    """The coefficients with the least weighted squares, each drawn to its prior by its ridge."""
    size = len(priors)
    # The normal equations of what the priors leave over, their right side as a last column.
    table = [[0.0] * (size + 1) for _ in range(size)]
    for at, ridge in enumerate(ridges):
        table[at][at] = ridge or 1e-12
    for row, y, weight in zip(rows, ys, weights, strict=True):
        whole = (*row, y - sum(map(mul, priors, row)))
        for value, sums in zip(row, table, strict=True):
            weighted = weight * value
            for at, other in enumerate(whole):
                sums[at] += weighted * other
    # Symmetric and, thanks to the ridges, positive definite: elimination needs no pivoting.
    for at, pivot in enumerate(table):
        for below in table[at + 1 :]:
            ratio = below[at] / pivot[at]
            for column in range(at, size + 1):
                below[column] -= ratio * pivot[column]
    found = [0.0] * size
    for at in reversed(range(size)):
        known = sum(map(mul, table[at][at + 1 : size], found[at + 1 :]))
        found[at] = (table[at][size] - known) / table[at][at]
    return [prior + more for prior, more in zip(priors, found, strict=True)]
