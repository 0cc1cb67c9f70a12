"""One attempt at a batch, from its task's first step to the report of its end to the core.

Rules:
- Every attempt ends with exactly one ``Answered(ended=True)`` or ``Failed``. A fault of batchclient
  and a cancelled task are failures, too.
- The retry policy decides whether a failed attempt is repeated, within the call's own
  ``max_attempts``. Calls sent again in another form (singly, in halves, without a field) are no
  retry: no policy is asked.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

from batchclient._common.log import log
from batchclient._core.messages import Batch, Event, Failed, Failure, FailureKind
from batchclient._shell.callbacks import ends_task
from batchclient._shell.exchange import Exchanges
from batchclient._shell.log import EndpointLog
from batchclient._shell.servers import Servers
from batchclient.errors import BatchClientError, CallAborted
from batchclient.retry import RetryPolicy

__all__ = ["CANCELLED", "Attempts"]

CANCELLED = Failure(FailureKind.REFUSED, CallAborted, "the request was cancelled")


class Attempts:
    """The attempts of a runner.

    Args:
        policy: when to try again; guarded (``Callbacks.guard_policy``).
        on_failure: told of each failed batch and its error, for the client to learn from.
        tell: tells the core.
        endpoint_log: logs events of endpoints.
    """

    def __init__(
        self,
        exchanges: Exchanges,
        servers: Servers,
        policy: RetryPolicy,
        now: Callable[[], float],
        on_failure: Callable[[Batch, BatchClientError], None],
        tell: Callable[[Event], None],
        endpoint_log: EndpointLog,
    ) -> None:
        self._log = endpoint_log
        self._exchanges = exchanges
        self._servers = servers
        self._policy = policy
        self._now = now
        self._on_failure = on_failure
        self._tell = tell
        self._rng = Random()  # jitter only  # noqa: S311

    async def send(self, batch: Batch) -> None:
        """Make an attempt: the whole work of a task."""
        failure: Failure | None
        over = self._exchanges.over
        try:
            failure = await self._exchanges.run(batch)
            if failure is not None:
                failure = self._servers.explain(batch, failure)
        except BaseException as error:
            if ends_task(error):
                # Cancelled by AbortBatch, a closing client, or the end of the loop or nursery.
                if batch.id not in over:
                    self.end(batch, batch.ended_for or CANCELLED)
                raise
            # A fault of batchclient or of a user's transport must not leave callers hanging.
            log("internal_error", "batch %d failed inside batchclient", batch.id, exc_info=True, batch=batch.id)
            message = f"internal error: {type(error).__name__}"
            failure = Failure(FailureKind.REFUSED, BatchClientError, message, cause=error)
        finally:
            answered = batch.id in over
            over.discard(batch.id)
        # A failure after the last answer, while the body is read out or closed, is nobody's.
        if failure is not None and not answered:
            self.end(batch, failure)

    def end(self, batch: Batch, failure: Failure, *, begun: bool = True) -> None:
        """Report a failed attempt to the core, with the time of a retry, if any.

        Args:
            begun: whether the task had a first step; if not, nothing was sent.
        """
        if batch.shape.to_caller:
            # Before the core may send the batch again: no caller may get pieces of two attempts.
            batch.requests[0].waiter.restart()
        delay_s: float | None = None
        try:
            if failure is not CANCELLED:
                delay_s = self._learn(batch, failure)
        finally:
            # Without the message: a server's words may hold a prompt.
            kind, error, status = failure.kind.value, failure.error.__name__, failure.status
            told = error if status is None else f"{error}, status {status}"
            message = "%r failed: %s (%s); next attempt in %s s"
            facts = {"batch": batch.id, "size": len(batch.requests), "error": error, "status": status}
            facts |= {"reason": kind, "retry_in_s": delay_s}
            self._log("attempt_failed", batch.endpoint, message, batch, kind, told, delay_s, **facts)
            failure = failure if begun else replace(failure, begun=False)
            self._tell(Failed(batch, failure, delay_s, self._rng.random()))

    def _learn(self, batch: Batch, failure: Failure) -> float | None:
        """Learn from a failure; return the seconds until a retry, if any."""
        error = failure.to_error(batch.failures + 1)
        self._on_failure(batch, error)
        listed = len(batch.requests) > 1
        is_no_retry = failure.changes_form(streamed=batch.streamed, packed=batch.packed, listed=listed)
        most = batch.shape.max_attempts
        if is_no_retry or (most is not None and batch.failures + 1 >= most):
            return None
        return self._policy.decide(error, batch.failures + 1, self._now() - batch.oldest_at, self._rng)
