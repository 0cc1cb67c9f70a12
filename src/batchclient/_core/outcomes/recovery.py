"""Requeue the requests of a failed batch: rule 8 of the scheduler, and rule 7 for too long lists.

Rules:
- Requests which failed together are tried again together, sealed: none mixes with fresh calls.
- ``recovery_table`` decides how the requests go again, by the kind of failure.
- A list perhaps spoilt by one prompt is split in halves, again and again, until the guilty prompts
  are alone. If only refusals come, the rest go singly.
- For a list that failed twice without a culprit see ``member_first``. A lone call that failed twice
  goes bare from then on, if nothing in the preferred form was ever answered.
- Calls of a shape which one endpoint cannot be asked go to another that may take the shape. The
  first endpoint gets no such calls for a while.
- If no connection could be made, the calls wait for a server, provided that another is in use or
  one has ever answered. No attempt is counted, and the retry policy is not asked.
- Calls that were refused for load go at once to another endpoint that takes them, once to each.
  Else they step aside (see ``pace``), lists in halves.
- After the retry policy's pause, requests wait for the retry budget of the failed endpoint.
- If a server asks for a pause (``Retry-After``) which ends after a call's deadline, the call is not
  tried again: its caller hears at once what the server said.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from batchclient._core.messages import Batch, Failed, FailureKind, Isolation, Request
from batchclient._core.outcomes.recovery_table import Case, Way, row_for
from batchclient._core.servers.endpoint import Endpoint
from batchclient._core.servers.endpoints import Endpoints
from batchclient._core.servers.pace import aside_s
from batchclient._core.spent import note_pause
from batchclient._core.statistics import Counters
from batchclient._core.waiting.queue import Group, Queue

__all__ = ["Parked", "Recovery"]

_HASTENED = 2


@dataclass(slots=True)
class Parked:
    """A failed list, waiting for the end of a batch whose result may tell more of its server."""

    event: Failed
    requests: list[Request]
    """The requests whose callers still wait."""
    endpoint: Endpoint
    """Where the list failed."""
    until: float
    """The end of the wait if another endpoint is in use."""


@dataclass(frozen=True, slots=True)
class _Retry:
    """What requests need, besides time, to be tried again together."""

    endpoint: Endpoint
    """Where the requests failed."""
    calls: int
    tokens: float = 0.0
    """The cost of sending the requests again, taken from the endpoint's retry budget."""
    refusal_s: float | None = None
    """How long the refusal took, if it may turn out to be free."""
    hastens: bool = False
    """Whether the calls wait for nothing but to let others pass."""
    rests: bool = False
    """Whether a ``Retry-After`` holds the calls."""


class Recovery:
    """Requeues failed requests."""

    __slots__ = ("_counters", "_later", "_queue", "_unpaid", "_unpaid_until", "hopeless")

    def __init__(self, queue: Queue, counters: Counters) -> None:
        self._queue = queue
        self._later = queue.later
        self._counters = counters
        self._unpaid: dict[int, Endpoint] = {}
        """Endpoints for whose retry budgets requests past their pause stand in line."""
        self._unpaid_until: float | None = None
        self.hopeless: list[Request] = []
        """Of the last failure: calls whose pause, asked for by the server, ends after the deadline.
        ``Resending`` ends and removes them."""

    def next_due(self) -> float | None:
        """Return the time when the first request is due."""
        times = (self._later.next(), self._unpaid_until if self._later.size else None)
        return min((time for time in times if time is not None), default=None)

    def requeue(self, now: float) -> None:
        """Queue the requests whose pause is over and whose retry is paid for."""
        if self._unpaid:
            self._unpaid_until = None
            for endpoint in list(self._unpaid.values()):
                while (group := self._later.first(endpoint)) is not None and self._pay(group, now):
                    self._later.leave(endpoint)
                if group is None:
                    del self._unpaid[endpoint.id]
        while (due := self._later.pop(now)) is not None:
            endpoint = _retry_of(due).endpoint
            if endpoint.id in self._unpaid or not self._pay(due, now):
                self._unpaid[endpoint.id] = endpoint
                self._later.hold(due, endpoint)
                self._counters.retries_delayed += 1

    def hasten(self, now: float) -> None:
        """A call was answered, and none is queued: two that stepped aside need wait no longer."""
        hastened = list[Group]()
        while len(hastened) < _HASTENED and (group := self._later.peek()) is not None:
            retry = _retry_of(group)
            if not retry.hastens or (retry.rests and not retry.endpoint.pace(group.shape).lets_go(now)):
                break
            self._later.pop(group.not_before)
            hastened.append(group)
        for group in hastened:
            group.not_before = min(group.not_before, now)
            self._later.push(group)

    def _pay(self, group: Group, now: float) -> bool:
        """Queue some requests again; return false if their endpoint's retry budget is in debt."""
        if not group.size:
            return True
        retry = _retry_of(group)
        endpoint = retry.endpoint
        limit = endpoint.limit.limit
        free = not retry.tokens or (retry.refusal_s is not None and endpoint.takes_work(retry.refusal_s, now))
        if not free and not endpoint.budget.take(retry.tokens * group.size / retry.calls, limit, now):
            until = endpoint.budget.when(limit, now)
            self._unpaid_until = until if self._unpaid_until is None else min(until, self._unpaid_until)
            return False
        if free and retry.tokens and group.failures == 1:
            endpoint.budget.sent(-retry.tokens, -retry.calls)
        group.failures -= free and retry.tokens > 0
        note_pause(self._queue.come_back(group), now)
        return True

    def try_again(
        self,
        event: Failed,
        alive: list[Request],
        endpoint: Endpoint,
        now: float,
        endpoints: Endpoints | None = None,
    ) -> bool:
        """Requeue the unanswered requests of a failed batch; return false if none is sent again.

        Args:
            event: the failure.
            alive: the requests whose callers still wait.
            endpoint: where the batch failed.
            endpoints: all endpoints; ``None``: no other is known, and none has ever answered.
        """
        if event.failure.refuses_shape and self._pass_on(event, alive, endpoint, endpoints, now):
            return True
        others = endpoints is not None and endpoints.others_in_use(endpoint)
        known = endpoints is not None and endpoints.known
        failed = Case(event, alive, endpoint, others, known, self._elsewhere(event, alive, endpoint, endpoints, now))
        row = row_for(failed)
        if row.learn is not None:
            row.learn(failed, now)
        pause_s = self._pause_s(failed, row.way)
        if pause_s and failed.failure.retry_after_s is not None:
            failed = self._sort_out(failed, now + pause_s)
            alive = failed.alive
            if not alive:
                return True
        if failed.failure.once and failed.may_be_retried and row.way in (Way.LATER, Way.NOT):
            for request in alive:
                request.met_before = True
        self._counters.retries += row.is_retry
        batch = event.batch
        failures = batch.failures + (row.is_attempt and not batch.refused_freely)
        match row.way:
            case Way.ASIDE:
                for half in _halves(alive):
                    self._back_off(failed, half, failures, now + pause_s)
            case Way.AT_ONCE:
                self._resend(alive, failures, batch.isolation, bare=batch.bare)
            case Way.BARE:
                self.send_bare(alive, batch)
            case Way.SINGLY:
                if row.is_attempt:
                    endpoint.budget.charge(_tokens(alive, batch), endpoint.limit.limit, now)
                self.send_singly(alive, failures)
            case Way.HALVES:
                self.split(alive, batch)
            case Way.SEARCH:
                self.search(alive, batch)
            case Way.LATER:
                self._back_off(failed, alive, failures, now + pause_s)
            case Way.NOT:
                self._give_up(event, alive, endpoint, now)
        return row.way is not Way.NOT

    def _elsewhere(
        self, event: Failed, alive: list[Request], endpoint: Endpoint, endpoints: Endpoints | None, now: float
    ) -> bool:
        """Whether refused calls may go to another endpoint at once; each endpoint gets one such try."""
        if endpoints is None or not event.failure.refuses_load:
            return False
        return _refusals(alive) < len(endpoints.serving) and endpoints.take_now(event.batch.shape, endpoint, now)

    def _pause_s(self, failed: Case, way: Way) -> float:
        """How long the calls wait before their next attempt, at least."""
        event, delay_s = failed.event, failed.event.retry_delay_s
        if way is Way.ASIDE:
            pause_s = aside_s(_refusals(failed.alive), event.jitter)
            if not failed.batch.refused_freely:
                return max(delay_s or 0.0, pause_s)
            if failed.listed and failed.batch.refused_alone:
                # The server means one of the list's calls, and the halves find out which.
                return pause_s
            # Whoever was not refused before goes first when a rest is over.
            return (event.failure.retry_after_s or 0.0) + pause_s
        if way is Way.LATER:
            assert delay_s is not None
            return delay_s
        return 0.0

    def _sort_out(self, failed: Case, until: float) -> Case:
        """Take out the calls with deadlines before the next attempt."""
        in_time = list[Request]()
        for request in failed.alive:
            is_late = request.deadline is not None and request.deadline <= until
            (self.hopeless if is_late else in_time).append(request)
        return replace(failed, alive=in_time)

    def _give_up(self, event: Failed, alive: list[Request], endpoint: Endpoint, now: float) -> None:
        """Take in the end of requests not sent again."""
        batch, failure = event.batch, event.failure
        if failure.once and event.retry_delay_s is not None:
            # The second time: the callers are told not to try again either.
            event.failure = replace(failure, kind=FailureKind.REFUSED)
        isolation = batch.isolation
        if isolation is not None and (failure.is_own or isolation.blind):
            isolation.bad += len(alive)
            self._conclude(isolation, endpoint, batch, now)

    def move(self, alive: list[Request], batch: Batch) -> None:
        """Requeue the unanswered requests of a removed endpoint's batch; no failure is counted."""
        self._counters.retries += 1
        self._again(alive, batch)

    def _pass_on(
        self, event: Failed, alive: list[Request], endpoint: Endpoint, endpoints: Endpoints | None, now: float
    ) -> bool:
        """Requeue requests for an endpoint that may take their shape; return false if none may."""
        batch, unsent = event.batch, event.failure.is_unsent
        if endpoints is None or not endpoints.others_in_use(endpoint):
            return False
        if not endpoints.others_take(batch.shape, endpoint, now):
            event.failure = replace(event.failure, message=f"{event.failure.message}; no other server in use takes it")
            return False
        endpoint.denials.lack(batch.shape, now)
        for request in alive:
            # An unsent request was no attempt; a server's own refusal was.
            request.attempts -= unsent
        self._counters.retries += not unsent
        self._again(alive, batch)
        return True

    def step_aside(self, requests: list[Request], batch: Batch, endpoint: Endpoint, until: float) -> None:
        """Requeue refused requests after a pause; no failure is counted, and nothing is paid."""
        self._counters.retries += 1
        retry = _Retry(endpoint, len(requests))
        self._later.add(
            _group(requests, batch.failures, batch.isolation, bare=batch.bare, retry=retry), requests, until
        )

    def park(self, parked: Parked, until: int) -> None:
        """Let a failed list wait for the end of a batch."""
        group = Group(parked.event.batch.shape, sealed=True, retry=parked)
        self._later.add(group, parked.requests, parked.until, until)

    def parked_until(self, trial: int, endpoints: Endpoints) -> float | None:
        """When the lists of a line have waited long enough, since another endpoint may have the list."""
        group = self._later.first(trial)
        if group is None or not endpoints.others_in_use(_parked_of(group).endpoint):
            return None
        return group.not_before

    def unpark(self, trial: int, now: float) -> list[Parked]:
        """Return the lists that waited for a batch, without requests whose callers have gone."""
        return [self._free(group, now) for group in self._later.dissolve(trial)]

    def unpark_late(self, trial: int, endpoints: Endpoints, now: float) -> list[Parked]:
        """Return, likewise, lists which have waited long enough."""
        late = list[Parked]()
        while (until := self.parked_until(trial, endpoints)) is not None and until <= now:
            late.append(self._free(self._later.leave(trial), now))
        return late

    def _free(self, group: Group, now: float) -> Parked:
        parked = _parked_of(group)
        parked.requests = [request for request in parked.requests if request.group is group]
        self._later.release(group)
        note_pause(parked.requests, now)
        return parked

    def search(self, alive: list[Request], batch: Batch) -> None:
        """Split a list refused for one of its prompts, or for all."""
        isolation = batch.isolation or Isolation(size=len(alive))
        isolation.refused += 1
        if isolation.good or isolation.refused <= isolation.size.bit_length():
            self.split(alive, batch, isolation)
            return
        # More refusals than one guilty prompt can cause, and no prompt is good: most are bad, and
        # halving would ask for each twice.
        self._counters.splits += 1
        self.send_singly(alive, batch.failures, isolation)

    def split(self, alive: list[Request], batch: Batch, isolation: Isolation | None = None) -> None:
        """Send a list again in two sealed halves."""
        self._counters.splits += 1
        middle = (len(alive) + 1) // 2
        for half in (alive[:middle], alive[middle:]):
            if half:
                self._resend(half, batch.failures, isolation, whole=True, bare=batch.bare)

    def send_singly(self, alive: list[Request], failures: int, isolation: Isolation | None = None) -> None:
        """Send the prompts of a list again one by one."""
        for request in alive:
            self._resend([request], failures, isolation)

    def send_bare(self, alive: list[Request], batch: Batch) -> None:
        """Send a list again plain and without added fields."""
        self._resend(alive, batch.failures, batch.isolation, bare=True)

    def _again(self, alive: list[Request], batch: Batch) -> None:
        self._resend(alive, batch.failures, batch.isolation, bare=batch.bare)

    def _resend(
        self,
        requests: list[Request],
        failures: int,
        isolation: Isolation | None,
        *,
        whole: bool = False,
        bare: bool = False,
    ) -> None:
        self._queue.put_back(requests, _group(requests, failures, isolation, whole=whole, bare=bare))

    def _back_off(self, failed: Case, alive: list[Request], failures: int, until: float) -> None:
        batch, endpoint = failed.batch, failed.endpoint
        bare = batch.bare
        if batch.streamed and not failed.listed and failed.failure.unforeseen:
            # Nothing in this form was ever answered: from the second failure on the call goes bare.
            bare = bare or (batch.failures > 0 and not failed.abilities.proves_form(batch))
        free, rests = batch.refused_freely, failed.failure.retry_after_s is not None
        unserved = failed.failure.unserved and batch.refusal_s is None
        tokens = 0.0 if batch.refused_alone or free or unserved else _tokens(alive, batch)
        retry = _Retry(endpoint, len(alive), tokens, batch.refusal_s, free, rests)
        self._later.add(_group(alive, failures, batch.isolation, bare=bare, retry=retry), alive, until)

    def isolated(self, batch: Batch, good: int, endpoint: Endpoint, now: float) -> None:
        """Take in good prompts of a split list; if all are good, the list was refused as such."""
        isolation = batch.isolation
        if isolation is None:
            return
        isolation.good += good
        isolation.listed = isolation.listed or len(batch.requests) > 1
        self._conclude(isolation, endpoint, batch, now)

    def _conclude(self, isolation: Isolation, endpoint: Endpoint, batch: Batch, now: float) -> None:
        """Draw a search's conclusion once every prompt has ended."""
        if isolation.good + isolation.bad < isolation.size:
            return
        abilities = endpoint.can(batch.shape.kind)
        if isolation.bad:
            abilities.halves_answered(0, now)
        elif isolation.blind and isolation.refused == 1:
            abilities.halves_answered(isolation.size, now)
        elif not isolation.listed and (isolation.blind or not abilities.lists_proven):
            abilities.lists.refuse(now)


def _group(
    requests: list[Request],
    failures: int,
    isolation: Isolation | None,
    *,
    whole: bool = False,
    bare: bool = False,
    retry: object = None,
) -> Group:
    shape = requests[0].shape
    return Group(shape, sealed=True, whole=whole, failures=failures, isolation=isolation, bare=bare, retry=retry)


def _retry_of(group: Group) -> _Retry:
    assert isinstance(group.retry, _Retry), "a group that waits for its time is a retry"
    return group.retry


def _parked_of(group: Group) -> Parked:
    assert isinstance(group.retry, Parked), "a group that waits for a trial is a parked list"
    return group.retry


def _halves(requests: list[Request]) -> list[list[Request]]:
    middle = (len(requests) + 1) // 2
    return [half for half in (requests[:middle], requests[middle:]) if half]


def _refusals(requests: list[Request]) -> int:
    """How often each of some calls was refused, at least."""
    return min((one.endured.refusals for one in requests if one.endured is not None), default=0)


def _tokens(requests: list[Request], batch: Batch) -> float:
    """Return the tokens at risk in sending some requests of a batch again."""
    return batch.tokens_at_risk * len(requests) / len(batch.requests)
