"""``find``: the limit or the rate that keeps the objectives, by measurement."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from batchclient.bench.cell import Cell, Setting
from batchclient.bench.intervals import Interval, spanning
from batchclient.bench.search import ENOUGH_CALLS, Found, Outcome, is_clear, search, so_far
from batchclient.bench.session import Session, Silence
from batchclient.bench.slo import Slo, shown_s
from batchclient.errors import ConfigError
from batchclient.options import Batching

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
        batching, preset: as for ``BatchClient``.
        why: one sentence.
        interval: of the bounded percentile at the recommended value, seconds; ``None``: no
            objective.
        decided: whether the measured calls tell the value from its neighbour.
    """

    limit: int | Literal["auto"] | None
    rate: float | None
    batching: Batching
    preset: str
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
        cells: all that were measured.
        complete: whether the search came to its end within the budget.
    """

    recommended: Recommendation | None
    found: Found | None
    cells: tuple[Cell, ...] = field(repr=False)
    complete: bool = True


async def find_in(
    session: Session,
    over: Literal["limit", "rate"] = "limit",
    *,
    most: float | None = None,
    budget_s: float | None = None,
    on_cell: Callable[[Cell], object] = lambda _: None,
) -> SearchResult:
    """Search for the best limit or rate.

    Args:
        session: the server, with its objectives.
        over: what is searched. A limit is searched with as many callers; a rate with the client's
            own limit.
        most: the greatest value to try; 1,024 for a limit, 4,096 for a rate.
        budget_s: no cell is begun that would end later, seconds.
        on_cell: told of each cell.

    Raises:
        ConfigError: a rate is searched without an objective.
        BenchFailed: no call of the first cell was answered, or of two cells one after the other.
    """
    if over == "rate" and not session.slos:
        raise ConfigError("slo: a search for a rate needs an objective", field="slo")
    loop = asyncio.get_running_loop()
    began = loop.time()
    longest = session.times.warm_up_s + session.times.window_s
    measured: list[Cell] = []
    found: Found
    silence, seen = Silence(), dict[float, Outcome]()
    steps = search(over, most or (_MOST_LIMIT if over == "limit" else _MOST_RATE))
    value = next(steps)
    while True:
        outcome: Outcome | None = None
        for _ in range(_MOST_WINDOWS):
            started = loop.time()
            if budget_s is not None and measured and started - began + longest > budget_s:
                found = so_far(seen)
                recommended = _recommended(over, found, measured, session.slos)
                return SearchResult(recommended, found, tuple(measured), complete=False)
            repetition = sum(_value_of(cell.setting) == value for cell in measured)
            cell = await session.cell(_setting_of(over, value), repetition)
            silence.check_first(cell)
            longest = max(longest, loop.time() - started)
            measured.append(cell)
            on_cell(cell)
            silence.check(cell)
            now = _outcome_of(cell, session.slos)
            outcome = now if outcome is None else outcome.and_(now)
            seen[value] = seen[value].and_(now) if value in seen else now
            # A window tells the throughput; a share needs calls.
            if outcome.calls >= ENOUGH_CALLS or is_clear(outcome):
                break
        assert outcome is not None
        try:
            value = steps.send(outcome)
        except StopIteration as end:
            found = end.value
            return SearchResult(_recommended(over, found, measured, session.slos), found, tuple(measured))


def _setting_of(over: str, value: float) -> Setting:
    return Setting("fixed", concurrency=int(value)) if over == "limit" else Setting("adaptive", rate=value)


def _value_of(setting: Setting) -> float:
    return setting.rate if setting.rate is not None else float(setting.concurrency or 0)


def _outcome_of(cell: Cell, slos: Sequence[Slo]) -> Outcome:
    """Return the outcome by the objective that is nearest to being broken."""
    if not slos:
        return Outcome(cell.answered, cell.scheduled, None, (cell.goodput,))
    worst = min(range(len(slos)), key=lambda place: cell.slo_shares[place] - slos[place].share)
    # The search looks at throughput; the objective is asked of the calls.
    return Outcome(cell.slo_hits[worst], cell.scheduled, slos[worst].share, (cell.calls_per_s,))


def _recommended(over: str, found: Found, measured: Sequence[Cell], slos: Sequence[Slo]) -> Recommendation | None:
    if found.value is None:
        return None
    cells = [cell for cell in measured if _value_of(cell.setting) == found.value]
    troubles = _troubles_of(cells)
    interval = None
    if slos and (figures := [cell.times[slos[0].measure] for cell in cells if slos[0].measure in cell.times]):
        interval = spanning([_of_share(each.intervals, slos[0].share) for each in figures])
    recommendation = Recommendation(
        int(found.value) if over == "limit" else "auto",
        None if over == "limit" else found.value,
        Batching(),
        "balanced",
        found.why,
        interval,
        found.decided and not troubles,
    )
    if troubles:
        return replace(recommendation, why=f"{found.why}; but {troubles}")
    return recommendation


def _troubles_of(cells: Sequence[Cell]) -> str:
    """Return why the cells of a value decide nothing; empty: they do."""
    if any(cell.measured_the_client for cell in cells):
        return TOO_BUSY
    return "calls failed in these measurements" if any(cell.calls_failed for cell in cells) else ""


def _of_share(intervals: dict[float, Interval], share: float) -> Interval:
    return intervals[min(intervals, key=lambda each: abs(each - share))]


def described(slo: Slo, interval: Interval) -> str:
    """Return an objective and what was measured of it, in words."""
    return f"{slo}: [{shown_s(interval.low)}, {shown_s(interval.high)}]"
