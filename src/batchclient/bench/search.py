"""The search for a limit or a rate: which value to measure next, and what was found.

Rules:
- One thing is searched: the limit under a closed load, or the rate of an open one.
- The search doubles until the objective is broken or two doublings have gained less than 10 %, and
  then halves the gap. One doubling alone may gain little on a server that gains later.
- Limits are 1, 2, 3, 4, 6, 8, 12, 16 …: two for each doubling. Rates are found to an eighth.
- The found value and its neighbour are measured once more.
- A value that is not clearly on one side of the objective leaves the answer undecided, and the
  answer says so.

Everything here is pure: values go out, outcomes come in.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Literal

from batchclient.bench.intervals import wilson

__all__ = ["ENOUGH_CALLS", "Found", "Outcome", "is_clear", "search", "so_far"]

ENOUGH_CALLS = 833
"""Calls that tell a share of 0.97 from one of 0.95: one-sided 5 %, power 0.9."""
_GAIN = 1.1
_AS_GOOD = 0.97


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a value gave.

    Args:
        hits: calls within the objective; all answered ones where there is none.
        calls: scheduled calls.
        share: of the calls that is to be within; ``None``: no objective.
        per_s: goodput of the windows, calls per second.
    """

    hits: int
    calls: int
    share: float | None
    per_s: tuple[float, ...]

    @property
    def mean_per_s(self) -> float:
        """Goodput on the mean of the windows."""
        return sum(self.per_s) / len(self.per_s)

    @property
    def meets(self) -> bool:
        """Whether the objective holds, as far as these calls say."""
        return self.share is None or self.hits >= self.share * self.calls

    def and_(self, other: Outcome) -> Outcome:
        """Return both together."""
        return Outcome(self.hits + other.hits, self.calls + other.calls, self.share, (*self.per_s, *other.per_s))


def is_clear(outcome: Outcome) -> bool:
    """Whether the outcome is clearly on one side of the objective, or has calls enough to be told."""
    if outcome.share is None:
        return True
    within = wilson(outcome.hits, outcome.calls)
    return not within.has(outcome.share)


@dataclass(frozen=True, slots=True)
class Found:
    """The end of a search.

    Args:
        value: the limit or the rate; ``None``: no value holds the objective.
        neighbour: the next value, which breaks the objective or gains nothing; ``None``: not seen.
        decided: whether the calls tell both apart.
        why: one sentence.
        outcomes: of each measured value.
    """

    value: float | None
    neighbour: float | None
    decided: bool
    why: str
    outcomes: dict[float, Outcome] = field(default_factory=dict)


def search(over: Literal["limit", "rate"], most: float, first: float = 1.0) -> Generator[float, Outcome, Found]:
    """Yield values to measure; take their outcomes; return what was found.

    Args:
        over: what is searched.
        most: the greatest value to try.
        first: the first value.
    """
    seen: dict[float, Outcome] = {}

    def measure(value: float) -> Generator[float, Outcome, Outcome]:
        outcome = yield value
        seen[value] = seen[value].and_(outcome) if value in seen else outcome
        return seen[value]

    value, gains = first, True
    while True:
        outcome = yield from measure(value)
        before = seen.get(value / 4)
        gains = before is None or over == "rate" or outcome.mean_per_s >= _GAIN * before.mean_per_s
        if not (outcome.meets and gains) or value * 2 > most:
            break
        value *= 2
    for between in _gap(value, seen, over):
        yield from measure(between)
    # The best one and the next are measured again, until measuring changes the choice no more.
    for _ in range(2):
        chosen = _best(seen)
        if chosen is None:
            break
        yield from measure(chosen)
        after = _next(chosen, seen)
        if after is not None:
            yield from measure(after)
        if _best(seen) == chosen:
            break
    return _found(seen, over, most)


def so_far(seen: dict[float, Outcome]) -> Found:
    """Return what a search has found that did not come to its end.

    Args:
        seen: the outcomes of the measured values.
    """
    value, highest = _best(seen), max(seen)
    if value is None:
        return Found(None, min(seen), False, f"none up to {highest:g} keeps it", dict(seen))
    if seen[value].share is None:
        why = f"{value:g} is the best so far; not searched above {highest:g}"
        return Found(value, _next(value, seen), False, why, dict(seen))
    broken = min((each for each, outcome in seen.items() if each > value and not outcome.meets), default=None)
    if broken is None:
        return Found(value, None, False, f"at least {value:g} keeps it; not searched above {highest:g}", dict(seen))
    why = f"at least {value:g} keeps it, {broken:g} breaks it; not searched to the end"
    return Found(value, broken, False, why, dict(seen))


def _gap(last: float, seen: dict[float, Outcome], over: str) -> list[float]:
    """Return the values between powers of two that may be better than those measured."""
    if not seen[last].meets:
        # Between the last one that holds and the first that does not.
        gap = [last * 0.75] if over == "limit" else [last * each / 8 for each in (5, 6, 7)]
        return [each for each in gap if over == "rate" or each == int(each)]
    # The throughput has its knee below, perhaps between two powers of two.
    knee = _best(seen)
    gap = [] if knee is None or over == "rate" else [knee * 0.75]
    return [each for each in gap if each == int(each)]


def _best(seen: dict[float, Outcome]) -> float | None:
    """Return the smallest value that is about as good as the best one that holds the objective."""
    holding = {value: outcome.mean_per_s for value, outcome in seen.items() if outcome.meets}
    if not holding:
        return None
    most = max(holding.values())
    return min(value for value, per_s in holding.items() if per_s >= _AS_GOOD * most)


def _next(value: float, seen: dict[float, Outcome]) -> float | None:
    return min((each for each in seen if each > value), default=None)


def _found(seen: dict[float, Outcome], over: str, most: float) -> Found:
    value = _best(seen)
    if value is None:
        low = min(seen)
        decided = is_clear(seen[low])
        return Found(None, low, decided, f"even a {over} of {low:g} breaks the objective", dict(seen))
    after = _next(value, seen)
    if after is None:
        clear = is_clear(seen[value])
        return Found(value, None, clear, f"no higher {over} was tried than {most:g}", dict(seen))
    broken = not seen[after].meets
    # Where the next value alone is unclear, the best one is this or the next.
    decided = is_clear(seen[value])
    why = f"{after:g} breaks the objective" if broken else f"{after:g} gains nothing"
    if not (decided and (not broken or is_clear(seen[after]))):
        why += ", as far as these calls tell"
    return Found(value, after, decided, why, dict(seen))
