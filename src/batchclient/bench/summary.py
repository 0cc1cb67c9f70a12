"""A setting's figures over its repetitions, what is recommended, and comparisons of two settings.

Rules:
- A figure is the median of the repetitions. Its interval has a confidence of 95 %: for percentiles
  that of all repetitions' order statistics, for shares Wilson's of all calls, for rates Student's,
  from three repetitions on.
- A repetition that measured the client is in no figure, unless more than half of a setting's did.
- Two settings of one sweep are compared by pairs: what slowed a whole repetition is left out.
- Figures whose ratio may be 1 are "no difference seen".
- Settings that measured the client recommend nothing, nor do those in which calls failed or arrived
  faster than they were answered.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from batchclient.bench.cell import Cell, Setting, server_cells
from batchclient.bench.intervals import Interval, mean_interval, ratio, spanning, wilson
from batchclient.bench.slo import Slo

__all__ = ["Comparison", "Figure", "Summary", "best_of", "compared", "keeps", "percentile", "summaries_of"]


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure over repetitions.

    Args:
        value: the median.
        interval: with a confidence of 95 %; ``None``: so few repetitions tell none.
    """

    value: float
    interval: Interval | None


@dataclass(frozen=True, slots=True)
class Summary:
    """A setting over its repetitions.

    Args:
        setting: what was measured.
        cells: all repetitions, in their order.
        counted: those that the figures are of.
        calls_per_s, tokens_per_s, goodput: per second.
        slo_shares: the share of calls within each objective.
        marks: all marks of the cells.
    """

    setting: Setting
    cells: tuple[Cell, ...]
    counted: tuple[Cell, ...]
    calls_per_s: Figure
    tokens_per_s: Figure
    goodput: Figure
    slo_shares: tuple[Figure, ...]
    marks: tuple[str, ...]

    @property
    def measured_the_client(self) -> bool:
        """Whether the figures are the client's: more than half of the repetitions are."""
        return any(cell.measured_the_client for cell in self.counted)

    @property
    def calls_failed(self) -> bool:
        """Whether too many calls of a repetition failed."""
        return any(cell.calls_failed for cell in self.cells)

    @property
    def retried_share(self) -> float:
        """The share of the calls that needed another attempt."""
        calls = sum(cell.scheduled for cell in self.counted)
        return sum(cell.retried for cell in self.counted) / calls if calls else 0.0

    @property
    def fell_behind(self) -> bool:
        """Whether calls arrived faster than they ended, in at least half of the repetitions."""
        return 2 * sum(cell.fell_behind for cell in self.counted) >= len(self.counted)

    @property
    def is_trusted(self) -> bool:
        """Whether the setting may be recommended."""
        return not (self.measured_the_client or self.calls_failed or self.fell_behind)


@dataclass(frozen=True, slots=True)
class Comparison:
    """The ratio of two settings' figures.

    Args:
        ratio: ours to theirs; infinite where theirs is 0.
        interval: ``None``: so few repetitions tell none.
        repetitions: of the one that has fewer.
        least, most: the least and the greatest ratio of any two repetitions that are compared.
    """

    ratio: float
    interval: Interval | None
    repetitions: int
    least: float
    most: float

    @property
    def is_difference(self) -> bool:
        """Whether a difference was seen."""
        return self.interval is not None and not self.interval.has(1.0)

    def __str__(self) -> str:
        if self.interval is None:
            few = "one repetition" if self.repetitions == 1 else f"{self.repetitions} repetitions"
            return f"{self.ratio:.2f} × ({few})"
        return f"{self.ratio:.2f} × [{self.interval.low:.2f}, {self.interval.high:.2f}]"

    def said_of(self, figure: str) -> str:
        """Return what was seen of a figure, in words."""
        if self.interval is None or self.is_difference:
            return f"{figure} {self}"
        return f"no difference seen in {figure} ({self})"


def summaries_of(cells: Iterable[Cell], slos: Sequence[Slo] = ()) -> list[Summary]:
    """Return a summary of each setting, in the order of the settings."""
    by_setting: dict[Setting, list[Cell]] = {}
    for cell in cells:
        by_setting.setdefault(cell.setting, []).append(cell)
    return [_summary(setting, tuple(of_setting), slos) for setting, of_setting in sorted(by_setting.items(), key=_key)]


def _key(item: tuple[Setting, object]) -> tuple[str, float, int, int]:
    setting = item[0]
    return setting.strategy, setting.rate or 0.0, setting.concurrency or 0, setting.size or 0


def _summary(setting: Setting, cells: tuple[Cell, ...], slos: Sequence[Slo]) -> Summary:
    counted = tuple(server_cells(cells))
    calls = sum(cell.scheduled for cell in counted)
    shares = []
    for place in range(len(slos)):
        hits = sum(cell.slo_hits[place] for cell in counted)
        shares.append(Figure(hits / calls if calls else 0.0, wilson(hits, calls)))
    return Summary(
        setting,
        cells,
        counted,
        _of_rates([cell.calls_per_s for cell in counted]),
        _of_rates([cell.tokens_per_s for cell in counted]),
        _of_rates([cell.goodput for cell in counted]),
        tuple(shares),
        tuple(dict.fromkeys(mark for cell in cells for mark in cell.marks)),
    )


def _of_rates(values: Sequence[float]) -> Figure:
    within = mean_interval(values)
    # Few repetitions that differ much have a bound below 0, where no rate is.
    return Figure(statistics.median(values), within and Interval(max(0.0, within.low), within.high))


def percentile(summary: Summary, name: str, share: float) -> Figure | None:
    """Return a percentile of a time over the repetitions; ``None``: nothing told the time.

    Args:
        summary: of the setting.
        name: of the time, such as ``latency``.
        share: 0.5, 0.9, 0.95, 0.99 or an objective's.
    """
    of_cells = [cell.times[name] for cell in summary.counted if name in cell.times]
    figures = [each for each in of_cells if share in each.percentiles]
    if not figures:
        return None
    value = statistics.median(each.percentiles[share] for each in figures)
    return Figure(value, spanning([each.intervals[share] for each in figures]))


def best_of(summaries: Sequence[Summary], slos: Sequence[Slo] = ()) -> Summary | None:
    """Return the setting with the highest goodput that keeps all objectives; ``None``: none does.

    Settings that measured the client are left out, and those in which calls failed or arrived
    faster than they were answered.
    """
    kept = [
        summary
        for summary in summaries
        if not summary.measured_the_client
        and not summary.calls_failed
        and not summary.fell_behind
        and summary.goodput.value > 0
        and keeps(summary, slos)
    ]
    return max(kept, key=lambda summary: summary.goodput.value, default=None)


def keeps(summary: Summary, slos: Sequence[Slo]) -> bool:
    """Whether a setting keeps all objectives, as far as its calls say."""
    return all(figure.value >= slo.share for figure, slo in zip(summary.slo_shares, slos, strict=True))


def compared(
    ours: Summary, theirs: Summary, figure: Callable[[Cell], float | None], *, paired: bool = True
) -> Comparison | None:
    """Return the ratio of a figure of two settings; ``None``: a cell of both has no such figure.

    The ratio to a figure of 0 is infinite.

    Args:
        ours, theirs: the settings.
        figure: reads a cell.
        paired: whether both are of one sweep, so that equal repetitions stand next to each other.
    """
    mine = {cell.repetition: figure(cell) for cell in ours.counted}
    other = {cell.repetition: figure(cell) for cell in theirs.counted}
    if paired:
        both = sorted(mine.keys() & other.keys())
        mine, other = {each: mine[each] for each in both}, {each: other[each] for each in both}
    left = [value for value in mine.values() if value is not None]
    right = [value for value in other.values() if value is not None]
    if not left or not right or len(left) < len(mine) or len(right) < len(other):
        return None
    pairs = zip(left, right, strict=True) if paired else itertools.product(left, right)
    ratios = [_ratio(ours, theirs) for ours, theirs in pairs]
    repetitions = min(len(left), len(right))
    if all(0 < value < math.inf for value in (*left, *right)):
        return Comparison(*ratio(left, right, paired=paired), repetitions, min(ratios), max(ratios))
    # Nothing was answered, or nothing in time: no such figure has a logarithm.
    middle = _ratio(statistics.median(left), statistics.median(right))
    return Comparison(middle, None, repetitions, min(ratios), max(ratios))


def _ratio(ours: float, theirs: float) -> float:
    if ours == theirs:
        return 1.0
    return ours / theirs if theirs else math.inf
