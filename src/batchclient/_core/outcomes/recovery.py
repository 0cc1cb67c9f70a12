"""What becomes of the requests of a failed batch. Rule 8 of the scheduler, and rule 7 for lists that were too long.

Rules:
- Requests that failed together are tried again together, sealed: they never mix with fresh calls.
- ``recovery_table`` says how they go again, by the kind of failure.
- A list that one prompt may have spoilt is split in halves, and they again, until the guilty are alone. Where only refusals come, the
  rest go one by one.
- A list that failed twice and names no culprit: see ``member_first``. A lone call that did goes bare from then on, where nothing in the form
  that we prefer was ever answered.
- What an endpoint cannot be asked goes to another that may take it; this endpoint is not given such calls for a while.
- If no connection could be made, the calls wait for a server, provided that another is in use or one has ever answered. This counts as no
  attempt, and the retry policy is not asked.
- What waits for as long as the retry policy said waits then for the retry budget of the endpoint where it failed.
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass, replace

from batchclient._core.messages import Batch, Failed, FailureKind, Isolation, Request, RequestState
from batchclient._core.outcomes.recovery_table import Case, Way, row_for
from batchclient._core.servers.denials import is_of_shape
from batchclient._core.servers.endpoint import Endpoint
from batchclient._core.servers.endpoints import Endpoints
from batchclient._core.spent import note_pause
from batchclient._core.statistics import Counters
from batchclient._core.waiting.queue import Group, Queue

__all__ = ["Parked", "Recovery"]


@dataclass(slots=True)
class Parked:
    """A failed list that waits for the end of a batch that may tell more of its server."""

    event: Failed
    requests: list[Request]
    """Those whose callers still wait."""
    endpoint: Endpoint
    """Where they failed."""
    until: float
    """How long it waits where another endpoint is in use."""


@dataclass(frozen=True, slots=True)
class _Resend:
    """Requests that wait to be tried again together."""

    requests: list[Request]
    failures: int
    isolation: Isolation | None
    endpoint: Endpoint
    """Where they failed."""
    tokens: float
    """What sending them again takes of its retry budget."""
    bare: bool = False


class Recovery:
    """Requeues what failed.

    Args:
        queue: where it goes.
        counters: what is counted.
    """

    __slots__ = ("_backoff", "_counters", "_parked", "_queue", "_unpaid", "_unpaid_until", "backing_off")

    def __init__(self, queue: Queue, counters: Counters) -> None:
        self._queue = queue
        self._counters = counters
        self._backoff: list[tuple[float, int, _Resend]] = []
        self._unpaid: dict[int, deque[_Resend]] = {}
        """What has waited long enough and waits for the retry budget, by endpoint, in order."""
        self._unpaid_until: float | None = None
        self._parked: dict[int, list[Parked]] = {}
        """Failed lists that wait for the end of a batch, by its number."""
        self.backing_off = 0
        """Requests that wait to be tried again."""

    def next_due(self) -> float | None:
        """When the first of them is due."""
        # The calls of an entry may all have gone; once none is left anywhere, there is nothing to wake for.
        if not self.backing_off:
            return None
        due = self._backoff[0][0] if self._backoff else None
        if self._unpaid_until is None:
            return due
        return self._unpaid_until if due is None else min(due, self._unpaid_until)

    def requeue(self, now: float) -> None:
        """Queue again what has waited long enough and can be paid for."""
        if self._unpaid:
            self._unpaid_until = None
            for number, unpaid in list(self._unpaid.items()):
                while unpaid and self._pay(unpaid[0], now):
                    unpaid.popleft()
                if not unpaid:
                    del self._unpaid[number]
        while self._backoff and self._backoff[0][0] <= now:
            resend = heapq.heappop(self._backoff)[2]
            line = self._unpaid.get(resend.endpoint.id)
            if line is None:
                if self._pay(resend, now):
                    continue
                self._unpaid[resend.endpoint.id] = line = deque()
            line.append(resend)
            self._counters.retries_delayed += 1

    def _pay(self, resend: _Resend, now: float) -> bool:
        """Queue some requests again; return false if their endpoint's retry budget is in debt."""
        alive = [request for request in resend.requests if request.state is RequestState.BACKING_OFF]
        if not alive:
            return True
        endpoint = resend.endpoint
        limit = endpoint.limit.limit
        if not endpoint.budget.take(resend.tokens * len(alive) / len(resend.requests), limit, now):
            until = endpoint.budget.when(limit, now)
            self._unpaid_until = until if self._unpaid_until is None else min(until, self._unpaid_until)
            return False
        self.backing_off -= len(alive)
        note_pause(alive, now)
        self._resend(alive, resend.failures, resend.isolation, bare=resend.bare)
        return True

    def requests(self) -> list[Request]:
        """Every request that waits to be tried again."""
        resends = [resend for _, _, resend in self._backoff]
        for line in self._unpaid.values():
            resends += line
        waiting = [request for resend in resends for request in resend.requests]
        waiting += [request for parked in self._parked.values() for one in parked for request in one.requests]
        return [request for request in waiting if request.state is RequestState.BACKING_OFF]

    def try_again(
        self,
        event: Failed,
        alive: list[Request],
        endpoint: Endpoint,
        now: float,
        endpoints: Endpoints | None = None,
    ) -> bool:
        """Requeue the unanswered requests of a failed batch as its failure demands.

        Args:
            event: the failure.
            alive: the requests whose callers still wait.
            endpoint: where it failed.
            now: the time.
            endpoints: all of them; ``None``: there is no other, and none is known to have ever answered.

        Returns:
            False if they are not to be sent again.
        """
        if is_of_shape(event.failure) and self._pass_on(event, alive, endpoint, endpoints, now):
            return True
        others = endpoints is not None and endpoints.others_in_use(endpoint)
        failed = Case(event, alive, endpoint, others, known=endpoints is not None and endpoints.known)
        row = row_for(failed)
        if row.learn is not None:
            row.learn(failed, now)
        if failed.failure.once and failed.may_be_retried and row.way in (Way.LATER, Way.NOT):
            for request in alive:
                request.met_before = True
        self._counters.retries += row.is_retry
        batch = event.batch
        failures = batch.failures + row.is_attempt
        match row.way:
            case Way.AT_ONCE:
                self._again(alive, batch)
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
                self._back_off(failed, failures, now)
            case Way.NOT:
                self._give_up(event, alive, endpoint, now)
        return row.way is not Way.NOT

    def _give_up(self, event: Failed, alive: list[Request], endpoint: Endpoint, now: float) -> None:
        """They are not sent again."""
        batch, failure = event.batch, event.failure
        if failure.once and event.retry_delay_s is not None:
            # It has happened twice: its callers are told not to try again either.
            event.failure = replace(failure, kind=FailureKind.REFUSED)
        isolation = batch.isolation
        if isolation is not None and (failure.kind is FailureKind.BAD_CALL or isolation.blind):
            isolation.bad += len(alive)
            self._conclude(isolation, endpoint, batch, now)

    def move(self, alive: list[Request], batch: Batch) -> None:
        """Requeue the unanswered requests of a batch whose endpoint was removed; this is no failure of theirs."""
        self._counters.retries += 1
        self._again(alive, batch)

    def _pass_on(
        self, event: Failed, alive: list[Request], endpoint: Endpoint, endpoints: Endpoints | None, now: float
    ) -> bool:
        """An endpoint takes no calls of this shape: requeue them for another; return false if none may take them."""
        batch, unsent = event.batch, event.failure.kind is FailureKind.UNSUPPORTED
        if endpoints is None or not endpoints.others_in_use(endpoint):
            return False
        if not endpoints.others_take(batch.shape, endpoint, now):
            event.failure = replace(event.failure, message=f"{event.failure.message}; no other server in use takes it")
            return False
        endpoint.denials.lack(batch.shape, now)
        for request in alive:
            # That nothing was sent was no attempt; a server's own refusal was.
            request.attempts -= unsent
        self._counters.retries += not unsent
        self._again(alive, batch)
        return True

    def park(self, parked: Parked, until: int) -> None:
        """Let a failed list wait for the end of a batch."""
        for request in parked.requests:
            request.state = RequestState.BACKING_OFF
        self.backing_off += len(parked.requests)
        self._parked.setdefault(until, []).append(parked)

    @property
    def parks(self) -> bool:
        """Whether any list waits for a batch."""
        return bool(self._parked)

    def parked_until(self, endpoints: Endpoints) -> float | None:
        """When a list has waited long enough, since another endpoint may have it; ``None``: none need look."""
        if not self._parked:
            return None
        waits = (one.until for lists in self._parked.values() for one in lists if endpoints.others_in_use(one.endpoint))
        return min(waits, default=None)

    def unpark(self, batch: int, now: float) -> list[Parked]:
        """A batch has ended: return the lists that waited for it, without those whose callers have gone."""
        return self._free(self._parked.pop(batch, []), now)

    def unpark_late(self, endpoints: Endpoints, now: float) -> list[Parked]:
        """Return the lists that have waited long enough, likewise."""
        late: list[Parked] = []
        for batch, lists in self._parked.items():
            due = [one for one in lists if one.until <= now and endpoints.others_in_use(one.endpoint)]
            self._parked[batch] = [one for one in lists if one not in due]
            late += due
        return self._free(late, now)

    def _free(self, lists: list[Parked], now: float) -> list[Parked]:
        for parked in lists:
            parked.requests = [one for one in parked.requests if one.state is RequestState.BACKING_OFF]
            self.backing_off -= len(parked.requests)
            note_pause(parked.requests, now)
        return lists

    def search(self, alive: list[Request], batch: Batch) -> None:
        """A list was refused for one of its prompts, or for all of them."""
        isolation = batch.isolation or Isolation(size=len(alive))
        isolation.refused += 1
        if isolation.good or isolation.refused <= isolation.size.bit_length():
            self.split(alive, batch, isolation)
            return
        # More refusals than one guilty prompt can cause, and nobody is well: most are bad, and halving would ask for each twice.
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
        """Send a list again plain and without our fields."""
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
        shape = requests[0].shape
        group = Group(shape, sealed=True, whole=whole, failures=failures, isolation=isolation, bare=bare)
        self._queue.add_sealed(requests, group)

    def _back_off(self, failed: Case, failures: int, now: float) -> None:
        batch, alive, endpoint = failed.batch, failed.alive, failed.endpoint
        bare = batch.bare
        if batch.streamed and not failed.listed and failed.failure.unforeseen:
            # Nothing in this form was ever answered: from the second failure on it goes without.
            bare = bare or (batch.failures > 0 and not failed.abilities.proves_form(batch))
        for request in alive:
            request.state = RequestState.BACKING_OFF
        self.backing_off += len(alive)
        assert failed.event.retry_delay_s is not None
        resend = _Resend(alive, failures, batch.isolation, endpoint, _tokens(alive, batch), bare)
        # The batch's number breaks ties: resends are not comparable.
        heapq.heappush(self._backoff, (now + failed.event.retry_delay_s, batch.id, resend))

    def isolated(self, batch: Batch, good: int, endpoint: Endpoint, now: float) -> None:
        """Some prompts of a split list are well: if all are, the list itself was refused."""
        isolation = batch.isolation
        if isolation is None:
            return
        isolation.good += good
        isolation.listed = isolation.listed or len(batch.requests) > 1
        self._conclude(isolation, endpoint, batch, now)

    def _conclude(self, isolation: Isolation, endpoint: Endpoint, batch: Batch, now: float) -> None:
        """See what a search has come to, once every prompt has ended."""
        if isolation.good + isolation.bad < isolation.size:
            return
        abilities = endpoint.can(batch.shape.kind)
        if isolation.bad:
            abilities.halves_answered(0, now)
        elif isolation.blind and isolation.refused == 1:
            abilities.halves_answered(isolation.size, now)
        elif not isolation.listed and (isolation.blind or not abilities.lists_proven):
            abilities.lists.refuse(now)


def _tokens(requests: list[Request], batch: Batch) -> float:
    """What is at risk when some requests of a batch are sent again."""
    return batch.tokens_at_risk * len(requests) / len(batch.requests)
