"""The pictures of a report: figures along loads and along sizes of lists, and limits in time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from batchclient.bench.cell import SHARES, Cell
from batchclient.bench.html.curves import Curve
from batchclient.bench.html.svg import Axis, Bound, Line, Point, amount_axis, chart, doubling_axis
from batchclient.bench.html.words import MEASURES, Unit, unit_of, with_bounds
from batchclient.bench.slo import Slo
from batchclient.bench.strategies import STRATEGIES
from batchclient.bench.summary import Figure, Summary, percentile

__all__ = ["limits_in_time", "nearest", "percentiles", "sizes", "throughput", "unit_for"]

_LOADS = {False: "concurrency", True: "arrivals per second"}
_RATES: tuple[tuple[str, Callable[[Summary], Figure]], ...] = (
    ("calls per second", lambda summary: summary.calls_per_s),
    ("tokens per second", lambda summary: summary.tokens_per_s),
)
_WIDE = 620
_MOST_PLACES = 300
"""Places of a limit's line in time: more would not be seen."""

Read = Callable[[Summary], Figure | None]


def throughput(curves: Sequence[Curve], *, is_open: bool) -> list[str]:
    """Return calls per second and tokens per second along the loads.

    Args:
        curves: to be drawn.
        is_open: whether the loads are arrival rates.
    """
    x = doubling_axis(_LOADS[is_open], _places(curves))
    names = [f"{curve.name} (knee: {curve.knee:g})" if curve.knee is not None else curve.name for curve in curves]
    kind = "open" if is_open else "closed"
    drawn = []
    for place, (label, read) in enumerate(_RATES):
        lines = [_line(name, curve, read, knee=curve.knee) for name, curve in zip(names, curves, strict=True)]
        y = _amounts(label, curves, read)
        described = f"{label} by {x.label}, one line for each of: {', '.join(names)}. The table below has the figures."
        drawn.append(chart(f"throughput-{kind}-{place}", label, described, x, y, lines, notes=_notes(lines)))
    return drawn


def percentiles(
    curves: Sequence[Curve], measure: str, share: float, slos: Sequence[Slo], unit: Unit, *, is_open: bool
) -> str:
    """Return a percentile of a time along the loads, with the objectives that bound the percentile.

    Args:
        curves: to be drawn.
        measure: the time.
        share: the percentile / 100, one of ``SHARES``.
        slos: all objectives.
        unit: of the time.
        is_open: whether the loads are arrival rates.
    """

    def read(summary: Summary) -> Figure | None:
        return percentile(summary, measure, share)

    told = [curve for curve in curves if any(read(summary) is not None for _, summary in curve.points)]
    bounds = [Bound(slo.bound_s, str(slo)) for slo in slos if slo.measure == measure and nearest(slo.share) == share]
    x = doubling_axis(_LOADS[is_open], _places(told))
    label = f"p{share * 100:g} {MEASURES[measure]}, {unit.name}"
    y = _amounts(label, told, read, unit=unit, more=[bound.value for bound in bounds])
    lines = [_line(curve.name, curve, read, unit) for curve in told]
    names = ", ".join(curve.name for curve in told)
    described = f"{label} by {x.label}, one line for each of: {names}." + "".join(
        f" A line across marks the objective {bound.label}." for bound in bounds
    )
    kind = f"{measure}-{share * 100:g}-{'open' if is_open else 'closed'}"
    return chart(f"time-{kind}", label, described, x, y, lines, bounds=bounds, notes=_notes(lines), width=_WIDE)


def sizes(strategy: str, groups: Sequence[tuple[Summary, Curve]], slos: Sequence[Slo], unit: Unit) -> list[str]:
    """Return the p95 latency and the tokens per second along the sizes of lists.

    Args:
        strategy: of the lists.
        groups: a setting that names the load, and the curve.
        slos: all objectives.
        unit: of the latency.
    """

    def p95(summary: Summary) -> Figure | None:
        return percentile(summary, "latency", 0.95)

    curves = [curve for _, curve in groups]
    x = doubling_axis("prompts per request, at most", _places(curves))
    bounds = [Bound(slo.bound_s, str(slo)) for slo in slos if slo.measure == "latency" and nearest(slo.share) == 0.95]
    latency = f"p95 latency, {unit.name}"
    drawn: list[str] = []
    for label, read, in_unit, across in ((latency, p95, unit, bounds), (*_RATES[1], None, [])):
        lines = [
            _line(summary.setting.load, curve, read, in_unit, look=look) for look, (summary, curve) in enumerate(groups)
        ]
        y = _amounts(label, curves, read, unit=in_unit, more=[bound.value for bound in across])
        described = f"{label} by the size of {strategy}, one line for each load. The table below has the figures."
        ident = f"sizes-{strategy}-{len(drawn)}"
        drawn.append(chart(ident, label, described, x, y, lines, bounds=across, notes=_notes(lines)))
    return drawn


def limits_in_time(cells: Sequence[Cell], warm_up_s: float, window_s: float) -> str:
    """Return the adaptive limit from a cell's begin on.

    Args:
        cells: to be drawn, each with changes of its limit.
        warm_up_s, window_s: the cell's parts.
    """
    end = warm_up_s + window_s
    lines = [
        Line(
            str(cell.setting),
            tuple(Point(at, limit, tip=f"{limit} from {at:.1f} s on") for at, limit in _seen(cell, end)),
            look,
            is_steps=True,
        )
        for look, cell in enumerate(cells)
    ]
    values = [point.y for line in lines for point in line.points]
    x = amount_axis("seconds since the cell's begin", [end])
    y = amount_axis("limit of calls in flight", values, may_be_log=True)
    described = f"the limit in time, one line for each of: {', '.join(line.name for line in lines)}"
    bounds = [Bound(warm_up_s, "window begins", is_upright=True)] if warm_up_s > 0 else []
    return chart("limits", "limit of calls in flight", described, x, y, lines, bounds=bounds, width=_WIDE)


def nearest(share: float) -> float:
    """Return the share of the report's percentiles that is next to an objective's."""
    return min(SHARES, key=lambda each: abs(each - share))


def _seen(cell: Cell, end: float) -> list[tuple[float, int]]:
    """Return a limit's changes as the picture shows them: of a place's changes the last."""
    by_place = {int(at / end * _MOST_PLACES): (at, limit) for at, limit in cell.limit_changes if at <= end}
    kept = list(by_place.values())
    return [*kept, (end, kept[-1][1])] if kept else []


def _line(
    name: str, curve: Curve, read: Read, unit: Unit | None = None, *, look: int | None = None, knee: float | None = None
) -> Line:
    points = []
    for at, summary in curve.points:
        figure = read(summary)
        if figure is not None:
            low, high = (None, None) if figure.interval is None else figure.interval
            tip = f"{summary.setting}: {with_bounds(figure, unit)}"
            points.append(Point(at, figure.value, low, high, not summary.is_trusted, at == knee, tip))
    return Line(name, tuple(points), _look(curve.strategy) if look is None else look)


def _look(strategy: str) -> int:
    """Return the look of a strategy, the same in all pictures."""
    return STRATEGIES.index(strategy) if strategy in STRATEGIES else len(STRATEGIES)


def _notes(lines: Iterable[Line]) -> list[str]:
    points = [point for line in lines for point in line.points]
    told = (("ring", any(point.is_ringed for point in points)), ("hollow", any(point.is_hollow for point in points)))
    return [note for note, is_there in told if is_there]


def _places(curves: Iterable[Curve]) -> list[float]:
    return [load for curve in curves for load, _ in curve.points]


def _amounts(
    label: str, curves: Iterable[Curve], read: Read, *, unit: Unit | None = None, more: Sequence[float] = ()
) -> Axis:
    """Return the axis for the figures of curves; that of times may be logarithmic."""
    figures = [figure for curve in curves for _, summary in curve.points if (figure := read(summary)) is not None]
    values = [figure.value for figure in figures]
    ends = [end for figure in figures if figure.interval is not None for end in figure.interval]
    if unit is None:
        return amount_axis(label, [*values, *more], ends)
    return amount_axis(
        label, [*values, *more], ends, may_be_log=True, shown=lambda tick: f"{round(tick * unit.per_s, 6):,g}"
    )


def unit_for(summaries: Iterable[Summary], measure: str, slos: Sequence[Slo] = ()) -> Unit:
    """Return the unit for a time's percentiles and objectives."""
    figures = [percentile(summary, measure, share) for summary in summaries for share in SHARES]
    bounds = [slo.bound_s for slo in slos if slo.measure == measure]
    return unit_of([*(figure.value for figure in figures if figure is not None), *bounds])
