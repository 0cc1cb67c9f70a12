"""The reports of a server's metrics page, and this client's part of the queue that stands in it.

Waits beyond a burst add no throughput, and cost priorities, deadlines, cancellation and balance.

Rules:
- A queue stands if a window's *smallest* ``waiting`` is above 2 and above 5 % of this client's
  load. One instant says nothing: each arriving list awaits its prefill (CoDel's insight, Nichols
  and Jacobson 2012).
- It stands only in a full server: the running sequences hardly change, or the KV cache is nearly
  full. Short answers wait a moment for the next step, and a few instants may all be such moments.
- For the work to change, a window has 3 s, or 0.3 of the mean latency if more, and 4 reports.
- Sequences taken by the next step do not stand. With answers of ``t`` tokens a step replaces the
  ``t``-th part of the running: at one token each, half of the load waits a moment at any limit.
- This client's part is its share of the server's sequences. Other clients shorten their own.
- Reports begin anew with another limit, 5 s without a report, and a counter that falls (a restart).
  A server running nothing while work waits (asleep, paused) tells nothing. 5 s after the last
  report nothing is known.

Source: form and constants of the design's controller study (A4.4): the smallest queue of a window,
not its instant, kept a controller from collapsing.
"""

from __future__ import annotations

import math
from collections import deque
from typing import NamedTuple

from batchclient._core.limits.base import Answers, ServerLoad

__all__ = ["STALE_AFTER_S", "Report", "Reports"]

STALE_AFTER_S = 5.0
"""The upper end of the study's 2 to 5 s: a real vLLM short of CPU took up to 2 s for its page; the
next question then follows after 4 s."""
_SHORTEST_WINDOW_S = 3.0
_WINDOW_LATENCIES = 0.3
_LEAST_REPORTS = 4
_LEAST_QUEUE = 2.0
_QUEUE_RATIO = 0.05
_STEADY_RATIO = 0.75
_FULL_KV_RATIO = 0.9
_LEAST_SHOWN, _MOST_SHOWN = 0.8, 1.25
_COUNTERS = ("generation_tokens", "preemptions", "prefix_query_tokens", "prefix_hit_tokens")


class Report(NamedTuple):
    """What the page showed at a time, and how many of the sequences were this client's."""

    at: float
    load: ServerLoad
    in_flight: int

    @property
    def running(self) -> float:
        return self.load.running or 0.0

    @property
    def waiting(self) -> float:
        return self.load.waiting or 0.0

    @property
    def tokens(self) -> float:
        """Generated so far."""
        return self.load.generation_tokens or 0.0

    @property
    def share(self) -> float:
        """This client's share of all that the server holds."""
        if self.load.running is None:
            return 1.0
        return min(1.0, self.in_flight / (self.running + self.waiting or 1.0))

    @property
    def shows_us(self) -> bool:
        """Whether all of ours are shown, and tokens are counted."""
        if self.load.running is None or self.load.generation_tokens is None or not self.in_flight:
            return False
        return (self.running + self.waiting) / self.in_flight >= _LEAST_SHOWN

    @property
    def shows_only_us(self) -> bool:
        """Whether there are hardly others, too."""
        return self.shows_us and (self.running + self.waiting) / self.in_flight <= _MOST_SHOWN

    def standing(self, answer_tokens: float) -> float:
        """Waiting sequences not taken by the next step, as far as this client's answers tell."""
        return self.waiting - self.share * self.running / max(1.0, answer_tokens)


class Reports:
    """The last reports, in a row: none is missing between them, and they are of one limit."""

    def __init__(self, answers: Answers) -> None:
        self._answers = answers
        self.forget()

    def forget(self) -> None:
        """Start anew: the server was restarted."""
        self._last: Report | None = None
        self._limit = 0
        self._restart()

    def _restart(self) -> None:
        self._window: deque[Report] = deque()
        self.began = math.inf
        """When the first report of the row came; infinite: there is none."""

    def add(self, report: Report, limit: int) -> None:
        """Take in a report under a limit."""
        # The smallest queue of an unwatched time is unknown.
        if limit != self._limit or self.are_stale(report.at):
            self._restart()
        fell = self._last is not None and _fell(self._last.load, report.load)
        self._last, self._limit = report, limit
        if fell or report.load.waiting is None or (report.load.running == 0 and report.waiting > 0):
            self._restart()
            return
        window = self._window
        if not window:
            self.began = report.at
        window.append(report)
        while len(window) > _LEAST_REPORTS and window[0].at < report.at - self._length_s:
            window.popleft()

    def are_stale(self, now: float) -> bool:
        """Whether nothing is known of the server now."""
        return self._last is None or now - self._last.at > STALE_AFTER_S

    def our_waiting(self, now: float) -> float:
        """This client's sequences which waited in the server throughout; 0: none or unknown."""
        window = self._window
        if len(window) < _LEAST_REPORTS or self.are_stale(now):
            return 0.0
        if window[-1].at - self.began < self._length_s or not self._is_full():
            return 0.0
        # After older answers it is unknown whether the running ones are alike.
        tokens = self._answers.tokens if self._answers.tokens_at >= now - self._length_s else math.inf
        least = min(report.standing(tokens) for report in window)
        peak = max(report.in_flight for report in window)
        if least <= max(_LEAST_QUEUE, _QUEUE_RATIO * peak):
            return 0.0
        return least * min(report.share for report in window)

    @property
    def most_running(self) -> float:
        """The most sequences that ran at once in the window; 0: not on the page."""
        return max((report.running for report in self._window), default=0.0)

    @property
    def _length_s(self) -> float:
        return max(_SHORTEST_WINDOW_S, _WINDOW_LATENCIES * self._answers.latency_s)

    def _is_full(self) -> bool:
        running = [report.load.running for report in self._window if report.load.running is not None]
        if not running or min(running) >= _STEADY_RATIO * max(running):
            return True
        return all((report.load.kv_usage_ratio or 0.0) >= _FULL_KV_RATIO for report in self._window)


def _fell(before: ServerLoad, after: ServerLoad) -> bool:
    """Whether a counter is lower than before."""
    pairs = ((getattr(before, name), getattr(after, name)) for name in _COUNTERS)
    return any(was is not None and now is not None and now < was for was, now in pairs)
