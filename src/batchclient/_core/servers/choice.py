"""Which of several endpoints the next call goes to. Pure; everything is O(endpoints).

Rules:
- The endpoint with the least *expected wait* is chosen: ``seconds × (1 + (in_flight + 1) / limit)``. ``seconds`` is the measured time
  of a unit of work on an otherwise idle server (see ``speed``). The second factor says what load does to it: a server that runs its limit takes
  twice as long per call as an idle one. That is what a limit at the knee of ``throughput(c) = c / (a + b·c)`` means.
- So a server three times slower gets a call only where the faster ones have no permits, or are so full that it is no slower.
- An endpoint that was not measured counts as the fastest that was. One whose measure is old and that is idle counts as not measured, for one
  call, and what that call takes replaces the old measure: so a server that has become faster is found out.
- An ejected endpoint that may be probed gets the call, however slow it was: nobody else can find out that it is back (see ``health``).
- Calls of one prefix *family* go to one endpoint while its expected wait is at most 1.25 times the least. Which one is decided by
  rendezvous hashing, which keeps no table and moves only what it must when endpoints come and go.
- A call that has failed on an endpoint goes to another, if one is open.

Sources: for the family's endpoint D. Thaler, C. Ravishankar, "Using name-based mappings to increase hit rates", IEEE/ACM ToN 6(1),
1998; for the bound V. Mirrokni, M. Thorup, M. Zadimoghaddam, "Consistent Hashing with Bounded Loads", SODA 2018, where 1.25 is a
customary 1 + ε (they bound the number of keys, we the expected wait). The mixing function is SplitMix64's (G. Steele,
D. Lea, C. Flood, OOPSLA 2014).
"""

from __future__ import annotations

from collections.abc import Sequence

from batchclient._core.servers.endpoint import Endpoint
from batchclient._core.servers.health import HealthState

__all__ = ["choose", "expected_waits"]

_FAMILY_BOUND_RATIO = 1.25
_UINT64 = (1 << 64) - 1


def expected_waits(endpoints: Sequence[Endpoint], now: float) -> list[float]:
    """Seconds per unit of work that one more call would take on each endpoint; in units of their own if none was measured."""
    measured = [endpoint.speed.seconds(now, idle=not endpoint.in_flight) for endpoint in endpoints]
    fastest = min((seconds for seconds in measured if seconds is not None), default=1.0)
    return [
        (fastest if seconds is None else seconds) * (1.0 + (endpoint.in_flight + 1) / endpoint.limit.limit)
        for seconds, endpoint in zip(measured, endpoints, strict=True)
    ]


def choose(endpoints: Sequence[Endpoint], family: int, failed_on: int, now: float) -> Endpoint:
    """Return the endpoint for the next call.

    Args:
        endpoints: those that may be granted on now, at least one; of the ejected ones those that may be probed.
        family: the call's prefix family; 0: none.
        failed_on: the id of the endpoint where it failed last; -1: none.
        now: the time.
    """
    waits = expected_waits(endpoints, now)
    choices = list(zip(waits, endpoints, strict=True))
    if failed_on >= 0:
        choices = [choice for choice in choices if choice[1].id != failed_on] or choices
    for _, endpoint in choices:
        if endpoint.health.state is HealthState.EJECTED:
            return endpoint
    if family:
        bound = _FAMILY_BOUND_RATIO * min(wait for wait, _ in choices)
        return max((one for wait, one in choices if wait <= bound), key=lambda one: _affinity(family, one.id))
    return min(choices, key=lambda choice: (choice[0], -choice[1].free))[1]


def _affinity(family: int, endpoint: int) -> int:
    """A number as good as random for each pair, the same in every run."""
    mixed = (family * 0x9E3779B97F4A7C15 + (endpoint + 1) * 0xD1B54A32D192ED03) & _UINT64
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _UINT64
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _UINT64
    return mixed ^ (mixed >> 31)
