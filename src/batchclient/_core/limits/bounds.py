"""For a while, no limit above a load which the server refused, or which made answers late.

Rules:
- The bound is just below the load, or half of the limit if more. It holds for half a minute, after
  a refusal for four episodes. Then it rises by a twentieth per mean latency, until the next refusal
  or its end.
- An episode is a mean latency: its failures were sent before the bound. But a refusal of less load
  lowers the bound further: else calls above the server's own bound are refused as fast as sent. To
  half at most, since refusals may have another reason.
- Memory that runs out is about load, as far as others were in flight: the bound is just below what
  was in flight at that moment. Where all that run are lost, that happens once.
- Only refusals about load are told (see ``servers.pace``). A refusal with a time (``Retry-After``)
  is about the rate of calls, and bounds the load only if repeated after the time.
- Answers are late if more than one in fifty is, beyond chance. If less load brings less in time,
  beyond twice the error, load is not the cause: the bound goes back to the higher load, and
  lateness bounds nothing below for a minute, then two, up to fifteen. If two calls at once are
  never in time, the bound goes.

Source: the cuts are those of TCP and of every limit by refusals since (Jacobson 1988).
"""

from __future__ import annotations

import math
from collections import deque

from batchclient._core.limits.base import NEWEST_SHARE, Outcome, Sample
from batchclient._core.limits.trial import Silence

__all__ = ["Bounds"]

_CHANCE = 0.05
"""Rarer results are no chance: the usual level of a one-sided test."""
_BELOW_RATIO = 0.95
_HOLDS_S = 30.0
_REFUSED_HOLDS_EPISODES = 4
"""A refusal too many costs little (see ``servers.pace``)."""
_RISE = 1.05
_SHORTEST_EPISODE_S = 1.0
_SHORTEST_LOSS_S = 0.1
_LATE_SHARE = 0.02
_CLEARLY_LESS = 0.75
"""Loads nearer to each other hardly differ in their results."""
_NOTHING_IN_TIME_RATIO = 0.5
_ALONE = 2.0
_LEAST_COUNTED = 16
_LEAST_ENDED = 4
_REFUSED = "the server refused work"


class Bounds:
    """The bound on a limit by refusals, and by late answers if ``lateness`` is true."""

    __slots__ = (
        "_cause", "_cooling_until", "_counted", "_counts_from", "_cuts", "_ended", "_futile_below", "_heeds_lateness",
        "_late", "_late_load", "_latency_s", "_rises_at", "_set_at", "_silence", "_tightest", "_tokens",
        "_useful", "_wait_until", "load", "reason",
    )  # fmt: skip

    def __init__(self, *, lateness: bool = True) -> None:
        self._heeds_lateness = lateness
        self._latency_s = 0.0
        self.forget()

    def forget(self) -> None:
        self.load = math.inf
        """Sequences in flight; infinite: no bound."""
        self.reason = self._cause = ""
        self._tightest = 1.0
        self._cooling_until = self._wait_until = -math.inf
        self._rises_at, self._set_at = 0.0, -math.inf
        self._counts_from, self._counted, self._tokens = math.inf, 0, 0
        """Useful answers and their tokens, and since when both are counted."""
        self._cuts: deque[tuple[float, float, float]] = deque(maxlen=_LEAST_COUNTED)
        """Loads with late answers, their useful tokens per second, and its relative variance."""
        self._futile_below = 0.0
        """While lateness is silent, no bound is set below this load."""
        self._silence = Silence()
        self._restart()

    def forget_refusals(self) -> None:
        if self._cause is _REFUSED:
            self.forget()

    def _restart(self) -> None:
        self._ended = self._late = self._useful = self._late_load = 0

    def on_sample(self, sample: Sample, limit: int) -> bool:
        """Take in an observation under a limit in force; return whether a new bound is set."""
        if sample.outcome is Outcome.DROPPED:
            return self._refused(sample, limit)
        if sample.outcome is Outcome.IGNORED:
            return False
        seconds = sample.now - sample.sent_at
        self._latency_s += NEWEST_SHARE * (seconds - self._latency_s) if self._latency_s else seconds
        if sample.sent_at < self._set_at:
            # The sample was sent before the bound was set, and tells of the load before.
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
        by_chance = _poisson_tail(self._late, _LATE_SHARE * self._ended)
        late = self._heeds_lateness and self._late > 1 and by_chance < _CHANCE and self._came_late(sample.now, limit)
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
        if sample.out_of_memory and sample.in_flight > sample.sequences:
            load = _BELOW_RATIO * min(sample.in_flight, limit)
            if now >= self._cooling_until:
                self._set(load, _REFUSED, now)
                self._cooling_until = now + max(self._latency_s, _SHORTEST_LOSS_S)
                return True
            before, self.load = self.load, min(self.load, max(self._tightest, load))
            return self.load < before
        load = _BELOW_RATIO * sample.in_flight_at_sent
        if now < self._cooling_until:
            load = max(self._tightest, load)
            if load > _BELOW_RATIO * self.load or sample.in_flight_at_sent < self.load / 2:
                return False
            self.load = load
            return True
        self._set(min(max(load, limit / 2), _BELOW_RATIO * limit), _REFUSED, now)
        return True

    def _came_late(self, now: float, limit: int) -> bool:
        """Bound the sequences in flight after late answers, unless load is not the cause."""
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
        """The load to return to, since less load brings less in time; 0: load causes lateness."""
        if not self._useful:
            return math.inf if limit <= _ALONE else 0.0
        higher = [(at, (1 - 2 * math.sqrt(its + variance)) * before) for at, before, its in self._cuts]
        return max((at for at, least in higher if load <= _CLEARLY_LESS * at and rate < least), default=0.0)

    def _set(self, load: float, reason: str, now: float) -> None:
        self.load, self.reason, self._cause = max(1.0, load), reason, reason
        self._tightest = max(1.0, self.load / 2)
        self._set_at = now
        self._restart()
        episode_s = max(self._latency_s, _SHORTEST_EPISODE_S)
        self._cooling_until = self._counts_from = now + episode_s
        self._tokens = self._counted = 0
        self._rises_at = now + (_REFUSED_HOLDS_EPISODES * episode_s if reason is _REFUSED else _HOLDS_S)

    def _rise(self, now: float, limit: int) -> None:
        """Rise by a twentieth when due; a bound above the limit in force, or unused, goes."""
        if self.load == math.inf or now < self._rises_at:
            return
        self._rises_at = now + max(self._latency_s, _SHORTEST_EPISODE_S)
        self.load *= _RISE
        if self.load > _RISE * (limit + 1):
            # The bound is without effect.
            self.load = math.inf
        self.reason = "some time has passed: more is tried"


def _poisson_tail(times: int, expected: float) -> float:
    """The chance of at least so many."""
    term = below = math.exp(-expected)
    for count in range(1, times):
        term *= expected / count
        below += term
    return 1 - below
