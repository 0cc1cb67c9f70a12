"""``find``: the limit or the rate that keeps the objectives, by measurement."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from batchclient._shell.descriptors import within_descriptors
from batchclient.bench.cell import Cell, Setting, server_cells
from batchclient.bench.intervals import Interval, spanning
from batchclient.bench.search import ENOUGH_CALLS, Found, Outcome, is_clear, search, so_far
from batchclient.bench.session import Session, Silence
from batchclient.bench.slo import Slo
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
        most: the greatest value to try; 1,024 for a limit, or as many as the process may open
            files for; 4,096 for a rate.
        budget_s: no cell is begun that would end later, seconds.
        on_cell: told of each cell.

    Raises:
        ConfigError: a rate is searched without an objective, or ``most`` is wrong.
        BenchFailed: no call of the first cell was answered, or of two cells one after the other.
    """
    if over == "rate" and not session.slos:
        raise ConfigError("slo: a search for a rate needs an objective", field="slo")
    loop = asyncio.get_running_loop()
    began = loop.time()
    longest = session.times.warm_up_s + session.times.window_s
    measured: list[Cell] = []
    found: Found
    silence, seen, windows = Silence(), dict[float, Outcome](), dict[float, list[Cell]]()
    steps = search(over, _greatest(over, most, session))
    value = next(steps)
    while True:
        of_value = windows.setdefault(value, [])
        before = len(of_value)
        while len(of_value) < before + _MOST_WINDOWS:
            started = loop.time()
            if budget_s is not None and measured and started - began + longest > budget_s:
                found = so_far(seen)
                recommended = _recommended(over, found, windows, session.slos)
                return SearchResult(recommended, found, tuple(measured), complete=False)
            cell = await session.cell(_setting_of(over, value), len(of_value))
            silence.check_first(cell)
            longest = max(longest, loop.time() - started)
            measured.append(cell)
            of_value.append(cell)
            on_cell(cell)
            silence.check(cell, session.slos)
            seen[value] = _outcome_of(of_value, session.slos)
            if _is_enough(of_value, before, session.slos):
                break
        try:
            value = steps.send(seen[value])
        except StopIteration as end:
            found = end.value
            return SearchResult(_recommended(over, found, windows, session.slos), found, tuple(measured))


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


def _is_enough(windows: Sequence[Cell], before: int, slos: Sequence[Slo]) -> bool:
    """Whether the windows of a value tell on which side of the objectives the value is.

    Args:
        windows: all of them.
        before: how many of them are of the first look.
        slos: the objectives.
    """
    look = windows[before:]
    if len(look) == 1 and look[0].measured_the_client:
        return False
    outcome = _outcome_of(look, slos)
    # On the way up a window without a miss is enough; what is chosen has a second look.
    if not before and outcome.calls and all(hits == outcome.calls for hits in outcome.hits):
        return True
    # A window tells the throughput; a share needs calls.
    return outcome.calls >= ENOUGH_CALLS or is_clear(_outcome_of(windows, slos))


def _setting_of(over: str, value: float) -> Setting:
    return Setting("fixed", concurrency=int(value)) if over == "limit" else Setting("adaptive", rate=value)


def _outcome_of(windows: Sequence[Cell], slos: Sequence[Slo]) -> Outcome:
    """Return what the windows of a value gave: those that measured the server."""
    cells = server_cells(windows)
    return Outcome(
        tuple(sum(cell.slo_hits[place] for cell in cells) for place in range(len(slos))),
        sum(cell.scheduled for cell in cells),
        tuple(slo.share for slo in slos),
        # The search looks at throughput; the objectives are asked of the calls.
        tuple(cell.calls_per_s if slos else cell.goodput for cell in cells),
        2 * sum(cell.fell_behind for cell in cells) > len(cells),
    )


def _recommended(
    over: str, found: Found, windows: Mapping[float, Sequence[Cell]], slos: Sequence[Slo]
) -> Recommendation | None:
    if found.value is None:
        return None
    cells = server_cells(windows[found.value])
    troubles = _troubles_of(cells)
    interval = None
    if slos and (figures := [cell.times[slos[0].measure] for cell in cells if slos[0].measure in cell.times]):
        interval = spanning([each.intervals[slos[0].share] for each in figures])
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
