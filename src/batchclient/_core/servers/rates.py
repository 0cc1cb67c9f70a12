"""Requests and tokens per minute: an endpoint's bounds besides the limit of calls in flight.

Rules:
- Requests and tokens have a token bucket each. A bucket fills at its rate and starts full. A full
  bucket has a tenth of a minute's worth, the burst, and at least one request.
- A batch is one request. While requests are short, calls and permits gather, and the next batch
  takes as many calls as the permits and the list cap allow. So batches grow without a rule.
- Tokens are charged by estimate (prompt and expected output) at the grant, and corrected by the
  usage in the answer. A bucket may therefore be in debt; the next batch then waits.
- While tokens are short, a batch waits up to a second until 8 calls can be paid for: batches of 8
  save most of the work which batches can save. A full bucket pays for one whole batch at any price;
  else a batch dearer than the burst would never go.
- A request whose connection could not be made is given back. A request which a server refused is
  not: many servers count refused requests.
- The last hold is remembered with the setting behind it, for ``statistics()`` and for the errors of
  calls which waited too long.
- A gateway may report that nothing is left (``RateWindow``). Then nothing is sent until its reset,
  for a minute at most.

Source: J. Turner, "New directions in communications", IEEE Communications Magazine 24(10), 1986,
for the bucket. As a meter the bucket is ITU-T I.371's GCRA with the burst as its tolerance.
"""

from __future__ import annotations

from collections.abc import Iterable

from batchclient._core.failures import Failure, FailureKind
from batchclient._core.messages import RateWindow
from batchclient._core.servers.hold import GATEWAYS_LIMIT, Hold
from batchclient.errors import RateLimited

__all__ = ["Rates", "pause_of"]

_BURST_RATIO = 0.1
_GATHERED_CALLS = 8
_LONGEST_GATHERING_S = 1.0
_LONGEST_PAUSE_S = 60.0
_ROUNDING = 1e-6
"""A bucket this near to an amount has the amount: times are floats."""
_NOTHING_LEFT = Failure(FailureKind.REJECTED, RateLimited, "the gateway says that nothing is left of its rate limit")


class TokenBucket:
    """A rate (per minute) with a burst, the most the bucket holds; both above 0."""

    def __init__(self, per_minute: float, burst: float) -> None:
        self._per_s = per_minute / 60.0
        self.burst = burst
        self._level = burst
        self._at = 0.0

    def __repr__(self) -> str:
        return f"<TokenBucket {self._level:.3g} of {self.burst:.3g} at {self._at:.3f} s>"

    def level(self, now: float) -> float:
        """Return the amount in the bucket; below 0 is debt."""
        if now > self._at:
            self._level = min(self.burst, self._level + (now - self._at) * self._per_s)
            self._at = now
        return self._level

    def is_full(self, now: float) -> bool:
        """Whether waiting would bring nothing."""
        return self.level(now) >= self.burst - _ROUNDING

    def take(self, amount: float, now: float) -> None:
        """Take an amount, also more than the bucket holds; a negative amount is given back."""
        self._level = min(self.burst, self.level(now) - amount)

    def give_back(self, amount: float, taken_at: float, now: float) -> None:
        """Give back an amount, less the inflow since: a bucket full meanwhile has had it."""
        self.take(-max(0.0, amount - (now - taken_at) * self._per_s), now)

    def has(self, amount: float, now: float) -> bool:
        """Whether the bucket holds an amount."""
        return self.level(now) >= amount - _ROUNDING

    def when(self, amount: float, now: float) -> float:
        """When an amount is there, or was; no later than when the bucket is full."""
        return now + (min(amount, self.burst) - self.level(now)) / self._per_s


class Rates:
    """The rates of one endpoint; ``None``: no such limit."""

    def __init__(self, requests_per_minute: float | None, tokens_per_minute: float | None) -> None:
        self._requests = self._tokens = None
        if requests_per_minute is not None:
            self._requests = TokenBucket(requests_per_minute, max(1.0, _BURST_RATIO * requests_per_minute))
        if tokens_per_minute is not None:
            self._tokens = TokenBucket(tokens_per_minute, _BURST_RATIO * tokens_per_minute)
        self._held: Hold | None = None

    def __repr__(self) -> str:
        return f"<Rates requests {self._requests!r}, tokens {self._tokens!r}>"

    def sendable(self, now: float) -> Hold | None:
        """Return what holds the next request back, whatever its tokens; ``None``: it may go now."""
        if self._requests is None or self._requests.has(1.0, now):
            return None
        self._hold("requests_per_minute", self._requests.when(1.0, now))
        return self._held

    def hold(self, now: float) -> Hold | None:
        """Return the last hold by a setting; ``None``: there is none now."""
        return self._held if self._held is not None and now < self._held.until else None

    def affordable(self, calls: int, call_tokens: float, now: float) -> tuple[int, float]:
        """Return how many of some calls may go together now; if none, the time to wait for."""
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
        """Charge one request with an estimate of its tokens."""
        if self._requests is not None:
            self._requests.take(1.0, now)
        self.correct(tokens, now)

    def refund(self, tokens: float, charged_at: float, now: float) -> None:
        """Give back the charge of a request which was not sent."""
        if self._requests is not None:
            self._requests.give_back(1.0, charged_at, now)
        if self._tokens is not None:
            self._tokens.give_back(tokens, charged_at, now)

    def correct(self, tokens: float, now: float) -> None:
        """Charge the tokens used beyond the estimate; fewer are negative."""
        if self._tokens is not None:
            self._tokens.take(tokens, now)

    def _hold(self, setting: str, until: float) -> float:
        self._held = Hold(until, setting, until)
        return until


def pause_of(windows: Iterable[RateWindow], now: float) -> Hold | None:
    """Return the pause that a gateway's word on its remaining limits means; ``None``: none."""
    resets = [window.reset_s for window in windows if window.remaining == 0 and window.reset_s > 0]
    if not resets:
        return None
    until = now + min(max(resets), _LONGEST_PAUSE_S)
    return Hold(until, GATEWAYS_LIMIT, until, _NOTHING_LEFT)
