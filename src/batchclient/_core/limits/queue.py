"""This client's part of the queue that stands in a server, by the server's metrics page.

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
- A server running nothing while work waits (asleep, paused) tells nothing. A lower counter means a
  restart. Reports grow stale: 5 s after the last nothing is known.

Source: form and constants of the design's controller study (A4.4): the smallest queue of a window,
not its instant, kept a controller from collapsing.
"""

from __future__ import annotations

import math
from collections import deque
from typing import NamedTuple

from batchclient._core.limits.base import NEWEST_SHARE, Outcome, Sample, ServerLoad

__all__ = ["StandingQueue"]

_SHORTEST_WINDOW_S = 3.0
_WINDOW_LATENCIES = 0.3
_LEAST_REPORTS = 4
_LEAST_QUEUE = 2.0
_QUEUE_RATIO = 0.05
_STEADY_RATIO = 0.75
_FULL_KV_RATIO = 0.9
_STALE_AFTER_S = 5.0
"""The upper end of the study's 2 to 5 s: a real vLLM short of CPU took up to 2 s for its page; the
next question then follows after 4 s."""


class _Report(NamedTuple):
    at: float
    waiting: float
    running: float | None
    kv_usage_ratio: float | None
    in_flight: int

    @property
    def share(self) -> float:
        """This client's share of all that the server holds."""
        return (
            min(1.0, self.in_flight / ((self.running or 0.0) + self.waiting or 1.0))
            if self.running is not None
            else 1.0
        )

    def standing(self, answer_tokens: float) -> float:
        """Waiting sequences not taken by the next step, as far as this client's answers tell."""
        return self.waiting - self.share * (self.running or 0.0) / max(1.0, answer_tokens)


class StandingQueue:
    """The queue in a server, by its reports."""

    __slots__ = ("_answered_at", "_last", "_latency_s", "_tokens", "_window", "_window_from")

    def __init__(self) -> None:
        self._latency_s = self._tokens = 0.0
        """Means over the last answers: seconds, and output tokens."""
        self._answered_at = -math.inf
        self.forget()

    def forget(self) -> None:
        """Start anew: the server was restarted."""
        self._last: ServerLoad | None = None
        self.restart()

    def restart(self) -> None:
        """Drop the reports: the sequences in flight have changed."""
        self._window: deque[_Report] = deque()
        self._window_from = math.inf

    def on_sample(self, sample: Sample) -> None:
        """Take in one observation: the time and tokens of answers."""
        if self._last is None or sample.outcome is not Outcome.SUCCESS:
            # A server without a page costs nothing here.
            return
        seconds = sample.now - sample.sent_at
        self._latency_s += NEWEST_SHARE * (seconds - self._latency_s) if self._latency_s else seconds
        if sample.completion_tokens > 0:
            tokens = sample.completion_tokens / sample.sequences
            self._tokens += NEWEST_SHARE * (tokens - self._tokens) if self._tokens else tokens
            self._answered_at = sample.now

    def on_load(self, load: ServerLoad, in_flight: int, now: float) -> None:
        """Take in a report; ``in_flight`` of the server's sequences are this client's."""
        if self._last is not None and _went_down(self._last, load):
            self.forget()
        self._last = load
        window = self._window
        if load.waiting is None or (load.running == 0 and load.waiting > 0):
            self.restart()
            return
        if window and now - window[-1].at > _STALE_AFTER_S:
            # The smallest queue of an unwatched time is unknown.
            self.restart()
            window = self._window
        if not window:
            self._window_from = now
        window.append(_Report(now, load.waiting, load.running, load.kv_usage_ratio, in_flight))
        while len(window) > _LEAST_REPORTS and window[0].at < now - self._length_s:
            window.popleft()

    def ours(self, now: float) -> float:
        """This client's sequences which waited in the server throughout; 0: none or unknown."""
        window = self._window
        if len(window) < _LEAST_REPORTS or now - window[-1].at > _STALE_AFTER_S:
            return 0.0
        if window[-1].at - self._window_from < self._length_s or not self._is_full():
            return 0.0
        # After older answers it is unknown whether the running ones are alike.
        tokens = self._tokens if self._tokens and self._answered_at >= now - self._length_s else math.inf
        least = min(report.standing(tokens) for report in window)
        peak = max(report.in_flight for report in window)
        if least <= max(_LEAST_QUEUE, _QUEUE_RATIO * peak):
            return 0.0
        return least * min(report.share for report in window)

    @property
    def most_running(self) -> float:
        """The most sequences that ran at once in the window; 0: not on the page."""
        return max((report.running or 0.0 for report in self._window), default=0.0)

    @property
    def _length_s(self) -> float:
        return max(_SHORTEST_WINDOW_S, _WINDOW_LATENCIES * self._latency_s)

    def _is_full(self) -> bool:
        running = [report.running for report in self._window if report.running is not None]
        if not running or min(running) >= _STEADY_RATIO * max(running):
            return True
        return all((report.kv_usage_ratio or 0.0) >= _FULL_KV_RATIO for report in self._window)


def _went_down(last: ServerLoad, load: ServerLoad) -> bool:
    """Whether a counter is lower than before."""
    names = ("generation_tokens", "preemptions", "prefix_query_tokens", "prefix_hit_tokens")
    pairs = ((getattr(last, name), getattr(load, name)) for name in names)
    return any(before is not None and after is not None and after < before for before, after in pairs)
