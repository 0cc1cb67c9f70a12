"""Requests and tokens per minute: what an endpoint may be sent, besides what may be in flight there.

Rules:
- A token bucket for each: it fills at the rate and holds a burst of a tenth of a minute's worth, at least one request. It is full at
  the start.
- A list is one request. While requests are what is short, calls and permits gather, and the next list takes as many as there are permits
  and the list cap allow: nothing has to make lists longer, it is enough not to send before a request may be sent.
- Tokens are charged by estimate (prompt and expected output) when a batch is granted, and corrected by the usage in its
  answer. So a bucket may be in debt, and is then waited for.
- While tokens are what is short, it is waited for up to a second until a list of 8 can be paid for: lists of that length save most
  of what lists save. A full bucket pays for one whole list, however much it is; else a list longer than the burst would never go.
- What is not sent, because no connection could be made, is given back. What a server refused is not: many count it.
- What was held back last is remembered, with the setting that did it: for ``statistics()``, and for the errors of calls that waited too long.
- What a gateway says is left (``RateWindow``) pauses the endpoint once it is nothing, until the reset it names, for a minute at most.

Source: J. Turner, "New directions in communications", IEEE Communications Magazine 24(10), 1986, for the bucket; as a meter
it is ITU-T I.371's GCRA with the burst as its tolerance.
"""

from __future__ import annotations

from collections.abc import Iterable

from batchclient._core.messages import RateWindow

__all__ = ["Rates", "TokenBucket"]

_BURST_RATIO = 0.1
_GATHERED_CALLS = 8
_LONGEST_GATHERING_S = 1.0
_LONGEST_PAUSE_S = 60.0
_ROUNDING = 1e-6
"""A bucket that is this near to an amount has it: times are floats."""


class TokenBucket:
    """A rate with a burst.

    Args:
        per_minute: above 0.
        burst: the most it holds, above 0.
    """

    __slots__ = ("_at", "_level", "_per_s", "burst")

    def __init__(self, per_minute: float, burst: float) -> None:
        self._per_s = per_minute / 60.0
        self.burst = burst
        self._level = burst
        self._at = 0.0

    def __repr__(self) -> str:
        return f"<TokenBucket {self._level:.3g} of {self.burst:.3g} at {self._at:.3f} s>"

    def level(self, now: float) -> float:
        """What is there; below 0 is debt."""
        if now > self._at:
            self._level = min(self.burst, self._level + (now - self._at) * self._per_s)
            self._at = now
        return self._level

    def is_full(self, now: float) -> bool:
        """Whether waiting would bring nothing."""
        return self.level(now) >= self.burst - _ROUNDING

    def take(self, amount: float, now: float) -> None:
        """Take an amount, also more than is there; a negative one is given back."""
        self._level = min(self.burst, self.level(now) - amount)

    def give_back(self, amount: float, taken_at: float, now: float) -> None:
        """Give back what was taken a while ago, less what has flowed in since: a bucket that was full meanwhile has had it already."""
        self.take(-max(0.0, amount - (now - taken_at) * self._per_s), now)

    def has(self, amount: float, now: float) -> bool:
        """Whether an amount is there."""
        return self.level(now) >= amount - _ROUNDING

    def when(self, amount: float, now: float) -> float:
        """When an amount will be there, or was; no later than when it is full."""
        return now + (min(amount, self.burst) - self.level(now)) / self._per_s


class Rates:
    """One endpoint's rates.

    Args:
        requests_per_minute, tokens_per_minute: ``None``: no such limit.
    """

    __slots__ = ("_held_by", "_held_until", "_requests", "_tokens", "paused_until")

    def __init__(self, requests_per_minute: float | None = None, tokens_per_minute: float | None = None) -> None:
        self._requests = self._tokens = None
        if requests_per_minute is not None:
            self._requests = TokenBucket(requests_per_minute, max(1.0, _BURST_RATIO * requests_per_minute))
        if tokens_per_minute is not None:
            self._tokens = TokenBucket(tokens_per_minute, _BURST_RATIO * tokens_per_minute)
        self.paused_until: float | None = None
        """Until when a gateway has nothing left for us."""
        self._held_by = ""
        self._held_until = 0.0

    def __repr__(self) -> str:
        return f"<Rates requests {self._requests!r}, tokens {self._tokens!r}>"

    def ready_at(self, now: float) -> float | None:
        """When a request may be sent; ``None``: now."""
        if self.paused_until is not None:
            if now < self.paused_until:
                return self.paused_until
            self.paused_until = None
        if self._requests is not None and not self._requests.has(1.0, now):
            return self._hold("requests_per_minute", self._requests.when(1.0, now))
        return None

    def held(self, now: float) -> tuple[float, str] | None:
        """Until when something is held back, and by which setting (or by a gateway); ``None``: nothing is."""
        if self.paused_until is not None and now < self.paused_until:
            return self.paused_until, "the gateway's rate limit"
        return (self._held_until, self._held_by) if now < self._held_until else None

    def affordable(self, calls: int, call_tokens: float, now: float) -> tuple[int, float]:
        """How many of some calls may be sent together now; if none, until when to wait."""
        bucket = self._tokens
        if bucket is None or bucket.is_full(now) or bucket.has(calls * call_tokens, now):
            return calls, now
        count = int((bucket.level(now) + _ROUNDING) / call_tokens)
        gathered = min(calls, _GATHERED_CALLS)
        if count >= gathered:
            return count, now
        first = bucket.when(call_tokens, now)
        until = min(bucket.when(gathered * call_tokens, now), first + _LONGEST_GATHERING_S)
        if count >= 1 and now >= until - _ROUNDING:
            return count, now
        return 0, self._hold("tokens_per_minute", max(until, first))

    def charge(self, tokens: float, now: float) -> None:
        """One request with so many tokens, by estimate, is sent."""
        if self._requests is not None:
            self._requests.take(1.0, now)
        self.correct(tokens, now)

    def refund(self, tokens: float, charged_at: float, now: float) -> None:
        """A request that was charged was not sent."""
        if self._requests is not None:
            self._requests.give_back(1.0, charged_at, now)
        if self._tokens is not None:
            self._tokens.give_back(tokens, charged_at, now)

    def correct(self, tokens: float, now: float) -> None:
        """So many more tokens were used than charged, or fewer."""
        if self._tokens is not None:
            self._tokens.take(tokens, now)

    def _hold(self, setting: str, until: float) -> float:
        self._held_by, self._held_until = setting, until
        return until

    def observe(self, windows: Iterable[RateWindow], now: float) -> None:
        """Take in what a gateway says is left."""
        for window in windows:
            if window.remaining == 0 and window.reset_s > 0:
                until = now + min(window.reset_s, _LONGEST_PAUSE_S)
                self.paused_until = until if self.paused_until is None else max(until, self.paused_until)
