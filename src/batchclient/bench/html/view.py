"""The view that all sections of a report share: settings in their order, and cells of tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import fmean

from batchclient.bench.cell import Cell
from batchclient.bench.html.curves import Curve, curves_of, load_of
from batchclient.bench.html.markup import Text, table
from batchclient.bench.html.pictures import unit_for
from batchclient.bench.html.svg import number
from batchclient.bench.html.words import Unit, bounds, share
from batchclient.bench.report import Report
from batchclient.bench.slo import Slo
from batchclient.bench.strategies import RIVAL, has_first_tokens
from batchclient.bench.summary import Figure, Summary, best_of, percentile, summaries_of

__all__ = ["UNKNOWN", "View", "list_size", "mean", "rate", "share_with_bounds"]

UNKNOWN = "–"
"""A figure that nothing told."""


class View:
    """A report as its sections see it.

    Args:
        report: to be shown.

    Attributes:
        report: the same.
        slos: its objectives.
        curves: of closed loads, and of open ones, by whether the loads are open; none is empty.
        summaries: of all settings, in the order of the curves.
        best: the best setting of this client, or the one that a search recommends; ``None``: none
            keeps the objectives.
        is_search: whether the report is that of a search.
        latency: the unit of latencies.
    """

    def __init__(self, report: Report) -> None:
        self.report: Report = report
        self.slos: tuple[Slo, ...] = report.slos
        summaries = summaries_of(report.cells, report.slos)
        found = _found(report)
        self.is_search: bool = report.recommendation is not None
        both = {is_open: curves_of(summaries, is_open=is_open) for is_open in (False, True)}
        if found is not None and not report.slos:
            # What the search calls the knee is the knee.
            both = {is_open: [replace(each, found=found) for each in curves] for is_open, curves in both.items()}
        self.curves: dict[bool, list[Curve]] = {is_open: curves for is_open, curves in both.items() if curves}
        points = [point for curves in self.curves.values() for curve in curves for point in curve.points]
        self.summaries: list[Summary] = [summary for _, summary in points]
        ours = [each for each in summaries if each.setting.strategy != RIVAL]
        if self.is_search:
            ours = [each for each in ours if load_of(each) == found]
        self.best: Summary | None = best_of(ours, self.slos)
        self.latency: Unit = unit_for(summaries, "latency", self.slos)
        self._call = str(report.about["workload"].get("call"))

    def table(
        self,
        caption: str,
        heads: Sequence[str],
        cells: Callable[[Summary], Sequence[Text]],
        curves: Sequence[Curve] | None = None,
        *,
        is_with_knees: bool = False,
    ) -> str:
        """Return a table with a row for each setting.

        Args:
            caption: of the table.
            heads: of the columns after the first.
            cells: a row's texts after the first.
            curves: whose settings are shown; ``None``: all.
            is_with_knees: whether the rows at a knee are named so.
        """
        rows: list[Sequence[Text]] = []
        looks: list[str] = []
        for curve in curves if curves is not None else [each for of_load in self.curves.values() for each in of_load]:
            for place, (load, summary) in enumerate(curve.points):
                notes = [self.word_of_best] if summary is self.best else []
                notes += ["knee"] if is_with_knees and load == curve.knee else []
                rows.append([(str(summary.setting), ", ".join([*notes, *summary.marks])), *cells(summary)])
                looks.append("best" if summary is self.best else "" if place else "group")
        return table(caption, ("Setting", *heads), rows, looks=looks)

    @property
    def word_of_best(self) -> str:
        """The name of the best setting in tables."""
        return "recommended" if self.is_search else "best"

    def tells(self, summary: Summary, measure: str) -> bool:
        """Whether a strategy tells a time of all its calls; lists tell it of single calls alone."""
        return measure not in ("ttft", "tpot") or has_first_tokens(summary.setting.strategy, self._call)

    def time(self, summary: Summary, measure: str, of: float, unit: Unit) -> Text:
        """Return a percentile of a time, with its interval."""
        told = percentile(summary, measure, of) if self.tells(summary, measure) else None
        return UNKNOWN if told is None else (unit.shown(told.value), bounds(told.interval, unit))

    def two_times(self, summary: Summary, measure: str, unit: Unit) -> Text:
        """Return the 50th and the 95th percentile of a time."""
        told = [percentile(summary, measure, of) for of in (0.5, 0.95)] if self.tells(summary, measure) else []
        shown = [unit.shown(each.value) for each in told if each is not None]
        return (shown[0], shown[1]) if shown else UNKNOWN


def _found(report: Report) -> float | None:
    """Return the limit or the rate that a search recommends."""
    told = report.recommendation or {}
    values = [told.get(name) for name in ("rate", "limit")]
    return next((float(value) for value in values if isinstance(value, int | float)), None)


def rate(told: Figure) -> Text:
    """Return a rate, with its interval."""
    return number(told.value), bounds(told.interval)


def share_with_bounds(told: Figure) -> Text:
    """Return a share, with its interval."""
    within = "" if told.interval is None else f"[{share(told.interval.low)}, {share(told.interval.high)}]"
    return share(told.value), within


def mean(summary: Summary, read: Callable[[Cell], float]) -> float:
    """Return the mean of a figure over the repetitions that count."""
    return fmean(read(cell) for cell in summary.counted)


def list_size(summary: Summary) -> str:
    """Return the prompts of a request on the mean."""
    requests = sum(count for cell in summary.counted for count in cell.list_sizes.values())
    prompts = sum(size * count for cell in summary.counted for size, count in cell.list_sizes.items())
    return number(prompts / requests) if requests else UNKNOWN
