"""Granting: which groups get the free permits, in which order, as which batches.

Rules 3, 5 and 9 of the scheduler, and:
- A call is bound to an endpoint here, not when queued. With several endpoints the best for the
  oldest call is chosen (see ``choice``) and gets one batch; then the choice is made again. If fewer
  calls wait than permits are free, lists are made shorter, so that every endpoint gets work.
- An endpoint which has refused calls of a shape is passed over for them while another may take them
  (see ``models``).
- An endpoint that has not answered yet gets nothing where the client waits for it (see
  ``asking``).
- An ejected endpoint whose pause is over gets a single call as a probe (see ``health``).
- Where requests or tokens per minute are limited, a batch waits until the limit can pay for it (see
  ``rates``).
- Calls of a session go to its endpoint while that one is in use and takes calls, and wait for it.
  If calls of 32 groups wait for others, an endpoint takes the next ones: none stays idle for long.
- Where servers have prices or models of their own, each call has its cheapest (see ``prices``).
- A server that holds one model at a time gets calls model by model (see ``card``).
- Calls held for a moment by a fast endpoint do not go to a slower endpoint which would answer
  later.
- The first list to a server waits until the server has said which it is, and among several servers
  so does the first call (see ``asking``).
- Groups are looked at in the queue's order (see ``conditions``). A group waiting for company or for
  more permits is passed over, unless the batching rule lets nothing younger go before it.
- Once two priority classes are in use, the lowest leaves a reserve of permits to the others. Calls
  of higher classes wait neither for company nor for a refill. A group of the lowest class holds
  back younger calls of its own class only.
- Where the oldest call will probably miss its deadline, the newest go first: otherwise every call
  would be late. A call that surely misses it fails without being sent.
- A batch's permits count as used before it is sent.
"""

from __future__ import annotations

import math

from batchclient._core.batching import BatchingRule, Terms
from batchclient._core.conditions import HEAVY, RATE, REFILL, TRIED, Turn, Wait
from batchclient._core.fleet import Fleet
from batchclient._core.learnt.lengths import Lengths
from batchclient._core.learnt.proof import Proof
from batchclient._core.messages import Batch, Isolation, Request, RequestState
from batchclient._core.prices import Prices
from batchclient._core.servers.choice import choose, no_later
from batchclient._core.servers.endpoint import Endpoint
from batchclient._core.servers.speed import work
from batchclient._core.settings import SchedulerSettings
from batchclient._core.statistics import Counters
from batchclient._core.waiting.queue import Group, Queue

__all__ = ["Granting"]

_MOST_PASSED_OVER = 1024
"""Groups that one step passes over before it stops looking, at 5 µs a look. There may be hundreds
of a model in doubt, or of calls too heavy for the free permits, with ``n`` and a seed each."""
_MOST_AWAY = 32
"""Groups that one step leaves to the endpoints of their sessions; it takes the next one's calls."""
_SHORTEST_SHARE = 8
"""No list is cut shorter to keep another endpoint busy: singles cost client and server more than
they bring."""
_UNKNOWN_LIMIT = 64
"""Calls in flight at a server that has not said yet which it is, and how many it takes at once."""
_LEAST_LEFT_S = 0.5
"""A lone call with less time left does not wait for the server's word, which may take 0.25 s."""

_IN_FLIGHT = RequestState.IN_FLIGHT

_Granted = tuple[list[Batch], list[Request]]
"""Batches to send, whose permits are taken; and calls that cannot make their deadlines."""


class Granting:
    """Grants a scheduler's permits."""

    def __init__(
        self, settings: SchedulerSettings, fleet: Fleet, queue: Queue, lengths: Lengths, counters: Counters
    ) -> None:
        self._settings = settings
        self._fleet = fleet
        self._queue = queue
        self._deadlines = queue.deadlines
        self._lengths = lengths
        self._times = lengths.times
        self._counters = counters
        self._rule = BatchingRule(settings, lengths)
        self.prices = Prices(settings, fleet, queue, lengths)
        """Which calls go to which server, where servers have prices or own models."""
        self._sent = 0
        self.is_paused = False
        """Whether the caller lets nothing be sent."""

    def grant(self, now: float) -> tuple[list[Batch], list[Request], float]:
        """Take permits for the batches to send now.

        Return the batches; the calls which cannot make their deadlines, and so have left the queue;
        and when to grant again though nothing else happens.
        """
        granted: _Granted = [], []
        wake_at = math.inf
        if self._queue.size:
            serving = self._fleet.serving
            if len(serving) > 1:
                look_at = self.prices.look(now) if self._fleet.is_priced else math.inf
                wake_at = min(look_at, self._share_out(serving, now, granted))
            else:
                wake_at = self._grant_on(serving[0], now, granted)[1]
        # Another endpoint may have taken the calls which one endpoint would have kept waiting.
        return *granted, wake_at if self._queue.size else math.inf

    def _share_out(self, serving: list[Endpoint], now: float, granted: _Granted) -> float:
        """Grant batch by batch, each on the best endpoint for the oldest call.

        Return when to look again.
        """
        gates = [(endpoint, endpoint.sendable(now)) for endpoint in serving]
        choices = [endpoint for endpoint, hold in gates if hold is None]
        wake_at = min((hold.next_at for _, hold in gates if hold is not None), default=math.inf)
        queued, most = self._queue.size, None
        sharing = choices
        if self._fleet.is_priced:
            sharing = [endpoint for endpoint in choices if not endpoint.offer.is_priced]
        if sharing and queued < sum(endpoint.free for endpoint in sharing):
            most = max(_SHORTEST_SHARE, -(-queued // len(sharing)))
        while choices and (found := self._queue.pop()) is not None:
            group, head = found
            self._queue.restore(group)
            # An endpoint that cannot take the call does not "hold it back": see below.
            endpoint = self._fleet.home_of(head, now)
            if endpoint is None or endpoint not in choices:
                takers = self._fleet.takers(choices, head, now)
                if self._fleet.has_offers:
                    takers = self.prices.allowed(takers, group, head, now)
                endpoint = choose(takers, head, now)
            free = endpoint.free
            more, until = self._grant_on(endpoint, now, granted, most)
            wake_at = min(wake_at, until)
            if not more:
                choices.remove(endpoint)
                if until < math.inf and self._queue.size <= free:
                    # The endpoint could take all of them, and soon will.
                    units = work(self._lengths.expected(head.shape))
                    choices = no_later(choices, endpoint, (until - now) / units, now)
        return wake_at

    def _grant_on(
        self, endpoint: Endpoint, now: float, granted: _Granted, most: int | None = None
    ) -> tuple[bool, float]:
        """Grant all that a lone endpoint can take, else one batch; ``most``: the longest fresh list.

        Return whether more may be granted in this step, and when to look again.
        """
        turn = Turn(endpoint, self._fleet, self._queue, now, most)
        more = self._look(turn, granted)
        if turn.has_spared and not more and endpoint.health.probe is None:
            # Only calls that failed before can find out, and no other endpoint can.
            turn.spares = False
            more = self._look(turn, granted)
        if endpoint.free <= 0 and endpoint.health.grows_at is not None:
            turn.wake_at = min(turn.wake_at, endpoint.health.grows_at)
        return more, turn.wake_at

    def _look(self, turn: Turn, granted: _Granted) -> bool:
        """Grant to the groups that may go, in the queue's order; return whether more may be granted."""
        endpoint, queue = turn.endpoint, self._queue
        passed_over: list[Group] = []
        above: int | None = None
        more, fits, is_held = False, False, False
        hold = endpoint.sendable(turn.now)
        if endpoint.card is not None and endpoint.card.is_on:
            turn.look_at_models(endpoint.card)
        while hold is None and endpoint.free > 0:
            if not queue.size:
                break
            is_far = len(passed_over) >= _MOST_PASSED_OVER
            found = self._far(turn, above, len(passed_over)) if is_far else queue.pop(above)
            if found is None:
                break
            group, oldest = found
            cut = self._cut(turn, group, oldest)
            if not isinstance(cut, Wait):
                fits = False
                self._take(turn, group, oldest, *cut, granted)
                if len(self._fleet.serving) > 1:
                    more = endpoint.free > 0 and queue.size > 0 and endpoint.health.probe is None
                    break
                if turn.reserve is not None:
                    turn.look_at_reserve()
                if endpoint.free > 0:
                    hold = endpoint.sendable(turn.now)
                continue
            passed_over.append(group)
            turn.wake_at = min(turn.wake_at, cut.until)
            is_held = is_held or cut.why == REFILL
            if cut.why == HEAVY and not fits:
                # Where all that wait are too heavy a look at each would find nothing.
                fits = group.shape.weight <= endpoint.free or queue.has_any(endpoint.free)
                if not fits:
                    break
            if cut.blocks:
                if turn.reserve is None or above is not None or not turn.lets_pass(group, cut):
                    break
                above = turn.reserve.lowest
        if hold is not None:
            turn.wake_at = min(turn.wake_at, hold.next_at)
        for group in passed_over:
            queue.restore(group)
        if not more:
            # Otherwise the endpoint is looked at again in this step. All groups held here in one
            # stretch share a clock: a latecomer waits for no longer.
            since = turn.now if endpoint.held_since is None else endpoint.held_since
            endpoint.held_since = since if is_held else None
        return more

    def _far(self, turn: Turn, above: int | None, passed_over: int) -> tuple[Group, Request] | None:
        """Remove the next group to look at, behind many, from the queue; ``None``: none."""
        if not self._fleet.has_offers or passed_over >= _MOST_PASSED_OVER + _MOST_AWAY:
            return None
        # As many groups may wait for other servers, and none of them concerns this one.
        return self._queue.pop_any(above, self.prices.takes(turn.endpoint, turn.now))

    def _cut(self, turn: Turn, group: Group, oldest: Request) -> tuple[int, Terms] | Wait:
        """How many calls of a group go to an endpoint now, and how; or why they wait."""
        endpoint, now = turn.endpoint, turn.now
        if self._fleet.has_offers and (wait := self.prices.wait(endpoint, group, oldest, now)) is not None:
            return wait
        has_home = group.shape.home is not None and group.overflow is None
        may_be_left = has_home and turn.left_to_others < _MOST_AWAY
        if may_be_left and (self._fleet.home_of(oldest, now) or endpoint) is not endpoint:
            turn.left_to_others += 1
            return Wait("for the server of its session")
        may_be_held = turn.is_troubled or not endpoint.pace(group.shape).is_open
        if may_be_held and (held := turn.held_back(group, oldest)) is not None:
            turn.has_spared = turn.has_spared or held.why == TRIED
            return held
        if endpoint.card is not None and endpoint.card.is_on:
            told = endpoint.card.wait(group.shape, oldest, endpoint.open.values())
            if told is not None:
                return Wait(*told)
        cut = self._rule.size(turn, group, oldest)
        if isinstance(cut, Wait):
            return cut
        size, terms = cut
        if turn.is_troubled and turn.finds_out(group):
            # A single call is to find out.
            size = 1
        elif turn.most is not None and not group.whole:
            size = min(size, turn.most)
        if endpoint.rates is not None:
            size, until = endpoint.rates.affordable(size, self._tokens(oldest), now)
            if not size:
                # No younger, cheaper call goes before it.
                return Wait(RATE, until, blocks=True)
        has_time = oldest.deadline is None or oldest.deadline > now + _LEAST_LEFT_S
        if size > 1 or endpoint.in_flight >= _UNKNOWN_LIMIT or (len(self._fleet.serving) > 1 and has_time):
            # It goes once the server has said which it is: another may take what it cannot answer.
            held_until = endpoint.abilities.lists_held_until(now)
            if held_until is not None:
                return Wait("for the server's word on which it is", held_until)
        return size, terms

    def _take(self, turn: Turn, group: Group, oldest: Request, size: int, terms: Terms, granted: _Granted) -> None:
        """Make a batch of the group at the front, if not all its calls are hopeless."""
        assert size > 0, "a group that may go has calls that go"
        endpoint, now, (batches, hopeless) = turn.endpoint, turn.now, granted
        are_timed = self._deadlines.is_used
        newest = are_timed and self._is_too_old(oldest, now)
        requests = self._queue.take(group, size, self._settings.length_reach, now, newest=newest)
        if len(requests) > 1 and group.shape.budget is not None:
            paid = self._fleet.affordable(endpoint, requests)
            if not paid:
                # The oldest can be paid for, the first need not.
                requests.sort(key=lambda each: each.most_prompt_tokens)
                paid = max(1, self._fleet.affordable(endpoint, requests))
            if paid < len(requests):
                self._queue.take_back(group, requests[paid:])
                requests = requests[:paid]
        if are_timed:
            requests, late = self._sort_out(requests, now)
            hopeless += late
        if requests:
            batch = self._build(terms, group, requests, endpoint, now)
            batches.append(batch)
            if turn.is_troubled:
                turn.begin_probes(batch, group)
        self._queue.restore(group)

    def _is_too_old(self, oldest: Request, now: float) -> bool:
        """Whether the oldest call is probably, not surely, too late; if surely, it is refused."""
        if oldest.deadline is None or not self._times.known:
            return False
        key, left_s = oldest.shape.answer_key, oldest.deadline - now
        return self._times.shortest(key, now) <= left_s < self._times.likely(key, now)

    def _sort_out(self, requests: list[Request], now: float) -> tuple[list[Request], list[Request]]:
        """Return the calls that may be in time, and those too late for their deadlines."""
        if not self._times.known:
            return requests, []
        shortest_s = self._times.shortest(requests[0].shape.answer_key, now)
        # As a rule all calls have time enough, as the earliest of all deadlines shows.
        earliest = self._deadlines.next()
        if earliest is None or earliest >= now + shortest_s:
            return requests, []
        in_time, late = [], []
        for request in requests:
            if request.deadline is not None and request.deadline - now < shortest_s:
                request.group = None
                late.append(request)
            else:
                in_time.append(request)
        return in_time, late

    def grant_bare(
        self, requests: list[Request], endpoint: Endpoint, failures: int, isolation: Isolation, now: float
    ) -> Batch | None:
        """Send members of a failed list bare, where it failed and past the queue.

        Return ``None`` if the endpoint has no room for them now. ``failures``, ``isolation``: of
        the list.
        """
        shape, size, rates = requests[0].shape, len(requests), endpoint.rates
        if self.is_paused or not endpoint.health.in_use or endpoint.sendable(now) is not None:
            return None
        if endpoint.free < size * shape.weight and (endpoint.in_flight or size > 1):
            return None
        if rates is not None:
            affordable, _ = rates.affordable(size, self._tokens(requests[0]), now)
            if affordable < size:
                return None
        group = Group(shape, sealed=True, failures=failures, isolation=isolation, bare=True)
        group.lane = self._queue.lanes.lane(shape)
        return self._build(self._rule.terms(shape, endpoint, now), group, requests, endpoint, now)

    def _build(self, terms: Terms, group: Group, requests: list[Request], endpoint: Endpoint, now: float) -> Batch:
        """Make a batch of some requests of a group, and take the permits."""
        shape, lane, abilities = group.shape, group.lane, terms.abilities
        assert lane is not None, "a group in the queue has a lane"
        size = len(requests)
        company = "no company" if shape.session is None else "session"
        if terms.is_stranger:
            company = "lists are not proved yet"
        streamed = self._rule.wants_stream(terms, shape, size, endpoint, now)
        bare = group.bare or not abilities.form(streamed=streamed).allows(now)
        self._sent += 1
        batch = Batch(
            id=self._sent,
            endpoint=endpoint.id,
            shape=shape,
            requests=requests,
            # A caller who takes the pieces always has them: a bare batch lacks only fields we add.
            streamed=streamed and (shape.to_caller or not bare),
            failures=group.failures,
            sent_at=now,
            alone=(terms.alone or company) if size == 1 else "",
            isolation=group.isolation,
            packed=shape.packable and not bare and abilities.packing.allows(now),
            bare=bare,
            unanswered=size,
            callers=size,
            answered=bytearray(size),
            lane=lane,
        )
        prompt_tokens, is_timed = 0, False
        for request in requests:
            request.state = _IN_FLIGHT
            request.attempts += 1
            request.group = None
            request.batch = batch
            if request.timeout_s is not None:
                is_timed = True
            prompt_tokens += request.prompt_tokens
        if is_timed:
            self._deadlines.begin(requests, now)
        if terms.is_stranger and size > 1 and not group.sealed and endpoint.abilities.proof is None:
            endpoint.abilities.proof = Proof(batch, endpoint.open)
        if group.has_families:
            assert self._queue.conversations is not None
            self._queue.conversations.granted(requests, endpoint.id, now)
            batch.has_families = True
        expected = shape.weight * self._lengths.expected(shape)
        batch.tokens_at_risk = prompt_tokens + size * expected
        abilities.sent(batch)
        if endpoint.abilities.late_lists.shapes:
            endpoint.abilities.late_lists.sent(batch)
        if endpoint.rates is not None:
            batch.charged_tokens = sum(map(self._tokens, requests))
        if self._fleet.is_priced and endpoint.offer.is_priced:
            if shape.budget is not None:
                most = expected if shape.max_output_tokens is None else shape.weight * shape.max_output_tokens
                most_prompt_tokens = sum(request.most_prompt_tokens for request in requests)
                batch.charged_cost = endpoint.offer.cost(most_prompt_tokens / size, most)
                shape.budget.charge(size, batch.charged_cost)
            why = self.prices.reason(endpoint, group, requests[0], now)
            if why:
                self._counters.observed.overflows[endpoint.shown_name, why] += size
        endpoint.take(batch, now)
        self._queue.lanes.take(lane, size * shape.weight, now)
        if self._queue.lanes.has_tenants:
            self._queue.lanes.charge(batch, expected)
        self._counters.observed.sent(batch)
        return batch

    def _tokens(self, request: Request) -> int:
        """Tokens which a call is expected to cost, at least 1."""
        shape = request.shape
        output = shape.weight * self._lengths.expected_of(request)
        return max(1, request.prompt_tokens + output)
