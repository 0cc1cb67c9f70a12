"""When a failed call is sent again. One owner: nothing under this library retries by itself.

A policy is asked once per failed batch, with one of the callers' errors. The answer is a delay in
seconds, or ``None`` for stop. Splitting a list to find a bad prompt is no retry and asks no policy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any, Protocol

from batchclient.errors import BatchClientError, ConfigError

if TYPE_CHECKING:
    from tenacity import RetryCallState

__all__ = ["Backoff", "RetryPolicy", "TenacityRetry"]

_LONGEST_RETRY_AFTER_S = 60.0


class RetryPolicy(Protocol):
    """Decides whether and when a failed call is sent again."""

    def decide(self, failure: BatchClientError, attempt: int, elapsed_s: float, rng: Random) -> float | None:
        """Return the delay in seconds before the next attempt, or ``None`` to give up.

        Args:
            failure: the call's error; ``failure.retryable`` says whether the same call may succeed
                later.
            attempt: how many attempts have failed, the last included, from 1.
            elapsed_s: seconds since the batch's oldest call was made.
            rng: the only source of randomness.
        """
        ...


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential backoff with full jitter; the default policy.

    The delay is drawn from U(0, min(``cap_s``, ``base_s`` · 2^(attempt − 1))), and is never shorter
    than the server's ``Retry-After``. A ``Retry-After`` over 60 s gives up: the error carries it.

    Source: M. Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog, 2015.

    Args:
        max_attempts: attempts in all, at least 1; 1 never retries.
        base_s: the first ceiling, seconds.
        cap_s: the highest ceiling, seconds.
    """

    max_attempts: int = 5
    base_s: float = 0.5
    cap_s: float = 8.0

    def __post_init__(self) -> None:
        if type(self.max_attempts) is not int or self.max_attempts < 1:
            raise ConfigError("max_attempts is a whole number of at least 1", field="max_attempts")
        for name, delay_s in (("base_s", self.base_s), ("cap_s", self.cap_s)):
            if type(delay_s) not in (int, float) or not 0 <= delay_s < math.inf:
                raise ConfigError(f"{name} is a number of seconds, at least 0", field=name)

    def decide(self, failure: BatchClientError, attempt: int, elapsed_s: float, rng: Random) -> float | None:
        """Return the delay before the next attempt, or ``None``."""
        if not failure.retryable or attempt >= self.max_attempts:
            return None
        delay_s = rng.uniform(0.0, min(self.cap_s, self.base_s * 2.0 ** min(attempt - 1, 60)))
        wish_s = failure.retry_after_s
        if wish_s is None:
            return delay_s
        return None if wish_s > _LONGEST_RETRY_AFTER_S else max(delay_s, wish_s)


class TenacityRetry:
    """A policy written in tenacity's ``stop``, ``wait`` and ``retry`` strategies.

    The strategies see a real ``RetryCallState`` whose outcome is the caller's error. ``sleep``,
    ``before`` and ``after`` hooks have no meaning here: the scheduler does the waiting. The
    server's ``Retry-After`` is a floor; a ``Retry-After`` over 60 s gives up.

    Args:
        stop: for example ``stop_after_attempt(5) | stop_after_delay(60)``.
        wait: for example ``wait_random_exponential(max=10)``.
        retry: for example ``retry_if_exception_type(ServerFault)``; by default ``error.retryable``
            decides.
    """

    def __init__(self, *, stop: Any = None, wait: Any = None, retry: Any = None) -> None:
        import tenacity

        for name, strategy in (("stop", stop), ("wait", wait), ("retry", retry)):
            if strategy is not None and not callable(strategy):
                raise ConfigError(f"{name} is one of tenacity's strategies, not {strategy!r:.60}", field=name)
        self._stop = stop if stop is not None else tenacity.stop_after_attempt(5)
        self._wait = wait if wait is not None else tenacity.wait_random_exponential(multiplier=0.5, max=8)
        self._retry = retry if retry is not None else tenacity.retry_if_exception(_retryable)
        self._owner = tenacity.Retrying(stop=self._stop, wait=self._wait, retry=self._retry)

    def decide(self, failure: BatchClientError, attempt: int, elapsed_s: float, rng: Random) -> float | None:
        """Ask the strategies. Tenacity draws its own random numbers; ``rng`` is not used."""
        state = self._state(failure, attempt, elapsed_s)
        if not self._retry(state):
            return None
        delay_s = float(self._wait(state))
        if failure.retry_after_s is not None:
            if failure.retry_after_s > _LONGEST_RETRY_AFTER_S:
                return None
            delay_s = max(delay_s, failure.retry_after_s)
        state.upcoming_sleep = delay_s
        return None if self._stop(state) else delay_s

    def _state(self, failure: BatchClientError, attempt: int, elapsed_s: float) -> RetryCallState:
        from tenacity import RetryCallState

        state = RetryCallState(self._owner, None, (), {})
        state.attempt_number = attempt
        state.set_exception((type(failure), failure, None))
        # A call's age counts from when it was made, not from this evaluation.
        assert state.outcome_timestamp is not None
        state.start_time = state.outcome_timestamp - elapsed_s
        return state


def _retryable(error: BaseException) -> bool:
    return isinstance(error, BatchClientError) and error.retryable
