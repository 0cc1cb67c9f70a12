"""What a server says of its own load, and what that says about the limit: it only ever lowers it.

The standing queue. What waits in the server for longer than a burst does nothing for throughput; it costs priorities, deadlines,
cancellation and balance.
- A queue stands if the *smallest* ``waiting`` of a window is above the threshold. One instant says nothing: every list that arrives
  waits for its prefill (CoDel's insight, Nichols and Jacobson 2012).
- It stands only where the server is full: its running sequences hardly change (the smallest number of the window is 0.75 of the largest or
  more), or its KV cache is (0.9). Where answers are short, every list waits a moment for the next step, and a few instants may all be
  such moments.
- The window is as long as the work needs to show a change: 3 s, or 0.3 of the mean latency where that is more; and 4 reports at least.
- Then ``cap = in flight - own share * smallest waiting + 5 %``, at least 0.8 of what was in flight. In flight is the window's peak:
  where permits are refilled in lots, the peak is what the limit allows and the smallest queue goes with the trough, so that a
  server's slots stay full in the trough as well. Each cut is followed by a fresh window.
- What the next step takes does not stand: of answers of ``t`` tokens the ``t``-th part of those that run ends each step, and as many take their place. At
  one token each it is as many as run, so that half of what is in flight waits for a moment whatever the limit is.
- The 5 % stay because a small queue is what refills a slot the moment it comes free.
- Own share: in flight over all the server holds. What other clients queue is theirs to shorten, and shortening ours would not help:
  the cap never goes below half of what the server runs.
- The cap grows by 2 % per report while the window's smallest queue is 0, if it is used (0.8 of it in flight).
- A server that runs nothing while work waits (asleep, paused) says nothing about the limit.

Reports grow stale: after 5 s without one there is no cap. A counter that went down means that the server was restarted: what was
learnt of it is forgotten.

Source: the form and constants are those of the design's controller study (A4.4), which found that the smallest queue of a window, not
its instant, keeps a controller from collapsing.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

from batchclient._core.limits.base import Outcome, Sample

__all__ = ["LoadCap", "ServerLoad"]

_SHORTEST_WINDOW_S = 3.0
_WINDOW_LATENCIES = 0.3
_LEAST_QUEUE = 2.0
_QUEUE_RATIO = 0.05
_LARGEST_CUT_RATIO = 0.2
_GROWTH_RATIO = 0.02
_USED_RATIO = 0.8
_OTHERS_FLOOR_RATIO = 0.5
_STEADY_RATIO = 0.75
_FULL_KV_RATIO = 0.9
_LEAST_REPORTS = 4
STALE_AFTER_S = 5.0
"""The upper end of the study's 2 to 5 s: a real vLLM short of CPU took up to 2 s for its page, and is then asked 4 s later."""
_ANSWERS_KEPT = 256
_NEWEST_SHARE = 0.1


@dataclass(frozen=True, slots=True)
class ServerLoad:
    """One report of a server. ``None``: it does not say.

    Args:
        running: sequences it works on.
        waiting: sequences in its queue.
        kv_usage_ratio: how much of its KV cache is in use, 0 to 1.
        kv_capacity_tokens: what the KV cache holds.
        preemptions: sequences thrown out of it so far.
        generation_tokens: generated so far.
        prefix_hit_tokens: prompt tokens found in the prefix cache so far.
        prefix_query_tokens: prompt tokens looked up in it.
    """

    running: float | None = None
    waiting: float | None = None
    kv_usage_ratio: float | None = None
    kv_capacity_tokens: float | None = None
    preemptions: float | None = None
    generation_tokens: float | None = None
    prefix_hit_tokens: float | None = None
    prefix_query_tokens: float | None = None


class _Report(NamedTuple):
    at: float
    waiting: float
    running: float | None
    kv_usage_ratio: float | None
    in_flight: int

    def next_step(self, answer_tokens: float) -> float:
        """How many of the queue the server's next step takes, as far as our own answers can tell."""
        if not self.running:
            return 0.0
        ours = min(1.0, self.in_flight / (self.running + self.waiting))
        return ours * self.running / max(1.0, answer_tokens)

    @property
    def kv_full(self) -> bool:
        return self.kv_usage_ratio is not None and self.kv_usage_ratio >= _FULL_KV_RATIO


class LoadCap:
    """What a server's reports say about the limit. A ``Cap``."""

    __slots__ = (
        "_answered_at",
        "_counted",
        "_heard_at",
        "_last",
        "_latency_s",
        "_queue_cap",
        "_queue_reason",
        "_tokens",
        "_window",
        "_window_from",
    )

    def __init__(self) -> None:
        self._latency_s = 0.0
        self._answered_at = -math.inf
        # Decayed sums over answers: how many, and their output tokens.
        self._counted = 0.0
        self._tokens = 0.0
        self._forget()

    def __repr__(self) -> str:
        return f"<LoadCap queue {self._queue_cap}, {len(self._window)} reports>"

    def _forget(self) -> None:
        self._heard_at = -math.inf
        self._last: ServerLoad | None = None
        self._queue_cap: float | None = None
        self._queue_reason = ""
        self._window: deque[_Report] = deque()
        self._window_from = math.inf

    def on_sample(self, sample: Sample) -> None:
        """Take in one observation: how long answers take and how many tokens they have."""
        if self._last is None or sample.outcome is not Outcome.SUCCESS:
            # A server that has no page costs nothing here.
            return
        seconds = sample.now - sample.sent_at
        self._latency_s += _NEWEST_SHARE * (seconds - self._latency_s) if self._latency_s else seconds
        made = sample.completion_tokens
        if made <= 0:
            return
        count = sample.sequences
        keep = 1.0 - 1.0 / _ANSWERS_KEPT if count == 1 else (1.0 - 1.0 / _ANSWERS_KEPT) ** count
        self._counted = self._counted * keep + count
        self._tokens = self._tokens * keep + made
        self._answered_at = sample.now

    def on_load(self, load: ServerLoad, in_flight: int, now: float) -> None:
        """Take in a report.

        Args:
            load: what the server said.
            in_flight: our own sequences it has now.
            now: seconds.
        """
        last = self._last
        if last is not None and _went_down(last, load):
            self._forget()
            last = None
        if now - self._heard_at > STALE_AFTER_S:
            # The smallest queue of a time in which nobody looked is not known.
            self._restart_window()
        self._last = load
        self._heard_at = now
        if load.waiting is None:
            self._restart_window()
            self._queue_cap = None
        else:
            self._watch_queue(_Report(now, load.waiting, load.running, load.kv_usage_ratio, in_flight), now)

    def on_restart(self, now: float) -> None:
        """The server was started anew."""
        self._forget()

    def cap(self, now: float) -> tuple[int, str] | None:
        """The most sequences in flight, and why; ``None``: no opinion, or none that is fresh."""
        if self._queue_cap is None or now - self._heard_at > STALE_AFTER_S:
            return None
        return max(1, int(self._queue_cap)), self._queue_reason

    # The standing queue --------------------------------------------------------------------------------------------

    def _restart_window(self) -> None:
        self._window.clear()
        self._window_from = math.inf

    def _watch_queue(self, report: _Report, now: float) -> None:
        if report.running == 0 and report.waiting > 0:
            self._restart_window()
            return
        window = self._window
        if not window:
            self._window_from = now
        window.append(report)
        length_s = max(_SHORTEST_WINDOW_S, _WINDOW_LATENCIES * self._latency_s)
        while len(window) > _LEAST_REPORTS and window[0].at < now - length_s:
            window.popleft()
        if now - self._window_from < length_s or len(window) < _LEAST_REPORTS:
            return
        # Of answers that ended before the window it is not known whether those that run are like them.
        answer_tokens = self._tokens / self._counted if self._answered_at >= now - length_s else math.inf
        least = min(each.waiting - each.next_step(answer_tokens) for each in window)
        peak = max(each.in_flight for each in window)
        if not peak:
            return
        if least > max(_LEAST_QUEUE, _QUEUE_RATIO * peak) and self._is_full():
            self._cut(report, least, peak)
        elif least <= 0 and self._queue_cap is not None and peak >= _USED_RATIO * self._queue_cap:
            self._queue_cap *= 1.0 + _GROWTH_RATIO
            empty = min(each.waiting for each in window) == 0
            self._queue_reason = "the server's queue ran empty" if empty else "the server's next step takes its queue"

    def _is_full(self) -> bool:
        window = self._window
        running = [report.running for report in window if report.running is not None]
        if not running or min(running) >= _STEADY_RATIO * max(running):
            return True
        return all(report.kv_full for report in window)

    def _cut(self, report: _Report, least: float, peak: int) -> None:
        share = 1.0
        lowest = (1.0 - _LARGEST_CUT_RATIO) * peak
        if report.running is not None:
            share = min(1.0, peak / (report.running + report.waiting))
            lowest = max(lowest, _OTHERS_FLOOR_RATIO * report.running)
        wanted = max(peak - share * least + max(1.0, _QUEUE_RATIO * peak), lowest)
        if wanted < (self._queue_cap or math.inf):
            self._queue_cap = wanted
            fewest = min(each.waiting for each in self._window)
            self._queue_reason = f"the server's queue never held fewer than {fewest:.0f}"
            if fewest - least >= 1:
                self._queue_reason += f", {fewest - least:.0f} of them for the next step"
        self._restart_window()


def _went_down(last: ServerLoad, load: ServerLoad) -> bool:
    """Whether a counter is lower than it was."""
    for before, after in (
        (last.generation_tokens, load.generation_tokens),
        (last.preemptions, load.preemptions),
        (last.prefix_query_tokens, load.prefix_query_tokens),
        (last.prefix_hit_tokens, load.prefix_hit_tokens),
    ):
        if before is not None and after is not None and after < before:
            return True
    return False
