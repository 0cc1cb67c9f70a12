"""Granting: which groups get the free permits, in which order, as which batches.

Rules 3, 5 and 9 of the scheduler, and:
- A call is bound to an endpoint here, not when queued. With several endpoints the best for the
  oldest call is chosen (see ``choice``) and gets one batch; then the choice is made again. If fewer
  calls wait than permits are free, lists are made shorter, so that every endpoint gets work.
- An endpoint which has refused calls of a shape is passed over for them while another may take them
  (see ``denials``).
- An endpoint that has not answered yet gets nothing where the client waits for it (see
  ``arrivals``).
- An ejected endpoint whose pause is over gets a single call as a probe (see ``health``).
- Where requests or tokens per minute are limited, a batch waits until the limit can pay for it (see
  ``rates``).
- Calls held for a moment by a fast endpoint do not go to a slower endpoint which would answer
  later.
- The first list to a server waits until the server has said which it is (see ``asking``).
- Groups are looked at in the queue's order (see ``checks``). A group waiting for company or for
  more permits is passed over, unless the batching rule lets nothing younger go before it.
- Once two priority classes are in use, the lowest leaves a reserve of permits to the others. Calls
  of higher classes wait neither for company nor for a refill. A group of the lowest class holds
  back younger calls of its own class only.
- Where the oldest call will probably miss its deadline, the newest go first: otherwise every call
  would be late.
"""

from __future__ import annotations

import math

from batchclient._core.batching import BatchingRule
from batchclient._core.checks import Checks, Look, Verdict
from batchclient._core.learnt.lengths import OutputLengths
from batchclient._core.messages import Batch, Isolation, Request
from batchclient._core.servers.choice import choose, expected_waits
from batchclient._core.servers.endpoint import Endpoint
from batchclient._core.servers.endpoints import Endpoints
from batchclient._core.servers.health import HealthState
from batchclient._core.servers.speed import work
from batchclient._core.settings import SchedulerSettings
from batchclient._core.taking import Taking
from batchclient._core.waiting.lanes import Reserve
from batchclient._core.waiting.queue import Group, Queue

__all__ = ["Granting"]

_GROUPS_LOOKED_AT = 16
"""How many groups one step passes over for want of company before it stops looking."""
_NOT_HERE = 1 / 64
"""What a group counts that may not go here, or is too heavy for the free permits: there may be
hundreds of a model in doubt, or of calls with ``n`` and a seed each, at 5 µs a look."""
_SHORTEST_SHARE = 8
"""No list is cut shorter to keep another endpoint busy: singles cost client and server more than
they bring."""


class Granting:
    """Grants a scheduler's permits. ``length_reach``: how many length buckets a batch may span."""

    __slots__ = ("_checks", "_endpoints", "_length_reach", "_lengths", "_queue", "_rule", "_taking", "wake_at")

    def __init__(
        self,
        endpoints: Endpoints,
        queue: Queue,
        rule: BatchingRule,
        length_reach: int | None,
        lengths: OutputLengths,
        taking: Taking,
    ) -> None:
        self._endpoints = endpoints
        self._queue = queue
        self._rule = rule
        self._length_reach = length_reach
        self._lengths = lengths
        self._taking = taking
        self.wake_at: float | None = None
        """When to grant again though nothing else happens."""
        self._checks = Checks(endpoints, queue, rule, taking, self._wake)

    def retune(self, settings: SchedulerSettings) -> None:
        """Go on with other numbers."""
        self._rule.retune(settings)
        self._length_reach = settings.length_reach

    def grant(self, now: float) -> list[Batch]:
        """Take permits for the batches to send now; set ``wake_at`` for calls waiting for time."""
        self.wake_at = None
        batches: list[Batch] = []
        if not self._queue.size:
            return batches
        serving = self._endpoints.serving
        if len(serving) == 1:
            if self._is_open(serving[0], now):
                self._grant_on(serving[0], now, batches, lone=True)
        else:
            self._share_out(serving, now, batches)
        if not self._queue.size:
            # Another endpoint took the calls which one endpoint would have kept waiting.
            self.wake_at = None
        return batches

    def _is_open(self, endpoint: Endpoint, now: float) -> bool:
        """Whether an endpoint may be granted on; if not, note when it may."""
        hold = endpoint.sendable(now)
        if hold is None:
            return True
        if hold.next_at < math.inf:
            self._wake(hold.next_at)
        return False

    def _share_out(self, serving: list[Endpoint], now: float, batches: list[Batch]) -> None:
        """Grant batch by batch, each on the best endpoint for the oldest call."""
        choices = [endpoint for endpoint in serving if self._is_open(endpoint, now)]
        queued, most = self._queue.size, None
        if queued < sum(endpoint.free for endpoint in choices):
            most = max(_SHORTEST_SHARE, -(-queued // len(choices)))
        while choices and (head := self._head()) is not None:
            # An endpoint that cannot take the call does not "hold it back": see below.
            takers = self._endpoints.takers(choices, head.shape, now)
            endpoint = choose(takers, head.family, head.failed_on, now)
            free, wake_at = endpoint.free, self.wake_at
            self.wake_at = None
            if not self._grant_on(endpoint, now, batches, most):
                choices.remove(endpoint)
                if self.wake_at is not None and self._queue.size <= free:
                    # The endpoint could take all of them, and soon will.
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
        """Endpoints which answer the call no later than ``held``, which is held until ``until``."""
        if not all(endpoint.speed.is_known for endpoint in (held, *others)):
            return others
        units = work(self._lengths.expected(head.shape.answer_key, head.shape.max_output_tokens))
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
        """Grant all a lone endpoint can take, else one batch; return whether more may be granted.

        Args:
            batches: granted batches are appended here.
            most: the longest fresh list.
            lone: there is no other endpoint.
            shelter: do not probe with calls which failed here before.
        """
        look = self._look_at(endpoint, now, most, lone=lone, shelter=shelter)
        passed_over: list[Group] = []
        looked_at, more, fits = 0.0, False, False
        while endpoint.free > 0 and looked_at < _GROUPS_LOOKED_AT and self._is_open(endpoint, now):
            found = self._queue.pop(look.above)
            if found is None:
                break
            look.group, look.oldest = found
            verdict = self._checks.judge(look)
            if verdict is not Verdict.TAKE:
                passed_over.append(look.group)
                looked_at += _NOT_HERE if verdict is Verdict.NOT_HERE else 1
                # Where all that wait are too heavy a look at each would find nothing.
                fits = fits or look.group.shape.weight <= endpoint.free or not endpoint.in_flight
                fits = fits or self._queue.has_any(endpoint.free)
                if verdict is Verdict.STOP or not fits:
                    break
                continue
            fits = False
            sent = self._take(look, batches)
            if look.probe and sent:
                break
            if not lone:
                more = endpoint.free > 0 and self._queue.size > 0
                break
            if look.reserve is not None:
                look.reserve = self._reserve(endpoint, now)
        if endpoint.health.grows_at is not None and endpoint.free <= 0:
            self._wake(endpoint.health.grows_at)
        if not more:
            # Otherwise the endpoint is looked at again in this step.
            endpoint.held_since = (now if look.held_since is None else look.held_since) if look.held else None
        for group in passed_over:
            self._queue.restore(group)
        failed_here = look.sheltered and not look.others and passed_over
        if endpoint.health.probe is None and (failed_here or (look.left_out and not more)):
            # All waiting calls have failed here before, and no other endpoint can find out.
            return self._grant_on(endpoint, now, batches, most, lone=lone, shelter=False)
        return more

    def _look_at(self, endpoint: Endpoint, now: float, most: int | None, *, lone: bool, shelter: bool) -> Look:
        look = Look(endpoint, now, most, self._reserve(endpoint, now), lone=lone)
        look.untried = shelter
        health = endpoint.health
        if health.ailing and health.state is HealthState.EJECTED:
            look.probe = not endpoint.is_hopeless
            look.others = self._endpoints.others_in_use(endpoint)
            # A call which failed here is no probe: an outage must not use up its attempts.
            look.sheltered = look.probe and shelter and (look.others or not health.refuses)
        return look

    def _take(self, look: Look, batches: list[Batch]) -> bool:
        """Make a batch of the group at the front; return false if all its calls were hopeless."""
        endpoint, group, oldest, now = look.endpoint, look.group, look.oldest, look.now
        newest = oldest.deadline is not None and self._taking.is_too_old(oldest, now)
        taken = self._queue.take(group, look.count, self._length_reach, now, newest=newest)
        requests = self._taking.sort_out(taken, now)
        if requests:
            batch = self._taking.make_batch(group, requests, endpoint, now)
            batches.append(batch)
            if look.probe:
                self._wake(endpoint.health.begin_probe(batch.id, now))
            if look.doubtful:
                endpoint.denials.begin_probe(batch)
        self._queue.restore(group)
        return bool(requests)

    def grant_bare(
        self, requests: list[Request], endpoint: Endpoint, failures: int, isolation: Isolation, now: float
    ) -> Batch | None:
        """Send members of a failed list bare, where it failed and past the queue.

        Args:
            requests: some or all of the members.
            endpoint: where the list failed.
            failures: failed attempts before this.
            isolation: the list's.

        Returns:
            ``None`` if the endpoint has no room for them now.
        """
        weight, rates = len(requests) * requests[0].shape.weight, endpoint.rates
        if not endpoint.health.in_use or not self._is_open(endpoint, now):
            return None
        if endpoint.free < weight and (endpoint.in_flight or len(requests) > 1):
            return None
        tokens = self._taking.tokens(requests[0])
        if rates is not None and rates.affordable(len(requests), tokens, now)[0] < len(requests):
            return None
        group = Group(requests[0].shape, sealed=True, failures=failures, isolation=isolation, bare=True)
        group.lane = self._queue.lane_of(group.shape)
        return self._taking.make_batch(group, requests, endpoint, now)

    def _reserve(self, endpoint: Endpoint, now: float) -> Reserve | None:
        # A recovering endpoint may have fewer sequences in flight than its limit.
        most = endpoint.in_flight + endpoint.free
        return self._queue.lanes.reserve(most, len(self._endpoints.serving), now)

    def _wake(self, time: float) -> None:
        if self.wake_at is None or time < self.wake_at:
            self.wake_at = time
