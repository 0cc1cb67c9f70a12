"""Steps of the limit by the server's metrics page: more for more tokens, and no more than runs.

Rules:
- A look is a report that shows this client's sequences and hardly any others: running and waiting
  together are 0.8 to 1.25 of its own in flight. So one replica's page behind a router decides
  nothing. Looks count if asked for a second and a mean time to first token after the last change
  of the limit, if the page took less than 2 s, and while the limit is used. After a pause, or a
  counter that fell, they begin anew.
- More: after two looks in a row at a used limit with no queue, a KV cache that is not nearly full
  and no new preemption, the limit doubles, at most once a mean latency. Once it was too high it
  rises to 1.4 times, and doubles again once that paid, or the work has changed.
- Less: where a queue of this client's stands (``queue``), the limit becomes the most that ran, and
  a tenth, since a small queue refills a place the moment it comes free; by half at most.
- Each step is checked by the generated tokens per second of the looks before and after it. After it
  they last 3 s and a mean latency. Both last 40 steps of the engine, or twice that time, since its
  counters move once a step: a sequence makes a token a step, so a step takes what runs, over tokens
  per second.
- Twice as many stay for a gain of a twentieth, 1.4 times for its share of that (2.4 %), and for two
  standard errors: such steps come again for as long as the work lasts, and chance would add up.
  More goes back at once for preemptions. Less goes back if it generates less than 0.97, clearly or
  for a minute. Where four such times bring no verdict, more goes back, and less, after a further
  minute, stays. What did not pay is not tried for a minute, then two, up to fifteen.
- Where the limit is not used, or calls pause, the step goes back without a verdict. A limit that
  another hand changed ends the check.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from batchclient._core.limits.base import NEWEST_SHARE, USED_RATIO, Outcome, Sample, ServerLoad
from batchclient._core.limits.queue import StandingQueue
from batchclient._core.limits.trial import LOSS, Silence

__all__ = ["PageSteps"]

_LEAST_SHOWN, _MOST_SHOWN = 0.8, 1.25
_COUNTS_AFTER_S = 1.0
_SLOW_S = 2.0
_STALE_AFTER_S = 5.0
_SHORTEST_CHECK_S = 3.0
_CHECKS_AT_MOST = 4
_CHECKS_MEASURED = 2
"""Of long prompts and short answers, what runs makes far less than a token a step."""
_LEAST_LOOKS = 2
_LEAST_STEPS = 40
"""Of the engine. One of 40 is half of the gain that twice as many must bring."""
_IN_USE_RATIO = 0.7
"""The least at an instant; the peak of several looks is above ``USED_RATIO``."""
_FULL_KV_RATIO = 0.8
_DOUBLE, _MORE = 2.0, 1.4
_MARGIN = 0.1
_HELD = 0.97
_CERTAIN = 2.0
"""Standard errors."""
_MINUTE_S = 60.0


class _Look(NamedTuple):
    at: float
    tokens: float
    running: float
    waiting: float
    in_flight: int
    kv_usage_ratio: float
    preemptions: float


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


class PageSteps:
    """The steps of one limit."""

    __slots__ = (
        "_changed_at", "_doubles", "_first_s", "_idle", "_latency_s", "_limit", "_looks", "_reported_at", "_seen_at",
        "_silences", "_step", "queue",
    )  # fmt: skip

    def __init__(self) -> None:
        self.queue = StandingQueue()
        """The queue that stands in the server."""
        self._latency_s = self._first_s = 0.0
        """Means over the last answers: seconds, to the end and to the first token."""
        self._forget()

    def forget(self) -> None:
        """The server was started anew."""
        self.queue.forget()
        self._forget()

    def _forget(self) -> None:
        self._limit = 0
        self._changed_at = self._seen_at = self._reported_at = -math.inf
        self._doubles = True
        """Whether more is twice as many, or 1.4 times."""
        self._looks: deque[_Look] = deque()
        self._idle = 0
        """Looks in a row at a limit that is not used."""
        self._silences = {more: Silence() for more in (True, False)}
        self._step: _Step | None = None

    def work_changed(self) -> None:
        """Prompts or answers are much longer or shorter: what did not pay may pay now."""
        self._doubles = True
        for silence in self._silences.values():
            silence.end()

    def rest(self, now: float) -> None:
        """A trial has lowered the limit: more is not tried for a minute."""
        self._silences[True].rest(now)

    def speaks(self, now: float) -> bool:
        """Whether the page shows this client's sequences alone, so that the steps decide."""
        return now - self._seen_at <= _STALE_AFTER_S

    def on_sample(self, sample: Sample) -> None:
        """Take in one observation: the times of answers."""
        self.queue.on_sample(sample)
        if sample.outcome is Outcome.SUCCESS:
            seconds = sample.now - sample.sent_at
            self._latency_s += NEWEST_SHARE * (seconds - self._latency_s) if self._latency_s else seconds
            first_s = sample.first_tokens_s / sample.sequences
            self._first_s += NEWEST_SHARE * (first_s - self._first_s) if self._first_s else first_s

    def on_load(
        self, load: ServerLoad, in_flight: int, took_s: float, limit: int, most: int, now: float
    ) -> tuple[int, str] | None:
        """Take in a report; return a new limit of at most ``most``, and why."""
        self.queue.on_load(load, in_flight, now)
        paused = now - self._reported_at > _STALE_AFTER_S
        self._reported_at = now
        if limit != self._limit:
            self._limit, self._changed_at = limit, now
            self._looks.clear()
            if self._step is not None and self._step.other != limit:
                self._step = None
        step = self._step
        if paused:
            self._looks.clear()
            if step is not None:
                return self._unused(step, most, now)
        if step is not None and now > self._latest_verdict(step):
            if step.other > step.first:
                return self._back(step, "could not be judged by the page", most, now)
            self._step = None
            return None
        look = _look(load, in_flight, now)
        if look is None or (self._looks and look.tokens < self._looks[-1].tokens):
            self._looks.clear()
            return None
        if took_s >= _SLOW_S:
            return None
        self._seen_at = now
        if now - took_s < self._changed_at + _COUNTS_AFTER_S + self._first_s:
            return None
        self._idle = self._idle + 1 if in_flight < _IN_USE_RATIO * limit else 0
        if step is None:
            return self._consider(look, limit, most, now)
        if self._idle >= _LEAST_LOOKS:
            return self._unused(step, most, now)
        self._looks.append(look)
        return self._check(step, most, now)

    def _consider(self, look: _Look, limit: int, most: int, now: float) -> tuple[int, str] | None:
        looks = self._looks
        if self._idle:
            looks.clear()
            return None
        looks.append(look)
        if not self._is_measured:
            return None
        while len(looks) > _LEAST_LOOKS and looks[1].at <= now - self._check_s and self._steps(1) >= _LEAST_STEPS:
            looks.popleft()
        return self._next(limit, most, now) if self._used else None

    def _check(self, step: _Step, most: int, now: float) -> tuple[int, str] | None:
        if step.other > step.first and self._looks[-1].preemptions > step.preemptions:
            self._doubles = False
            return self._back(step, "made the server throw sequences out", most, now)
        lasted_s = now - self._looks[0].at
        if lasted_s < self._check_s or not self._is_measured:
            return None
        if not self._used:
            return self._unused(step, most, now)
        per_s, error = self._rate()
        gain = per_s / step.per_s
        noise = _CERTAIN * math.hypot(error, step.error)
        if step.other > step.first:
            share = (1 + LOSS) ** math.log2(step.other / step.first)
            paid = gain >= (share if self._doubles else max(share, 1 + noise))
            self._doubles = self._doubles or paid
        else:
            paid = gain >= _HELD
            unclear = gain >= _HELD - noise
            if not paid and unclear and lasted_s < _MINUTE_S:
                return None
        if not paid:
            self._doubles = False
            return self._back(step, f"generated {gain:.0%} of what {step.first} did", most, now)
        self._step = None
        return self._next(self._limit, most, now)

    @property
    def _check_s(self) -> float:
        return max(_SHORTEST_CHECK_S, self._latency_s)

    @property
    def _used(self) -> bool:
        return max(look.in_flight for look in self._looks) >= USED_RATIO * self._limit

    @property
    def _is_measured(self) -> bool:
        """Whether the looks last long enough for their tokens per second."""
        looks = self._looks
        if len(looks) < _LEAST_LOOKS or not (steps := self._steps()):
            return False
        return steps >= _LEAST_STEPS or looks[-1].at - looks[0].at >= _CHECKS_MEASURED * self._check_s

    def _steps(self, first: int = 0) -> float:
        """The engine's steps since the ``first`` look: in one each running sequence makes a token."""
        last = self._looks[-1]
        return (last.tokens - self._looks[first].tokens) / max(1.0, last.running)

    def _next(self, limit: int, most: int, now: float) -> tuple[int, str] | None:
        looks = self._looks
        if waits := self.queue.ours(now):
            lower = max(math.ceil((1 + _MARGIN) * self.queue.most_running), (limit + 1) // 2)
            if lower > (1 - _MARGIN) * limit or self._silences[False].lasts(now):
                return None
            self._doubles = False
            return self._take(lower, f"{waits:.0f} calls waited in the server all the time", now)
        waiting = max(looks[-1].waiting, looks[-2].waiting)
        if (
            limit >= most
            or self._silences[True].lasts(now)
            or waiting > max(2.0, 0.05 * limit)
            or looks[-1].kv_usage_ratio >= _FULL_KV_RATIO
            or looks[-1].preemptions > looks[0].preemptions
            or now - self._changed_at < self._latency_s
        ):
            return None
        higher = min(most, math.ceil((_DOUBLE if self._doubles else _MORE) * limit))
        return self._take(higher, f"the server ran {limit} at once, and none waited", now)

    def _take(self, other: int, why: str, now: float) -> tuple[int, str]:
        self._step = _Step(self._limit, other, now, *self._rate(), self._looks[-1].preemptions)
        return other, why

    def _latest_verdict(self, step: _Step) -> float:
        unclear_s = _MINUTE_S if step.other < step.first else 0.0
        return step.at + _COUNTS_AFTER_S + self._first_s + _CHECKS_AT_MOST * self._check_s + unclear_s

    def _back(self, step: _Step, why: str, most: int, now: float) -> tuple[int, str]:
        """End a step that did not pay."""
        self._step = None
        self._silences[step.other > step.first].begin(now)
        return min(step.first, most), f"{step.other} in flight {why}"

    def _unused(self, step: _Step, most: int, now: float) -> tuple[int, str]:
        """End a step without a verdict."""
        self._step = None
        if max((look.in_flight for look in self._looks), default=0) > step.first:
            # Something else bounds the calls in flight, and would do so again.
            self._silences[step.other > step.first].rest(now)
        return min(step.first, most), f"{step.other} in flight were not used"

    def _rate(self) -> tuple[float, float]:
        """Generated tokens per second of the looks, and its relative standard error."""
        looks = list(self._looks)
        per_s = (looks[-1].tokens - looks[0].tokens) / (looks[-1].at - looks[0].at)
        rates = [(b.tokens - a.tokens) / (b.at - a.at) for a, b in pairwise(looks)]
        squares = sum((rate / per_s - 1) ** 2 for rate in rates)
        return per_s, math.hypot(1 / self._steps(), math.sqrt(squares / max(1, len(rates) - 1) / len(rates)))


def _look(load: ServerLoad, in_flight: int, now: float) -> _Look | None:
    """Return a report as a look; ``None``: others' sequences are there, or some of ours are not."""
    if load.running is None or load.waiting is None or load.generation_tokens is None or not in_flight:
        return None
    if not _LEAST_SHOWN <= (load.running + load.waiting) / in_flight <= _MOST_SHOWN:
        return None
    cache, preemptions = load.kv_usage_ratio or 0.0, load.preemptions or 0.0
    return _Look(now, load.generation_tokens, load.running, load.waiting, in_flight, cache, preemptions)
