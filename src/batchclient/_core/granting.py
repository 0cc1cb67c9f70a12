"""Granting: which groups get the free permits, in which order, as which batches. Rules 3, 5 and 9 of the scheduler.

Rules:
- A call is bound to an endpoint here, not when it is queued. Of several endpoints the best for the first call gets one batch
  (see ``choice``), then the choice is made again. Where the queue is shallow, no list takes so much that others stay idle.
- An endpoint that has refused calls of a shape is passed over for them while another may take them (see ``denials``).
- An ejected endpoint whose pause is over gets one call by itself, to find out (see ``health``).
- Where requests or tokens per minute are limited, a batch is granted when it can be paid for (see ``rates``).
- What a fast endpoint holds back for a moment is not given to one so much slower that waiting is the shorter way.
- Groups are looked at in the queue's order. One that waits for company or for more permits is passed over, unless the batching
  rule says that nothing younger may be granted before it.
- Permits are taken in the very step that makes the batch.
- Once two priority classes are in use, the lowest leaves a reserve of permits to the others, which neither linger nor are held. A group of
  the lowest class that keeps younger ones waiting does not keep higher classes waiting.
- A call that cannot make its deadline is taken out here, before it costs anything. Where the oldest call probably cannot, the newest go
  first: with more callers than a server can serve in time, first come first served would make everybody late.
"""

from __future__ import annotations

import math

from batchclient._core.batching import BatchingRule
from batchclient._core.learnt.lengths import OutputLengths
from batchclient._core.learnt.times import ServiceTimes, is_fresh
from batchclient._core.messages import Batch, Isolation, Request, RequestState
from batchclient._core.requests import shape_of
from batchclient._core.servers.choice import choose, expected_waits
from batchclient._core.servers.denials import subject_of
from batchclient._core.servers.endpoint import Endpoint
from batchclient._core.servers.endpoints import Endpoints
from batchclient._core.servers.health import HealthState
from batchclient._core.servers.speed import work
from batchclient._core.settings import SchedulerSettings
from batchclient._core.statistics import Counters
from batchclient._core.waiting.deadlines import Deadlines
from batchclient._core.waiting.lanes import Reserve
from batchclient._core.waiting.queue import FamilyGroup, Group, Queue

__all__ = ["Granting"]

_IN_FLIGHT = RequestState.IN_FLIGHT
_GROUPS_LOOKED_AT = 16
"""How many groups one step passes over for want of permits or company before it stops looking."""
_SHORTEST_SHARE = 8
"""A list is not cut below this to keep another endpoint busy: singles cost the client and the server more than they bring."""


class Granting:
    """Turns queued requests into batches.

    Args:
        endpoints: whose permits are granted.
        queue: what waits.
        rule: how many of a group to send.
        length_reach: how many length buckets a batch may span.
        lengths: expected output lengths.
        counters: what is counted.
        times: how long calls take.
        deadlines: of all calls that have one.
    """

    __slots__ = (
        "_counters",
        "_deadlines",
        "_endpoints",
        "_length_reach",
        "_lengths",
        "_queue",
        "_rule",
        "_sent",
        "_times",
        "hopeless",
        "wake_at",
    )

    def __init__(
        self,
        endpoints: Endpoints,
        queue: Queue,
        rule: BatchingRule,
        length_reach: int | None,
        lengths: OutputLengths,
        counters: Counters,
        times: ServiceTimes,
        deadlines: Deadlines,
    ) -> None:
        self._endpoints = endpoints
        self._queue = queue
        self._rule = rule
        self._length_reach = length_reach
        self._lengths = lengths
        self._counters = counters
        self._times = times
        self._deadlines = deadlines
        self._sent = 0
        self.wake_at: float | None = None
        """When to grant again though nothing else happens."""
        self.hopeless: list[Request] = []
        """Calls that were taken out because they cannot make their deadlines; the scheduler ends and removes them."""

    def retune(self, settings: SchedulerSettings) -> None:
        """Go on with other numbers."""
        self._rule.retune(settings)
        self._length_reach = settings.length_reach

    def grant(self, now: float) -> list[Batch]:
        """Take permits for whatever may be sent now; set ``wake_at`` for what waits for time rather than for permits."""
        self.wake_at = None
        batches: list[Batch] = []
        if not self._queue.size:
            return batches
        serving = self._endpoints.serving
        if len(serving) == 1:
            if self._is_open(serving[0], now, lone=True):
                self._grant_on(serving[0], now, batches, lone=True)
        else:
            self._share_out(serving, now, batches)
        if not self._queue.size:
            # What one endpoint would have kept waiting, another took.
            self.wake_at = None
        return batches

    def _is_open(self, endpoint: Endpoint, now: float, *, lone: bool = False) -> bool:
        """Whether it may be granted on; if not, note when it may."""
        health = endpoint.health
        if endpoint.blocked_until is None and not health.ailing:
            return True
        # A lone endpoint that is a wrong address is not waited for: its calls find out at once, and fail.
        if lone and health.is_wrong_address:
            return True
        if endpoint.is_blocked(now):
            assert endpoint.blocked_until is not None
            self._wake(endpoint.blocked_until)
            return False
        if health.is_closed(now):
            assert health.closed_until is not None
            self._wake(health.closed_until)
            return False
        health.grow(endpoint.limit.limit, now)
        return health.probe is None

    def _share_out(self, serving: list[Endpoint], now: float, batches: list[Batch]) -> None:
        """Grant batch by batch, each on the endpoint that is the best for the oldest call."""
        choices = [endpoint for endpoint in serving if self._is_open(endpoint, now)]
        queued, most = self._queue.size, None
        if queued < sum(endpoint.free for endpoint in choices):
            most = max(_SHORTEST_SHARE, -(-queued // len(choices)))
        while choices and (head := self._head()) is not None:
            # One that cannot take the call does not "hold it back": see below.
            takers = self._endpoints.takers(choices, head.shape, now)
            endpoint = choose(takers, head.family, head.failed_on, now)
            free, wake_at = endpoint.free, self.wake_at
            self.wake_at = None
            if not self._grant_on(endpoint, now, batches, most):
                choices.remove(endpoint)
                if self.wake_at is not None and self._queue.size <= free:
                    # It could take all of them, and soon will.
                    choices = self._not_slower(choices, endpoint, head, self.wake_at, now)
            if wake_at is not None:
                self._wake(wake_at)

    def _head(self) -> Request | None:
        found = self._queue.pop()
        if found is None:
            return None
        self._queue.restore(found[0])
        return found[1]

    def _not_slower(
        self, others: list[Endpoint], held: Endpoint, head: Request, until: float, now: float
    ) -> list[Endpoint]:
        """Those that answer the call no later than one that holds it back for a while would."""
        if not all(endpoint.speed.is_known for endpoint in (held, *others)):
            return others
        units = work(self._lengths.expected(head.shape.learnt_as, head.shape.max_output_tokens))
        *waits, wait = expected_waits([*others, held], now)
        longest = wait + (until - now) / units
        return [other for other, its in zip(others, waits, strict=True) if its <= longest]

    def _grant_on(
        self,
        endpoint: Endpoint,
        now: float,
        batches: list[Batch],
        most: int | None = None,
        *,
        lone: bool = False,
        shelter: bool = True,
    ) -> bool:
        """Grant what can be granted on a lone endpoint, else one batch; return whether there may be more to grant.

        Args:
            endpoint: where.
            now: the time.
            batches: what is granted joins them.
            most: a fresh list is no longer than this.
            lone: there is no other.
            shelter: do not probe with what failed here before.
        """
        probe, sheltered, others = False, -1, True
        if endpoint.health.ailing and endpoint.health.state is HealthState.EJECTED:
            probe = not (lone and endpoint.health.is_wrong_address)
            others = self._endpoints.others_in_use(endpoint)
            # What failed here is no probe: an outage must not use up one call's attempts.
            sheltered = endpoint.id if probe and shelter and (others or not endpoint.health.refuses) else -1
        passed_over: list[Group] = []
        # One clock for all that is held here in one stretch: who comes to the front of it waits no longer for that.
        held_since, held = endpoint.held_since, False
        reserve = self._reserve(endpoint, now)
        above: int | None = None
        more = False
        rates, doubts, lacking = endpoint.rates, endpoint.refusals.models, endpoint.refusals.shapes
        while (room := endpoint.free) > 0 and len(passed_over) < _GROUPS_LOOKED_AT:
            if rates is not None and (ready_at := rates.ready_at(now)) is not None:
                self._wake(ready_at)
                break
            found = self._queue.pop(above)
            if found is None:
                break
            group, oldest = found
            if sheltered >= 0 and oldest.failed_on == sheltered:
                passed_over.append(group)
                continue
            if lacking and not lone and self._endpoints.leaves(group.shape, endpoint, now):
                passed_over.append(group)
                self._wake(lacking[group.shape.answer_key])
                continue
            doubtful = bool(doubts) and subject_of(group.shape) in doubts
            if doubtful:
                elsewhere = not lone and self._endpoints.others_take(group.shape, endpoint, now)
                if not endpoint.refusals.may_probe(subject_of(group.shape), now, elsewhere=elsewhere):
                    passed_over.append(group)
                    continue
            self._queue.lanes.see(group.shape.priority, now)
            urgent = reserve is not None and group.shape.priority > reserve.lowest
            if reserve is not None and not urgent:
                room -= reserve.unused
                if room <= 0:
                    # Only the reserve is left: to this class the endpoint is full.
                    passed_over.append(group)
                    above = reserve.lowest
                    continue
            if type(group) is FamilyGroup and not urgent:
                assert self._queue.warmth is not None, "a group of families comes from a queue that looks at them"
                # Who comes back is no longer awaited: the permit that was kept is then free.
                awaited, awaited_until = self._queue.warmth.awaited(endpoint.id, now)
                room -= awaited
                if room <= 0:
                    passed_over.append(group)
                    self._wake(awaited_until)
                    continue
            count, wait_until, blocks = self._rule.decide(
                group, oldest, endpoint, now, held_since, room=room, urgent=urgent
            )
            if count:
                if probe or doubtful:
                    count = 1
                elif most is not None and count > most and not group.whole:
                    count = most
                if rates is not None:
                    count, until = rates.affordable(count, self._tokens(oldest), now)
                    if not count:
                        passed_over.append(group)
                        # Nothing younger and cheaper goes before it.
                        self._wake(until)
                        break
                newest = oldest.deadline is not None and self._is_too_old(oldest, now)
                taken = self._queue.take(group, count, self._length_reach, now, newest=newest)
                requests = self._sort_out(taken, now)
                if requests:
                    batch = self._make_batch(group, requests, endpoint, now)
                    batches.append(batch)
                    if probe:
                        endpoint.health.begin_probe(batch.id)
                    if doubtful:
                        endpoint.refusals.begin_probe(batch)
                self._queue.restore(group)
                if probe and requests:
                    break
                if not lone:
                    more = endpoint.free > 0 and self._queue.size > 0
                    break
                if reserve is not None:
                    reserve = self._reserve(endpoint, now)
                continue
            passed_over.append(group)
            if wait_until is not None:
                self._wake(wait_until)
            if blocks:
                held = held or wait_until is not None
                if reserve is None or urgent or (wait_until is None and not _may_pass(group, reserve, endpoint)):
                    break
                above = reserve.lowest
        if endpoint.health.grows_at is not None and endpoint.free <= 0:
            self._wake(endpoint.health.grows_at)
        if not more:
            # Else it is looked at again in this step.
            endpoint.held_since = (now if held_since is None else held_since) if held else None
        for group in passed_over:
            self._queue.restore(group)
        if sheltered >= 0 and not others and passed_over and endpoint.health.probe is None:
            # All that waits has failed here before, and there is no other endpoint to find out.
            return self._grant_on(endpoint, now, batches, most, lone=lone, shelter=False)
        return more

    def grant_bare(
        self, requests: list[Request], endpoint: Endpoint, failures: int, isolation: Isolation, now: float
    ) -> Batch | None:
        """Send members of a failed list bare, where it failed and past the queue.

        Args:
            requests: some or all of them.
            endpoint: where.
            failures: failed attempts before this one.
            isolation: the list's.
            now: the time.

        Returns:
            ``None`` if the endpoint has no room for them now.
        """
        weight, rates = len(requests) * requests[0].shape.weight, endpoint.rates
        if endpoint.leaving or not endpoint.health.in_use or not self._is_open(endpoint, now):
            return None
        if endpoint.free < weight and (endpoint.in_flight or len(requests) > 1):
            return None
        tokens = self._tokens(requests[0])
        if rates is not None and (
            rates.ready_at(now) is not None or rates.affordable(len(requests), tokens, now)[0] < len(requests)
        ):
            return None
        group = Group(requests[0].shape, sealed=True, failures=failures, isolation=isolation, bare=True)
        group.lane = self._queue.lane_of(group.shape)
        return self._make_batch(group, requests, endpoint, now)

    def _reserve(self, endpoint: Endpoint, now: float) -> Reserve | None:
        # Of what it may have in flight now: while it recovers that is less than its limit.
        most = endpoint.in_flight + endpoint.free
        return self._queue.lanes.reserve(most, len(self._endpoints.serving), now)

    def _is_too_old(self, oldest: Request, now: float) -> bool:
        """Whether the oldest call would probably be answered too late, but might just make it: else it is taken, and refused."""
        assert oldest.deadline is not None
        if not self._times.known:
            return False
        key, left_s = oldest.shape.learnt_as, oldest.deadline - now
        return self._times.shortest(key, now) <= left_s < self._times.likely(key, now)

    def _sort_out(self, requests: list[Request], now: float) -> list[Request]:
        """Take out the calls that cannot be served before their deadlines; return the others."""
        if not self._times.known:
            return requests
        key = requests[0].shape.learnt_as
        shortest_s, likely_s = self._times.shortest(key, now), self._times.likely(key, now)
        # As a rule all calls have time enough, as the earliest deadline of any shows.
        earliest = self._deadlines.next()
        if not likely_s or earliest is None or earliest >= now + max(likely_s, shortest_s):
            return requests
        crowded = self._queue.size > 0
        late, in_time = [], []
        for request in requests:
            left_s = math.inf if request.deadline is None else request.deadline - now
            # Where others wait for the permit, it is not spent on a call that has waited and is probably late. A fresh one is
            # tried: if even it is late, that is the limit's to know.
            if left_s < (likely_s if crowded and not is_fresh(request, now) else shortest_s):
                request.group = None
                late.append(request)
            else:
                in_time.append(request)
        self.hopeless += late
        return in_time

    def _make_batch(self, group: Group, requests: list[Request], endpoint: Endpoint, now: float) -> Batch:
        shape, lane = shape_of(requests), group.lane
        assert lane is not None, "a group in the queue has a lane"
        size = len(requests)
        alone = (self._rule.alone(shape, endpoint, now) or "no company") if size == 1 else ""
        prompt_tokens, oldest_at = 0, requests[0].queued_at
        for request in requests:
            request.state = _IN_FLIGHT
            request.attempts += 1
            request.group = None
            prompt_tokens += request.prompt_tokens
            if request.queued_at < oldest_at:  # noqa: PLR1730  # as in ``handle``
                oldest_at = request.queued_at
        self._sent += 1
        abilities = endpoint.can(shape.kind)
        abilities.trial.sent(shape.list_key, size, now)
        streamed = self._rule.wants_stream(shape, size, endpoint, now)
        bare = group.bare or not abilities.form(streamed=streamed).allows(now)
        # A caller who takes the pieces has them in any case: without what only we add to such a request.
        streamed = streamed and (shape.to_caller or not bare)
        batch = Batch(
            id=self._sent,
            endpoint=endpoint.id,
            shape=shape,
            requests=requests,
            streamed=streamed,
            tell_begun=streamed and endpoint.opening,
            failures=group.failures,
            sent_at=now,
            oldest_at=oldest_at,
            alone=alone,
            isolation=group.isolation,
            packed=shape.packable and not bare and abilities.packing.allows(now),
            bare=bare,
            unanswered=size,
            callers=size,
            answered=bytearray(size),
            returned_at_sent=endpoint.returned,
            area_at_sent=endpoint.area(now),
            admitted_at=endpoint.limit.limit,
            lane=lane,
        )
        abilities.sent(batch)
        for request in requests:
            request.batch = batch
        if type(group) is FamilyGroup:
            assert self._queue.warmth is not None
            self._queue.warmth.granted(requests, endpoint.id, now)
            batch.has_families = True
        if endpoint.rates is not None:
            batch.charged_tokens = sum(map(self._tokens, requests))
            endpoint.rates.charge(batch.charged_tokens, now)
        endpoint.take(size * shape.weight, now)
        batch.in_flight_at_sent = endpoint.in_flight
        self._queue.lanes.take(lane, size * shape.weight)
        expected = shape.weight * self._lengths.expected(shape.learnt_as, shape.max_output_tokens)
        self._queue.lanes.charge(batch, expected)
        batch.tokens_at_risk = prompt_tokens + size * expected
        if not group.failures:
            endpoint.budget.sent(batch.tokens_at_risk, size)
        self._counters.send(size, alone)
        return batch

    def _tokens(self, request: Request) -> int:
        """What a call is expected to cost, at least 1."""
        shape = request.shape
        output = shape.weight * self._lengths.expected(shape.learnt_as, shape.max_output_tokens)
        return max(1, request.prompt_tokens + output)

    def _wake(self, time: float) -> None:
        if self.wake_at is None or time < self.wake_at:
            self.wake_at = time


def _may_pass(starving: Group, reserve: Reserve, endpoint: Endpoint) -> bool:
    """Whether higher classes may pass a call of the lowest that waits for permits: up to their reserve, where it can run beside it."""
    return starving.shape.weight <= endpoint.limit.limit - reserve.permits and reserve.unused > 0
