"""For a while, no limit above a load which the server refused, or which made answers late.

Rules:
- The bound is just below the load, or half of the limit if more. It holds for half a minute, after
  a refusal for four episodes. Then it rises by a twentieth per mean latency, until the next refusal
  or its end.
- An episode is a mean latency: its failures were sent before the bound. But a refusal of less load
  lowers the bound further: else calls above the server's own bound are refused as fast as sent. To
  half at most, since refusals may have another reason.
- Memory that runs out is about load, as far as others were in flight: the bound is just below what
  was in flight at that moment. Where all that run are lost, that happens once, and the bound is a
  quarter lower: answers differ in length, and the next time would cost as much again.
- Only refusals about load are told (see ``servers.pace``). A refusal with a time (``Retry-After``)
  is about the rate of calls, and bounds the load only if repeated after the time. Nor is one about
  load if twice as many in flight were taken within the last minute: tokens or calls a second ran
  out, and the fewer in flight the faster the answers.
- Answers are late if more than one in fifty is, beyond chance. If less load brings less in time,
  beyond twice the error, load is not the cause: the bound goes back to the higher load, and
  lateness bounds nothing below for a minute, then two, up to fifteen. If two calls at once are
  never in time, the bound goes.

Source: the cuts are those of TCP and of every limit by refusals since (Jacobson 1988).
"""

from __future__ import annotations

import math
from collections import deque

from batchclient._core.limits.base import LATE, REFUSALS, Answers, Cooldown, Outcome, Sample

__all__ = ["Bounds"]

_CHANCE = 0.05
"""Rarer results are no chance: the usual level of a one-sided test."""
_BELOW_RATIO = 0.95
_ALL_LOST_RATIO = 0.75
_HOLDS_S = 30.0
_REFUSED_HOLDS_EPISODES = 4
"""A refusal too many costs little (see ``servers.pace``)."""
_RISE = 1.05
_TAKEN_S = 60.0
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

    def __init__(self, answers: Answers, *, lateness: bool) -> None:
        self._answers = answers
        self._heeds_lateness = lateness
        self.forget()

    def forget(self) -> None:
        """Start anew: the server was restarted."""
        self.load = math.inf
        """Sequences in flight; infinite: no bound."""
        self.reason = ""
        self._is_refused = False
        """Whether a refusal set the bound."""
        self._tightest = 1.0
        self._set_at = self._episode_until = self._wait_until = self._rises_at = -math.inf
        self._taken, self._taken_at = 0, -math.inf
        """The most in flight when an answered call was sent, of the last minute; and when that was."""
        self._all_lost = False
        """Whether most that ran were lost with the one that set the bound."""
        self._counted = self._tokens = 0
        """Useful answers after the episode of the bound, and their tokens."""
        self._cuts: deque[tuple[float, float, float]] = deque(maxlen=_LEAST_COUNTED)
        """Loads with late answers, their useful tokens per second, and its relative variance."""
        self._lateness_rests = Cooldown()
        self._futile_below = 0.0
        """While lateness rests, no bound is set below this load."""
        self._restart()

    def forget_refusals(self) -> None:
        if self._is_refused:
            self.forget()

    def _restart(self) -> None:
        self._ended = self._late = self._useful = self._late_load = 0

    def on_sample(self, sample: Sample, limit: int) -> bool:
        """Take in an observation under a limit in force; return whether a new bound is set."""
        if sample.outcome in REFUSALS:
            return self._refused(sample, limit)
        if sample.outcome is Outcome.IGNORED:
            return False
        if sample.in_flight_at_sent >= self._taken or sample.sent_at > self._taken_at + _TAKEN_S:
            self._taken, self._taken_at = sample.in_flight_at_sent, sample.sent_at
        is_set = False
        if self._heeds_lateness and self._ends_window(sample, limit):
            is_set = self._came_late(sample.now, limit)
            self._restart()
        if self.load < math.inf and sample.now >= self._rises_at:
            self._rise(sample.now, limit)
        return is_set

    def _ends_window(self, sample: Sample, limit: int) -> bool:
        """Count an answer in time or a late one; return whether enough have ended to tell."""
        if sample.sent_at < self._set_at:
            # The sample was sent before the bound was set, and tells of the load before.
            return False
        self._ended += sample.sequences
        if sample.outcome in LATE:
            self._late += sample.sequences
            self._late_load += sample.sequences * sample.in_flight_at_sent
        elif sample.outcome is Outcome.SUCCESS:
            self._useful += sample.sequences
            if self._episode_until == -math.inf:
                self._episode_until = sample.now
            if sample.now > self._episode_until:
                self._counted += sample.sequences
                self._tokens += sample.completion_tokens or sample.sequences
        return self._ended >= max(_LEAST_ENDED, limit / 2)

    def _refused(self, sample: Sample, limit: int) -> bool:
        now = sample.now
        if sample.retry_after_s:
            waited = self._wait_until <= sample.sent_at < self._wait_until + _HOLDS_S
            self._wait_until = max(self._wait_until, now + sample.retry_after_s)
            if not waited:
                return False
        if sample.admitted_at > limit:
            return self._lost_with_others(sample)
        if sample.outcome is Outcome.OUT_OF_MEMORY and sample.in_flight > sample.sequences:
            load = _BELOW_RATIO * min(sample.in_flight, limit)
            if now >= self._episode_until:
                self._set(load, _REFUSED, now)
                self._episode_until = now + max(self._answers.latency_s, _SHORTEST_LOSS_S)
                return True
            before, self.load = self.load, min(self.load, max(self._tightest, load))
            return self.load < before
        if sample.in_flight_at_sent < self._taken / 2 and sample.sent_at <= self._taken_at + _TAKEN_S:
            # Twice as many were taken lately.
            return False
        load = _BELOW_RATIO * sample.in_flight_at_sent
        if now < self._episode_until:
            load = max(self._tightest, load)
            if load > _BELOW_RATIO * self.load or sample.in_flight_at_sent < self.load / 2:
                return False
            self.load = load
            return True
        self._set(min(max(load, limit / 2), _BELOW_RATIO * limit), _REFUSED, now)
        return True

    def _lost_with_others(self, sample: Sample) -> bool:
        """Take in what was admitted before a bound; return whether that falls once more."""
        is_lost = sample.outcome is Outcome.OUT_OF_MEMORY and sample.now < self._episode_until
        if not is_lost or self._all_lost or sample.in_flight > self.load / 2:
            return False
        self._all_lost, self.load = True, max(1.0, _ALL_LOST_RATIO * self.load)
        return True

    def _came_late(self, now: float, limit: int) -> bool:
        """Bound the sequences in flight after late answers, unless load is not the cause."""
        if self._late <= 1 or _poisson_tail(self._late, _LATE_SHARE * self._ended) >= _CHANCE:
            return False
        share, load = self._late / self._ended, self._late_load / self._late
        least = self._futile_below if self._lateness_rests.lasts(now) else 0.0
        if load <= least:
            return False
        known = self._counted >= _LEAST_COUNTED
        rate = self._tokens / (now - self._episode_until) if known else math.nan
        # Tokens of answers spread about as much as their mean.
        variance = 2 / max(1, self._counted)
        futile = self._futile_from(load, rate, variance, limit)
        if futile:
            self._set(futile, "fewer at once brought less in time", now)
            self._futile_below = futile
            self._cuts.clear()
            self._lateness_rests.begin(now)
        elif self._useful:
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
        self.load, self.reason = max(1.0, load), reason if load < math.inf else ""
        self._is_refused = reason is _REFUSED
        self._tightest = max(1.0, self.load / 2)
        self._set_at = now
        self._restart()
        episode_s = max(self._answers.latency_s, _SHORTEST_EPISODE_S)
        self._episode_until = now + episode_s
        self._tokens, self._counted, self._all_lost = 0, 0, False
        self._rises_at = now + (_REFUSED_HOLDS_EPISODES * episode_s if self._is_refused else _HOLDS_S)

    def _rise(self, now: float, limit: int) -> None:
        """Rise by a twentieth; a bound above the limit in force, or unused, goes."""
        self._rises_at = now + max(self._answers.latency_s, _SHORTEST_EPISODE_S)
        self.load, self.reason = _RISE * self.load, "some time has passed: more is tried"
        if self.load > _RISE * (limit + 1):
            # The bound is without effect.
            self.load, self.reason = math.inf, ""


def _poisson_tail(times: int, expected: float) -> float:
    """The chance of at least so many."""
    term = below = math.exp(-expected)
    for count in range(1, times):
        term *= expected / count
        below += term
    return 1 - below
