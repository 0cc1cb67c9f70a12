"""The retry budget: how much work one endpoint may be asked to do twice.

Rules:
- A retry costs the tokens at risk: prompt and expected output of the calls sent again, as they are
  known when it goes. So a retry of 30,000 tokens costs more, and what was paid is paid back.
- A fifth of the tokens sent for the first time flows in, and ten calls' worth a second besides. So
  no retry waits for ever. A retry that is answered is paid back: a server that is well again soon
  has all that failed before.
- The budget holds as many calls' worth as the limit lets be in flight, at least a hundred. The
  budget starts full: a restarted server breaks everything in flight at once, and all may be sent
  again at once.
- The budget delays and never fails a call. A retry goes while the budget is not in debt, and may
  leave the budget in debt. Later retries wait, in order.
- Calls which were not sent cost nothing, nor do those for which a gateway reached no server, once
  one has served calls. Neither do calls sent again in another form (splits, singles, plain). Free
  refusals (``pace``) do not even pay in.

Sources: the 20 % and 10 per second are those of Finagle's and tower's ``RetryBudget``. Like gRPC's
throttle the budget belongs to a server; as in AWS's standard mode success pays back. Unlike all of
them the budget counts tokens, since tokens are a server's work.
"""

from __future__ import annotations

__all__ = ["RetryBudget"]

_RATIO = 0.2
_CALLS_PER_S = 10.0
_FEWEST_CALLS = 100
_CALLS_REMEMBERED = 4096
_SHORTEST_WAIT_S = 0.001
_ROUNDING = 1e-6
"""A budget this near to nothing is out of debt: times are floats."""


class RetryBudget:
    """The budget of one endpoint. ``Rates`` bound every request, the budget retries alone."""

    def __init__(self) -> None:
        self._tokens = 0.0
        self._calls = 0
        self._settled = 0.0
        """The part of ``_tokens`` whose fifth has flowed in."""
        self._level: float | None = None
        """``None``: full."""
        self._at = 0.0

    def __repr__(self) -> str:
        return f"<RetryBudget {'full' if self._level is None else f'{self._level:.4g} tokens'} at {self._at:.3f} s>"

    def sent(self, tokens: float, calls: int) -> None:
        """Count calls sent for the first time: all that a call pays while nothing fails."""
        self._tokens += tokens
        self._calls += calls

    def level(self, limit: int, now: float) -> float:
        """Tokens that may be sent again; below 0 is debt. ``limit`` is in sequences."""
        mean = self._mean
        most = max(_FEWEST_CALLS, limit) * mean
        if self._level is None:
            return most
        earned = _RATIO * (self._tokens - self._settled) + _CALLS_PER_S * mean * (now - self._at)
        return min(most, self._level + earned)

    def take(self, tokens: float, limit: int, now: float) -> bool:
        """Pay for a retry, if there is no debt; return whether the retry may go."""
        if tokens and self.level(limit, now) < -_ROUNDING:
            return False
        self.charge(tokens, limit, now)
        return True

    def charge(self, tokens: float, limit: int, now: float) -> None:
        """Pay for a retry, debt or not; below 0: pay back one that was answered."""
        self._level = self.level(limit, now) - tokens
        if self._calls > _CALLS_REMEMBERED:
            # Halved, so that the mean follows recent calls.
            self._tokens /= 2
            self._calls //= 2
        self._settled = self._tokens
        self._at = now

    def when(self, limit: int, now: float) -> float:
        """Return the time when the debt ends, should nothing else be sent."""
        return now + max(_SHORTEST_WAIT_S, -self.level(limit, now) / (_CALLS_PER_S * self._mean))

    @property
    def _mean(self) -> float:
        return self._tokens / self._calls if self._calls else 1.0
