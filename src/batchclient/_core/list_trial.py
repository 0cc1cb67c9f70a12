"""Whether a server that takes lists serves their prompts at once. Some serve them one after another, while they do serve requests at once.

Rules:
- It looks so where lists cost their prompts and nothing else: the fitted line a + b·n has ``a <= 2 b`` (vLLM's has ``a`` = 12 b for short
  prompts). A server whose arithmetic is used up by long prompts looks the same, so that looks decide nothing.
- What decides is a trial: the next calls of that key go singly until 16 of them have been served beside each other. Both are told by
  their throughput: the sequences that the endpoint finished from when a request was sent until it ended, per second.
- Lists are given up, for five minutes, if the singles' throughput was at least 1.5 times theirs, at no more than 1.25 times the load: more
  in flight is faster on any server. A real vLLM's singles have 0.3 to 1.0 times the throughput of its lists.
- What was sent before the trial is not compared, nor are the singles that were sent while a list may still have been under way.
- After a trial that lists have won there is none for five minutes, then ten, up to an hour: it costs some 30 prompts' worth of lists.

Medians throughout: one hiccup is one request of 16.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from statistics import median

__all__ = ["ListTrial"]

_SUSPECT_RATIO = 2.0
_COMPARED = 16
_LEAST_GAIN = 1.5
_MOST_LOAD = 1.25
_SINGLES_FOR_S = 300.0
_FIRST_PAUSE_S = 300.0
_LONGEST_PAUSE_S = 3600.0
_LONGEST_TRIAL_S = 60.0
_KEPT_KEYS = 16


class ListTrial:
    """Of one endpoint and kind of call."""

    __slots__ = ("_again_at", "_counts_from", "_ends_at", "_key", "_lists", "_pause_s", "_singles", "_singles_until")

    def __init__(self) -> None:
        self._lists: OrderedDict[bytes, deque[tuple[float, float, float]]] = OrderedDict()
        """By key: (seconds, sequences per second, mean load) of the last lists."""
        self._key: bytes | None = None
        self._singles: list[tuple[float, float]] = []
        """(sequences per second, mean load) in the trial."""
        self._counts_from = 0.0
        self._ends_at = -math.inf
        self._singles_until = -math.inf
        self._again_at = -math.inf
        self._pause_s = _FIRST_PAUSE_S

    def __repr__(self) -> str:
        return f"<ListTrial: {len(self._singles)} singles, lists not before {self._singles_until}>"

    def singles(self, key: bytes, now: float) -> bool:
        """Whether calls with this key go singly now."""
        return now < self._singles_until or (key == self._key and now < self._ends_at)

    def begins(self, key: bytes, fit: tuple[float, float] | None, now: float) -> bool:
        """Begin a trial if lists with this key look as if they were served one prompt after another."""
        if fit is None or self._key is not None or now < max(self._again_at, self._singles_until):
            return False
        lists = self._lists.get(key)
        if fit[1] <= 0 or fit[0] > _SUSPECT_RATIO * fit[1] or lists is None or len(lists) < _COMPARED:
            return False
        self._key = key
        self._singles = []
        self._counts_from = now + max(seconds for seconds, _, _ in lists)
        self._ends_at = self._counts_from + _LONGEST_TRIAL_S
        return True

    def ended(self, key: bytes, prompts: int, sent_at: float, per_s: float, load: float, now: float) -> bool:
        """A request was answered whole; return whether lists are given up because of it.

        Args:
            key: its coalescing key.
            prompts: how many prompts it held.
            sent_at: when it was sent.
            per_s: sequences that the endpoint finished meanwhile, per second.
            load: sequences in flight there meanwhile, on average.
            now: the time.
        """
        if self._key is not None and now >= self._ends_at:
            self._end(now)
        if prompts > 1:
            lists = self._lists.get(key)
            if lists is None:
                self._lists[key] = lists = deque(maxlen=_COMPARED)
                if len(self._lists) > _KEPT_KEYS:
                    self._lists.popitem(last=False)
            lists.append((now - sent_at, per_s, load))
        elif key == self._key and sent_at >= self._counts_from:
            self._singles.append((per_s, load))
            if len(self._singles) >= _COMPARED:
                return self._judge(now)
        return False

    def _judge(self, now: float) -> bool:
        assert self._key is not None
        lists = self._lists.get(self._key)
        won = False
        if lists:
            gain = median(per_s for per_s, _ in self._singles) / max(1e-9, median(per_s for _, per_s, _ in lists))
            load = median(load for _, load in self._singles) / max(1e-9, median(load for _, _, load in lists))
            won = gain >= _LEAST_GAIN and load <= _MOST_LOAD
        if won:
            self._singles_until = now + _SINGLES_FOR_S
            self._lists.clear()
            self._pause_s = 0.0
        self._end(now)
        return won

    def _end(self, now: float) -> None:
        self._key = None
        self._singles = []
        self._again_at = now + self._pause_s
        self._pause_s = min(_LONGEST_PAUSE_S, max(_FIRST_PAUSE_S, 2 * self._pause_s))
