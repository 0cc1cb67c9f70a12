"""The way of a failed batch's requests: sent again in some form, or ended.

Rules, in order:
- A batch whose endpoint is being removed is sent to another endpoint.
- If a list fails without a culprit, one member goes first (see ``member_first``).
- After a refused key or model, calls go elsewhere, or one call finds out for all (see ``denials``).
- All other failures: see ``recovery``. Requests which are not sent again end with their failure.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from batchclient._core.granting import Granting
from batchclient._core.messages import Batch, Failed, Request
from batchclient._core.outcomes.ends import Ends
from batchclient._core.outcomes.member_first import MemberFirst
from batchclient._core.outcomes.recovery import Recovery
from batchclient._core.servers.denials import is_refusal, subject_of
from batchclient._core.servers.endpoint import Endpoint
from batchclient._core.servers.endpoints import Endpoints

__all__ = ["Resending"]


class Resending:
    """The resending of one scheduler.

    Args:
        granting: grants the lone member.
        send: sends a batch.
    """

    __slots__ = ("_endpoints", "_ends", "_recovery", "member_first")

    def __init__(
        self,
        endpoints: Endpoints,
        recovery: Recovery,
        ends: Ends,
        granting: Granting,
        send: Callable[[Batch], None],
    ) -> None:
        self._endpoints = endpoints
        self._recovery = recovery
        self._ends = ends
        self.member_first = MemberFirst(recovery, granting, send, self._resend_by_table)

    def failed(
        self, event: Failed, alive: list[Request], endpoint: Endpoint, now: float, *, disproved: bool, paused: bool
    ) -> None:
        """Take in a batch's failure.

        Args:
            event: the failure.
            alive: its unanswered requests whose callers still wait.
            endpoint: where the batch failed.
            disproved: whether the batch was the call sent to find out about a refused key or model.
            paused: whether nothing may be sent now.
        """
        batch, member_first = event.batch, self.member_first
        if batch.bare and member_first.is_trial(batch):
            alive = member_first.failed(event, alive, now, paused=paused)
        if batch.moving:
            if alive:
                self._recovery.move(alive, batch)
        elif not member_first.take(event, alive, endpoint, now, paused=paused):
            self._resend_by_table(event, alive, endpoint, now, disproved=disproved)

    def hasten(self, now: float) -> None:
        """A call was answered, and none is queued."""
        self._recovery.hasten(now)

    def isolated(self, batch: Batch, good: int, endpoint: Endpoint, now: float) -> None:
        """Take in that some prompts of a split list are good."""
        self._recovery.isolated(batch, good, endpoint, now)

    def _resend_by_table(
        self, event: Failed, alive: list[Request], endpoint: Endpoint, now: float, *, disproved: bool = False
    ) -> None:
        if is_refusal(event.failure) and event.retry_delay_s is None:
            self._refused(event, alive, endpoint, now, disproved=disproved)
        elif alive and not self._recovery.try_again(event, alive, endpoint, now, self._endpoints):
            self._ends.fail(alive, event, now)
        if hopeless := self._recovery.hopeless:
            self._recovery.hopeless = []
            self._ends.fail_early(hopeless, event, now)

    def _refused(self, event: Failed, alive: list[Request], endpoint: Endpoint, now: float, *, disproved: bool) -> None:
        """Take in a refused key or model; ``disproved``: also to the call that finds out."""
        shape = event.batch.shape
        endpoint.denials.doubt(event.batch, now)
        if self._endpoints.others_take(shape, endpoint, now):
            for request in alive:
                request.failed_on = endpoint.id
            if alive:
                self._recovery.move(alive, event.batch)
            return
        if alive:
            self._ends.fail(alive, event, now)
        if disproved:
            message = f"{event.failure.message} (said to another call for the same model; this one was not sent again)"
            failure = replace(event.failure.of_the_server, message=message)
            subject = subject_of(shape)
            waiting = [request for request in self._ends.waiting() if subject_of(request.shape) == subject]
            self._ends.end(waiting, lambda request: failure.to_error(request.attempts), now)
