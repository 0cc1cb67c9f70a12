"""A setting's figures over its repetitions, what is recommended, and comparisons of two settings.

Rules:
- A figure is the median of the repetitions. Its interval has a confidence of 95 %: for percentiles
  that of all repetitions' order statistics, for shares Wilson's of all calls, for rates Student's.
- Two settings of one sweep are compared by pairs: what slowed a whole repetition is left out.
- Figures whose ratio may be 1 are "no difference seen".
- Cells that measured the client, or in which calls failed, recommend nothing.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from batchclient.bench.cell import Cell, Setting
from batchclient.bench.intervals import Interval, mean_interval, ratio, spanning, wilson
from batchclient.bench.slo import Slo

__all__ = ["Comparison", "Figure", "Summary", "best_of", "compared", "percentile", "summaries_of"]


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure over repetitions.

    Args:
        value: the median.
        interval: with a confidence of 95 %; ``None``: one repetition tells none.
    """

    value: float
    interval: Interval | None


@dataclass(frozen=True, slots=True)
class Summary:
    """A setting over its repetitions.

    Args:
        setting: what was measured.
        cells: the repetitions, in their order.
        calls_per_s, tokens_per_s, goodput: per second.
        slo_shares: the share of calls within each objective.
        marks: all marks of the cells.
    """

    setting: Setting
    cells: tuple[Cell, ...]
    calls_per_s: Figure
    tokens_per_s: Figure
    goodput: Figure
    slo_shares: tuple[Figure, ...]
    marks: tuple[str, ...]

    @property
    def measured_the_client(self) -> bool:
        """Whether the figures of a repetition are the client's."""
        return any(cell.measured_the_client for cell in self.cells)

    @property
    def calls_failed(self) -> bool:
        """Whether too many calls of a repetition failed."""
        return any(cell.calls_failed for cell in self.cells)

    @property
    def is_trusted(self) -> bool:
        """Whether the setting may be recommended."""
        return not (self.measured_the_client or self.calls_failed)


@dataclass(frozen=True, slots=True)
class Comparison:
    """The ratio of two settings' figures.

    Args:
        ratio: ours to theirs.
        interval: ``None``: one repetition tells none.
    """

    ratio: float
    interval: Interval | None

    @property
    def is_difference(self) -> bool:
        """Whether a difference was seen."""
        return self.interval is not None and not self.interval.has(1.0)

    def __str__(self) -> str:
        if self.interval is None:
            return f"{self.ratio:.2f} × (one repetition)"
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
    calls = sum(cell.scheduled for cell in cells)
    shares = []
    for place in range(len(slos)):
        hits = sum(cell.slo_hits[place] for cell in cells)
        shares.append(Figure(hits / calls if calls else 0.0, wilson(hits, calls)))
    return Summary(
        setting,
        cells,
        _of_rates([cell.calls_per_s for cell in cells]),
        _of_rates([cell.tokens_per_s for cell in cells]),
        _of_rates([cell.goodput for cell in cells]),
        tuple(shares),
        tuple(dict.fromkeys(mark for cell in cells for mark in cell.marks)),
    )


def _of_rates(values: Sequence[float]) -> Figure:
    return Figure(statistics.median(values), mean_interval(values))


def percentile(summary: Summary, name: str, share: float) -> Figure | None:
    """Return a percentile of a time over the repetitions; ``None``: nothing told the time.

    Args:
        summary: of the setting.
        name: of the time, such as ``latency``.
        share: 0.5, 0.9, 0.95 or 0.99.
    """
    figures = [cell.times[name] for cell in summary.cells if name in cell.times]
    if not figures:
        return None
    value = statistics.median(each.percentiles[share] for each in figures)
    return Figure(value, spanning([each.intervals[share] for each in figures]))


def best_of(summaries: Sequence[Summary], slos: Sequence[Slo] = ()) -> Summary | None:
    """Return the setting with the highest goodput that keeps all objectives; ``None``: none does.

    Settings that measured the client are left out, and those in which calls failed.
    """
    kept = [
        summary
        for summary in summaries
        if not summary.measured_the_client
        and not summary.calls_failed
        and summary.goodput.value > 0
        and all(figure.value >= slo.share for figure, slo in zip(summary.slo_shares, slos, strict=True))
    ]
    return max(kept, key=lambda summary: summary.goodput.value, default=None)


def compared(
    ours: Summary, theirs: Summary, figure: Callable[[Cell], float | None], *, paired: bool = True
) -> Comparison | None:
    """Return the ratio of a figure of two settings; ``None``: a cell has no such figure.

    Args:
        ours, theirs: the settings.
        figure: reads a cell.
        paired: whether both are of one sweep, so that equal repetitions stand next to each other.
    """
    mine = {cell.repetition: figure(cell) for cell in ours.cells}
    other = {cell.repetition: figure(cell) for cell in theirs.cells}
    if paired:
        both = sorted(mine.keys() & other.keys())
        mine, other = {each: mine[each] for each in both}, {each: other[each] for each in both}
    left, right = [value for value in mine.values() if value], [value for value in other.values() if value]
    if not left or not right or len(left) < len(mine) or len(right) < len(other):
        return None
    return Comparison(*ratio(left, right, paired=paired))
