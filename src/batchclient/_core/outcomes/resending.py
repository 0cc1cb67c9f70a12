"""The way of a failed batch's requests: sent again in some form, or ended.

Rules, in order:
- A batch whose endpoint is being removed is sent to another endpoint.
- If a list fails without a culprit, one member goes first (see ``member_first``).
- After a refused key or model, calls go elsewhere, or one call finds out for all (see ``denials``).
- A call of a map waits for a model that was served before, for the patience of outages at most, and
  is sent again at growing pauses. Where calls sent since its first refusal were answered, it is
  refused for itself: by its next 403, or when it was sent eight times. After a 403 a list is
  searched for that reason.
- All other failures: see ``recovery``. Requests which are not sent again end with their failure.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace

from batchclient._core.granting import Granting
from batchclient._core.messages import Batch, Failed, Request
from batchclient._core.outcomes.ends import Ends
from batchclient._core.outcomes.member_first import MemberFirst
from batchclient._core.outcomes.recovery import Recovery
from batchclient._core.servers.denials import Doubt, pause_s
from batchclient._core.servers.endpoint import Endpoint
from batchclient._core.servers.endpoints import Endpoints
from batchclient._core.servers.pace import HELD_RATIO
from batchclient._core.spent import seconds
from batchclient.errors import BatchClientError

__all__ = ["Resending"]

_OFTEN = 8
"""Refusals of one call beside answers to others: one of two routers may not know the model."""
_ENOUGH = 6
"""Two refusals, or six that may be prompts' own."""
_ROUNDING = 1e-6


class Resending:
    """The resending of one scheduler.

    Args:
        granting: grants the lone member.
        send: sends a batch.
        patience_s: how long calls of maps wait for a model that was served; 0: they do not.
    """

    __slots__ = ("_endpoints", "_ends", "_patience_s", "_recovery", "member_first")

    def __init__(
        self,
        endpoints: Endpoints,
        recovery: Recovery,
        ends: Ends,
        granting: Granting,
        send: Callable[[Batch], None],
        patience_s: float,
    ) -> None:
        self._endpoints = endpoints
        self._recovery = recovery
        self._ends = ends
        self._patience_s = patience_s
        self.member_first = MemberFirst(recovery, granting, send, self._resend_by_table)

    def failed(self, event: Failed, alive: list[Request], endpoint: Endpoint, now: float) -> None:
        """Take in a batch's failure.

        Args:
            event: the failure.
            alive: its unanswered requests whose callers still wait.
            endpoint: where the batch failed.
        """
        batch, member_first = event.batch, self.member_first
        if batch.bare and member_first.is_trial(batch):
            alive = member_first.failed(event, alive, now)
        if batch.moving:
            if alive:
                self._recovery.move(alive, batch)
        elif not member_first.take(event, alive, endpoint, now):
            self._resend_by_table(event, alive, endpoint, now)

    def hasten(self, now: float) -> None:
        """A call was answered, and none is queued."""
        self._recovery.hasten(now)

    def isolated(self, batch: Batch, good: int, endpoint: Endpoint, now: float) -> None:
        """Take in that some prompts of a split list are good."""
        self._recovery.isolated(batch, good, endpoint, now)

    def _resend_by_table(self, event: Failed, alive: list[Request], endpoint: Endpoint, now: float) -> None:
        if event.failure.refuses_model and event.retry_delay_s is None:
            self._refused(event, alive, endpoint, now)
        elif alive and not self._recovery.try_again(event, alive, endpoint, now, self._endpoints):
            self._ends.fail(alive, event, now)
        if hopeless := self._recovery.hopeless:
            self._recovery.hopeless = []
            self._ends.fail_early(hopeless, event, now)

    def _refused(self, event: Failed, alive: list[Request], endpoint: Endpoint, now: float) -> None:
        """Take in a refused key or model."""
        batch, denials, under_way = event.batch, endpoint.denials, endpoint.open.values()
        served_at = batch.pace.answered_from if batch.pace.is_known else _held_since(batch, under_way, now)
        # A mock that has answered nothing means what it says.
        may_be_own = event.failure.may_mean_the_prompt and (served_at is not None or self._patience_s > 0)
        is_searched = may_be_own and len(batch.requests) > 1
        for request in () if is_searched else alive:
            request.denied_at = min(request.denied_at, batch.sent_at)
        first_at = min([batch.sent_at, *(request.denied_at for request in alive)])
        beside_answers = served_at is not None and served_at >= first_at
        often = may_be_own or min((request.attempts for request in alive), default=0) >= _OFTEN
        is_own = beside_answers and often
        if not is_own and self._endpoints.others_take(batch.shape, endpoint, now):
            denials.doubt(batch, under_way, now, elsewhere=True)
            for request in alive:
                request.failed_on = endpoint.id
            if alive:
                self._recovery.move(alive, batch)
            return
        if is_searched and alive:
            self._recovery.search(alive, batch)
        elif alive:
            may_wait = not is_own and (may_be_own or served_at is not None)
            earliest = now - self._patience_s if may_wait else math.inf
            waiting = [request for request in alive if request.patient and request.denied_at > earliest]
            if waiting:
                self._recovery.step_aside(waiting, batch, endpoint, now + pause_s(now - first_at))
            if failed := [request for request in alive if request not in waiting]:
                self._ends.fail(failed, event, now)
        if not beside_answers:
            doubt = denials.doubt(batch, under_way, now)
            doubt.evidence += 0 if is_searched else 1 if may_be_own else 3
            doubt.ask_again_at = min(doubt.ask_again_at, max(now, doubt.since + self._patience_s))
            if doubt.held_at == math.inf:
                self._conclude(event, doubt, now, served=served_at is not None)

    def _conclude(self, event: Failed, doubt: Doubt, now: float, *, served: bool) -> None:
        """Fail the waiting calls for a refused model, if the refusals are believed."""
        subject, failure = event.batch.shape.subject, event.failure.of_the_server
        waiting = [request for request in self._ends.waiting() if request.shape.subject == subject]
        waits = served and self._patience_s > 0
        if waits and now < doubt.since + self._patience_s - _ROUNDING:
            waiting = [request for request in waiting if not request.patient]
            waits = False
        if doubt.evidence < _ENOUGH and any(request.denied_at == math.inf for request in waiting):
            return
        said = f", {seconds(now - doubt.since)} after the first refusal" if waits else ""
        message = f"{failure.message} (said to another call for the same model{said}; this one was not sent again)"
        unsent = replace(failure, message=message)

        def own(request: Request) -> BatchClientError:
            error = (failure if request.denied_at < math.inf else unsent).to_error(request.attempts)
            error.retryable = waits
            return error

        self._ends.end(waiting, own, now)


def _held_since(batch: Batch, under_way: Iterable[Batch], now: float) -> float | None:
    """Since when the server works at a call for the model, if that is far longer than refusals take."""
    oldest = next((one.sent_at for one in under_way if one.pace is batch.pace), now)
    return oldest if now - oldest > HELD_RATIO * (now - batch.sent_at) else None
