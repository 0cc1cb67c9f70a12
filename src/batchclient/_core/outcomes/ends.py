"""The ends of calls without an answer, wherever the calls are, and their errors.

Rules:
- A request ends once. Whoever ends a request takes it out of its waiting place, or marks the
  request abandoned if the server still works.
- A batch without waiting callers is aborted.
- Every caller has an error object of its own.
- A server asks for a rest: calls with deadlines before its end fail at once, if no server can take
  them earlier. The callers get the server's words, and the rest of the time in ``retry_after_s``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from batchclient._core.messages import AbortBatch, Batch, Command, Failed, Reject, Request, RequestState, Shape
from batchclient._core.servers.endpoints import Endpoints
from batchclient._core.servers.hold import AWAITED, OUTAGE, Hold
from batchclient._core.servers.pace import LONGEST_REST_S
from batchclient._core.spent import ServerOutage, seconds, time_spent, was_mostly_queued, with_cause
from batchclient._core.statistics import Counters
from batchclient._core.waiting.deadlines import Deadlines
from batchclient._core.waiting.overflow import Overflow
from batchclient._core.waiting.queue import Queue
from batchclient.errors import BatchClientError, DeadlineExceeded

__all__ = ["Ends", "copy_of", "too_late"]


_WAY_OUT = (
    "A job can give more time, or none, and bound the server's silence with http=Http(read_timeout_s=…);"
    " a service can refuse calls earlier, with a lower max_queued and when_full='raise'"
)


def too_late(
    request: Request,
    now: float,
    outages: Sequence[ServerOutage] = (),
    held_by: str = "",
    since: float | None = None,
    crowd: str = "",
    silence: str = "",
) -> DeadlineExceeded:
    """Return the error of a call past its deadline: where the call is, and where its time went.

    Args:
        outages: the outages in the call's time.
        held_by: the hold on queued calls at all endpoints; empty: none.
        since: when the call was made; when its request was queued, if not given.
        crowd: how many calls are queued for how many places, for a call which waited its turn.
        silence: whose silence the call met, and for how long; empty: none's.
    """
    where = {
        RequestState.IN_FLIGHT: "while the server worked on it",
        RequestState.BACKING_OFF: "while waiting to be tried again",
        RequestState.WAITING: "while waiting for a place in the queue",
        RequestState.NEW: "before it was queued",
    }.get(request.state, "in the queue")
    if silence:
        where = f"while {silence}" if request.state is RequestState.IN_FLIGHT else f"{where}, and {silence}"
    if held_by and request.state is RequestState.QUEUED:
        where += f", where {held_by} held it back"
    elif held_by and request.state is RequestState.WAITING:
        where += f", which {held_by} held back"
    spent = time_spent(request, outages, now, since)
    way_out = "" if held_by or silence else _way_out(request, outages, now, crowd)
    message = f"the call's timeout_s passed {where}{': ' if spent else ''}{spent}{way_out}"
    return with_cause(DeadlineExceeded(message, attempt=request.attempts), request, outages)


def _way_out(request: Request, outages: Sequence[ServerOutage], now: float, crowd: str) -> str:
    """Return advice for a call with too little time because of its turn in the queue."""
    # The queue of a job gets shorter with time. The queue of an overloaded service needs a bound.
    # Both have the same length now, so the advice is for both. Rows of maps do not count the queue.
    counts = request.timeout_s is None and not outages and was_mostly_queued(request, now)
    return f"; the queue counts: {crowd}. {_WAY_OUT}" if counts else ""


def copy_of(error: BatchClientError) -> BatchClientError:
    """Return a copy of an error for one more caller."""
    # Callers never share an exception object: each raise adds to its traceback.
    own = type(error)(error.message)
    own.__dict__.update(error.__dict__)
    own.__cause__ = error.__cause__
    return own


class Ends:
    """Ends the calls of one scheduler.

    Args:
        endpoints: where the calls may be in flight.
        queue, overflow, batches: where the calls may be.
        command: takes a command.
    """

    __slots__ = ("_batches", "_command", "_counters", "_deadlines", "_endpoints", "_overflow", "_queue")

    def __init__(
        self,
        endpoints: Endpoints,
        queue: Queue,
        overflow: Overflow,
        batches: dict[int, Batch],
        deadlines: Deadlines,
        counters: Counters,
        command: Callable[[Command], None],
    ) -> None:
        self._endpoints = endpoints
        self._queue = queue
        self._overflow = overflow
        self._batches = batches
        self._deadlines = deadlines
        self._counters = counters
        self._command = command

    def detach(self, request: Request) -> None:
        """Take a request without an answer out of its place."""
        state = request.state
        request.state = RequestState.DONE
        if state is RequestState.WAITING:
            self._overflow.discard(request)
        elif state is RequestState.QUEUED or state is RequestState.BACKING_OFF:
            self._queue.discard(request)
        elif state is RequestState.IN_FLIGHT:
            batch = request.batch
            assert batch is not None, "a request in flight is in a batch"
            request.state = RequestState.ABANDONED
            self._endpoints.by_id[batch.endpoint].abandoned += batch.shape.weight
            batch.callers -= 1
            if not batch.callers and not batch.aborting:
                batch.aborting = True
                self._command(AbortBatch(batch))
        if request.watched:
            self._deadlines.ended(1)

    def expire(self, requests: list[Request], now: float, *, paused: bool) -> None:
        """End calls past their deadlines."""
        crowd = self._crowd()

        def own(request: Request) -> BatchClientError:
            return self.too_late(request, now, self.held_by(request, now, paused=paused), crowd=crowd)

        self.end(requests, own, now)

    def held_by(self, request: Request, now: float, *, paused: bool) -> str:
        """Return the hold on a queued call at all endpoints; empty: none."""
        if paused:
            return "pause()"
        holds = [endpoint.hold(now, request.shape) for endpoint in self._endpoints.serving]
        reasons = dict.fromkeys("" if hold is None else hold.why for hold in holds)
        # An outage of all of them is told with its time.
        is_told = reasons.keys() <= {OUTAGE, AWAITED}
        return "" if "" in reasons or is_told else " and ".join(reasons)

    def too_late(
        self, request: Request, now: float, held_by: str = "", since: float | None = None, crowd: str = ""
    ) -> DeadlineExceeded:
        """Call the function of this name with the outages in the call's time."""
        outages = self._endpoints.outages_after(request.queued_at if since is None else since)
        silence = "" if outages or (held_by and request.batch is None) else self._silence(request, now)
        return too_late(request, now, outages, held_by, since, crowd or self._crowd(), silence)

    def _silence(self, request: Request, now: float) -> str:
        """Say whose silence a call has met: that of its own server, or of all servers in use."""
        if request.batch is not None:
            is_heard = request.batch.wire.replied
            return "" if is_heard else self._endpoints.by_id[request.batch.endpoint].nothing_came(now)
        said = [endpoint.nothing_came(now) for endpoint in self._endpoints.serving if endpoint.health.in_use]
        return " and ".join(said) if all(said) else ""

    def _crowd(self, taken: int = 0) -> str:
        """Say how many calls are queued for how many places; ``taken`` are just out of the queue."""
        queued = self._queue.size + self._overflow.size + taken
        calls = "1 call is" if queued == 1 else f"{queued} calls are"
        limit = self._endpoints.total_limit
        return f"{calls} queued, and {limit} sequence{'' if limit == 1 else 's'} may be in flight"

    def reject(self, requests: list[Request], error: BatchClientError, now: float) -> None:
        """End requests in no queue and no batch."""
        errors = []
        for request in requests:
            request.state = RequestState.DONE
            own = copy_of(error)
            own.attempt = request.attempts
            errors.append((request, own))
        self._tell(errors, now)

    def fail(self, requests: list[Request], event: Failed, now: float) -> None:
        errors = [(request, event.failure.to_error(request.attempts)) for request in requests]
        for request in requests:
            request.state = RequestState.DONE
        self._deadlines.ended(sum(request.watched for request in requests))
        self._tell(errors, now)

    def fail_early(self, requests: list[Request], event: Failed, now: float) -> None:
        """Fail requests whose next attempt would come after their deadlines."""
        failure = event.failure
        assert event.retry_delay_s is not None
        why = f"not tried again: the next attempt in {seconds(event.retry_delay_s)} is after the call's timeout_s"
        self.fail(requests, replace(event, failure=replace(failure, message=f"{failure.message} ({why})")), now)

    def end_held(self, now: float, *, paused: bool) -> None:
        """End the calls with deadlines before any server takes calls again.

        Nothing may be in flight: such calls may be answered before their deadlines. A client
        ``paused`` by its caller judges when it goes on.
        """
        if paused:
            return
        if self._rest(now) is None:
            return
        ends: dict[Request, Hold] = {}
        for request in self._deadlines.before(now + LONGEST_REST_S):
            rest = self._rest(now, request.shape)
            if rest is not None and (request.deadline or now) <= rest.until:
                ends[request] = rest

        def own(request: Request) -> BatchClientError:
            said, rest_s = ends[request].words, ends[request].until - now
            assert said is not None
            spent = time_spent(request, (), now)
            why = f"no call is sent for {seconds(rest_s)}, and the call's timeout_s ends before"
            message = f"{said.message} ({why}{': ' if spent else ''}{spent})"
            return replace(said, message=message, retry_after_s=rest_s).to_error(request.attempts)

        self.end(list(ends), own, now)

    def _rest(self, now: float, shape: Shape | None = None) -> Hold | None:
        """The rest that ends first, if every server has asked for one."""
        first: Hold | None = None
        for endpoint in self._endpoints.serving:
            rests = [hold for hold in endpoint.holds(now, shape) if hold.words is not None]
            if not rests:
                return None
            rest = max(rests, key=lambda hold: hold.until)
            first = rest if first is None or rest.until < first.until else first
        return first

    def fail_begun(self, requests: list[Request], event: Failed, now: float) -> list[Request]:
        """Fail requests whose answers have begun, which cannot begin anew; return the rest."""
        begun = [request for request in requests if request.begun]
        if not begun:
            return requests
        self.fail(begun, event, now)
        return [request for request in requests if not request.begun]

    def end_all(self, error: BatchClientError, now: float) -> None:
        """End every call, each with an account of its time."""

        def own(request: Request) -> BatchClientError:
            outages = self._endpoints.outages_after(request.queued_at)
            spent = time_spent(request, outages, now)
            return with_cause(type(error)(f"{error.message}: {spent}" if spent else error.message), request, outages)

        requests = self._overflow.requests() + self._queue.later.requests()
        requests += [request for batch in self._batches.values() for request in batch.requests]
        requests += self._queue.queued()
        ended = (RequestState.NEW, RequestState.DONE, RequestState.ABANDONED)
        self.end([request for request in requests if request.state not in ended], own, now)

    def waiting(self) -> list[Request]:
        """Return every call not in flight."""
        return self._overflow.requests() + self._queue.requests()

    def end(self, requests: list[Request], error_for: Callable[[Request], BatchClientError], now: float) -> None:
        """Tell callers that their calls end here, wherever the calls are."""
        if not requests:
            return
        errors = []
        for request in requests:
            error = error_for(request)
            error.attempt = request.attempts
            self.detach(request)
            errors.append((request, error))
        self._tell(errors, now)

    def give_up(self, hopeless: list[Request], now: float) -> None:
        """End calls, taken out of the queue, which could only be answered too late."""
        crowd = self._crowd(len(hopeless))
        errors: list[tuple[Request, BatchClientError]] = []
        for request in hopeless:
            outages = self._endpoints.outages_after(request.queued_at)
            spent = time_spent(request, outages, now)
            silence = self._silence(request, now)
            why = f"; {silence}" if silence else _way_out(request, outages, now, crowd)
            told = f" ({spent}{why})" if spent else ""
            message = f"the call's timeout_s cannot be met: what is left of it is less than such calls take{told}"
            request.state = RequestState.DONE
            error = DeadlineExceeded(message, attempt=request.attempts)
            error.is_early = True
            errors.append((request, with_cause(error, request, outages)))
        self._deadlines.ended(len(hopeless))
        self._tell(errors, now)

    def _tell(self, errors: list[tuple[Request, BatchClientError]], now: float) -> None:
        """Count calls that end with errors, and tell their callers."""
        self._counters.failed += len(errors)
        self._counters.observed.calls_failed(errors, now)
        self._command(Reject(errors))
