"""Whether a server that takes lists serves their prompts at once. Some serve them one after another, while they do serve requests at once.

Rules:
- It looks so where lists of n take at least 0.75 n times as long as a single request would with an answer as long as theirs are. What that
  takes is known within bounds: time is a fixed part and one per token, so that ``k`` times the tokens take between once and ``k`` times as
  long. Where it looks so at one bound and not at the other, or no single was seen for five minutes, one call is sent singly to find out:
  again after twice as long as the longest list took, then after twice that, up to five minutes. The single kept is that nearest in length.
  A server whose arithmetic is used up looks the same, and so do lists of two that had to wait for the step that was under way: looks
  decide nothing.
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
_NEW = 4
"""The 16 are looked at again when so many of them are new: medians cost more than all else that is done for a list."""
_SUSPECT_RATIO = 0.75
_LEAST_GAIN = 1.5
_MOST_LOAD = 1.25
_SHORTEST_WAIT_S = 1.0
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

    __slots__ = ("lists", "new", "probe_again_at", "probe_wait_s", "probes", "single_at", "single_s", "single_tokens")

    def __init__(self) -> None:
        self.lists: deque[_List] = deque(maxlen=_COMPARED)
        """The last ones."""
        self.new = 0
        """How many of them came since they were last looked at; after another single, enough."""
        self.single_s = math.inf
        """How long the single that is kept took."""
        self.single_tokens = 0
        self.single_at = -math.inf
        self.probes = False
        """Whether the next call is to go singly to find out."""
        self.probe_wait_s = 0.0
        """Between the last probe and the next."""
        self.probe_again_at = -math.inf

    def take_single(self, tokens: int, seconds: float, now: float) -> None:
        """Keep a single unless the one that is kept says more: its answer was nearer in length to those of lists."""
        length = self._length()
        if (
            now - self.single_at > _SINGLE_HOLDS_S
            or not length
            or _ratio(tokens, length) <= _ratio(self.single_tokens, length)
        ):
            self.single_s, self.single_tokens, self.single_at = seconds, tokens, now
            self.new = _NEW

    def looks_serial(self, now: float) -> bool | None:
        """Whether a list takes as long as so many singles; ``None``: the single that is kept cannot tell."""
        if now - self.single_at > _SINGLE_HOLDS_S:
            return None
        prompt_s = _median(each.seconds / each.prompts for each in self.lists)
        length = self._length()
        # Where nobody counts tokens they are taken to be as many.
        longer = length / self.single_tokens if length and self.single_tokens else 1.0
        if prompt_s >= _SUSPECT_RATIO * self.single_s * max(1.0, longer):
            return True
        if prompt_s < _SUSPECT_RATIO * self.single_s * min(1.0, longer):
            return False
        return None

    def probe(self, now: float) -> None:
        """Have a call sent singly, if the last one that was has had its time."""
        if now < self.probe_again_at:
            return
        last_s = self.probe_wait_s if now - self.probe_again_at < _SINGLE_HOLDS_S else 0.0
        longest_s = max(each.seconds for each in self.lists)
        self.probe_wait_s = min(_SINGLE_HOLDS_S, max(_SHORTEST_WAIT_S, 2 * longest_s, 2 * last_s))
        self.probe_again_at = now + self.probe_wait_s
        self.probes = True

    def _length(self) -> float:
        """Output tokens of an answer in a list; 0 if nobody counts them."""
        return _median(each.tokens / each.prompts for each in self.lists) if self.lists else 0.0


class ListTrial:
    """Of one endpoint and kind of call."""

    __slots__ = (
        "_again_at", "_counts_from", "_ends_at", "_key", "_pause_s", "_seen", "_singles", "_singles_until",
    )  # fmt: skip

    def __init__(self) -> None:
        self._seen: OrderedDict[bytes, _Seen] = OrderedDict()
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
        if now < self._singles_until or (key == self._key and now < self._ends_at):
            return True
        seen = self._seen.get(key)
        return seen is not None and seen.probes

    def sent_single(self, key: bytes) -> None:
        """A call has gone singly."""
        seen = self._seen.get(key)
        if seen is not None:
            seen.probes = False

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
            seen.new += 1
            if seen.new >= _NEW and len(seen.lists) == _COMPARED and self._key is None:
                seen.new = 0
                if now >= max(self._again_at, self._singles_until):
                    self._suspect(key, seen, now)
            return False
        seen.take_single(tokens, now - sent_at, now)
        if key == self._key and sent_at >= self._counts_from:
            self._singles.append((per_s, load))
            if len(self._singles) >= _COMPARED:
                return self._judge(seen, now)
        return False

    def _suspect(self, key: bytes, seen: _Seen, now: float) -> None:
        """Begin a trial if lists look as if they were served one prompt after another; where that cannot be said, find out."""
        looks = seen.looks_serial(now)
        if looks is None:
            seen.probe(now)
        elif looks:
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


def _ratio(one: float, other: float) -> float:
    """How many times as large the larger is."""
    return max(one, other) / min(one, other) if one and other else math.inf


def _median(values: Iterable[float]) -> float:
    """Of at least one. The standard library's takes 10 ms to import."""
    ordered = sorted(values)
    middle = len(ordered) // 2
    return (ordered[middle] + ordered[-middle - 1]) / 2
