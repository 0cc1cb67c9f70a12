"""For a while, no limit above a load that the server refused, or that made answers come too late.

Rules:
- The bound lies just below that load, or at half of the limit if that is more, and holds for half a minute. Then it rises by a twentieth per mean latency, until the load is refused
  again or nothing is bounded any more.
- An episode is a mean latency: what fails in it was sent before the bound. But what is refused of a smaller load lowers the bound to below
  that: else whatever is above the server's own bound is refused as fast as it can be sent. Two cuts down that ends, since
  refusals may be about something else.
- A refusal is about load unless as much load was served, or less load was refused as well (``Refusals``).
- A refusal that names a time (``Retry-After``) is about how often calls come. It bounds the load only if it comes again after that time.
- Answers are late where more than one in fifty is, and by more than chance. Where less load brings less in time, beyond twice the error, it is not load that makes them so: the bound
  goes back to that load, and lateness bounds nothing below it for a minute, then two, up to fifteen. If two calls at once never are in time, the bound goes.

Source: the cuts are those of TCP and of every limit by refusals since (Jacobson 1988).
"""

from __future__ import annotations

import math
from collections import deque

from batchclient._core.limits.base import NEWEST_SHARE, Outcome, Sample
from batchclient._core.limits.refused import CHANCE, Refusals, poisson_tail
from batchclient._core.limits.trial import Silence

__all__ = ["Bounds"]

_BELOW_RATIO = 0.95
_HOLDS_S = 30.0
_CUT_RATIO = 0.8
_RISE = 1.05
_SHORTEST_EPISODE_S = 1.0
_LATE_SHARE = 0.02
_CLEARLY_LESS = 0.75
"""Loads that are nearer to each other than this hardly differ in what they bring."""
_NOTHING_IN_TIME_RATIO = 0.7
_ALONE = 2.0
_LEAST_COUNTED = 16
_LEAST_ENDED = 4
_REFUSED = "the server refused work"


class Bounds:
    """What refusals leave of a limit, and late answers if ``lateness`` says so."""

    __slots__ = (
        "_cause", "_cooling_until", "_counted", "_counts_from", "_cuts", "_ended", "_futile_below", "_heeds_lateness", "_late", "_late_load", "_latency_s", "_refusals", "_rises_at", "_set_at", "_silence",
        "_tightest", "_tokens", "_useful", "_wait_until", "load", "reason",
    )  # fmt: skip

    def __init__(self, *, lateness: bool = True) -> None:
        self._heeds_lateness = lateness
        self._latency_s = 0.0
        self.forget()

    def forget(self) -> None:
        """Start anew."""
        self.load = math.inf
        """Sequences in flight; infinite: nothing is bounded."""
        self.reason = self._cause = ""
        self._refusals = Refusals()
        self._tightest = 1.0
        self._cooling_until = self._wait_until = -math.inf
        self._rises_at, self._set_at = 0.0, -math.inf
        self._counts_from, self._counted, self._tokens = math.inf, 0, 0
        """Useful answers and their tokens, and since when they are counted."""
        self._cuts: deque[tuple[float, float, float]] = deque(maxlen=_LEAST_COUNTED)
        """Loads that made answers late, useful tokens per second under them, and the relative variance of these."""
        self._futile_below = 0.0
        """While lateness is silent, no bound is set below this."""
        self._silence = Silence()
        self._restart()

    def _restart(self) -> None:
        self._ended = self._late = self._useful = self._late_load = 0

    def on_sample(self, sample: Sample, limit: int) -> bool:
        """Take in one observation under a limit in force; return whether that bounds it anew."""
        self._refusals.on_sample(sample)
        if sample.outcome is Outcome.DROPPED:
            return self._refused(sample, limit)
        if sample.outcome is Outcome.IGNORED:
            return False
        seconds = sample.now - sample.sent_at
        self._latency_s += NEWEST_SHARE * (seconds - self._latency_s) if self._latency_s else seconds
        if sample.sent_at < self._set_at:
            # It was sent before the bound was set, and tells of the load before.
            self._rise(sample.now, limit)
            return False
        self._ended += sample.sequences
        if sample.outcome is Outcome.LATE:
            self._late += sample.sequences
            self._late_load += sample.sequences * sample.in_flight_at_sent
        elif sample.outcome is Outcome.SUCCESS:
            self._useful += sample.sequences
            if self._counts_from == math.inf:
                self._counts_from = sample.now
            if sample.now > self._counts_from:
                self._counted += sample.sequences
                self._tokens += sample.completion_tokens or sample.sequences
        if self._ended < max(_LEAST_ENDED, limit / 2):
            self._rise(sample.now, limit)
            return False
        by_chance = poisson_tail(self._late, _LATE_SHARE * self._ended)
        late = self._heeds_lateness and self._late > 1 and by_chance < CHANCE and self._came_late(sample.now, limit)
        self._restart()
        self._rise(sample.now, limit)
        return late

    def _refused(self, sample: Sample, limit: int) -> bool:
        now = sample.now
        if sample.retry_after_s:
            waited = self._wait_until <= sample.sent_at < self._wait_until + _HOLDS_S
            self._wait_until = max(self._wait_until, now + sample.retry_after_s)
            if not waited:
                return False
        if sample.admitted_at > limit:
            return False
        if not self._refusals.about_load(sample.in_flight_at_sent):
            if now >= self._cooling_until and self._cause is _REFUSED:
                self.load = math.inf
            return False
        if now < self._cooling_until:
            load = max(self._tightest, _BELOW_RATIO * sample.in_flight_at_sent)
            if load > _BELOW_RATIO * self.load or sample.in_flight_at_sent < self.load / 2:
                return False
            self.load = load
            return True
        self._set(min(max(_BELOW_RATIO * sample.in_flight, limit / 2), _CUT_RATIO * limit), _REFUSED, now)
        return True

    def _came_late(self, now: float, limit: int) -> bool:
        """Some answers came too late: bound what is in flight, unless it is not load that makes them so."""
        share, load = self._late / self._ended, self._late_load / self._late
        least = self._futile_below if self._silence.lasts(now) else 0.0
        if load <= least:
            return False
        known = self._counted >= _LEAST_COUNTED
        rate = self._tokens / (now - self._counts_from) if known else math.nan
        # Tokens of answers spread about as much as their mean.
        variance = 2 / max(1, self._counted)
        futile = self._futile_from(load, rate, variance, limit)
        if futile:
            self._set(futile, "fewer at once brought less in time", now)
            self._futile_below = futile
            self._cuts.clear()
            self._silence.begin(now)
            return True
        if self._useful:
            if known:
                self._cuts.append((load, rate, variance))
            ratio = min(_BELOW_RATIO, max(_NOTHING_IN_TIME_RATIO, 1 - share))
            self._set(max(least, limit / 2, ratio * min(load, float(limit))), "answers came too late", now)
        else:
            self._set(max(least, _NOTHING_IN_TIME_RATIO * limit), "no answer came in time", now)
        return True

    def _futile_from(self, load: float, rate: float, variance: float, limit: int) -> float:
        """The load to go back to because less brings less in time; 0: lateness is a matter of load."""
        if not self._useful:
            return math.inf if limit <= _ALONE else 0.0
        higher = [(at, (1 - 2 * math.sqrt(its + variance)) * before) for at, before, its in self._cuts]
        return max((at for at, least in higher if load <= _CLEARLY_LESS * at and rate < least), default=0.0)

    def _set(self, load: float, reason: str, now: float) -> None:
        self.load, self.reason, self._cause = max(1.0, load), reason, reason
        self._tightest = max(1.0, _CUT_RATIO**2 * self.load)
        self._set_at = now
        self._restart()
        self._cooling_until = self._counts_from = now + max(self._latency_s, _SHORTEST_EPISODE_S)
        self._tokens = self._counted = 0
        self._rises_at = now + _HOLDS_S

    def _rise(self, now: float, limit: int) -> None:
        """Once its time is over, a twentieth at a time; what is bounded by something lower, or not used, needs no rise."""
        if self.load == math.inf or now < self._rises_at:
            return
        self._rises_at = now + max(self._latency_s, _SHORTEST_EPISODE_S)
        self.load *= _RISE
        if self.load > _RISE * (limit + 1):
            # It bounds nothing any more.
            self.load = math.inf
        self.reason = "some time has passed: more is tried"
