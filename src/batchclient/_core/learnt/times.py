"""Learnt times of calls at a server, for refusing a call which can no longer make its deadline.

Rules:
- Each key (kind of question) has the mean and mean deviation of the seconds from sending to the
  answer. Both are exponential, as in TCP's estimate of its round trip (Jacobson and Karels; RFC
  6298, section 2: weights 1/8 and 1/4).
- RFC 6298 waits for ``mean + 4 × deviation``, which next to no reply exceeds. Conversely next to no
  call undercuts ``mean - 4 × deviation``. A call with less time left is hopeless, and refused
  before any cost. If times vary much, the bound is 0: no call is refused.
- Most calls keep to ``mean + 2 × deviation``. With more callers than a server can serve in time,
  the oldest queued call always has just about no time left: to serve it is to be late.
- A call given up at its deadline took at least so long; else only quick calls would count. How
  much longer nobody knows: such a call never makes the deviation smaller, and so no other call
  hopeless.
- No bound is given before ``_FEWEST`` observations, nor when the last is older than
  ``_FORGET_AFTER_S``: trying finds out a recovered server.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict, deque

from batchclient._core.messages import Request

__all__ = ["RecentTimes", "ServiceTimes", "is_fresh"]

_REMEMBERED_KEYS = 4096
_MEAN_WEIGHT = 1 / 8
_DEVIATION_WEIGHT = 1 / 4
_DEVIATIONS = 4.0
_LIKELY_DEVIATIONS = 2.0
"""About 1.6 standard deviations of a normal distribution: 19 of 20 calls."""
_FEWEST = 8
"""So many observations let the mean's weight forget most of the first value."""
_RECENT = 128
_FRESH_RATIO = 0.1
_FORGET_AFTER_S = 10.0
"""A choice: a slow server is asked again this often."""


def is_fresh(request: Request, now: float) -> bool:
    """Whether at most a tenth as much of a call's time is over as is left before its deadline."""
    if request.deadline is None:
        return True
    began_at = request.queued_at if request.timeout_s is None else request.deadline - request.timeout_s
    return now - began_at <= _FRESH_RATIO * (request.deadline - now)


class _Times:
    __slots__ = ("count", "deviation_s", "last_at", "mean_s")

    def __init__(self, seconds: float, now: float) -> None:
        self.count = 1
        self.mean_s = seconds
        self.deviation_s = seconds / 2  # RFC 6298, section 2.2
        self.last_at = now


class ServiceTimes:
    """The shortest and likely times of service, by key."""

    def __init__(self) -> None:
        self._times: OrderedDict[bytes, _Times] = OrderedDict()

    @property
    def known(self) -> bool:
        """Whether anything was learnt at all."""
        return bool(self._times)

    def learn(self, key: bytes, seconds: float, now: float, count: int = 1) -> None:
        """Take in the seconds from sending to the answers of some calls."""
        times = self._times.get(key)
        if times is None:
            self._times[key] = times = _Times(seconds, now)
            times.count = count
            if len(self._times) > _REMEMBERED_KEYS:
                self._times.popitem(last=False)
            return
        self._times.move_to_end(key)
        times.count += count
        times.deviation_s += _DEVIATION_WEIGHT * (abs(seconds - times.mean_s) - times.deviation_s)
        times.mean_s += _MEAN_WEIGHT * (seconds - times.mean_s)
        times.last_at = now

    def learn_at_least(self, key: bytes, seconds: float, now: float) -> None:
        """Take in the seconds from sending to the giving up of a call."""
        times = self._times.get(key)
        if times is not None and seconds > times.mean_s:
            deviation_s = times.deviation_s
            self.learn(key, seconds, now)
            times.deviation_s = max(deviation_s, times.deviation_s)

    def likely(self, key: bytes, now: float) -> float:
        """Seconds which most calls with this key keep to; 0: too little is known."""
        times = self._times.get(key)
        if times is None or times.count < _FEWEST or now > times.last_at + _FORGET_AFTER_S:
            return 0.0
        return times.mean_s + _LIKELY_DEVIATIONS * times.deviation_s

    def shortest(self, key: bytes, now: float) -> float:
        """Seconds which next to no call with this key undercuts; 0: too little is known."""
        times = self._times.get(key)
        if times is None or times.count < _FEWEST or now > times.last_at + _FORGET_AFTER_S:
            return 0.0
        return max(0.0, times.mean_s - _DEVIATIONS * times.deviation_s)


class _Recent:
    __slots__ = ("last_at", "latest", "ordered", "sum_s")

    def __init__(self) -> None:
        self.latest: deque[float] = deque()
        self.ordered: list[float] = []
        self.sum_s = self.last_at = 0.0


class RecentTimes:
    """The latest times of service at one server, by key.

    ``prices`` divides a queue by their mean, and reads off how many took longer than a call may.
    Means of few answers wander, and mean deviations say little of long tails.
    """

    def __init__(self) -> None:
        self._times: OrderedDict[bytes, _Recent] = OrderedDict()

    def learn(self, key: bytes, seconds: float, now: float) -> None:
        """Take in the seconds from sending to an answer."""
        times = self._times.get(key)
        if times is None or now > _kept_until(times):
            self._times[key] = times = _Recent()
            while len(self._times) > _REMEMBERED_KEYS:
                self._times.popitem(last=False)
        times.last_at = now
        times.sum_s += seconds
        times.latest.append(seconds)
        insort(times.ordered, seconds)
        if len(times.latest) > _RECENT:
            oldest = times.latest.popleft()
            times.sum_s -= oldest
            del times.ordered[bisect_left(times.ordered, oldest)]

    def of(self, key: bytes, now: float) -> tuple[float, list[float]] | None:
        """Their mean, and all of them in order, seconds; ``None``: nothing is known (any more)."""
        times = self._times.get(key)
        if times is None or now > _kept_until(times):
            return None
        return times.sum_s / len(times.ordered), times.ordered


def _kept_until(times: _Recent) -> float:
    return times.last_at + max(_FORGET_AFTER_S, 2 * times.ordered[-1])
