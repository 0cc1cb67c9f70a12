"""At the least cost: which calls go to a dearer server, where servers have prices or own models.

For example one's own GPU, which costs nothing more for a call, and a hosted model at a price for
each token. A burst comes, and the last 30 of 400 calls would wait for so long that they miss their
deadlines: these 30 go to the hosted model, and the others wait for their turn.

Rules:
- A server with a model of its own takes the calls that name no model, and those that name that one.
- A call goes to the cheapest server in use that takes it, by the tokens that the call is expected
  to cost there. Servers of one cost share the calls, as servers without prices do.
- A call waits there for as long as all calls before it in the queue's order that go there take to
  begin, at so many a second as the limit and the mean time of service allow. A server that rests
  makes it wait until the rest is over. The *risk* of a miss is the share of the latest 128 calls of
  its kind there that took longer than what is left of its time after that wait.
- Where the risk is much less at a dearer server (by a fiftieth of all calls, and by half), the call
  goes there: but in the last moment in which it is in time everywhere, with some time to spare if
  it has time. Queues are often shorter than expected, and a server with a queue is never idle. It
  goes at once where even a queue half again as quick would be too slow.
- A call that would begin at once at the cheaper server goes there, unless it will rather miss.
- A call without a deadline is to begin within ``max_wait_s``. Calls of maps read ahead, and have no
  such bound unless it is given; where they have a time, it is the service alone that may miss it.
- A server that is ejected, or refuses the call's model or form, takes none: no call waits for it.
- Before any call of a kind was answered, it takes as long as the oldest under way has taken.
- Nothing is kept from one look to the next but the times of service. A call that was found to miss
  is in a group of its own from then on, which the dearer servers take, too.
- A job with a bound on its cost sends a server with a price no call that may exceed the bound: an
  answer may have all its ``max_tokens``, and is without these as long as expected; a prompt that
  nobody has counted may have a token for each byte. What a call did not need is given back. A call
  that is too dear for what is left, and that no server without a price takes, ends with an error.

A look costs some microseconds for each queued call. So there is one in 20 ms and 20 µs for each
call at most.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from batchclient._core.conditions import Wait
from batchclient._core.fleet import Fleet
from batchclient._core.learnt.lengths import Lengths
from batchclient._core.messages import Request, Shape
from batchclient._core.servers.endpoint import Endpoint
from batchclient._core.servers.health import HealthState
from batchclient._core.servers.speed import work
from batchclient._core.settings import SchedulerSettings
from batchclient._core.waiting.groups import Group, Overflow
from batchclient._core.waiting.order import Order
from batchclient._core.waiting.queue import Queue

__all__ = ["Prices"]

_WORTH, _WORTH_AT_ONCE = 0.02, 0.5
"""By so much less is a risk to be; and where a call need not wait at the cheaper server."""
_LONG = 1.05
"""Times the longest of late: equal calls take equally long, but for the server's load."""
_SOONER, _SOONER_OF_TIME = 0.5, 0.25
"""So much sooner than in the last moment a call goes: of a long service, and of its spare time."""
_QUICKER = 1.5
"""A queue that is so much quicker than expected would be a surprise."""
_LEAST_S = 1e-6
_COLD_LOOK_EVERY_S, _OF_AGE = 0.5, 0.25
"""The next look where nothing is known but the age of what is under way, by a share of that."""
_LOOK_EVERY_S, _LOOK_EVERY_S_PER_CALL = 0.02, 20e-6
_MOST_WAIT_S = 30.0
"""In the queue, of calls without a deadline."""
_MISSES, _WAITS = "would miss its deadline", "would wait for longer than max_wait_s"


class _Tier:
    """Endpoints at which a call costs the same, and the calls that go there, during one look."""

    __slots__ = ("ahead_s", "deferred_s", "endpoints", "free")

    def __init__(self, endpoints: Sequence[Endpoint]) -> None:
        self.endpoints = endpoints
        self.free = sum(max(0, endpoint.free) for endpoint in endpoints)
        """Permits that no call before has."""
        self.ahead_s = 0.0
        """Seconds until the calls before that go there have begun."""
        self.deferred_s = 0.0
        """And those that wait, but are expected to go elsewhere before their turn."""

    def add(self, weight: int, rate: float) -> None:
        """A call goes here."""
        if self.free >= weight:
            self.free -= weight
        else:
            self.ahead_s += weight / rate


class _Service(NamedTuple):
    """How calls of a shape are served by endpoints of one cost.

    Args:
        rest_s: seconds until the first of them may be sent such calls.
        rate: sequences a second.
        mean_s: how long they take.
        times_s: how long the latest took, in order.
        again_s: after so many seconds more is known; ``inf``: no time can be told.
    """

    tier: _Tier
    rest_s: float
    rate: float
    mean_s: float
    times_s: list[float]
    again_s: float

    def wait_s(self, weight: int) -> float:
        """Seconds until one more call begins."""
        return self.rest_s + (0.0 if self.tier.free >= weight else self.tier.ahead_s + weight / self.rate)

    def risk(self, left_s: float) -> float:
        """The share of calls that take longer."""
        count = len(self.times_s)
        longer = count - bisect_right(self.times_s, left_s)
        return longer / count if longer or left_s >= self.long_s else 1 / (count + 1)

    @property
    def long_s(self) -> float:
        """How long next to none takes."""
        return self.times_s[-1] * (_LONG + 1 / len(self.times_s))


class Prices:
    """The choice of servers by cost. See the rules at the top of this file."""

    def __init__(self, settings: SchedulerSettings, fleet: Fleet, queue: Queue, lengths: Lengths) -> None:
        self._settings = settings
        self._fleet = fleet
        self._queue = queue
        self._lengths = lengths
        self._order = Order(settings.order, settings.aging_s, lengths)
        self._look_at = -math.inf
        self._unpaid: dict[Group, None] = {}
        """Groups of calls that their jobs could not pay for."""

    # Which servers a call may go to ------------------------------------------------------------------------------

    def wait(self, endpoint: Endpoint, group: Group, oldest: Request, now: float) -> Wait | None:
        """Why a group's calls do not go to an endpoint now, for its model or its price."""
        if not endpoint.serves(group.shape):
            return Wait("for a server of its model")
        if not self._fleet.is_priced:
            return None
        if not self._is_within(endpoint, group, oldest, now):
            return Wait("for a cheaper server")
        if self._fleet.affordable(endpoint, [oldest]):
            return None
        self._unpaid[group] = None
        return Wait("for a cheaper server: max_cost is spent")

    def takes(self, endpoint: Endpoint, now: float) -> Callable[[Group], bool]:
        """Return the test whether a group's calls go to an endpoint now: quick where they do not."""
        free = [one for one in self._fleet.serving if not one.offer.is_priced and self._takes_any(one)]
        is_priced = endpoint.offer.is_priced

        def takes(group: Group) -> bool:
            shape = group.shape
            if not endpoint.serves(shape):
                return False
            if is_priced and group.overflow is None and any(one.serves(shape) for one in free):
                return False
            oldest = group.oldest()
            return oldest is not None and self.wait(endpoint, group, oldest, now) is None

        return takes

    @staticmethod
    def _takes_any(endpoint: Endpoint) -> bool:
        """Whether an endpoint is in use, and refuses nothing."""
        abilities = endpoint.abilities
        return endpoint.health.in_use and not (endpoint.is_unfit or abilities.models.refused or abilities.shapes)

    def unpaid(self) -> list[Request]:
        """Return the calls met lately that no server will take: their jobs' ``max_cost`` is spent."""
        groups, self._unpaid = self._unpaid, {}
        return [
            request
            for group in groups
            for request in group
            if group.shape.budget is not None
            and not any(self._fleet.serves(endpoint, request) for endpoint in self._fleet.serving)
        ]

    def allowed(self, endpoints: list[Endpoint], group: Group, oldest: Request, now: float) -> list[Endpoint]:
        """Those of the endpoints that a group's calls may go to; all, if there is none."""
        return [each for each in endpoints if self.wait(each, group, oldest, now) is None] or endpoints

    def cost(self, endpoint: Endpoint, call: Request) -> float:
        """What a call is expected to cost at an endpoint."""
        shape, offer = call.shape, endpoint.offer
        return call.prompt_tokens * offer.input + shape.weight * self._lengths.guess(call) * offer.output

    def reason(self, endpoint: Endpoint, group: Group, call: Request, now: float) -> str:
        """Why a group's calls go to an endpoint though others are cheaper; empty: none is."""
        if group.overflow is not None:
            return group.overflow.why
        cost = self.cost(endpoint, call)
        cheaper = [one for one in self._fleet.serving if one.serves(call.shape) and self.cost(one, call) < cost]
        if not cheaper:
            return ""
        return "is down" if any(not one.health.in_use for one in cheaper) else "refuses such calls"

    def _is_within(self, endpoint: Endpoint, group: Group, oldest: Request, now: float) -> bool:
        cost = self.cost(endpoint, oldest)
        if not cost or (group.overflow is not None and endpoint.id in group.overflow.to):
            return True
        usable = (self.cost(one, oldest) for one in self._usable(group.shape, now))
        return cost <= min(usable, default=math.inf)

    def _usable(self, shape: Shape, now: float) -> Iterable[Endpoint]:
        """The endpoints that calls of a shape may wait for."""
        for endpoint in self._fleet.serving:
            abilities, state = endpoint.abilities, endpoint.health.state
            refuses = shape.subject in abilities.models.refused or abilities.lacks(shape, now) is not None
            fits = endpoint.serves(shape) and not endpoint.is_unfit
            if fits and not refuses and state in (HealthState.HEALTHY, HealthState.RECOVERING):
                yield endpoint

    # Which calls miss --------------------------------------------------------------------------------------------

    def look(self, now: float) -> float:
        """Find the calls that miss at all cheaper servers; return when to look again."""
        if not self._fleet.is_priced or not self._queue.size:
            return math.inf
        if now < self._look_at:
            return self._look_at
        self._look_at = now + _LOOK_EVERY_S + _LOOK_EVERY_S_PER_CALL * self._queue.size
        tiers: dict[tuple[int, ...], _Tier] = {}
        found: dict[tuple[Shape, int], list[_Service]] = {}
        several = len({endpoint.offer[1:3] for endpoint in self._fleet.serving if endpoint.offer.is_priced}) > 1
        rank, wake_s = self._order.rank, math.inf
        queued = [request for group in self._queue.groups() for request in group]
        for request in sorted(queued, key=lambda one: (rank(one), one.seq)):
            # Where there is but one price, the order of costs is that of all calls.
            key = request.shape, request.prompt_tokens if several else 0
            services = found.get(key)
            if services is None:
                services = found[key] = self._services(request, tiers, now)
            if not services:
                continue
            goes, again_s = self._choose(request, services, now)
            again_s = min(again_s, services[0].again_s) if len(services) > 1 else again_s
            if 0 <= again_s < wake_s:
                wake_s = again_s
            if goes is None:
                services[0].tier.deferred_s += request.shape.weight / services[0].rate
                continue
            goes.tier.add(request.shape.weight, goes.rate)
            if goes is not services[0]:
                to = frozenset(endpoint.id for endpoint in goes.tier.endpoints)
                self._queue.overflow(request, Overflow(_WAITS if request.deadline is None else _MISSES, to))
        return max(self._look_at, now + wake_s)

    def _choose(self, request: Request, services: Sequence[_Service], now: float) -> tuple[_Service | None, float]:
        """Where a call goes, and after how many seconds to look again; ``None``: elsewhere, but not yet."""
        first = best = services[0]
        left_s, is_timed, weight = self._left_s(request, now), request.deadline is not None, request.shape.weight
        # Without a deadline it is to begin in time, not to end.
        long_s, mean_s = (first.long_s, first.mean_s) if is_timed else (0.0, 0.0)
        wait_s = first.wait_s(weight)
        risk = self._risk(request, first, left_s, wait_s)
        if not risk:
            return first, left_s - wait_s - long_s
        worth = _WORTH if is_timed and wait_s else _WORTH_AT_ONCE
        early_s = min(_SOONER * long_s, _SOONER_OF_TIME * (left_s + now - request.queued_at - long_s))
        latest_s = left_s - long_s - max(0.0, early_s)
        is_lost = left_s < (wait_s + first.tier.deferred_s) / _QUICKER + mean_s
        # Where not the wait is to blame, but the server, waiting is no help.
        is_lost = is_lost or (not is_timed and wait_s <= left_s)
        for service in services[1:]:
            wait_s = service.wait_s(weight)
            its_risk = self._risk(request, service, left_s, wait_s)
            if risk - its_risk >= max(worth, its_risk) and self._fleet.affordable(service.tier.endpoints[0], [request]):
                latest_s = min(latest_s, left_s - wait_s - (service.long_s if is_timed else 0.0))
                if not is_lost and latest_s > self._look_at - now:
                    return None, latest_s
                best, risk = service, its_risk
        return best, math.inf

    def _risk(self, request: Request, service: _Service, left_s: float, wait_s: float) -> float:
        """How likely a call misses if it waits for this one."""
        if request.deadline is not None:
            return service.risk(left_s - wait_s)
        if wait_s > max(0.0, left_s):
            return 1.0
        # The time of service runs from the grant.
        return 0.0 if request.timeout_s is None else service.risk(request.timeout_s)

    def _left_s(self, request: Request, now: float) -> float:
        """Until when a call is to be answered; without a deadline: until when it is to be sent."""
        if request.deadline is not None:
            return request.deadline - now
        most_s = self._settings.max_wait_s
        if most_s is None:
            most_s = math.inf if request.patient else _MOST_WAIT_S
        return request.queued_at + most_s - now

    def _services(self, call: Request, tiers: dict[tuple[int, ...], _Tier], now: float) -> list[_Service]:
        """How calls like this one are served, by the endpoints in use: the cheapest first."""
        by_cost: dict[float, list[Endpoint]] = {}
        for endpoint in self._usable(call.shape, now):
            by_cost.setdefault(self.cost(endpoint, call), []).append(endpoint)
        services = []
        for _, endpoints in sorted(by_cost.items()):
            times = [self._times(endpoint, call.shape, now) for endpoint in endpoints]
            holds = [endpoint.hold(now, call.shape) for endpoint in endpoints]
            rest_s = min(0.0 if hold is None else hold.until - now for hold in holds)
            # A recovering endpoint may have fewer sequences in flight than its limit.
            most = [max(1, endpoint.in_flight + endpoint.free) for endpoint in endpoints]
            rate = sum(permits / mean_s for permits, (mean_s, _) in zip(most, times, strict=True))
            key = tuple(endpoint.id for endpoint in endpoints)
            tier = tiers.get(key)
            if tier is None:
                tier = tiers[key] = _Tier(endpoints)
                # Where few are under way, the oldest of them may soon have ended.
                oldest = min((batch.sent_at for one in endpoints for batch in one.open.values()), default=now)
                tier.ahead_s = min(0.0, max(0.0, min(times)[0] - (now - oldest)) - 1 / rate)
            again_s = math.inf
            if all(endpoint.service.of(call.shape.answer_key, now) is None for endpoint in endpoints):
                again_s = max(_COLD_LOOK_EVERY_S, _OF_AGE * min(times)[0])
            services.append(_Service(tier, rest_s, rate, *min(times), again_s))
        return services

    @staticmethod
    def _age(endpoint: Endpoint, shape: Shape, now: float) -> float:
        """For how long the oldest of such calls is under way at an endpoint: the least that one takes."""
        key = shape.answer_key
        return now - next((one.sent_at for one in endpoint.open.values() if one.shape.answer_key == key), now)

    def _times(self, endpoint: Endpoint, shape: Shape, now: float) -> tuple[float, list[float]]:
        """How long calls take at an endpoint: the mean, and the latest in order."""
        known = endpoint.service.of(shape.answer_key, now)
        if known is None:
            # Of other kinds it is known how long a token takes; a stranger is tried.
            unit_s = endpoint.speed.seconds(now, idle=False) or 0.0
            mean_s = max(_LEAST_S, 2 * unit_s * work(self._lengths.expected(shape)), self._age(endpoint, shape, now))
            return mean_s, [mean_s]
        return known
