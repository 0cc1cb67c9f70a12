"""A promise about latency: the 95th percentile of answers' times, or of their time to first token.

Rules:
- Time counts from the sending: to send less would only lengthen the wait in the client.
- A window has at least 100 answers, and lasts as long as the objective (5 s at least) unless it has
  1,000. A call given up counts if already longer than the objective.
- A window is judged if the last change was 1.5 times its percentile earlier: sooner, only short
  answers have ended, and any objective seems kept.
- Over the objective, the bound falls by the excess, to a half at most. Well under it a used bound
  rises likewise, by a fifth at most. If more is in flight than the bound allows (a heavy
  call), the bound is not in force, and not judged.
- If in two windows in a row half of the load takes nearly as long, or one call at a time too long,
  load is not the cause. The bound then goes back, and lowers nothing for a minute, then two, up to
  fifteen, until the objective is kept.

Windows, cuts and slow growth are Clipper's (Crankshaw et al., NSDI 2017).
"""

from __future__ import annotations

import math
from typing import NamedTuple

from batchclient._core.limits.base import LATE, USED_RATIO, Cooldown, Outcome, Sample

__all__ = ["Objective"]

_LEAST_ANSWERS = 100
_MOST_ANSWERS = 1000
_LATE_SHARE = 0.05
_SHORTEST_WINDOW_S = 5.0
_LONGEST_GAP_S = 60.0
"""After a longer time without an answer a window begins anew."""
_SETTLED_RATIO = 1.5
_NEARLY = 0.95
"""The share of the objective aimed at; also the share that counts as nearly as long."""
_RISE = 1.2
_COMFORT_RATIO = 0.9


class _Cut(NamedTuple):
    """A window over the objective: its mean load, its percentile, and the bound in force."""

    in_flight: float
    p95_s: float
    load: float


class Objective:
    """Lowers the limit until the 95th percentile keeps to an objective.

    Args:
        p95_s: the objective, seconds.
        first_token: whether the objective is for the time to first token, which plain replies lack.
    """

    def __init__(self, p95_s: float, *, first_token: bool = False) -> None:
        if not p95_s > 0:
            raise ValueError("a latency objective is above 0 seconds")
        self._objective_s = p95_s
        self._first_token = first_token
        self.forget()

    def forget(self) -> None:
        """Start anew: the server was restarted."""
        self.load = math.inf
        """The most sequences in flight that keep the promise; infinite until it was broken."""
        self.reason = ""
        """The reason of the bound; if infinite, why a missed objective bounds nothing."""
        self._changed_at: float | None = None
        self._window = _Window()
        self._cuts: list[_Cut] = []
        """Windows over the objective since it was last kept."""
        self._doubts = False
        """Whether in the last window less load did not help."""
        self._cooldown = Cooldown()

    def on_sample(self, sample: Sample, limit: int) -> bool:
        """Take in an observation under a limit in force; return whether the bound changed."""
        seconds = self._seconds(sample)
        if seconds is None:
            return False
        if self._changed_at is None:
            self._changed_at = sample.sent_at
        if sample.now - self._window.ended > max(_LONGEST_GAP_S, self._objective_s):
            self._window = _Window()
        window = self._window
        window.add(sample, seconds, self._changed_at)
        long_enough = sample.now - window.began >= max(_SHORTEST_WINDOW_S, self._objective_s)
        if window.answers < (_LEAST_ANSWERS if long_enough else _MOST_ANSWERS):
            return False
        self._window = _Window()
        p95_s = window.p95_s()
        settled = window.began - self._changed_at >= _SETTLED_RATIO * p95_s
        changed = settled and window.peak <= max(1.0, self.load) and self._judge(window, p95_s, sample.now)
        if changed:
            self._changed_at = sample.now
        return changed

    def _seconds(self, sample: Sample) -> float | None:
        """Return the seconds that count of a sample, if any."""
        seconds = sample.now - sample.sent_at
        if sample.outcome is Outcome.SUCCESS:
            if not self._first_token:
                return seconds
            return sample.first_tokens_s / sample.sequences if sample.first_tokens_s else None
        # Whether a first token had come before a call was given up is unknown.
        gave_up = (sample.outcome is Outcome.WASTED or sample.outcome in LATE) and not self._first_token
        return seconds if gave_up and seconds > self._objective_s else None

    def _judge(self, window: _Window, p95_s: float, now: float) -> bool:
        """Take in a window; return whether the bound changed."""
        what = "time to first token" if self._first_token else "latency"
        if p95_s > self._objective_s:
            if self._cooldown.lasts(now):
                return False
            return self._lower(window, p95_s, f"p95 {what} {p95_s:.3g} s, {self._objective_s:g} s asked for", now)
        self._cuts.clear()
        self._doubts = False
        self._cooldown.forget()
        if self.load == math.inf:
            self.reason = ""
        elif p95_s < _COMFORT_RATIO * self._objective_s and window.peak >= USED_RATIO * int(self.load):
            self.reason = f"p95 {what} within {self._objective_s:g} s"
            self.load *= min(_RISE, _NEARLY * self._objective_s / p95_s if p95_s else math.inf)
            return True
        return False

    def _lower(self, window: _Window, p95_s: float, reason: str, now: float) -> bool:
        """Lower the bound, or give it up; return whether anything changed."""
        in_flight = window.mean_in_flight
        alike = (cut for cut in self._cuts if in_flight <= cut.in_flight / 2 and p95_s > _NEARLY * cut.p95_s)
        alone = _Cut(in_flight, p95_s, math.inf) if in_flight < _SETTLED_RATIO else None
        back = next(alike, alone)
        if back is None:
            self._doubts = False
            self._cuts.append(_Cut(in_flight, p95_s, self.load))
            ratio = max(1 / 2, _NEARLY * self._objective_s / p95_s)
            least = self.load / 2 if self.load < math.inf else 1.0
            self.load, self.reason = max(1.0, least, ratio * min(self.load, window.peak)), reason
            return True
        if not self._doubts:
            self._doubts = True
            return False
        self.load, self.reason = back.load, f"{reason}; less load hardly lowers it"
        self._cuts.clear()
        self._doubts = False
        self._cooldown.begin(now)
        return True


class _Window:
    """Answers that ended in succession."""

    __slots__ = ("_area", "_times", "answers", "began", "ended", "peak")

    def __init__(self) -> None:
        self._times: list[tuple[float, int]] = []
        self._area = 0.0
        self.answers = 0
        self.began = self.ended = math.inf
        """When the first and the last answer ended."""
        self.peak = 0
        """Most in flight when an answer was sent or ended."""

    def add(self, sample: Sample, seconds: float, changed_at: float) -> None:
        """Take in a sample; the load met before the last change is left out."""
        self._times.append((seconds, sample.sequences))
        self._area += sample.sequences * sample.mean_in_flight
        self.answers += sample.sequences
        self.began, self.ended = min(self.began, sample.now), sample.now
        # Long answers of a burst end in the lull after it.
        met = sample.in_flight_at_sent if sample.sent_at >= changed_at else 0
        self.peak = max(self.peak, sample.in_flight, met)

    @property
    def mean_in_flight(self) -> float:
        """The mean load during service."""
        return self._area / self.answers

    def p95_s(self) -> float:
        """The time which 95 % of the answers did not exceed."""
        left = _LATE_SHARE * self.answers
        for seconds, count in sorted(self._times, reverse=True):
            left -= count
            if left < 0:
                return seconds
        return 0.0
