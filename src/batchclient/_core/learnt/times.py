"""How long calls take at a server, learnt, to refuse a call that can no longer make its deadline before it costs anything.

Rules:
- Per key (what is asked): mean and mean deviation of the seconds from sending to the answer, both exponential, as TCP estimates its
  round trip (Jacobson and Karels; RFC 6298, section 2: weights 1/8 and 1/4).
- RFC 6298 waits for ``mean + 4 × deviation``, which next to no reply exceeds. This asks the opposite: ``mean - 4 × deviation`` is what next to no
  call undercuts. Only a call with less time than that is hopeless. Where times vary much it is 0, and nothing is refused.
- ``mean + 2 × deviation`` is what most calls keep to. With more callers than a server can serve in time, the oldest call in the queue has
  always just about no time left: to serve it is to be late.
- What was given up because its deadline passed took at least that long; else only what was quick would be learnt from.
- Nothing is said before ``_FEWEST`` observations, nor when the last one is older than ``_FORGET_AFTER_S``: a server that has
  recovered is found out by trying.
"""

from __future__ import annotations

from collections import OrderedDict

from batchclient._core.messages import Request

__all__ = ["ServiceTimes", "is_fresh"]

_REMEMBERED_KEYS = 4096
_MEAN_WEIGHT = 1 / 8
_DEVIATION_WEIGHT = 1 / 4
_DEVIATIONS = 4.0
_LIKELY_DEVIATIONS = 2.0
"""About 1.6 standard deviations of a normal distribution: 19 of 20 calls."""
_FEWEST = 8
"""As many as the mean's weight needs to have forgotten most of its first value."""
_FRESH_RATIO = 0.1
_FORGET_AFTER_S = 10.0
"""A choice: a server that was slow is asked again this often."""


def is_fresh(request: Request, now: float) -> bool:
    """Whether a call with a deadline has waited for no more than a tenth of the time that it has left."""
    return request.deadline is None or now - request.queued_at <= _FRESH_RATIO * (request.deadline - now)


class _Times:
    __slots__ = ("count", "deviation_s", "last_at", "mean_s")

    def __init__(self, seconds: float, now: float) -> None:
        self.count = 1
        self.mean_s = seconds
        self.deviation_s = seconds / 2  # RFC 6298, section 2.2
        self.last_at = now


class ServiceTimes:
    """The shortest time in which a call can be expected to be served, by key."""

    __slots__ = ("_times",)

    def __init__(self) -> None:
        self._times: OrderedDict[bytes, _Times] = OrderedDict()

    @property
    def known(self) -> bool:
        """Whether anything was learnt at all."""
        return bool(self._times)

    def learn(self, key: bytes, seconds: float, now: float, count: int = 1) -> None:
        """Some calls were answered so long after they were sent."""
        times = self._times.get(key)
        if times is None:
            self._times[key] = times = _Times(seconds, now)
            times.count = count
            if len(self._times) > _REMEMBERED_KEYS:
                self._times.popitem(last=False)
            return
        times.count += count
        times.deviation_s += _DEVIATION_WEIGHT * (abs(seconds - times.mean_s) - times.deviation_s)
        times.mean_s += _MEAN_WEIGHT * (seconds - times.mean_s)
        times.last_at = now

    def learn_at_least(self, key: bytes, seconds: float, now: float) -> None:
        """A call was given up so long after it was sent."""
        times = self._times.get(key)
        if times is not None and seconds > times.mean_s:
            self.learn(key, seconds, now)

    def likely(self, key: bytes, now: float) -> float:
        """Seconds that most calls with this key keep to; 0 if not enough is known."""
        times = self._times.get(key)
        if times is None or times.count < _FEWEST or now > times.last_at + _FORGET_AFTER_S:
            return 0.0
        return times.mean_s + _LIKELY_DEVIATIONS * times.deviation_s

    def shortest(self, key: bytes, now: float) -> float:
        """Seconds that next to no call with this key undercuts; 0 if not enough is known."""
        times = self._times.get(key)
        if times is None or times.count < _FEWEST or now > times.last_at + _FORGET_AFTER_S:
            return 0.0
        return max(0.0, times.mean_s - _DEVIATIONS * times.deviation_s)
