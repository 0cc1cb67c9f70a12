"""The knee of a server that batches continuously, found from what its answers took.

What is measured. Every answer was served under some mean load ``N`` (sequences in flight) and took some time ``T``. By Little's law the
throughput under that load is ``N / T``, so that the elasticity of throughput to load is::

    e = d ln(N / T) / d ln N = 1 - d ln T / d ln N

``e`` is 1 while more load costs nobody any time, 0 on the plateau, negative where the server thrashes. ``d ln T / d ln N`` is the slope of a
straight line through the recent points of ``T`` against ``N`` (see ``evidence``), those near the present load counting most. The noisier the
points, the further from the present load and the longer ago are those that count.

What is done with it:
- The limit moves by ``d ln L / dt = push / pace``, where the pace is a mean latency: up by ``_GAIN · (e - target) ** _POWER`` while
  throughput grows with load (the slow start, where ``e`` is near 1, and the approach), down by ``_RETREAT`` per target's worth where it does not.
- It never runs far ahead of the evidence: neither above 1.4 times nor below 0.85 of the load that the last answers saw (as far as they waited,
  of the queue they met), and the slope is taken no further off than that. Once it has come down,
  its way up is no slow start any more, and on a noisy server it runs less far ahead: half of what is taken for growth there is noise.
- So that there is a slope to see, the limit swings a little above and below its base, in turn, a little more than a pace each. Rising, it
  brings the prefill of many prompts at once, and the first answers to end are then the short ones. What the mix of lengths comes to is
  fitted beside the load: without it ``e`` is 0.1 to 0.2 too low beyond a knee.
- Where prompts were seen to wait for their first token in the last pace, there probably is a queue, and less load costs nothing: only a clear
  ``e`` raises the limit then, and one that is not clear lowers it, the faster the more of the time is waiting.
- Where answers come in one piece (plain replies, a server that pads) no queue would be seen. There may be one: the limit falls faster there.
- Where the limit is not used (less than 0.8 of it in flight, and room for another call) it stays, but for refusals and late answers, and nothing is
  learnt. The load is then what arrives times what it takes (Little's law again): a server that happens to be slow has more in flight, which looks
  like a plateau whatever the load is. A limit that believed it came down by noise alone, and the next burst waited in the client.
- A refusal that is about load (``refused``) cuts the base once per episode, and for a while bounds it just below where it happened. What is
  refused after the cut, with less in flight, lowers the bound to below that: else whatever is above the server's own bound is refused as
  fast as it can be sent, thousands of times until the episode is over. That has an end, two cuts down: refusals may be about something else.
- Answers that come too late (their callers' deadlines have passed) bound it likewise, once they are more than a few; if all do, the base is
  cut without waiting for a slope.
- If the newest points all lie far off the line, the server has changed: older points are dropped, and the base stands still for a pace.
  Likewise if time per token clearly falls with load: a server became faster while the load grew, or slower while it fell. Where it became
  faster, the base also goes back to below the loads it was seen at: what the limit has grown by meanwhile had no other reason.

Sources: Little 1961; targets and the cut on refusal as in the design's study of controllers. The other constants were chosen in the
laboratory (``benchmarks/lab``), over all its profiles.
"""

from __future__ import annotations

import math
from collections import deque
from operator import mul

from batchclient._core.limits.base import LimitChange, Outcome, Sample
from batchclient._core.limits.evidence import Cohort, Line, Point, waiting
from batchclient._core.limits.refused import Refusals

__all__ = ["KneeLimit"]

OBJECTIVES = {"throughput": 0.05, "balanced": 0.1, "latency": 0.5}
"""The elasticity aimed at. At 0.1, one per cent more load would still bring a tenth of a per cent more throughput."""

_GAIN = 0.6
_POWER = 0.68
"""A power below 1 is eager where little is to be gained (a server shared with others), without being faster where everything is."""
_RETREAT = 0.1
"""Down by this share of the logarithm per pace at ``e = 0``. At the default target that is about as fast as it comes up from as far on the other
side: on a noisy server what goes down faster than it comes up goes down."""
_STEEPEST = 2.0
"""At most so many times as fast: what seems to be much below 0 is half noise, as a rule."""
_UNSEEN_RETREAT = 0.2
_UNSEEN_STEEPEST = 3.0
"""The same where answers come in one piece: much of their time may be a wait in a queue, and the plateau of a cache that thrashes must be left
although its noise is often taken for growth."""
_AHEAD = 1.4
_LEAST_AHEAD = 1.2
_QUIET_NOISE = 0.025
"""On servers whose points are noisier than this the limit runs less far ahead, by the root of how much noisier they are, but 1.2 times at least: a limit
that callers use up to 0.85 or so must still be able to grow. With 1.4 on all servers single runs overshot a cliff again and again, at worst for a quarter
of the throughput."""
_BEHIND = 0.85
_SWING_RATIO = 0.12
_SWING_PACES = 2.3
_QUEUED_SHARE = 0.1
"""A shorter wait may be that for the step under way."""
_QUEUED_TOKENS = 20.0
"""A wait of fewer tokens' time is the prompt's own prefill, or a step or two."""
_CLEAR = 0.3
"""What noise may make of a plateau's elasticity of 0. With a queue ``e`` must be more than this and the share of time that is waiting."""
_CLEAREST = 0.7
"""However large that share: a wait that is there at any load (a long prompt's prefill, a gateway) leaves ``e`` near 1."""
_QUEUE_RETREAT = 1.75
"""Down by this times the share of time that is waiting, per pace: by Little's law that share of what is in flight waits. With more than about 2 the
limit comes back too far, again and again."""
_SHORTEST_PACE_S = 1.0
"""On a fast server: enough answers per decision, rather than more decisions than anybody needs."""
_HORIZON_PACES = 3.0
_POINTS_PER_PACE = 4
_LEAST_POINTS = 4
_MOST_POINTS = 64
_REACH = 0.25
"""How near the present load a point counts: the standard deviation of ln N."""
_FARTHEST = _AHEAD * (1 + _SWING_RATIO)
"""The slope is taken at the base, but no further beyond the largest load that was seen than a limit that grows gets. There no point would count, what
was expected before (growth) would hold, and a limit that began far above the knee would go on growing: begun at 256, to 29 times the latency."""
_HIDDEN_QUEUE = 0.5
"""Where answers come in one piece, half of their time is taken for a wait when the limit is about to grow."""
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
_FAR = 0.3
_FAR_NOISES = 2.5
_FAR_POINTS = 3
_BACK_RATIO = 0.8
"""Where a server became faster, back to this share of the least load that was looked at: while the change was taken for growth the limit rose with it,
in one run of eight up to the ceiling."""
_SUPERLINEAR_NOISES = 5.0
"""An elasticity so many noises of a point above 1 is a change of the server: two standard deviations of a slope, over one swing."""
_USED_RATIO = 0.8
_CUT_RATIO = 0.8
_LEAST_RATIO = 0.64
"""Further refusals lower the bound to this share of what it was, at least: two cuts' worth."""
_BOUND_RATIO = 0.95
_BOUND_LASTS_S = 30.0
_SHORTEST_COOLDOWN_S = 1.0
_LATE_RATIO = 0.02
_FUTILE_CUT_RATIO = 0.7


class KneeLimit:
    """Throughput's elasticity to load, aimed just past the knee.

    Args:
        start: the first limit.
        floor: never below this.
        ceiling: never above this.
        target: the elasticity aimed at (``OBJECTIVES``).
    """

    __slots__ = (
        "_base", "_bound", "_bound_until", "_came_down", "_ceiling", "_clear", "_cohort", "_cooldown_until", "_elasticity", "_floor", "_hold_until",
        "_latency_s", "_least_bound", "_noise", "_pace_s", "_phase", "_points", "_queued", "_refusals", "_slope", "_steered_at", "_target", "_unseen", "limit",
    )  # fmt: skip

    def __init__(self, start: int = 32, floor: int = 1, ceiling: int = 1024, target: float = 0.1) -> None:
        if not 1 <= floor <= start <= ceiling:
            raise ValueError(f"1 <= floor <= start <= ceiling, got {floor}, {start}, {ceiling}")
        if not 0 < target < 1:
            raise ValueError(f"the target elasticity lies between 0 and 1, got {target}")
        self.limit = start
        """Sequences that may be in flight."""
        self._base = float(start)
        self._floor = float(floor)
        self._ceiling = float(ceiling)
        self._target = target
        self._cohort = Cohort()
        self._refusals = Refusals()
        self._points: deque[Point] = deque(maxlen=_MOST_POINTS)
        self._elasticity = 1.0
        self._slope = 0.0
        self._noise = _POINT_NOISE
        self._latency_s = 0.0
        self._pace_s = _SHORTEST_PACE_S
        self._steered_at: float | None = None
        self._phase = 0.0
        """Of the swing, in turns."""
        self._clear = 0.0
        """What the elasticity must be to raise the limit, beside the target: more than 0 where a queue is to be seen."""
        self._came_down = False
        """Whether the limit has fallen since the start: until then growth is no mistake."""
        self._unseen = False
        """Whether answers come in one piece, so that a queue would not be seen."""
        self._queued = 0.0
        """The share of an answer's time that is a wait in that queue, as far as it can be seen."""
        self._hold_until = -math.inf
        self._cooldown_until = -math.inf
        self._bound = math.inf
        self._bound_until = -math.inf
        self._least_bound = 0.0

    def __repr__(self) -> str:
        return f"<KneeLimit {self.limit}: elasticity {self._elasticity:.2f}>"

    @property
    def elasticity(self) -> float:
        """The last estimate."""
        return self._elasticity

    def on_sample(self, sample: Sample) -> LimitChange | None:
        """Take in one observation."""
        self._refusals.on_sample(sample)
        if sample.outcome is Outcome.DROPPED:
            return self._cut(sample)
        if sample.outcome is Outcome.IGNORED or sample.now <= sample.sent_at:
            # What took no time (a mocked server's answer) has no rate.
            return None
        cohort = self._cohort
        cohort.add(sample)
        enough = max(4, self.limit // 8)
        if cohort.sequences < enough or sample.now - cohort.began < self._pace_s / _POINTS_PER_PACE:
            return None
        self._cohort = Cohort()
        return self._steer(cohort, sample.now)

    def on_restart(self, now: float) -> LimitChange | None:
        """The server was started anew: what was learnt of it is void."""
        self._forget_all()
        self._refusals = Refusals()
        self._bound = math.inf
        return None

    def hold(self, limit: int) -> None:
        """Something else keeps the limit in force at ``limit``: run no further ahead of it than of what was seen."""
        if self._base > _AHEAD * limit:
            self._base = _AHEAD * limit
            self._set("held")

    # One step of the loop ------------------------------------------------------------------------------------------

    def _steer(self, cohort: Cohort, now: float) -> LimitChange | None:
        paces = self._passed(cohort, now)
        if cohort.late > max(1.0, _LATE_RATIO * cohort.sequences) and now >= self._cooldown_until:
            self._bound_below(min(self._base, cohort.late_load), now)
            self._base = min(self._base, self._bound)
            if cohort.answered:
                # A cliff has no slope: the points on it would only say how deep it is.
                return self._set("answers came too late")
        if not cohort.answered:
            self._base = max(self._floor, self._base * _FUTILE_CUT_RATIO**paces)
            return self._set("no answer came in time")
        if cohort.peak < _USED_RATIO * self.limit and cohort.peak + cohort.heaviest <= self.limit:
            # The load was not ours to set: it follows the time that answers take, rather than the other way round.
            return None
        self._points.append(cohort.point(now))
        self._forget(now)
        has_changed = self._estimate(now)
        self._base *= math.exp(self._push(cohort, now) * paces)
        if now >= self._bound_until:
            self._bound = math.inf
        self._base = max(self._floor, min(self._base, self._ceiling, self._bound))
        self._phase = (self._phase + paces / _SWING_PACES) % 1.0
        if has_changed:
            return self._set(f"the server has changed, swinging about {self._base:.0f}")
        return self._set(
            f"elasticity {self._elasticity:.2f}, aiming at {self._target:g}, swinging about {self._base:.0f}"
        )

    def _passed(self, cohort: Cohort, now: float) -> float:
        """Take in the latency; return how many paces have passed since the last step, at most one."""
        latency_s = cohort.seconds / cohort.sequences
        self._latency_s += 0.3 * (latency_s - self._latency_s) if self._latency_s else latency_s
        self._pace_s = max(self._latency_s, _SHORTEST_PACE_S)
        since, self._steered_at = self._steered_at, now
        return 1 / _POINTS_PER_PACE if since is None else min(1.0, (now - since) / self._pace_s)

    def _push(self, cohort: Cohort, now: float) -> float:
        """How fast the limit is to move: the change of its logarithm per pace."""
        if now < self._hold_until:
            return 0.0
        error = self._elasticity - self._target
        newest = self._points[-1]
        # A call of many sequences that does not fit any more leaves that much of the limit empty.
        empty = cohort.heaviest - 1
        if error < 0 or self._elasticity < self._clear:
            self._came_down = True
            return -self._retreat(error) if self._base > _BEHIND * (newest.load + empty) else 0.0
        # Answers that waited tell of the queue they met, not of the load since.
        felt = newest.felt(_HIDDEN_QUEUE if self._unseen else self._queued)
        return _GAIN * min(1.0, error) ** _POWER if self._base < self._most_ahead() * (felt + empty) else 0.0

    def _most_ahead(self) -> float:
        """How far above the load that was seen the limit may lie and still grow."""
        if not self._came_down:
            return _AHEAD
        return max(_LEAST_AHEAD, 1 + (_AHEAD - 1) * math.sqrt(_QUIET_NOISE / max(_QUIET_NOISE, self._noise)))

    def _retreat(self, error: float) -> float:
        retreat, steepest = (_UNSEEN_RETREAT, _UNSEEN_STEEPEST) if self._unseen else (_RETREAT, _STEEPEST)
        down = retreat * min(steepest, -error / self._target)
        return down if self._elasticity >= self._clear else max(down, _RETREAT, _QUEUE_RETREAT * self._queued)

    # The estimate --------------------------------------------------------------------------------------------------

    def _forget(self, now: float) -> None:
        points = self._points
        wide = (max(_POINT_NOISE, self._noise) / _POINT_NOISE) ** _WIDER
        oldest = now - _HORIZON_PACES * wide * self._pace_s
        while len(points) > _LEAST_POINTS and points[0].at < oldest:
            points.popleft()

    def _forget_all(self) -> None:
        self._points.clear()
        self._elasticity = 1.0
        self._slope = 0.0
        self._clear = self._queued = 0.0
        self._came_down = self._unseen = False

    def _estimate(self, now: float) -> bool:
        """Fit the line; return whether the server has changed, after which it starts anew."""
        points = self._points
        if len(points) < 2:
            return False
        noise = max(_POINT_NOISE, self._noise)
        self._look_for_queue(now)
        line = self._fit(now, noise)
        if len(points) > 2 * _FAR_POINTS and self._has_changed(line, noise):
            if self._came_down and (max(line.residuals[-_FAR_POINTS:]) < 0 or line.slope < 0):
                self._base = min(self._base, _BACK_RATIO * min(point.load for point in points))
            self._points = deque([points[-1]], maxlen=_MOST_POINTS)
            self._hold_until = now + self._pace_s
            return True
        self._noise += _NOISE_GAIN * (min(line.noise, 0.5) - self._noise)
        self._slope = max(-0.5, min(2.5, line.slope))
        self._elasticity = 1 - self._slope
        return False

    @staticmethod
    def _has_changed(line: Line, noise: float) -> bool:
        """Whether the newest points all lie far off the line on one side, or more load is said to take less time per token."""
        newest = line.residuals[-_FAR_POINTS:]
        far = max(_FAR, _FAR_NOISES * noise)
        return min(newest) > far or max(newest) < -far or line.slope < -_SUPERLINEAR_NOISES * noise

    def _look_for_queue(self, now: float) -> None:
        """The newest points say whether there is one; the load of older ones was another."""
        oldest = now - self._pace_s
        wait = waiting([point for point in self._points if point.at > oldest] or [self._points[-1]])
        self._unseen = not wait.seen
        self._clear = self._queued = 0.0
        if wait.seen and wait.share > _QUEUED_SHARE and wait.tokens > _QUEUED_TOKENS:
            self._queued = wait.share
            self._clear = min(_CLEAR + wait.share, _CLEAREST)

    def _fit(self, now: float, noise: float) -> Line:
        """Time per token against the load, those points counting most that are near the present one."""
        points = self._points
        wait = waiting(points)
        wide = (noise / _POINT_NOISE) ** _WIDER
        reach = _REACH * wide
        horizon_s = _HORIZON_PACES * wide * self._pace_s
        answers = sum(point.answers for point in points) / len(points)
        felt = [point.felt(wait.share) for point in points]
        here = min(self._base, _FARTHEST * max(felt))
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
            [point.cost_s(wait.tokens) for point in points],
            weights,
            self._slope,
            noise,
            (_SLOPE_SPREAD, _DRIFT_SPREAD, _MIX_SPREAD),
        )

    # Refusals ------------------------------------------------------------------------------------------------------

    def _cut(self, sample: Sample) -> LimitChange | None:
        if sample.admitted_at > self.limit:
            return None
        if sample.now < self._cooldown_until:
            return self._tighten(sample)
        if not self._refusals.about_load(sample.in_flight_at_sent):
            self._bound = math.inf
            return None
        self._bound_below(float(sample.in_flight), sample.now)
        self._base = max(self._floor, min(self._base * _CUT_RATIO, self._bound))
        return self._set("the server refused work")

    def _tighten(self, sample: Sample) -> LimitChange | None:
        """What is refused after the cut, though less is in flight, shows that it was too small."""
        load = max(self._least_bound, sample.in_flight_at_sent - 1.0)
        if load >= self._bound or not self._refusals.about_load(sample.in_flight_at_sent):
            return None
        self._bound = load
        self._base = min(self._base, load)
        return self._set("the server refused work")

    def _bound_below(self, load: float, now: float) -> None:
        """For a while, stay just below a load that was too much."""
        self._cooldown_until = now + max(self._latency_s, _SHORTEST_COOLDOWN_S)
        self._bound = max(self._floor, _BOUND_RATIO * load)
        self._least_bound = _LEAST_RATIO * self._bound
        self._bound_until = now + _BOUND_LASTS_S

    def _set(self, reason: str) -> LimitChange | None:
        swing = max(1.0, _SWING_RATIO * self._base) * (1.0 if self._phase < 0.5 else -1.0)
        limit = round(max(self._floor, min(self._base + swing, self._bound, self._ceiling)))
        if limit == self.limit:
            return None
        self.limit = limit
        return LimitChange(limit, reason)
