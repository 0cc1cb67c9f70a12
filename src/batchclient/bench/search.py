"""The search for a limit or a rate: which value to measure next, and what was found.

Rules:
- One thing is searched: the limit under a closed load, or the rate of an open one.
- The search doubles until an objective is broken or two doublings have gained less than 10 %, and
  then halves the gap. One doubling alone may gain little on a server that gains later. The best
  value is never the last one: above it stands one that is worse, or the greatest to try.
- Limits are 1, 2, 3, 4, 6, 8, 12, 16 …: two for each doubling. Rates are found to an eighth, and
  below 1 to a quarter.
- The found value and its neighbour are measured once more.
- A value that is not clearly on one side of the objectives leaves the answer undecided, and the
  answer says so.
- A value without a scheduled call neither keeps the objectives nor breaks them.

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
_NO_CALL = "no call was scheduled in any window; a longer window has calls"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a value gave.

    Args:
        hits: calls within each objective.
        calls: scheduled calls.
        shares: of the calls that are to be within, for each objective.
        per_s: answers per second of the windows.
        is_behind: whether calls arrived faster than they were answered: nothing holds for long.
    """

    hits: tuple[int, ...]
    calls: int
    shares: tuple[float, ...]
    per_s: tuple[float, ...]
    is_behind: bool = False

    @property
    def mean_per_s(self) -> float:
        """Answers per second on the mean of the windows."""
        return sum(self.per_s) / len(self.per_s)

    @property
    def meets(self) -> bool:
        """Whether all objectives hold, as far as these calls say; without a call nothing holds."""
        return bool(self.calls) and not self.breaks

    @property
    def breaks(self) -> bool:
        """Whether an objective is broken, as far as these calls say."""
        pairs = zip(self.hits, self.shares, strict=True)
        return bool(self.calls) and (self.is_behind or any(hits / self.calls < share for hits, share in pairs))


def is_clear(outcome: Outcome) -> bool:
    """Whether all objectives are clearly held, or one is clearly broken."""
    if not outcome.calls or outcome.is_behind:
        return bool(outcome.calls)
    intervals = [wilson(hits, outcome.calls) for hits in outcome.hits]
    pairs = list(zip(intervals, outcome.shares, strict=True))
    return any(within.high < share for within, share in pairs) or all(within.low > share for within, share in pairs)


@dataclass(frozen=True, slots=True)
class Found:
    """The end of a search.

    Args:
        value: the limit or the rate; ``None``: no value holds the objectives.
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

    An outcome is that of all windows of its value so far.

    Args:
        over: what is searched.
        most: the greatest value to try.
        first: the first value.
    """
    seen: dict[float, Outcome] = {}

    def measure(value: float) -> Generator[float, Outcome, None]:
        seen[value] = yield value

    value = min(first, most)
    while True:
        yield from measure(value)
        while value < most and _goes_on(value, seen, over):
            value = min(2 * value, most)
            yield from measure(value)
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
        highest = max(seen)
        if _best(seen) != highest or highest >= most:
            return _found(seen, over)
        # What broke the objectives at first has kept them since.
        value = min(2 * highest, most)


def _goes_on(value: float, seen: dict[float, Outcome], over: str) -> bool:
    """Whether a greater value may be better than the one measured last."""
    outcome, before = seen[value], seen.get(value / 4)
    if outcome.breaks or (over == "limit" and not outcome.calls):
        return False
    if over == "rate" or before is None or _best(seen) == value:
        return True
    return outcome.mean_per_s >= _GAIN * before.mean_per_s


def so_far(seen: dict[float, Outcome]) -> Found:
    """Return what a search has found that did not come to its end.

    Args:
        seen: the outcomes of the measured values.
    """
    value, highest = _best(seen), max(seen)
    if value is None:
        why = f"none up to {highest:g} keeps it" if any(each.calls for each in seen.values()) else _NO_CALL
        return Found(None, min(seen), False, why, dict(seen))
    if not seen[value].shares:
        why = f"{value:g} is the best so far; not searched above {highest:g}"
        return Found(value, _next(value, seen), False, why, dict(seen))
    broken = min((each for each, outcome in seen.items() if each > value and outcome.breaks), default=None)
    if broken is None:
        return Found(value, None, False, f"at least {value:g} keeps it; not searched above {highest:g}", dict(seen))
    why = f"at least {value:g} keeps it, {broken:g} breaks it; not searched to the end"
    return Found(value, broken, False, why, dict(seen))


def _gap(last: float, seen: dict[float, Outcome], over: str) -> list[float]:
    """Return the values between two measured ones that may be better than both."""
    if over == "rate":
        low = max((each for each in seen if each < last), default=0.0)
        return [low + (last - low) * quarters / 4 for quarters in (1, 2, 3)] if seen[last].breaks else []
    # Below the first one that breaks an objective, or below the knee of the throughput.
    high = last if seen[last].breaks else _best(seen)
    if high is None:
        return []
    between = (high + max((each for each in seen if each < high), default=0.0)) // 2
    return [] if between in seen or between < 1 else [between]


def _best(seen: dict[float, Outcome]) -> float | None:
    """Return the smallest value that is about as good as the best one that holds the objectives."""
    holding = {value: outcome.mean_per_s for value, outcome in seen.items() if outcome.meets}
    if not holding:
        return None
    most = max(holding.values())
    return min(value for value, per_s in holding.items() if per_s >= _AS_GOOD * most)


def _next(value: float, seen: dict[float, Outcome]) -> float | None:
    return min((each for each in seen if each > value), default=None)


def _found(seen: dict[float, Outcome], over: str) -> Found:
    value = _best(seen)
    if value is None:
        with_calls = [each for each, outcome in seen.items() if outcome.calls]
        if not with_calls:
            return Found(None, min(seen), False, _NO_CALL, dict(seen))
        low = min(with_calls)
        decided = is_clear(seen[low])
        return Found(None, low, decided, f"even a {over} of {low:g} breaks the objective", dict(seen))
    after = _next(value, seen)
    if after is None:
        clear = is_clear(seen[value])
        return Found(value, None, clear, f"no higher {over} was tried than {value:g}", dict(seen))
    broken = seen[after].breaks
    # Where the next value alone is unclear, the best one is this or the next.
    decided = is_clear(seen[value])
    why = f"{after:g} breaks the objective" if broken else f"{after:g} gains nothing"
    if seen[after].is_behind:
        why = f"at {after:g} calls arrive faster than they are answered"
    if not (decided and (not broken or is_clear(seen[after]))):
        why += ", as far as these calls tell"
    return Found(value, after, decided, why, dict(seen))
