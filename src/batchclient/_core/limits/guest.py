"""A guest's bound: what the server runs, less what others may want.

For example at a server that runs 64: alone a guest has 63 in flight; beside a colleague's chat 62,
so that another one finds a place; beside ten sequences of others 49.

Rules, all by the server's page (a report each half second):
- The *capacity* is the most that ran while something waited: three reports in a row show at least
  one that the next step does not take (``reports``), and what runs hardly changes, or the KV cache
  is full. If more is seen to run, it is more. If much less is generated with it, the queue had
  another reason, such as long prompts: it is not known for a minute, then two, up to fifteen.
- Beside others what runs while something waits is taken for it at once, until nothing waits; but
  not if more was seen to run with nothing waiting: then the waiting ones have just arrived. The
  third such glimpse in 5 s counts as three reports in a row.
- While it is not known the search's steps move the limit, from a small start.
- *Others* are what runs and waits, less this client's: the most in flight since just before the
  page was asked for, since a page is older than its arrival. Others count for 5 s.
- A guest keeps off 1.5 times as many places as others have, and at least one. Where others have
  much, it may have what they leave but one, up to two fifths of the capacity. So others that fill a
  half do not leave a half idle, and several guests come to equal shares: who has more leaves half
  of what the other has, which the other takes. The last place is taken by who has next to none.
- Less holds at once, more comes by a sixteenth at each report.
- A capacity that is used while nothing waits rises by a twentieth at a time, a minute after it was
  found, then two, up to fifteen: sequences that became shorter may let more run.
"""

from __future__ import annotations

import math
from collections import deque
from typing import NamedTuple

from batchclient._core.limits.base import Answers, Cooldown, Sample
from batchclient._core.limits.reports import STALE_AFTER_S, Report

__all__ = ["GUEST_START", "Guest"]

GUEST_START = 16
"""Where the search begins for a guest: few enough for a server that others use."""

_SEEN_S = 5.0
_SPARE_RATIO = 1.5
_MOST_RATIO = 0.4
"""With this share, two guests leave just the spare of each other."""
_STEP = 1 / 16
"""Who has less than this share has next to none."""
_PAGE_AGE_S = 0.1
"""A page may show the state after the engine's last step."""
_LEAST_REPORTS = 3
_STEADY_RATIO = 0.9
_FULL_KV_RATIO, _MUCH_KV_RATIO = 0.9, 0.8
_HELD_RATIO, _LEAST_HELD_RATIO = 0.95, 0.8
"""Of the tokens per second: while a queue still stands, and in any case."""
_RISE = 0.05
_RISE_AFTER_S = 4.0


class _Look(NamedTuple):
    """A report: sequences of others, tokens so far, and what ran if nothing waited, else 0."""

    at: float
    others: float
    tokens: float
    ran: float


class Guest:
    """The bound of one endpoint's limit while its client is a guest there.

    Args:
        answers: the server's.
    """

    def __init__(self, answers: Answers) -> None:
        self._answers = answers
        self._rises_rest, self._capacity_rests = Cooldown(), Cooldown()
        self.forget()

    def forget(self) -> None:
        """Start anew: the server was restarted."""
        self.load = math.inf
        """Sequences in flight; infinite: the capacity is not known."""
        self.reason = ""
        self._capacity = 0.0
        """What the server runs at once; 0: not known."""
        self._is_glimpse = False
        """Whether a single report told it, of a queue that has not ended since."""
        self._load_before = math.inf
        """The load before that report."""
        self._raised_at = -math.inf
        self._is_raised = False
        """Whether it is a guess."""
        self._judge_at, self._was_per_s = math.inf, 0.0
        """When the capacity is judged, and the generated tokens per second before it was learnt."""
        self._looks: deque[_Look] = deque()
        self._queue: deque[Report] = deque(maxlen=_LEAST_REPORTS)
        """The last reports, as far as each shows a queue."""
        self._glimpses: deque[Report] = deque(maxlen=_LEAST_REPORTS)
        self._ended: deque[tuple[float, int]] = deque(maxlen=64)
        """What this client had in flight, by the time at which some of it ended."""
        self._rises_rest.forget()
        self._capacity_rests.forget()

    @property
    def capacity(self) -> float:
        """What the server runs at once; 0: not known."""
        return self._capacity

    def on_sample(self, sample: Sample, limit: int) -> bool:
        """Note what was in flight; a guest's bound moves with reports alone."""
        self._ended.append((sample.now, sample.in_flight))
        return False

    def on_report(self, report: Report, took_s: float) -> None:
        """Take in a report, asked for ``took_s`` ago."""
        now, looks = report.at, self._looks
        if looks and now - looks[-1].at > STALE_AFTER_S:
            self._queue.clear()
        since = now - took_s - _PAGE_AGE_S
        ours = max([report.in_flight, *(held for at, held in self._ended if at >= since)])
        self._see_queue(report)
        ran = 0.0 if self._queue else report.running
        looks.append(_Look(now, max(0.0, report.running + report.waiting - ours), report.tokens, ran))
        while looks[0].at < now - _SEEN_S:
            looks.popleft()
        others = max(look.others for look in looks)
        self._judge(now, others)
        self._measure(report, others)
        self._rise(report)
        self._bound(others)

    def _judge(self, now: float, others: float) -> None:
        """Forget a capacity that does not hold."""
        if now >= self._judge_at:
            self._judge_at = math.inf
            held = self._per_s / max(1.0, self._was_per_s)
            if not others and held < (_HELD_RATIO if self._queue else _LEAST_HELD_RATIO):
                self._capacity = 0.0
                self._capacity_rests.begin(now)

    @property
    def _per_s(self) -> float:
        first, last = self._looks[0], self._looks[-1]
        return (last.tokens - first.tokens) / max(1.0, last.at - first.at)

    def _see_queue(self, report: Report) -> None:
        # After older answers it is unknown whether the running ones are alike.
        is_known = self._answers.tokens_at >= report.at - STALE_AFTER_S
        if report.standing(self._answers.tokens if is_known else math.inf) < 1 or not report.running:
            self._queue.clear()
        else:
            self._queue.append(report)

    def _measure(self, report: Report, others: float) -> None:
        """Learn the capacity: more where more runs, less where a queue stands."""
        queue, known, now = self._queue, self._capacity, report.at
        if known:
            self._capacity = max(known, report.running)
        if self._is_glimpse and not queue:
            self._capacity, self._is_glimpse, self.load = 0.0, False, self._load_before
        elif queue and others and not known and report.running >= max(look.ran for look in self._looks):
            self._capacity, self._is_glimpse, self._load_before = report.running, True, self.load
            self._glimpses.append(report)
            if len(self._glimpses) == _LEAST_REPORTS and now - self._glimpses[0].at <= _SEEN_S:
                queue = self._glimpses
        if len(queue) < _LEAST_REPORTS:
            return
        runs = [each.running for each in queue]
        most = max(runs)
        is_full = all((each.load.kv_usage_ratio or 0.0) >= _FULL_KV_RATIO for each in queue)
        is_new = (not known or self._is_raised or self._is_glimpse) and not self._capacity_rests.lasts(now)
        if (is_new and min(runs) >= _STEADY_RATIO * most - 1) or (is_full and (is_new or most < known)):
            if not known or self._is_glimpse:
                self._judge_at, self._was_per_s = now + _SEEN_S + 1, self._per_s
            self._capacity, self._is_glimpse, self._is_raised = most, False, False
            self._rises_rest.begin(now)

    def _rise(self, report: Report) -> None:
        """Try a little more, where nearly all of it is used, and nothing speaks against it."""
        now, rise = report.at, max(1.0, _RISE * self._capacity)
        is_used = 0 < self._capacity <= report.running + 1 + rise
        is_full = self._queue or (report.load.kv_usage_ratio or 0.0) >= _MUCH_KV_RATIO
        pause_s = _RISE_AFTER_S + self._answers.latency_s
        if is_used and not is_full and not self._rises_rest.lasts(now) and now - self._raised_at >= pause_s:
            self._capacity += rise
            self._is_raised, self._raised_at = True, now

    def _bound(self, others: float) -> None:
        capacity, left = self._capacity, self._capacity - others
        more = self.load + max(1.0, _STEP * (capacity or self.load))
        if not capacity:
            # The reason is that of the search.
            self.load, self.reason = more, "" if more == math.inf else "a guest: more may run"
            return
        load = max(
            capacity - max(1, math.ceil(_SPARE_RATIO * others)),
            min(left - 1, _MOST_RATIO * capacity),
            min(left, _STEP * capacity),
            1.0,
        )
        self.load = min(load, more)
        self.reason = f"a guest: the server runs {capacity:.0f}, and others have {others:.0f}"
