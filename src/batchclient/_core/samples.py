"""Samples for the limits: what each ended sequence says of the load.

Rules:
- Each ended sequence is told once to its endpoint's limit, with the load during its service. With
  several endpoints an answer is told to the endpoint's speed, too.
- Wasted time is told apart from refused work, and lateness from a caller who left. Only a call
  which was sent fresh can be *late*: the others spent their time in our queue, which is not the
  server's load. A request cut off by a gateway is late, too.
- Batches under way while our own event loop stood still are told as ignored, refusals excepted:
  their times are not the server's.
"""

from __future__ import annotations

import math

from batchclient._core.adjustments import Adjustments
from batchclient._core.failures import Failure
from batchclient._core.learnt.answers import Tally
from batchclient._core.learnt.lengths import OutputLengths
from batchclient._core.learnt.times import is_fresh
from batchclient._core.limits import REFUSALS, Outcome, Sample
from batchclient._core.messages import Answered, Batch, LoadReported, Request, RequestState
from batchclient._core.servers.endpoints import Endpoints
from batchclient._core.servers.speed import work

__all__ = ["LimitSamples"]


class LimitSamples:
    """Tells the limits of one scheduler's endpoints what was observed."""

    __slots__ = ("_adjustments", "_endpoints", "_lengths", "trusts_from")

    def __init__(self, endpoints: Endpoints, lengths: OutputLengths, adjustments: Adjustments) -> None:
        self._endpoints = endpoints
        self._lengths = lengths
        self._adjustments = adjustments
        self.trusts_from = -math.inf
        """Batches sent before this time are not measured."""

    def answered(self, event: Answered, in_flight: int, tally: Tally, now: float) -> None:
        """Some requests of a batch have their answers; ``in_flight`` is the load before."""
        batch = event.batch
        batch.made_tokens += tally.made_tokens
        outcome = Outcome.SUCCESS
        if not tally.resolved:
            # An answer without a waiting caller took its time and brought nothing.
            late = all(_is_late(batch.requests[position], batch, now) for position, _ in event.answers)
            outcome = Outcome.LATE if late else Outcome.WASTED
        shared_tokens = 0.0
        if batch.has_families and tally.prompt_tokens:
            requests = [batch.requests[position] for position, _ in event.answers]
            size = sum(len(request.prompt) for request in requests)
            shared_tokens = tally.prompt_tokens * sum(request.shared for request in requests) / size
        self._observe(batch, in_flight, tally.count, outcome, now, tally, shared_tokens)

    def resumed(self, now: float) -> None:
        """Calls are about to be sent, and nothing is in flight anywhere."""
        for endpoint in self._endpoints.serving:
            endpoint.limit.on_resume(now)
            if endpoint.limit.limit != endpoint.told_limit:
                self._adjustments.note_limit(endpoint, now)

    def failed(
        self, batch: Batch, failure: Failure, in_flight: int, left: list[Request], alive: int, now: float
    ) -> None:
        """The unanswered requests of a batch have failed.

        Args:
            batch: the failed batch.
            failure: why it failed.
            in_flight: sequences in flight before.
            left: all unanswered requests; those without a caller are done already.
            alive: how many callers still wait.
        """
        outcome = failure.load if batch.refused_for_load else Outcome.IGNORED
        if failure.is_full and alive > 1 and in_flight == len(left) * batch.shape.weight:
            # With nothing else in flight the list is too long, and not the limit too high.
            outcome = Outcome.IGNORED
        if alive:
            self._observe(batch, in_flight, alive, outcome, now, failure=failure)
        if alive < len(left):
            gone = [request for request in left if request.state is RequestState.DONE]
            late = sum(_is_late(request, batch, now) for request in gone)
            if late:
                self._observe(batch, in_flight, late, Outcome.LATE, now)
            if late < len(gone):
                self._observe(batch, in_flight, len(gone) - late, Outcome.WASTED, now)

    def on_load(self, event: LoadReported, now: float) -> bool:
        """A server has reported its load; return whether a limit changed."""
        endpoint = self._endpoints.by_id.get(event.endpoint)
        if endpoint is None:
            return False
        endpoint.limit.on_load(event.load, endpoint.in_flight, now, event.took_s)
        return self._adjustments.note_limit(endpoint, now)

    def _observe(
        self,
        batch: Batch,
        in_flight: int,
        requests: int,
        outcome: Outcome,
        now: float,
        tally: Tally | None = None,
        shared_tokens: float = 0.0,
        failure: Failure | None = None,
    ) -> None:
        endpoint = self._endpoints.by_id[batch.endpoint]
        if batch.sent_at < self.trusts_from and outcome not in REFUSALS:
            outcome = Outcome.IGNORED
        seconds = now - batch.sent_at
        mean = (endpoint.area(now) - batch.load.area) / seconds if seconds > 0 else float(in_flight)
        if outcome is Outcome.SUCCESS and len(self._endpoints.serving) > 1:
            units = work(self._lengths.expected(batch.shape.answer_key, batch.shape.max_output_tokens))
            endpoint.speed.measure(seconds, units, mean / endpoint.limit.limit, requests, now)
        endpoint.limit.on_sample(
            Sample(
                now,
                batch.sent_at,
                in_flight,
                mean,
                batch.load.in_flight,
                requests * batch.shape.weight,
                0 if tally is None else tally.prompt_tokens,
                0 if tally is None else tally.used_tokens,
                0.0 if tally is None else tally.first_tokens_s * batch.shape.weight,
                outcome,
                batch.load.admitted_at,
                shared_tokens,
                batch.shape.weight,
                batch.shape.priority,
                failure.retry_after_s or 0.0 if failure is not None and batch.pace.is_at_rest(now) else 0.0,
            )
        )
        if endpoint.limit.limit != endpoint.told_limit:
            self._adjustments.note_limit(endpoint, now)


def _is_late(request: Request, batch: Batch, now: float) -> bool:
    return request.deadline is not None and request.deadline <= now and is_fresh(request, batch.sent_at)
