"""A bound that keeps a promise about latency: the 95th percentile of what answers take, or of their time to first token.

Rules:
- Time counts from when the request was sent: queueing on our side is not the server's, and sending less would only lengthen it.
- Answers are looked at in windows: at least 100 of them, and as long as the objective (5 s at least) unless there are 1,000. The 95th percentile of
  fewer says little. What somebody gave up on counts if it had taken longer than the objective by then; else nobody knows what it would have taken.
- A window is judged if the last change (or the start) was 1.5 times as long before it as the percentile it shows. Sooner, some of its answers
  were still sent before the change; and those alone that were sent after it and have ended are the short ones: any objective would seem to be kept.
- A window over the objective cuts the cap by as much as it is over (at most to a half), the first time from what was in flight. Time grows no
  faster than load, as a rule: that is rarely too much.
- A window well under it (0.9) raises the cap likewise, by a fifth at most, if it is used (0.8 of it in flight). It is not taken away: where it is
  above the limit it does no harm, and grows no further.
- While more is in flight than the cap allows (a pin holds the limit, a call is heavier) the cap is not in force, and is not judged.
- Where half of the load takes nearly as long (0.95), or one call at a time still too long, two windows in a row, it is not load that takes the time: long
  answers, a slow server, somebody else's calls. The cap goes back to where it was, or is gone if there was none, and is not lowered for five
  minutes, and then for twice as long each time, up to an hour, until the objective has been kept.

Windows, cuts and slow growth are Clipper's (Crankshaw et al., NSDI 2017); the constants were chosen in the laboratory (``benchmarks/lab``).
"""

from __future__ import annotations

import math
from typing import NamedTuple

from batchclient._core.limits.base import Outcome, Sample

__all__ = ["Objective"]

_LEAST_ANSWERS = 100
_MOST_ANSWERS = 1000
_SHORTEST_WINDOW_S = 5.0
_LONGEST_GAP_S = 60.0
"""After a longer time without an answer a window begins anew."""
_SETTLED_RATIO = 1.5
_AIM_RATIO = 0.95
_LARGEST_CUT_RATIO = 0.5
_GROWTH_RATIO = 1.2
_COMFORT_RATIO = 0.9
_USED_RATIO = 0.8
_HALF = 0.5
_AS_LONG_RATIO = 0.95
_ALONE = 1.5
"""Fewer in flight on average are one at a time."""
_SHORTEST_PAUSE_S = 300.0
_LONGEST_PAUSE_S = 3600.0


class _Cut(NamedTuple):
    """A window that was over the objective.

    Args:
        load: mean in flight.
        p95_s: what it took.
        cap: the cap there was.
    """

    load: float
    p95_s: float
    cap: float | None


class Objective:
    """Lowers the limit until the 95th percentile keeps to an objective.

    Args:
        p95_s: the objective, seconds.
        first_token: whether it is about the time to first token; plain replies, which have none, then say nothing.
    """

    __slots__ = (
        "_cap", "_changed_at", "_cuts", "_doubts", "_first_token", "_objective_s", "_pause_s", "_paused_until", "_window", "gave_up", "reason",
    )  # fmt: skip

    def __init__(self, p95_s: float, *, first_token: bool = False) -> None:
        if not p95_s > 0:
            raise ValueError("a latency objective is above 0 seconds")
        self._objective_s = p95_s
        self._first_token = first_token
        self._forget()

    def __repr__(self) -> str:
        return f"<Objective {self._cap}>"

    def _forget(self) -> None:
        self._cap: float | None = None
        self.reason = ""
        self.gave_up = ""
        """Why there is no cap although the objective is not kept."""
        self._changed_at: float | None = None
        self._window = _Window()
        self._cuts: list[_Cut] = []
        """Since the objective was last kept."""
        self._doubts = False
        """Whether the last window already said that less load does not help."""
        self._pause_s = _SHORTEST_PAUSE_S
        self._paused_until = -math.inf

    def on_sample(self, sample: Sample) -> None:
        """Take in one observation."""
        seconds = self._seconds(sample)
        if seconds is None:
            return
        if self._changed_at is None:
            self._changed_at = sample.sent_at
        if sample.now - self._window.ended > max(_LONGEST_GAP_S, self._objective_s):
            self._window = _Window()
        window = self._window
        window.add(sample, seconds, self._changed_at)
        if window.answers < _LEAST_ANSWERS:
            return
        if window.answers < _MOST_ANSWERS and sample.now - window.began < max(_SHORTEST_WINDOW_S, self._objective_s):
            return
        self._window = _Window()
        p95_s = window.p95_s()
        if window.began - self._changed_at >= _SETTLED_RATIO * p95_s:
            self._judge(window, p95_s, sample.now)

    @property
    def load(self) -> float:
        """The most sequences in flight that keep the promise; infinite until it was broken."""
        return math.inf if self._cap is None else self._cap

    def on_restart(self, now: float) -> None:
        """The server was started anew."""
        self._forget()

    def _seconds(self, sample: Sample) -> float | None:
        """What counts of a sample, if anything does."""
        if sample.outcome is Outcome.SUCCESS:
            if not self._first_token:
                return sample.now - sample.sent_at
            return sample.first_tokens_s / sample.sequences if sample.first_tokens_s else None
        if sample.outcome not in (Outcome.WASTED, Outcome.LATE) or self._first_token:
            # Whether a first token had come is not known.
            return None
        seconds = sample.now - sample.sent_at
        return seconds if seconds > self._objective_s else None

    def _judge(self, window: _Window, p95_s: float, now: float) -> None:
        if self._cap is not None and window.peak > int(self._cap):
            return
        what = "time to first token" if self._first_token else "latency"
        over = p95_s > self._objective_s
        if not over:
            self._cuts.clear()
            self._doubts = False
            self.gave_up = ""
            self._pause_s = _SHORTEST_PAUSE_S
            if self._cap is None or p95_s >= _COMFORT_RATIO * self._objective_s:
                return
            if window.peak < _USED_RATIO * int(self._cap):
                return
            ratio = _AIM_RATIO * self._objective_s / p95_s if p95_s else math.inf
            self.reason = f"p95 {what} within {self._objective_s:g} s"
            self._cap *= min(_GROWTH_RATIO, ratio)
        elif now < self._paused_until:
            return
        else:
            self.reason = f"p95 {what} {p95_s:.3g} s, {self._objective_s:g} s asked for"
            if not self._lower(window, p95_s, now):
                return
        self._changed_at = now

    def _lower(self, window: _Window, p95_s: float, now: float) -> bool:
        """Cut, or give up; return whether that changed anything."""
        load, cap = window.mean_in_flight, self._cap
        back = self._as_long_before(load, p95_s)
        if back is not None or load < _ALONE:
            if not self._doubts:
                self._doubts = True
                return False
            self.reason += "; less load hardly lowers it"
            self._cap = back.cap if back is not None else None
            self.gave_up = self.reason if self._cap is None else ""
            self._cuts.clear()
            self._doubts = False
            self._paused_until = now + self._pause_s
            self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)
            return True
        self._doubts = False
        self.gave_up = ""
        self._cuts.append(_Cut(load, p95_s, cap))
        ratio = max(_LARGEST_CUT_RATIO, _AIM_RATIO * self._objective_s / p95_s)
        least = _LARGEST_CUT_RATIO * cap if cap is not None else 1.0
        self._cap = max(1.0, least, ratio * min(cap or math.inf, window.peak))
        return True

    def _as_long_before(self, load: float, p95_s: float) -> _Cut | None:
        """Where twice the load took hardly longer."""
        for cut in self._cuts:
            if load <= _HALF * cut.load and p95_s > _AS_LONG_RATIO * cut.p95_s:
                return cut
        return None


class _Window:
    """Answers that ended one after another."""

    __slots__ = ("_area", "_times", "answers", "began", "ended", "peak")

    def __init__(self) -> None:
        self._times: list[tuple[float, int]] = []
        self._area = 0.0
        self.answers = 0
        self.began = math.inf
        """When the first of them ended."""
        self.ended = math.inf
        """When the last of them ended."""
        self.peak = 0
        """Most in flight when one of them was sent or ended."""

    def add(self, sample: Sample, seconds: float, changed_at: float) -> None:
        """Take in a sample; what was met before the last change is not of this window."""
        self._times.append((seconds, sample.sequences))
        self._area += sample.sequences * sample.mean_in_flight
        self.answers += sample.sequences
        self.began = min(self.began, sample.now)
        self.ended = sample.now
        self.peak = max(self.peak, sample.in_flight)
        if sample.sent_at >= changed_at:
            # Long answers of a burst end in the lull after it.
            self.peak = max(self.peak, sample.in_flight_at_sent)

    @property
    def mean_in_flight(self) -> float:
        """The load that they were served under."""
        return self._area / self.answers

    def p95_s(self) -> float:
        """The time that 95 % of them did not exceed."""
        left = 0.05 * self.answers
        for seconds, count in sorted(self._times, reverse=True):
            left -= count
            if left < 0:
                return seconds
        return 0.0
