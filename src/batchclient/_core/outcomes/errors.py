"""The ends of calls without an answer, wherever the calls are, and what their errors say.

Rules:
- A call ends once. It is taken out of its place; if the server still works on it, it is abandoned
  there. A batch without waiting callers is aborted.
- Every caller has an error object of its own.
- A server asks for a rest: calls with deadlines before its end fail at once, if no server can take
  them earlier. The callers get the server's words, and the rest of the time in ``retry_after_s``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from batchclient._core.fleet import Fleet
from batchclient._core.messages import AbortBatch, Command, Failure, Reject, Request, RequestState, Shape
from batchclient._core.servers.hold import AWAITED, OUTAGE, Hold
from batchclient._core.servers.pace import LONGEST_REST_S
from batchclient._core.spent import ServerOutage, seconds, time_spent, was_mostly_queued, with_cause
from batchclient._core.statistics import Counters
from batchclient._core.waiting.queue import Queue
from batchclient.errors import BatchClientError, ConfigError, DeadlineExceeded

__all__ = ["CallErrors", "copy_of"]

_WHERE = {
    RequestState.IN_FLIGHT: "while the server worked on it",
    RequestState.BACKING_OFF: "while waiting to be tried again",
    RequestState.NEW: "before it was queued",
}
_HELD = {RequestState.QUEUED: ", where {} held it back"}
_ADVICE = (
    "A job can give more time, or none, and bound the server's silence with http=Http(read_timeout_s=…);"
    " a service can refuse calls earlier, with a lower max_calls and when_full='raise'"
)


def copy_of(error: BatchClientError) -> BatchClientError:
    """Return a copy of an error for one more caller."""
    # Callers never share an exception object: each raise adds to its traceback.
    own = type(error)(error.message)
    own.__dict__.update(error.__dict__)
    own.__cause__ = error.__cause__
    return own


class CallErrors:
    """Ends the calls of one scheduler with errors.

    Args:
        fleet, queue: where the calls may be.
        command: takes a command.
    """

    def __init__(self, fleet: Fleet, queue: Queue, counters: Counters, command: Callable[[Command], None]) -> None:
        self._fleet = fleet
        self._queue = queue
        self._counters = counters
        self._command = command

    # Any call ends ----------------------------------------------------------------------------------------------

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
        self._counters.calls_failed(errors, now)
        self._command(Reject(errors))

    def detach(self, request: Request) -> None:
        """Take a request without an answer out of its place, if it is in any."""
        batch = request.batch
        request.state = RequestState.DONE if batch is None else RequestState.ABANDONED
        if request.group is not None:
            self._queue.discard(request)
        elif batch is not None:
            self._fleet.by_id[batch.endpoint].abandoned += batch.shape.weight
            batch.callers -= 1
            if not batch.callers and not batch.aborting:
                batch.aborting = True
                self._command(AbortBatch(batch))
        if request.watched:
            self._queue.deadlines.ended(1)

    def waiting(self) -> list[Request]:
        """Return every call not in flight."""
        return self._queue.requests()

    def end_all(self, error: BatchClientError, now: float) -> None:
        """End every call, each with an account of its time."""

        def own(request: Request) -> BatchClientError:
            outages, spent = self._account(request, now)
            return with_cause(type(error)(_because(error.message, spent)), request, outages)

        requests = self._queue.later.requests()
        batches = [batch for endpoint in self._fleet for batch in endpoint.open.values()]
        batches.sort(key=lambda batch: batch.id)
        requests += [request for batch in batches for request in batch.requests]
        requests += self._queue.queued()
        ended = (RequestState.DONE, RequestState.ABANDONED)
        self.end([request for request in requests if request.state not in ended], own, now)

    # Failed calls -----------------------------------------------------------------------------------------------

    def fail(self, requests: list[Request], failure: Failure, now: float) -> None:
        """End calls whose batch has failed."""
        self.end(requests, lambda request: failure.to_error(request.attempts), now)

    def fail_early(self, requests: list[Request], failure: Failure, pause_s: float, now: float) -> None:
        """Fail calls whose next attempt would come after their deadlines."""
        why = f"not tried again: the next attempt in {seconds(pause_s)} is after the call's timeout_s"
        self.fail(requests, replace(failure, message=f"{failure.message} ({why})"), now)

    def fail_begun(self, requests: list[Request], failure: Failure, now: float) -> list[Request]:
        """Fail calls whose answers have begun, which cannot begin anew; return the rest."""
        self.fail([request for request in requests if request.begun], failure, now)
        return [request for request in requests if not request.begun]

    # Calls out of time ------------------------------------------------------------------------------------------

    def expire(self, requests: list[Request], now: float, *, paused: bool) -> None:
        """End calls past their deadlines."""
        crowd = self._crowd()
        self.end(requests, lambda request: self.too_late(request, now, paused=paused, crowd=crowd), now)

    def too_late(
        self, request: Request, now: float, *, paused: bool, since: float | None = None, crowd: str = ""
    ) -> DeadlineExceeded:
        """Return the error of a call past its deadline: where the call is, and where its time went.

        Args:
            request: the call's.
            now: the time.
            paused: whether the caller holds all calls back.
            since: when the call was made; when its request was queued, if not given.
            crowd: how many calls are queued for how many places; as of now, if not given.
        """
        held_by = "pause()" if paused else self._held_by(request, now)
        outages, spent = self._account(request, now, since)
        silence = "" if outages or (held_by and request.batch is None) else self._silence(request, now)
        where = _WHERE.get(request.state, "in the queue")
        if silence:
            where = f"while {silence}" if request.batch is not None else f"{where}, and {silence}"
        if held_by:
            where += _HELD.get(request.state, "").format(held_by)
        advice = "" if held_by or silence else _advice(request, outages, now, crowd or self._crowd())
        message = _because(f"the call's timeout_s passed {where}", spent)
        return with_cause(DeadlineExceeded(message + advice, attempt=request.attempts), request, outages)

    def give_up(self, hopeless: list[Request], now: float) -> None:
        """End calls, taken out of the queue, which could only be answered too late."""
        crowd = self._crowd(len(hopeless))

        def own(request: Request) -> BatchClientError:
            (outages, spent), silence = self._account(request, now), self._silence(request, now)
            why = f"; {silence}" if silence else _advice(request, outages, now, crowd)
            told = f" ({spent}{why})" if spent else ""
            message = f"the call's timeout_s cannot be met: what is left of it is less than such calls take{told}"
            error = DeadlineExceeded(message)
            error.is_early = True
            return with_cause(error, request, outages)

        self.end(hopeless, own, now)

    def end_unpaid(self, requests: list[Request], now: float) -> None:
        """End calls too dear for what is left of ``max_cost``, which no other server takes."""

        def own(request: Request) -> BatchClientError:
            budget = request.shape.budget
            assert budget is not None, "only a call with a bound is too dear"
            error = ConfigError(
                f"max_cost: {budget.spent:.3g} of {budget.most:.3g} is spent, the call may cost more than what is left,"
                " and no server without a price takes it",
                field="max_cost",
            )
            # The call is well, and may be made with more to spend.
            error.retryable = True
            return error

        self.end(requests, own, now)

    def end_held(self, now: float) -> None:
        """End the calls with deadlines before any server takes calls again.

        Nothing may be in flight: such calls may be answered before their deadlines.
        """
        if self._rest(now) is None:
            return
        held: dict[Request, tuple[float, Failure]] = {}
        for request in self._queue.deadlines.before(now + LONGEST_REST_S):
            rest = self._rest(now, request.shape)
            if rest is not None and rest.words is not None and (request.deadline or now) <= rest.until:
                held[request] = rest.until - now, rest.words

        def own(request: Request) -> BatchClientError:
            rest_s, said = held[request]
            why = f"no call is sent for {seconds(rest_s)}, and the call's timeout_s ends before"
            message = f"{said.message} ({_because(why, time_spent(request, (), now))})"
            return replace(said, message=message, retry_after_s=rest_s).to_error(request.attempts)

        self.end(list(held), own, now)

    def _rest(self, now: float, shape: Shape | None = None) -> Hold | None:
        """The rest that ends first, if every server has asked for one."""
        first: Hold | None = None
        for endpoint in self._fleet.serving:
            rests = [hold for hold in endpoint.holds(now, shape) if hold.words is not None]
            if not rests:
                return None
            rest = max(rests, key=lambda hold: hold.until)
            first = rest if first is None or rest.until < first.until else first
        return first

    # Words ------------------------------------------------------------------------------------------------------

    def _account(self, request: Request, now: float, since: float | None = None) -> tuple[list[ServerOutage], str]:
        """Return the outages in a call's time, and where its time went."""
        outages = self._fleet.outage.all_after(request.queued_at if since is None else since, request.shape)
        return outages, time_spent(request, outages, now, since)

    def _held_by(self, request: Request, now: float) -> str:
        """Return the hold on a queued call at all endpoints; empty: none."""
        holds = [endpoint.hold(now, request.shape) for endpoint in self._fleet.serving]
        reasons = dict.fromkeys("" if hold is None else hold.why for hold in holds)
        # An outage of all of them is told with its time.
        is_told = reasons.keys() <= {OUTAGE, AWAITED}
        return "" if "" in reasons or is_told else " and ".join(reasons)

    def _silence(self, request: Request, now: float) -> str:
        """Say whose silence a call has met: that of its own server, or of all servers in use."""
        if request.batch is not None:
            is_heard = request.batch.wire.replied
            return "" if is_heard else self._fleet.by_id[request.batch.endpoint].nothing_came(now)
        said = [endpoint.nothing_came(now) for endpoint in self._fleet.serving if endpoint.health.in_use]
        return " and ".join(said) if all(said) else ""

    def _crowd(self, taken: int = 0) -> str:
        """Say how many calls are queued for how many places; ``taken`` are just out of the queue."""
        queued, limit = self._queue.size + taken, self._fleet.total_limit
        calls = "1 call is" if queued == 1 else f"{queued} calls are"
        return f"{calls} queued, and {limit} sequence{'' if limit == 1 else 's'} may be in flight"


def _because(message: str, spent: str) -> str:
    """Return a message with the account of a call's time, if there is any."""
    return f"{message}: {spent}" if spent else message


def _advice(request: Request, outages: Sequence[ServerOutage], now: float, crowd: str) -> str:
    """Return advice for a call with too little time because of its turn in the queue."""
    # The queue of a job gets shorter with time. The queue of an overloaded service needs a bound.
    # Both have the same length now, so the advice is for both. Rows of maps do not count the queue.
    counts = request.timeout_s is None and not outages and was_mostly_queued(request, now)
    return f"; the queue counts: {crowd}. {_ADVICE}" if counts else ""
