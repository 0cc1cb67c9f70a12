"""Our part of the queue that stands in a server, by what its metrics page says.

What waits in the server for longer than a burst does nothing for throughput; it costs priorities, deadlines, cancellation and balance.

Rules:
- A queue stands if the *smallest* ``waiting`` of a window is above 2 and above 5 % of what we have in flight. One instant says nothing: every
  list that arrives waits for its prefill (CoDel's insight, Nichols and Jacobson 2012).
- It stands only where the server is full: its running sequences hardly change, or its KV cache is nearly full. Where answers are
  short, every list waits a moment for the next step, and a few instants may all be such moments.
- The window is as long as the work needs to show a change: 3 s, or 0.3 of the mean latency where that is more; and 4 reports at least.
- What the next step takes does not stand: of answers of ``t`` tokens the ``t``-th part of those that run ends each step, and as many take
  their place. At one token each it is as many as run, so that half of what is in flight waits for a moment whatever the limit is.
- Our part is our share of all that the server holds. What other clients queue is theirs to shorten.
- A server that runs nothing while work waits (asleep, paused) says nothing. A counter that went down means that it was started anew.
- Reports grow stale: 5 s after the last one nothing is known.

Source: the form and the constants are those of the design's controller study (A4.4), which found that the smallest queue of a window, not
its instant, keeps a controller from collapsing.
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
"""The upper end of the study's 2 to 5 s: a real vLLM short of CPU took up to 2 s for its page, and is then asked 4 s later."""


class _Report(NamedTuple):
    at: float
    waiting: float
    running: float | None
    kv_usage_ratio: float | None
    in_flight: int

    @property
    def share(self) -> float:
        """Our share of what the server holds."""
        return (
            min(1.0, self.in_flight / ((self.running or 0.0) + self.waiting or 1.0))
            if self.running is not None
            else 1.0
        )

    def standing(self, answer_tokens: float) -> float:
        """What waits and is not taken by the next step, as far as our own answers can tell."""
        return self.waiting - self.share * (self.running or 0.0) / max(1.0, answer_tokens)


class StandingQueue:
    """What a server's reports say of its queue."""

    __slots__ = ("_answered_at", "_last", "_latency_s", "_tokens", "_window", "_window_from")

    def __init__(self) -> None:
        self._latency_s = self._tokens = 0.0
        """Means over the last answers: seconds, and output tokens."""
        self._answered_at = -math.inf
        self.forget()

    def forget(self) -> None:
        """The server was started anew."""
        self._last: ServerLoad | None = None
        self.restart()

    def restart(self) -> None:
        """What is in flight has changed: what the server said before is of another load."""
        self._window: deque[_Report] = deque()
        self._window_from = math.inf

    def on_sample(self, sample: Sample) -> None:
        """Take in one observation: how long answers take and how many tokens they have."""
        if self._last is None or sample.outcome is not Outcome.SUCCESS:
            # A server that has no page costs nothing here.
            return
        seconds = sample.now - sample.sent_at
        self._latency_s += NEWEST_SHARE * (seconds - self._latency_s) if self._latency_s else seconds
        if sample.completion_tokens > 0:
            tokens = sample.completion_tokens / sample.sequences
            self._tokens += NEWEST_SHARE * (tokens - self._tokens) if self._tokens else tokens
            self._answered_at = sample.now

    def on_load(self, load: ServerLoad, in_flight: int, now: float) -> None:
        """Take in a report; ``in_flight`` of the server's sequences are ours."""
        if self._last is not None and _went_down(self._last, load):
            self.forget()
        self._last = load
        window = self._window
        if load.waiting is None or (load.running == 0 and load.waiting > 0):
            self.restart()
            return
        if window and now - window[-1].at > _STALE_AFTER_S:
            # The smallest queue of a time in which nobody looked is not known.
            self.restart()
            window = self._window
        if not window:
            self._window_from = now
        window.append(_Report(now, load.waiting, load.running, load.kv_usage_ratio, in_flight))
        while len(window) > _LEAST_REPORTS and window[0].at < now - self._length_s:
            window.popleft()

    def ours(self, now: float) -> float:
        """How many of our sequences have waited in the server all the time; 0: none, or it is not known."""
        window = self._window
        if len(window) < _LEAST_REPORTS or now - window[-1].at > _STALE_AFTER_S:
            return 0.0
        if window[-1].at - self._window_from < self._length_s or not self._is_full():
            return 0.0
        # Of answers that ended before the window it is not known whether those that run are like them.
        tokens = self._tokens if self._tokens and self._answered_at >= now - self._length_s else math.inf
        least = min(report.standing(tokens) for report in window)
        peak = max(report.in_flight for report in window)
        if least <= max(_LEAST_QUEUE, _QUEUE_RATIO * peak):
            return 0.0
        return least * min(report.share for report in window)

    @property
    def _length_s(self) -> float:
        return max(_SHORTEST_WINDOW_S, _WINDOW_LATENCIES * self._latency_s)

    def _is_full(self) -> bool:
        running = [report.running for report in self._window if report.running is not None]
        if not running or min(running) >= _STEADY_RATIO * max(running):
            return True
        return all((report.kv_usage_ratio or 0.0) >= _FULL_KV_RATIO for report in self._window)


def _went_down(last: ServerLoad, load: ServerLoad) -> bool:
    """Whether a counter is lower than it was."""
    names = ("generation_tokens", "preemptions", "prefix_query_tokens", "prefix_hit_tokens")
    pairs = ((getattr(last, name), getattr(load, name)) for name in names)
    return any(before is not None and after is not None and after < before for before, after in pairs)
