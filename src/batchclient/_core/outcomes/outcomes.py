"""What becomes of the calls of a failed batch: sent again in some form, or ended.

Rules, in order:
- If a list fails without a culprit, one member goes first (see ``member_first``).
- Else the first row of ``table`` that applies says how the calls go again (see ``retries``).
- If a server asks for a pause (``Retry-After``) which ends after a call's deadline, the call is not
  tried again: its caller hears at once what the server said.
- After a refused key or model, one call finds out for all (see ``models``). A call of a map waits
  for a model that was served, for the patience of outages at most, and is sent again at growing
  pauses. Where calls sent since its first refusal were answered, it is refused for itself: by its
  next 403, or when it was sent eight times.
- A lone call that failed twice goes bare from then on, if nothing in the preferred form was ever
  answered.
- Calls which are not sent again end with their failure.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from batchclient._core.fleet import Fleet
from batchclient._core.granting import Granting
from batchclient._core.messages import Batch, Failed, FailureKind, Request
from batchclient._core.outcomes.errors import CallErrors
from batchclient._core.outcomes.member_first import MemberFirst
from batchclient._core.outcomes.retries import Retries
from batchclient._core.outcomes.table import FailedBatch, Row, Way, row_for
from batchclient._core.servers.endpoint import Endpoint
from batchclient._core.servers.models import pause_s as model_pause_s
from batchclient._core.servers.pace import HELD_RATIO, aside_s
from batchclient._core.spent import seconds
from batchclient._core.statistics import Counters
from batchclient._core.waiting.queue import Queue
from batchclient.errors import BatchClientError

__all__ = ["Outcomes"]

_OFTEN = 8
"""Refusals of one call beside answers to others: one of two routers may not know the model."""
_ENOUGH = 6
"""Two refusals, or six that may be prompts' own."""
_ROUNDING = 1e-6


class Outcomes:
    """The outcomes of one scheduler's failed batches.

    Args:
        granting: grants the lone member.
        send: sends a batch.
        patience_s: how long calls of maps wait for a model that was served; ``None``: they do not,
            and a 403 before the first answer means all calls, as a mock's does.
    """

    def __init__(
        self,
        fleet: Fleet,
        queue: Queue,
        errors: CallErrors,
        granting: Granting,
        counters: Counters,
        send: Callable[[Batch], None],
        patience_s: float | None,
    ) -> None:
        self._fleet = fleet
        self._errors = errors
        self._counters = counters
        self._patience_s = patience_s or 0.0
        self._means_all = patience_s is None
        self.retries = Retries(queue, counters)
        self.member_first = MemberFirst(self.retries, granting, send, self.resend)

    def failed(self, event: Failed, alive: list[Request], endpoint: Endpoint, now: float) -> None:
        """Take in a batch's failure.

        Args:
            event: the failure.
            alive: its unanswered requests whose callers still wait.
            endpoint: where the batch failed.
            now: the time.
        """
        batch, member_first = event.batch, self.member_first
        alive = self._errors.fail_begun(alive, event.failure, now)
        failed = FailedBatch(event, alive, endpoint, self._fleet, now)
        if batch.bare and member_first.is_trial(batch):
            member_first.failed(failed)
        if batch.moving:
            # What it tried is tried again by another.
            failed.abilities.failed(batch)
        if batch.moving or not member_first.take(failed):
            self.resend(failed)

    def resend(self, failed: FailedBatch) -> None:
        """Send a failed batch's calls again, or end them, by the table."""
        event, now = failed.event, failed.now
        if not failed.alive and (failed.batch.moving or not failed.refuses_model):
            return
        row = row_for(failed)
        if row.learn is not None:
            row.learn(failed)
        pause_s = _pause_s(failed, row.way)
        if pause_s and event.failure.retry_after_s is not None:
            late = [request for request in failed.alive if (request.deadline or math.inf) <= now + pause_s]
            failed.alive = [request for request in failed.alive if request not in late]
            self._errors.fail_early(late, event.failure, event.retry_delay_s or 0.0, now)
        if failed.alive or row.way is Way.ASK:
            self._carry_out(failed, row, now + pause_s)

    def _carry_out(self, failed: FailedBatch, row: Row, until: float) -> None:
        batch, alive, retries = failed.batch, failed.alive, self.retries
        failures = batch.failures + (row.is_attempt and not batch.refusal.is_free)
        self._counters.retries += (row.is_retry or row.is_attempt) and failed.failure.begun
        match row.way:
            case Way.AT_ONCE:
                retries.again(alive, batch, failures=failures)
            case Way.BARE:
                retries.again(alive, batch, bare=True)
            case Way.SINGLY:
                retries.singly(alive, batch, failures=failures, isolation=None)
            case Way.HALVES:
                retries.halves(alive, batch)
            case Way.SEARCH:
                retries.search(alive, batch)
            case Way.ASIDE:
                retries.aside(failed, failures, until)
            case Way.ASK:
                self._ask_again(failed)
            case Way.LATER:
                for past in failed.pasts:
                    past.met_before = past.met_before or failed.failure.once
                retries.later(alive, failed, until, failures=failures, bare=batch.bare or _goes_bare(failed))
            case Way.NOT:
                self._give_up(failed)

    def _give_up(self, failed: FailedBatch) -> None:
        """End calls which are not sent again."""
        batch, failure, told = failed.batch, failed.failure, failed.failure
        if failure.once and failed.may_be_retried:
            # The second time: the callers are told not to try again either.
            told = replace(told, kind=FailureKind.REFUSED)
        if failure.refuses_shape and self._fleet.others_in_use(failed.endpoint, batch.requests[0]):
            told = replace(told, message=f"{told.message}; no other server in use takes it")
        if failure.is_own or (batch.isolation is not None and batch.isolation.blind):
            self.retries.found(batch, failed.endpoint, failed.now, bad=len(failed.alive))
        self._errors.fail(failed.alive, told, failed.now)

    # A refused key or model -------------------------------------------------------------------------------------

    def _ask_again(self, failed: FailedBatch) -> None:
        """Find out whether the server has a refused model, if no other server takes its calls."""
        batch, alive, now, pace = failed.batch, failed.alive, failed.now, failed.batch.pace
        # The server works at a call if that takes far longer than refusals.
        oldest = next((one.sent_at for one in failed.endpoint.open.values() if one.pace is pace), now)
        works_at = oldest if now - oldest > HELD_RATIO * (now - batch.sent_at) else -math.inf
        served_at = pace.answered_from if pace.is_known else works_at
        is_served = served_at > -math.inf
        # A mock that has answered nothing means what it says.
        may_be_own = failed.failure.may_mean_the_prompt and (is_served or not self._means_all)
        is_searched = may_be_own and failed.is_list
        for request in () if is_searched else alive:
            request.denied_at = min(request.denied_at, batch.sent_at)
        first_at = min([batch.sent_at, *(request.denied_at for request in alive)])
        often = min((request.attempts for request in alive), default=0) >= _OFTEN
        is_own = served_at >= first_at and (may_be_own or often)
        if not is_own and failed.others_take:
            failed.endpoint.abilities.models.refuse(batch, failed.endpoint.open.values(), now, elsewhere=True)
            for request in alive:
                request.failed_on = failed.endpoint.id
            self.retries.move(alive, batch)
            return
        if is_searched:
            failed.abilities.list_refused(batch, served_at, failed.endpoint.open.values(), now)
            self.retries.search(alive, batch)
        else:
            waits = self._patience_s if not is_own and (may_be_own or is_served) else 0.0
            waiting = [one for one in alive if one.patient and one.denied_at > now - waits]
            self._counters.retries += bool(waiting)
            self.retries.later(waiting, failed, now + model_pause_s(now - first_at))
            self._errors.fail([one for one in alive if one not in waiting], failed.failure, now)
        if served_at < first_at:
            # What is left of a refused list is more often to blame than a fresh call.
            is_suspect = is_searched or (may_be_own and is_served and batch.isolation is not None)
            self._believe(failed, 0 if is_suspect else 1 if may_be_own else 3, is_served=is_served)

    def _believe(self, failed: FailedBatch, evidence: int, *, is_served: bool) -> None:
        """Weigh a refusal; if it is believed, fail the other calls that wait for the model."""
        batch, now, failure = failed.batch, failed.now, failed.failure.of_the_server
        model = failed.endpoint.abilities.models.refuse(batch, failed.endpoint.open.values(), now)
        model.evidence += evidence
        patience_ends = model.since + self._patience_s
        model.until = min(model.until, max(now, patience_ends))
        if model.held_at < math.inf:
            return
        waiting = [one for one in self._errors.waiting() if one.shape.subject == batch.shape.subject]
        waited = is_served and self._patience_s > 0
        if waited and now < patience_ends - _ROUNDING:
            waiting = [request for request in waiting if not request.patient]
            waited = False
        if model.evidence < _ENOUGH and any(request.denied_at == math.inf for request in waiting):
            return
        said = f", {seconds(now - model.since)} after the first refusal" if waited else ""
        message = f"{failure.message} (said to another call for the same model{said}; this one was not sent again)"
        unsent = replace(failure, message=message)

        def own(request: Request) -> BatchClientError:
            error = (failure if request.denied_at < math.inf else unsent).to_error(request.attempts)
            error.retryable = waited
            return error

        self._errors.end(waiting, own, now)


def _pause_s(failed: FailedBatch, way: Way) -> float:
    """How long the calls wait before their next attempt, at least."""
    event, batch = failed.event, failed.batch
    if way is Way.LATER:
        return event.retry_delay_s or 0.0
    if way is not Way.ASIDE:
        return 0.0
    pause_s = aside_s(failed.refusals, event.jitter)
    if not batch.refusal.is_free:
        return max(event.retry_delay_s or 0.0, pause_s)
    if failed.is_list and batch.refusal.is_alone:
        # The server means one of the list's calls, and the halves find out which.
        return pause_s
    # Whoever was not refused before goes first when a rest is over.
    return (event.failure.retry_after_s or 0.0) + pause_s


def _goes_bare(failed: FailedBatch) -> bool:
    """Whether a lone call fails for the second time, and nothing in its form was ever answered."""
    batch = failed.batch
    again = batch.streamed and not failed.is_list and failed.failure.unforeseen and batch.failures > 0
    return again and not failed.abilities.form(streamed=True).is_proven
