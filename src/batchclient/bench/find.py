"""``find``: the limit or the rate that keeps the objectives, by measurement."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from batchclient import ConfigError
from batchclient._common.descriptors import within_descriptors
from batchclient.bench.intervals import Interval, spanning
from batchclient.bench.marks import BEHIND
from batchclient.bench.measurement import Measurement, Setting, that_count
from batchclient.bench.search import ENOUGH_CALLS, Found, Outcome, is_clear, search, so_far
from batchclient.bench.session import Run, Session
from batchclient.bench.slo import Slo

__all__ = ["TOO_BUSY", "Recommendation", "SearchResult", "find_in"]

TOO_BUSY = "this machine was too busy to measure the server"
_MOST_WINDOWS = 4
"""Windows for one look at a value."""
_MOST_LIMIT, _MOST_RATE = 1024.0, 4096.0


@dataclass(frozen=True, slots=True)
class Recommendation:
    """What to give to ``BatchClient``.

    Args:
        limit: calls in flight; ``"auto"`` where a rate was searched.
        rate: the highest arrival rate that keeps the objectives, calls per second; ``None`` where
            the limit was searched.
        why: one sentence.
        interval: of the bounded percentile at the recommended value, seconds; ``None``: no
            objective.
        decided: whether the measured calls tell the value from its neighbour.
    """

    limit: int | Literal["auto"] | None
    rate: float | None
    why: str
    interval: Interval | None
    decided: bool


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The end of a search.

    Args:
        recommended: ``None``: no value keeps the objectives. A search that the budget ended
            recommends the best value so far, undecided.
        found: what was found, in the search's own words.
        measurements: all of them.
        complete: whether the search came to its end within the budget.
    """

    recommended: Recommendation | None
    found: Found
    measurements: tuple[Measurement, ...] = field(repr=False)
    complete: bool = True


async def find_in(run: Run, over: Literal["limit", "rate"] = "limit", *, most: float | None = None) -> SearchResult:
    """Search for the best limit or rate.

    Args:
        run: the server, with its objectives.
        over: what is searched. A limit is searched with as many callers; a rate with the client's
            own limit.
        most: the greatest value to try; 1,024 for a limit, or as many as the process may open
            files for; 4,096 for a rate.

    Raises:
        ConfigError: a rate is searched without an objective, or ``most`` is wrong.
        BenchFailed: as ``Run.measure``.
    """
    slos = run.session.slos
    if over == "rate" and not slos:
        raise ConfigError("slo: a search for a rate needs an objective", field="slo")
    seen, windows = dict[float, Outcome](), dict[float, list[Measurement]]()
    steps = search(over, _greatest(over, most, run.session))
    value, found = next(steps), None
    while found is None:
        of_value = windows.setdefault(value, [])
        before = len(of_value)
        while not _is_enough(of_value, before, slos):
            measured = await run.measure(_setting_of(over, value), len(of_value))
            if measured is None:
                found = so_far(seen)
                break
            of_value.append(measured)
            seen[value] = _outcome_of(of_value, slos)
        else:
            try:
                value = steps.send(seen[value])
            except StopIteration as end:
                found = end.value
    return SearchResult(_recommended(over, found, windows, slos), found, tuple(run.measurements), not run.is_over)


def _greatest(over: str, most: float | None, session: Session) -> float:
    """Return the greatest value to try."""
    if most is not None and not (
        type(most) in (int, float) and (1 if over == "limit" else 0) <= most < math.inf and most
    ):
        raise ConfigError("most: a number, 1 or more for a limit, above 0 for a rate", field="most")
    if over == "rate":
        return most or _MOST_RATE
    greatest = math.floor(most or _MOST_LIMIT)
    # More calls than files would wait in the client, and the limit would be the files'.
    return greatest if session.target.transport is not None else within_descriptors(greatest, 1, warn_below=0)


def _is_enough(windows: Sequence[Measurement], before: int, slos: Sequence[Slo]) -> bool:
    """Whether the windows of a value tell on which side of the objectives the value is.

    Args:
        windows: all of them.
        before: how many of them are of the first look.
        slos: the objectives.
    """
    look = windows[before:]
    if len(look) == _MOST_WINDOWS:
        return True
    if not look or (len(look) == 1 and look[0].measured_the_client):
        return False
    outcome = _outcome_of(look, slos)
    # While the search doubles, a window without a miss is enough; what is chosen has a second look.
    if not before and outcome.calls and all(hits == outcome.calls for hits in outcome.hits):
        return True
    # A window tells the throughput; a share needs calls.
    return outcome.calls >= ENOUGH_CALLS or is_clear(_outcome_of(windows, slos))


def _setting_of(over: str, value: float) -> Setting:
    return Setting("fixed", concurrency=int(value)) if over == "limit" else Setting("adaptive", rate=value)


def _outcome_of(windows: Sequence[Measurement], slos: Sequence[Slo]) -> Outcome:
    """Return what the windows of a value gave: those that measured the server."""
    measured = that_count(windows)
    return Outcome(
        tuple(sum(each.slo_hits[place] for each in measured) for place in range(len(slos))),
        sum(each.scheduled for each in measured),
        tuple(slo.share for slo in slos),
        # The search looks at throughput; the objectives are asked of the calls.
        tuple(each.calls_per_s if slos else each.goodput for each in measured),
        2 * sum(each.fell_behind for each in measured) > len(measured),
    )


def _recommended(
    over: str, found: Found, windows: Mapping[float, Sequence[Measurement]], slos: Sequence[Slo]
) -> Recommendation | None:
    if found.value is None:
        return None
    measured = that_count(windows[found.value])
    troubles, interval = _troubles_of(measured), None
    if slos and (figures := [each.times[slos[0].measure] for each in measured if slos[0].measure in each.times]):
        interval = spanning([each.intervals[slos[0].share] for each in figures])
    return Recommendation(
        int(found.value) if over == "limit" else "auto",
        None if over == "limit" else found.value,
        f"{found.why}; but {troubles}" if troubles else found.why,
        interval,
        found.decided and not troubles,
    )


def _troubles_of(measured: Sequence[Measurement]) -> str:
    """Return why the measurements of a value decide nothing; empty: they do."""
    if any(each.measured_the_client for each in measured):
        return TOO_BUSY
    marks = dict.fromkeys(mark.name for each in measured for mark in each.disqualified_by if mark is not BEHIND)
    return f"{' and '.join(marks)} in these measurements" if marks else ""
