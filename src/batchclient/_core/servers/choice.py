"""Choose the endpoint of the next call. Pure; every function is O(endpoints).

Rules:
- The endpoint with the least *expected wait* gets the call: ``seconds × (1 + (in_flight + 1) /
  limit)``. ``seconds`` is the measured time of a unit of work on an otherwise idle server (see
  ``speed``). The second factor is the effect of load: at its limit a server takes twice as long per
  call as an idle server. A limit at the knee of ``throughput(c) = c / (a + b·c)`` means the same.
- So a server three times slower gets a call only if the faster servers have no permits or are as
  slow for being full.
- An unmeasured endpoint counts as the fastest measured one. An idle endpoint with an old measure
  counts as unmeasured for one call, whose time replaces the old measure. So a server which became
  faster is noticed.
- An ejected endpoint whose probe is due gets the call, however slow: only a call can find out
  whether the server is back (see ``health``).
- Calls of one prefix *family* go to one endpoint while its expected wait is at most 1.25 times the
  least. Rendezvous hashing picks the endpoint: no table is kept, and few families move when
  endpoints come and go.
- A call which failed on an endpoint goes to another open endpoint, if any.

Sources: for a family's endpoint D. Thaler, C. Ravishankar, "Using name-based mappings to increase
hit rates", IEEE/ACM ToN 6(1), 1998. For the bound V. Mirrokni, M. Thorup, M. Zadimoghaddam,
"Consistent Hashing with Bounded Loads", SODA 2018: 1.25 is a customary 1 + ε. (The paper bounds the
number of keys, this module the expected wait.) The mixing function is SplitMix64's (G. Steele, D.
Lea, C. Flood, OOPSLA 2014).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from batchclient._core.requests import Request
from batchclient._core.servers.endpoint import Endpoint
from batchclient._core.servers.health import HealthState

__all__ = ["choose", "no_later"]

_FAMILY_BOUND_RATIO = 1.25
_UINT64 = (1 << 64) - 1


def _expected_waits(endpoints: Sequence[Endpoint], now: float) -> list[float]:
    """Return each endpoint's expected wait for the next call, in seconds per unit of work.

    If no endpoint was measured, the waits are only relative: ``seconds`` is 1 everywhere.
    """
    measured = [endpoint.speed.seconds(now, idle=not endpoint.in_flight) for endpoint in endpoints]
    fastest = min((seconds for seconds in measured if seconds is not None), default=1.0)
    return [
        (fastest if seconds is None else seconds) * (1.0 + (endpoint.in_flight + 1) / endpoint.limit.limit)
        for seconds, endpoint in zip(measured, endpoints, strict=True)
    ]


def choose(endpoints: Sequence[Endpoint], call: Request, now: float) -> Endpoint:
    """Return the endpoint for the next call.

    ``endpoints``: at least one, each to be granted on now; an ejected one only for a probe.
    """
    waits = dict(zip(endpoints, _expected_waits(endpoints, now), strict=True))
    choices = [endpoint for endpoint in endpoints if endpoint.id != call.failed_on] or endpoints
    near = _FAMILY_BOUND_RATIO * min(waits[endpoint] for endpoint in choices)

    def cost(endpoint: Endpoint) -> tuple[float, float, int]:
        if endpoint.health.state is HealthState.EJECTED:
            return -math.inf, 0.0, 0
        affinity = _affinity(call.family, endpoint.id) if call.family and waits[endpoint] <= near else 0
        return -affinity, waits[endpoint], -endpoint.free

    return min(choices, key=cost)


def no_later(others: list[Endpoint], held: Endpoint, held_s: float, now: float) -> list[Endpoint]:
    """Return the endpoints which answer a call no later than one that is held for a while.

    ``held_s``: for how many seconds per unit of the call's work.
    """
    if not all(endpoint.speed.is_known for endpoint in (held, *others)):
        return others
    *waits, wait = _expected_waits([*others, held], now)
    return [other for other, its in zip(others, waits, strict=True) if its <= wait + held_s]


def _affinity(family: int, endpoint: int) -> int:
    """A pseudo-random number for a pair, the same in every run."""
    mixed = (family * 0x9E3779B97F4A7C15 + (endpoint + 1) * 0xD1B54A32D192ED03) & _UINT64
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _UINT64
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _UINT64
    return mixed ^ (mixed >> 31)
