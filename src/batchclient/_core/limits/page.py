"""Steps of the limit by the server's metrics page: more for more tokens, and no more than runs.

Rules:
- A look is a report that shows this client's sequences and hardly any others: running and waiting
  together are 0.8 to 1.25 of its own in flight. So one replica's page behind a router decides
  nothing. A guest, which gives way to others, looks beside any number of them. Looks count if asked
  for a second and a mean time to first token after the last change of the limit, if the page took
  less than 2 s, and while the limit is used. They begin anew wherever reports do (``reports``).
- More: after two looks in a row at a used limit with no queue, a KV cache that is not nearly full
  and no new preemption, the limit doubles, at most once a mean latency. Once it was too high it
  rises to 1.4 times, and doubles again once that paid, or the work has changed.
- Less: where a queue of this client's stands, the limit becomes the most that ran, and
  a tenth, since a small queue refills a place the moment it comes free; by half at most.
- Each step is checked by the generated tokens per second of the looks before and after it. After it
  they last 3 s and a mean latency. Both last 40 steps of the engine, or twice that time, since its
  counters move once a step: a sequence makes a token a step, so a step takes what runs, over tokens
  per second.
- A guest, which begins with few, doubles after 1.5 s if that pays by then, and the KV cache has
  room for twice as much.
- Twice as many stay for a gain of a twentieth, 1.4 times for its share of that (2.4 %), and for two
  standard errors: such steps come again for as long as the work lasts, and chance would add up.
  More goes back at once for preemptions. Less goes back if it generates less than 0.97, clearly or
  for a minute. Where four such times bring no verdict, more goes back, and less, after a further
  minute, stays. What did not pay cools down.
- Where the limit is not used, or calls pause, the step goes back without a verdict; but not where
  a guest, which begins with few, has more. A limit that another hand changed ends the check.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from batchclient._core.limits.base import USED_RATIO, Answers, Cooldown
from batchclient._core.limits.reports import STALE_AFTER_S, Report, Reports
from batchclient._core.limits.trial import LOSS

__all__ = ["PageSteps"]

_COUNTS_AFTER_S = 1.0
_SLOW_S = 2.0
_SHORTEST_CHECK_S = 3.0
_QUICK_CHECK_S = 1.5
_CHECKS_AT_MOST = 4
_CHECKS_MEASURED = 2
"""Of long prompts and short answers, what runs makes far less than a token a step."""
_LEAST_LOOKS = 2
_LEAST_STEPS = 40
"""Of the engine. One of 40 is half of the gain that twice as many must bring."""
_IN_USE_RATIO = 0.7
"""The least at an instant; the peak of several looks is above ``USED_RATIO``."""
_FULL_KV_RATIO = 0.8
_HALF_KV_RATIO = 0.4
_DOUBLE, _MORE = 2.0, 1.4
_MARGIN = 0.1
_HELD = 0.97
_CERTAIN = 2.0
"""Standard errors."""
_MINUTE_S = 60.0


@dataclass(slots=True)
class _Step:
    """A change under check; ``per_s`` and ``error``: tokens per second before it, relative error.

    ``preemptions``: before it.
    """

    first: int
    other: int
    at: float
    per_s: float
    error: float
    preemptions: float

    @property
    def is_more(self) -> bool:
        return self.other > self.first

    @property
    def reason(self) -> str:
        """Of a trial to the same end, with which the step shares a cooldown."""
        return "more" if self.is_more else "queue"


class PageSteps:
    """The steps of one limit.

    Args:
        answers: the server's.
        cooldowns: by the reason, also of a trial (``search``).
    """

    def __init__(self, answers: Answers, cooldowns: Mapping[str, Cooldown]) -> None:
        self._answers = answers
        self._cooldowns = cooldowns
        self.reports = Reports(answers)
        self._limit = self._most = 0
        """At the last report: the limit, and the highest that is allowed."""
        self.beside_others = False
        """Whether a page that shows others, too, is heeded: a guest's, which gives way to them."""
        self.forget()

    def forget(self) -> None:
        """The server was started anew."""
        self.reports.forget()
        self._seen_at = -math.inf
        self._looks: deque[Report] = deque()
        self._idle = 0
        """Looks in a row at a limit that is not used."""
        self._step: _Step | None = None
        self.work_changed()

    def work_changed(self) -> None:
        """Prompts or answers are much longer or shorter: twice as many may pay now."""
        self._doubles = True
        """Whether more is twice as many, or 1.4 times."""

    def rest(self) -> None:
        """Another bound is in force: a step under check stays, and looks begin anew."""
        self._step = None
        self._looks.clear()

    def decides(self, now: float) -> bool:
        """Whether the page shows this client's sequences alone."""
        return now - self._seen_at <= STALE_AFTER_S

    def on_report(self, report: Report, took_s: float, limit: int, most: int) -> tuple[int, str] | None:
        """Take in a report, asked for ``took_s`` ago; return a new limit of at most ``most``, and why."""
        now, looks, reports = report.at, self._looks, self.reports
        self._limit, self._most = limit, most
        paused = reports.are_stale(now)
        reports.add(report, limit)
        if looks and looks[0].at < reports.began:
            looks.clear()
        step = self._step
        if step is not None and step.other != limit:
            step = self._step = None
        if step is not None:
            if paused:
                return self._unused(step, now)
            if now > self._latest_verdict(step):
                if step.is_more and not self.beside_others:
                    return self._back(step, "could not be judged by the page", now)
                self._step = None
                return None
        if not (report.shows_us if self.beside_others else report.shows_only_us):
            looks.clear()
            return None
        if took_s >= _SLOW_S:
            return None
        self._seen_at = now
        if now - took_s < reports.began + _COUNTS_AFTER_S + self._answers.first_s:
            return None
        self._idle = self._idle + 1 if report.in_flight < _IN_USE_RATIO * limit else 0
        if step is None:
            return self._consider(report)
        if self._idle >= _LEAST_LOOKS:
            return self._unused(step, now)
        looks.append(report)
        return self._check(step, now)

    def _consider(self, report: Report) -> tuple[int, str] | None:
        looks, now = self._looks, report.at
        if self._idle:
            looks.clear()
            return None
        looks.append(report)
        if not self._are_measured:
            return None
        while len(looks) > _LEAST_LOOKS and looks[1].at <= now - self._check_s and self._steps(1) >= _LEAST_STEPS:
            looks.popleft()
        return self._next(now) if self._is_used else None

    def _check(self, step: _Step, now: float) -> tuple[int, str] | None:
        if step.is_more and self._preemptions() > step.preemptions:
            self._doubles = False
            return self._back(step, "made the server throw sequences out", now)
        lasted_s = now - self._looks[0].at
        if lasted_s < self._check_s or not self._are_measured:
            return None
        if not self._is_used:
            return self._unused(step, now)
        per_s, error = self._rate()
        gain = per_s / step.per_s
        noise = _CERTAIN * math.hypot(error, step.error)
        if step.is_more:
            share = (1 + LOSS) ** math.log2(step.other / step.first)
            paid = gain >= (share if self._doubles else max(share, 1 + noise))
            self._doubles = self._doubles or paid
        else:
            paid = gain >= _HELD
            unclear = gain >= _HELD - noise
            if not paid and unclear and lasted_s < _MINUTE_S:
                return None
        if not paid and lasted_s < self._long_check_s:
            return None
        if not paid:
            self._doubles = False
            return self._back(step, f"generated {gain:.0%} of what {step.first} did", now)
        self._step = None
        return self._next(now)

    @property
    def _check_s(self) -> float:
        return _QUICK_CHECK_S if self._is_quick else self._long_check_s

    @property
    def _long_check_s(self) -> float:
        return max(_SHORTEST_CHECK_S, self._answers.latency_s)

    @property
    def _is_quick(self) -> bool:
        """Whether a doubling may show soon that it pays: to a guest, with a cache that has much room."""
        kv_usage_ratio = self._looks[-1].load.kv_usage_ratio if self._looks else None
        return self.beside_others and self._doubles and (kv_usage_ratio or 1.0) < _HALF_KV_RATIO

    @property
    def _is_used(self) -> bool:
        return max(look.in_flight for look in self._looks) >= USED_RATIO * self._limit

    @property
    def _are_measured(self) -> bool:
        """Whether the looks last long enough for their tokens per second."""
        looks = self._looks
        if len(looks) < _LEAST_LOOKS or not (steps := self._steps()):
            return False
        return steps >= _LEAST_STEPS or looks[-1].at - looks[0].at >= _CHECKS_MEASURED * self._check_s

    def _steps(self, first: int = 0) -> float:
        """The engine's steps since the ``first`` look: in one each running sequence makes a token."""
        last = self._looks[-1]
        return (last.tokens - self._looks[first].tokens) / max(1.0, last.running)

    def _preemptions(self, look: int = -1) -> float:
        return self._looks[look].load.preemptions or 0.0

    def _next(self, now: float) -> tuple[int, str] | None:
        looks, limit = self._looks, self._limit
        is_alone = self.beside_others and looks[-1].shows_only_us
        grows = is_alone and limit < self._most and not self._cooldowns["more"].lasts(now)
        if not grows and (waits := self.reports.our_waiting(now)):
            lower = max(math.ceil((1 + _MARGIN) * self.reports.most_running), (limit + 1) // 2)
            if lower > (1 - _MARGIN) * limit or self._cooldowns["queue"].lasts(now):
                return None
            self._doubles = False
            return self._take(lower, f"{waits:.0f} calls waited in the server all the time", now)
        waiting = max(looks[-1].waiting, looks[-2].waiting)
        if (
            limit >= self._most
            or self._cooldowns["more"].lasts(now)
            or (waiting > max(2.0, 0.05 * limit) and not is_alone)
            or (looks[-1].load.kv_usage_ratio or 0.0) >= _FULL_KV_RATIO
            or self._preemptions() > self._preemptions(0)
            or now - self.reports.began < (_QUICK_CHECK_S if self._is_quick else self._answers.latency_s)
        ):
            return None
        higher = min(self._most, math.ceil((_DOUBLE if self._doubles else _MORE) * limit))
        return self._take(higher, f"the server ran {limit} at once, and none waited", now)

    def _take(self, other: int, why: str, now: float) -> tuple[int, str]:
        self._step = _Step(self._limit, other, now, *self._rate(), self._preemptions())
        return other, why

    def _latest_verdict(self, step: _Step) -> float:
        unclear_s = 0.0 if step.is_more else _MINUTE_S
        return step.at + _COUNTS_AFTER_S + self._answers.first_s + _CHECKS_AT_MOST * self._long_check_s + unclear_s

    def _back(self, step: _Step, why: str, now: float) -> tuple[int, str]:
        """End a step that did not pay."""
        self._step = None
        self._cooldowns[step.reason].begin(now)
        return min(step.first, self._most), f"{step.other} in flight {why}"

    def _unused(self, step: _Step, now: float) -> tuple[int, str] | None:
        """End a step without a verdict."""
        self._step = None
        if self.beside_others and step.is_more:
            # More calls may come. The next step is judged no less.
            return None
        if max((look.in_flight for look in self._looks), default=0) > step.first:
            # Something else bounds the calls in flight, and would do so again.
            self._cooldowns[step.reason].rest(now)
        return min(step.first, self._most), f"{step.other} in flight were not used"

    def _rate(self) -> tuple[float, float]:
        """Generated tokens per second of the looks, and its relative standard error."""
        looks = self._looks
        per_s = (looks[-1].tokens - looks[0].tokens) / (looks[-1].at - looks[0].at)
        rates = [(b.tokens - a.tokens) / (b.at - a.at) for a, b in pairwise(looks)]
        squares = sum((rate / per_s - 1) ** 2 for rate in rates)
        return per_s, math.hypot(1 / self._steps(), math.sqrt(squares / max(1, len(rates) - 1) / len(rates)))
