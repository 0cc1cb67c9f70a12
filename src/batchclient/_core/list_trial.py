"""Whether a server that takes lists serves their prompts at once. Some serve them one after another, while they do serve requests at once.

Rules:
- It looks so where lists of n take at least 0.75 n times as long as a single request whose answer was about as long as theirs are: one
  that happened to be over at once says nothing. Where 16 lists were sent and no such single for five minutes, one call is sent singly to
  find out, and another a second after one that said nothing. A server whose arithmetic is used up looks the same, and so do lists of two
  that had to wait for the step that was under way: looks decide nothing.
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
from collections.abc import Iterable
from typing import NamedTuple

__all__ = ["ListTrial"]

_COMPARED = 16
_SUSPECT_RATIO = 0.75
_LEAST_GAIN = 1.5
_MOST_LOAD = 1.25
_ABOUT_AS_LONG = 1.5
_PROBE_EVERY_S = 1.0
_SINGLE_HOLDS_S = 300.0
_SINGLES_FOR_S = 300.0
_FIRST_PAUSE_S = 300.0
_LONGEST_PAUSE_S = 3600.0
_LONGEST_TRIAL_S = 60.0
_KEPT_KEYS = 16


class _List(NamedTuple):
    """One that was answered whole."""

    prompts: int
    tokens: int
    """Output tokens of all its answers; 0 if nobody counted them."""
    seconds: float
    per_s: float
    load: float


class _Seen:
    """What was seen of one key."""

    __slots__ = ("lists", "single_at", "single_s", "single_tokens")

    def __init__(self) -> None:
        self.lists: deque[_List] = deque(maxlen=_COMPARED)
        """The last ones."""
        self.single_s = math.inf
        """How long the last single request took."""
        self.single_tokens = 0
        self.single_at = -math.inf

    def is_typical(self) -> bool:
        """Whether the last single's answer was about as long as those of lists, or nobody counts their tokens."""
        tokens = _median(each.tokens / each.prompts for each in self.lists)
        return not tokens or tokens / _ABOUT_AS_LONG <= self.single_tokens <= tokens * _ABOUT_AS_LONG

    def looks_serial(self) -> bool:
        """Whether lists take as long as so many singles."""
        return _median(each.seconds / each.prompts for each in self.lists) >= _SUSPECT_RATIO * self.single_s


class ListTrial:
    """Of one endpoint and kind of call."""

    __slots__ = (
        "_again_at", "_counts_from", "_ends_at", "_key", "_pause_s", "_probe", "_probe_again_at", "_seen", "_singles", "_singles_until",
    )  # fmt: skip

    def __init__(self) -> None:
        self._seen: OrderedDict[bytes, _Seen] = OrderedDict()
        self._probe: bytes | None = None
        """The key of which one call is to go singly."""
        self._probe_again_at = -math.inf
        self._key: bytes | None = None
        """That of the trial."""
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
        return now < self._singles_until or key == self._probe or (key == self._key and now < self._ends_at)

    def sent_single(self, key: bytes) -> None:
        """A call has gone singly."""
        if key == self._probe:
            self._probe = None

    def ended(
        self, key: bytes, prompts: int, tokens: int, sent_at: float, per_s: float, load: float, now: float
    ) -> bool:
        """A request was answered whole; return whether lists are given up because of it.

        Args:
            key: its coalescing key.
            prompts: how many prompts it held.
            tokens: output tokens of their answers together; 0 if nobody counted them.
            sent_at: when it was sent.
            per_s: sequences that the endpoint finished meanwhile, per second.
            load: sequences in flight there meanwhile, on average.
            now: the time.
        """
        if self._key is not None and now >= self._ends_at:
            self._end(now)
        seen = self._seen.get(key)
        if seen is None:
            self._seen[key] = seen = _Seen()
            if len(self._seen) > _KEPT_KEYS:
                self._seen.popitem(last=False)
        if prompts > 1:
            seen.lists.append(_List(prompts, tokens, now - sent_at, per_s, load))
            if len(seen.lists) == _COMPARED and self._key is None and now >= max(self._again_at, self._singles_until):
                self._suspect(key, seen, now)
            return False
        seen.single_s, seen.single_tokens, seen.single_at = now - sent_at, tokens, now
        again_at = now + _PROBE_EVERY_S
        if again_at < self._probe_again_at and seen.lists and not seen.is_typical():
            # What was sent to find out may be this one, and it said nothing.
            self._probe_again_at = again_at
        if key == self._key and sent_at >= self._counts_from:
            self._singles.append((per_s, load))
            if len(self._singles) >= _COMPARED:
                return self._judge(seen, now)
        return False

    def _suspect(self, key: bytes, seen: _Seen, now: float) -> None:
        """Begin a trial if lists look as if they were served one prompt after another; where that cannot be said, find out."""
        if now - seen.single_at > _SINGLE_HOLDS_S or not seen.is_typical():
            if now >= self._probe_again_at:
                self._probe = key
                self._probe_again_at = now + _SINGLE_HOLDS_S
        elif seen.looks_serial():
            self._key = key
            self._singles = []
            self._counts_from = now + max(each.seconds for each in seen.lists)
            self._ends_at = self._counts_from + _LONGEST_TRIAL_S

    def _judge(self, seen: _Seen, now: float) -> bool:
        won = False
        if seen.lists:
            gain = _median(per_s for per_s, _ in self._singles) / max(1e-9, _median(each.per_s for each in seen.lists))
            load = _median(load for _, load in self._singles) / max(1e-9, _median(each.load for each in seen.lists))
            won = gain >= _LEAST_GAIN and load <= _MOST_LOAD
        if won:
            self._singles_until = now + _SINGLES_FOR_S
            self._seen.clear()
            self._pause_s = 0.0
        self._end(now)
        return won

    def _end(self, now: float) -> None:
        self._key = None
        self._singles = []
        self._again_at = now + self._pause_s
        self._pause_s = min(_LONGEST_PAUSE_S, max(_FIRST_PAUSE_S, 2 * self._pause_s))


def _median(values: Iterable[float]) -> float:
    """Of at least one. The standard library's takes 10 ms to import."""
    ordered = sorted(values)
    middle = len(ordered) // 2
    return (ordered[middle] + ordered[-middle - 1]) / 2
