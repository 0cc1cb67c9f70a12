"""The sections of a report with pictures: throughput, latency, batch sizes, the adaptive limit."""

from __future__ import annotations

from collections.abc import Sequence

from batchclient.bench.cell import Cell
from batchclient.bench.html import pictures
from batchclient.bench.html.curves import Curve, by_size, one_for_each_strategy
from batchclient.bench.html.markup import Text, figure, section, table
from batchclient.bench.html.svg import number
from batchclient.bench.html.view import UNKNOWN, View, list_size, mean, rate, share_with_bounds
from batchclient.bench.html.words import MEASURES
from batchclient.bench.slo import Slo
from batchclient.bench.strategies import LISTS
from batchclient.bench.summary import Summary

__all__ = ["latency", "limits", "sizes", "throughput"]

_LOADS = {False: "concurrency", True: "arrival rate"}
_MOST_LIMITS = 8
"""Lines in the picture of limits."""


def throughput(view: View, *, is_open: bool) -> str:
    """Return the section on calls and tokens per second.

    Args:
        view: of the report.
        is_open: whether the section is on arrival rates.
    """
    curves = view.curves[is_open]
    drawn = one_for_each_strategy(curves)
    load = _LOADS[is_open]
    closed = "" if is_open else " The loads are closed: they say nothing about an arrival rate."
    objectives = " that keeps the objectives" if view.slos else ""
    green = "the recommended one" if view.is_search else f"this client's highest goodput{objectives}"
    best = f" Green: {green}." if view.best else ""

    def cells(summary: Summary) -> Sequence[Text]:
        output = mean(summary, lambda cell: cell.output_tokens_per_s)
        return [rate(summary.calls_per_s), rate(summary.tokens_per_s), number(output), rate(summary.goodput)]

    return section(
        f"Throughput by {load}",
        figure(
            f"Throughput by {load}, with intervals of 95 %.{_sizes_drawn(curves, drawn)}",
            *pictures.throughput(drawn, is_open=is_open),
        ),
        view.table(
            f"Throughput by {load}; in brackets the interval of 95 %.{closed}{best}",
            ("Calls/s", "Tokens/s", "Output tokens/s", "Goodput, calls/s"),
            cells,
            curves,
            is_with_knees=True,
        ),
    )


def latency(view: View, *, is_open: bool) -> str:
    """Return the section on the latency, and on the other times that have an objective.

    Args:
        view: of the report.
        is_open: whether the section is on arrival rates.
    """
    curves, load = view.curves[is_open], _LOADS[is_open]
    asked = list(dict.fromkeys((slo.measure, pictures.nearest(slo.share)) for slo in view.slos))
    shown: list[tuple[str, float]] = [*asked]
    if not any(measure == "latency" for measure, _ in asked):
        shown.insert(0, ("latency", 0.95))
    columns: list[tuple[str, float]] = [("latency", 0.5), ("latency", 0.95), ("latency", 0.99)]
    columns += [each for each in asked if each not in columns]
    units = {measure: pictures.unit_for(view.summaries, measure, view.slos) for measure, _ in columns}
    drawn = []
    for measure, of in shown:
        able = [each for each in one_for_each_strategy(curves) if view.tells(each.points[0][1], measure)]
        if able:
            picture = pictures.percentiles(able, measure, of, view.slos, units[measure], is_open=is_open)
            caption = f"p{of * 100:g} {MEASURES[measure]} by {load}, with intervals of 95 %."
            if others := [str(slo) for slo in view.slos if slo.measure == measure and _is_another(slo, of)]:
                caption += f" It is the report's nearest percentile to that of {', '.join(others)}."
            drawn.append(figure(caption + _sizes_drawn(curves, able), picture))

    def cells(summary: Summary) -> Sequence[Text]:
        times = [view.time(summary, measure, of, units[measure]) for measure, of in columns]
        return [*times, *map(share_with_bounds, summary.slo_shares)]

    heads = [f"p{of * 100:g} {MEASURES[measure]}, {units[measure].name}" for measure, of in columns]
    return section(
        f"Latency by {load}",
        *drawn,
        view.table(
            "Percentiles over the answered calls, and the share of all scheduled calls within each objective; in "
            "brackets the interval of 95 %.",
            [*heads, *(f"Within {slo}" for slo in view.slos)],
            cells,
            curves,
        ),
    )


def sizes(view: View) -> str:
    """Return the section on batch sizes; nothing where no strategy has several."""
    parts = []
    unit = view.latency
    heads = (
        "Load",
        "Batch size",
        "Prompts per request",
        "Tokens/s",
        f"p50 latency, {unit.name}",
        f"p95 latency, {unit.name}",
        f"p95 server part, {unit.name}",
    )
    for strategy in LISTS:
        groups = by_size(view.summaries, strategy)
        if not groups:
            continue
        rows: list[Sequence[Text]] = [
            [
                (summary.setting.load, summary.setting.strategy if summary.setting.strategy != strategy else ""),
                f"{size:g}",
                list_size(summary),
                rate(summary.tokens_per_s),
                *(view.time(summary, "latency", of, unit) for of in (0.5, 0.95)),
                view.time(summary, "server", 0.95, unit),
            ]
            for _, curve in groups
            for size, summary in curve.points
        ]
        looks = ["" if place else "group" for _, curve in groups for place in range(len(curve.points))]
        caption = f"Batch size, {strategy}; in brackets the interval of 95 %."
        if any(first.setting.rate is None for first, _ in groups):
            caption += " Lists have as many more callers as their size; these wait before the server's part."
        parts += [
            figure(
                f"{strategy.capitalize()}: one line for each load; the size of 1 is that of singles.",
                *pictures.sizes(strategy, groups, view.slos, unit),
            ),
            table(caption, heads, rows, looks=looks),
        ]
    return section("Latency and throughput by batch size", *parts)


def limits(view: View) -> str:
    """Return the section on the adaptive limit; nothing where none was measured."""
    cells = [cell for summary in view.summaries for cell in summary.cells if cell.setting.strategy == "adaptive"]
    if not cells:
        return ""
    times = view.report.about["times"]
    begin, end = times["warm_up_s"], times["warm_up_s"] + times["window_s"]
    drawn = [cell for cell in cells if cell.limit_changes and cell.repetition == 0]
    loads = f"the {_MOST_LIMITS} highest loads" if len(drawn) > _MOST_LIMITS else "each load"
    picture = pictures.limits_in_time(drawn[-_MOST_LIMITS:], begin, times["window_s"]) if drawn else ""
    rows = [
        [
            f"{cell.setting}, repetition {cell.repetition + 1}",
            *(_limit_at(cell, at) for at in (0.0, begin, end)),
            str(max(0, len(cell.limit_changes) - 1)),
            UNKNOWN if cell.ramp_s is None else number(cell.ramp_s),
        ]
        for cell in cells
    ]
    return section(
        "The adaptive limit's way",
        figure(f"The adaptive limit in time, in the first repetition of {loads}.", picture) if picture else "",
        table(
            "The limit at three times of each cell, and when answers first came at 90 % of the window's calls/s. "
            "A limit that never changed is a dash.",
            ("Cell", "At first", "As the window begins", "As it ends", "Changes", "Seconds to 90 %"),
            rows,
        ),
    )


def _is_another(slo: Slo, of: float) -> bool:
    """Whether an objective is drawn with a percentile that is not its own."""
    return pictures.nearest(slo.share) == of != slo.share


def _limit_at(cell: Cell, at: float) -> str:
    before = [limit for seconds, limit in cell.limit_changes if seconds <= at]
    return f"{before[-1]:,}" if before else UNKNOWN


def _sizes_drawn(curves: Sequence[Curve], drawn: Sequence[Curve]) -> str:
    """Say which sizes are drawn, where a strategy has several."""
    several = [curve for curve in drawn if sum(each.strategy == curve.strategy for each in curves) > 1]
    names = ", ".join(curve.name for curve in several)
    return f" Of a strategy's sizes the one with the highest goodput is drawn: {names}." if names else ""
