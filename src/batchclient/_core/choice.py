"""Which of several endpoints the next call goes to. Pure; everything is O(endpoints).

Rules:
- The endpoint with the least *expected wait* is chosen: ``pace × (1 + (in_flight + 1) / limit)``. ``pace`` is the measured time of
  a unit of work on an otherwise idle server. The second factor says what load does to it: a server that runs its limit takes
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
from typing import TYPE_CHECKING

from batchclient._core.health import HealthState

if TYPE_CHECKING:
    from batchclient._core.endpoint import Endpoint

__all__ = ["Pace", "choose", "expected_waits", "work"]

_FIXED_WORK = 16
"""What a call costs besides its output tokens, in output tokens: with vLLM's usual step times a prefill of a few hundred
tokens takes about as long as this many decode steps do (20 µs a prompt token, 12 ms a step)."""
_WEIGHT_PER_SEQUENCE = 0.1
_HEAVIEST_WEIGHT = 0.5
_STALE_AFTER_S = 10.0
"""Under light load a measure may stem from a burst, which says little of an idle server; and one call in ten seconds is a small price."""
_FAMILY_BOUND_RATIO = 1.25
_UINT64 = (1 << 64) - 1


def work(expected_tokens: int) -> int:
    """A call's work in output tokens, so that calls of different lengths can be compared."""
    return _FIXED_WORK + expected_tokens


class Pace:
    """How long one server takes for a unit of work when nothing else is there: an exponential mean of what was seen.

    An answer weighs the more, the more sequences it has and the older the mean is.
    """

    __slots__ = ("_measured_at", "_seconds")

    def __init__(self) -> None:
        self._seconds: float | None = None
        self._measured_at = 0.0

    def __repr__(self) -> str:
        return "<Pace unknown>" if self._seconds is None else f"<Pace {self._seconds * 1e3:.3g} ms>"

    @property
    def is_known(self) -> bool:
        """Whether anything was measured."""
        return self._seconds is not None

    def measure(self, seconds: float, units: int, load_ratio: float, sequences: int, now: float) -> None:
        """Take in some answers.

        Args:
            seconds: from the grant to the answer.
            units: ``work`` of one call.
            load_ratio: mean sequences in flight meanwhile, by the limit.
            sequences: how many were answered.
            now: the time.
        """
        idle_s = seconds / (units * (1.0 + load_ratio))
        before = self._seconds
        age = min(1.0, (now - self._measured_at) / _STALE_AFTER_S)
        weight = max(age, min(_HEAVIEST_WEIGHT, _WEIGHT_PER_SEQUENCE * sequences))
        self._seconds = idle_s if before is None else before + weight * (idle_s - before)
        self._measured_at = now

    def forget(self) -> None:
        """The server was started anew."""
        self._seconds = None

    def seconds(self, now: float, *, idle: bool) -> float | None:
        """Seconds per unit of work; ``None``: not known, or to be found out again."""
        if idle and now - self._measured_at > _STALE_AFTER_S:
            return None
        return self._seconds


def expected_waits(endpoints: Sequence[Endpoint], now: float) -> list[float]:
    """Seconds per unit of work that one more call would take on each endpoint; in units of their own if none was measured."""
    paces = [endpoint.pace.seconds(now, idle=not endpoint.in_flight) for endpoint in endpoints]
    fastest = min((pace for pace in paces if pace is not None), default=1.0)
    return [
        (fastest if pace is None else pace) * (1.0 + (endpoint.in_flight + 1) / endpoint.limit.limit)
        for pace, endpoint in zip(paces, endpoints, strict=True)
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
