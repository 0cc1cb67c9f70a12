"""The elasticity of a server's throughput to load, from the points of what its answers took (``evidence``).

What is measured. Every answer was served under some mean load ``N`` (sequences in flight) and took some time ``T``. By Little's law the
throughput under that load is ``N / T``, so that the elasticity of throughput to load is::

    e = d ln(N / T) / d ln N = 1 - d ln T / d ln N

``e`` is 1 while more load costs nobody any time, 0 on the plateau, negative where the server thrashes. ``d ln T / d ln N`` is the slope of a
straight line through the recent points of ``T`` against ``N``, those near the present load counting most. The noisier the points, the further from
the present load and the longer ago are those that count.

Answers of a few tokens in one piece say little of a machine that is not steady: on a real vLLM on two shared cores their points are off by 6 to 9 %, and those
of one second together. A swing of 12 % then tells nothing within three paces, while throughput grows by a fifth from load to load. So for them
three times as long counts, and whatever load was seen in it.

Rules:
- The slope is taken no further from the load that was seen than a limit that grows gets.
- The limit swings. Rising, it brings the prefill of many prompts at once, and the first answers to end are then the short ones. What the mix of
  lengths comes to is fitted beside the load: without it ``e`` is 0.1 to 0.2 too low beyond a knee.
- Answers of a few tokens are mostly a wait for their prompt's turn, and as the limit swings the queue they met lags behind the load they shared. How much of
  their time follows that queue is fitted beside the load as well: a plateau's ``e`` comes out within 0.04 of 0, without it within 0.09
  (tests/unit/test_elasticity.py). For longer answers in one piece it is not: there it adds noise (``padding``).
- Where prompts were seen to wait for their first token in the last pace, there probably is a queue. Where answers come in one piece (plain replies, a
  server that pads) none would be seen.
- If the newest points all lie far off the line, the server has changed, and older points are dropped. Likewise if time per token clearly falls with
  load: a server became faster while the load grew, or slower while it fell.

Source: Little 1961. The constants were chosen in the laboratory (``benchmarks/lab``), over all its profiles.
"""

from __future__ import annotations

import math
from collections import deque
from operator import mul
from typing import NamedTuple

from batchclient._core.limits.bursts import Bursts
from batchclient._core.limits.evidence import Line, Point, waiting

__all__ = ["Elasticity", "ServerChange"]

_QUEUED_SHARE = 0.1
"""A shorter wait may be that for the step under way."""
_QUEUED_TOKENS = 20.0
"""A wait of fewer tokens' time is the prompt's own prefill, or a step or two."""
_CLEAR = 0.3
"""What noise may make of a plateau's elasticity of 0. With a queue ``e`` must be more than this and the share of time that is waiting."""
_CLEAREST = 0.7
"""However large that share: a wait that is there at any load (a long prompt's prefill, a gateway) leaves ``e`` near 1."""
_BATCHES = 2.1
"""A little more than two batches, so that the one that waits is a full one in the trough of the swing as well. Forty seeds of ``padding``: 0.98 of the best
throughput at 1.29 times its latency, and the same with 2.0."""
_BATCH_SHARE = 0.3
"""How much of such an answer's time is a matter of the queue it met (until its batch began), rather than of those it was served with. With 1 a limit that
came down went on: a slow batch was taken for that of the smaller load, and one run of forty ended at a third of the throughput."""
_HORIZON_PACES = 3.0
_LEAST_POINTS = 4
_MOST_POINTS = 64
_REACH = 0.25
"""How near the present load a point counts: the standard deviation of ln N."""
_SHORT_HORIZON_PACES = 9.0
_SHORT_REACH = 1.0
"""The same for answers of a few tokens. In the laboratory ``one-token-unsteady`` has 0.91 of the best throughput with these, and ``prefix`` 0.93; with a horizon of
16 it is 0.92 and 0.85 (ten seeds, twelve)."""
_FARTHEST = 1.57
"""The slope is taken no further beyond the largest load that was seen than a limit that grows gets: 1.4 times, and 0.12 for the swing. There no point would count, what
was expected before (growth) would hold, and a limit that began far above the knee would go on growing: begun at 256, to 29 times the latency."""
_POINT_NOISE = 0.05
"""A point's relative standard deviation, at least."""
_NOISE_GAIN = 0.05
_WIDER = 0.4
"""A noisy server is looked at from further off and for longer, by this power of its noise: a fifth of that of the variance, as local
regression has it (Fan and Gijbels 1996), is 0.4."""
_SLOPE_SPREAD = 0.8
_DRIFT_SPREAD = 0.06
_MIX_SPREAD = 0.2
"""Standard deviations expected of the slope, between two estimates, of the drift over a horizon, and of what answers twice as long change."""
_LAG_SPREAD = 0.2
_NO_LAG_SPREAD = 0.001
"""Of what a queue twice as long changes that was met, beside the share that is taken for a wait."""
_FAR = 0.3
_FAR_NOISES = 2.5
_FAR_POINTS = 3
_SUPERLINEAR_NOISES = 5.0
"""An elasticity so many noises of a point above 1 is a change of the server: two standard deviations of a slope, over one swing."""


class ServerChange(NamedTuple):
    """The server has changed.

    Args:
        faster: whether it became faster.
        least_load: of the points before.
    """

    faster: bool
    least_load: float


class Elasticity:
    """The last estimate, and the points it rests on."""

    __slots__ = ("_batches", "_slope", "clear", "noise", "points", "queued", "unseen", "value")

    def __init__(self) -> None:
        self.points: deque[Point] = deque(maxlen=_MOST_POINTS)
        self.noise = _POINT_NOISE
        """The relative standard deviation of a point."""
        self.forget_all()

    def __repr__(self) -> str:
        return f"<Elasticity {self.value:.2f} of {len(self.points)} points>"

    def forget_all(self) -> None:
        """Start anew; how noisy the server is stays."""
        self.points.clear()
        self.value = 1.0
        self._slope = 0.0
        self.clear = 0.0
        """What it must be to speak for more load: more than 0 where a queue is to be seen."""
        self.queued = 0.0
        """The share of an answer's time that is a wait in that queue, as far as it can be seen."""
        self.unseen = False
        """Whether answers come in one piece, so that a queue would not be seen."""
        self._batches = False
        """Whether the server runs one batch after another."""

    def forget_points(self) -> None:
        """The next one stands alone; what was estimated stays."""
        self.points.clear()

    def take_in(self, point: Point, base: float, pace_s: float, now: float, bursts: Bursts) -> ServerChange | None:
        """Estimate anew with one more point; return whether the server has changed, after which there is no other point.

        Args:
            point: the newest.
            base: the load at which the slope is taken.
            pace_s: a mean latency.
            now: the time.
            bursts: how answers in one piece have ended.
        """
        self.points.append(point)
        self._forget(pace_s, now)
        points = self.points
        if len(points) < 2:
            return None
        noise = max(_POINT_NOISE, self.noise)
        self._look_for_queue(pace_s, now, bursts)
        line = self._fit(base, pace_s, noise, now)
        if len(points) > 2 * _FAR_POINTS and self._has_changed(line, noise):
            faster = max(line.residuals[-_FAR_POINTS:]) < 0 or line.slope < 0
            change = ServerChange(faster, min(point.load for point in points))
            self.points = deque([points[-1]], maxlen=_MOST_POINTS)
            return change
        self.noise += _NOISE_GAIN * (min(line.noise, 0.5) - self.noise)
        self._slope = max(-0.5, min(2.5, line.slope))
        self.value = 1 - self._slope
        return None

    def _forget(self, pace_s: float, now: float) -> None:
        points = self.points
        oldest = now - self._horizon_s(max(_POINT_NOISE, self.noise), pace_s)
        while len(points) > _LEAST_POINTS and points[0].at < oldest:
            points.popleft()

    @property
    def short(self) -> bool:
        """Whether answers have a few tokens, in one piece."""
        return not any(point.tokens for point in self.points)

    def _horizon_s(self, noise: float, pace_s: float) -> float:
        """For how long a point counts."""
        return (_SHORT_HORIZON_PACES if self.short else _HORIZON_PACES) * _wider(noise) * pace_s

    @staticmethod
    def _has_changed(line: Line, noise: float) -> bool:
        """Whether the newest points all lie far off the line on one side, or more load is said to take less time per token."""
        newest = line.residuals[-_FAR_POINTS:]
        far = max(_FAR, _FAR_NOISES * noise)
        return min(newest) > far or max(newest) < -far or line.slope < -_SUPERLINEAR_NOISES * noise

    def _look_for_queue(self, pace_s: float, now: float, bursts: Bursts) -> None:
        """The newest points say whether there is one; the load of older ones was another."""
        oldest = now - pace_s
        wait = waiting([point for point in self.points if point.at > oldest] or [self.points[-1]])
        self.unseen = not wait.seen
        queued = wait.share if wait.seen and wait.tokens > _QUEUED_TOKENS else 0.0
        batch = bursts.batch if self.unseen and not self.short else None
        self._batches = batch is not None
        if batch is not None:
            # A queue would be seen after all: what is in flight beyond the batch that runs and a full one behind it.
            self.unseen = False
            queued = 1 - _BATCHES * batch / self.points[-1].load if bursts.full else 0.0
        self.clear = self.queued = 0.0
        if queued > _QUEUED_SHARE:
            self.queued = queued
            self.clear = min(_CLEAR + queued, _CLEAREST)

    def _fit(self, base: float, pace_s: float, noise: float, now: float) -> Line:
        """Time per token against the load, those points counting most that are near the present one."""
        points = self.points
        wait = waiting(points)
        reach = (_SHORT_REACH if self.short else _REACH) * _wider(noise)
        horizon_s = self._horizon_s(noise, pace_s)
        answers = sum(point.answers for point in points) / len(points)
        share = _BATCH_SHARE if self._batches else wait.share
        felt = [point.felt(share) for point in points]
        here = min(base, _FARTHEST * max(felt))
        loads = [load / here for load in felt]
        weights = [
            point.answers / answers * math.exp(-0.5 * (math.log(load) / reach) ** 2)
            for point, load in zip(points, loads, strict=True)
        ]
        mixes = [math.log(point.units(wait.tokens)) for point in points]
        usual = sum(map(mul, weights, mixes)) / (sum(weights) or 1e-9)
        return Line(
            [load - 1 for load in loads],
            [(point.at - now) / horizon_s for point in points],
            [mix - usual for mix in mixes],
            [math.log(point.queue / point.load) for point in points],
            [point.cost_s(wait.tokens) for point in points],
            weights,
            self._slope,
            noise,
            (_SLOPE_SPREAD, _DRIFT_SPREAD, _MIX_SPREAD, _LAG_SPREAD if self.short else _NO_LAG_SPREAD),
        )


def _wider(noise: float) -> float:
    """How many times as far and as long points count at that noise."""
    return math.pow(noise / _POINT_NOISE, _WIDER)
