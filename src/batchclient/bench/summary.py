"""A setting's figures over its repetitions, what is recommended, and comparisons of two settings.

Rules:
- A figure is the median of the repetitions. Its interval has a confidence of 95 %: for percentiles
  that of all repetitions' order statistics, for shares Wilson's of all calls, for rates Student's,
  from three repetitions on.
- A repetition that measured the client is in no figure, unless more than half of a setting's did.
- Two settings of one sweep are compared by pairs: what slowed a whole repetition is left out.
- Figures whose ratio may be 1 are "no difference seen".
- A setting whose figures have a mark that disqualifies is not recommended.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from batchclient.bench.intervals import Interval, mean_interval, ratio, spanning, wilson
from batchclient.bench.marks import Mark
from batchclient.bench.measurement import Measurement, Setting, that_count
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
        measurements: all repetitions, in their order.
        counted: those that the figures are of.
        calls_per_s, tokens_per_s, goodput: per second.
        slo_shares: the share of calls within each objective.
        marks: all marks of the measurements.
    """

    setting: Setting
    measurements: tuple[Measurement, ...]
    counted: tuple[Measurement, ...]
    calls_per_s: Figure
    tokens_per_s: Figure
    goodput: Figure
    slo_shares: tuple[Figure, ...]
    marks: tuple[str, ...]

    @property
    def measured_the_client(self) -> bool:
        """Whether the figures are the client's: more than half of the repetitions are."""
        return any(each.measured_the_client for each in self.counted)

    @property
    def disqualified_by(self) -> list[Mark]:
        """The marks for which the setting is not recommended; empty: it may be."""
        return list(dict.fromkeys(mark for each in self.counted for mark in each.disqualified_by))

    @property
    def retried_share(self) -> float:
        """The share of the calls that needed another attempt."""
        calls = sum(each.scheduled for each in self.counted)
        return sum(each.retried for each in self.counted) / calls if calls else 0.0


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


def summaries_of(measurements: Iterable[Measurement], slos: Sequence[Slo] = ()) -> list[Summary]:
    """Return a summary of each setting, in the order of the settings."""
    by_setting: dict[Setting, list[Measurement]] = {}
    for each in measurements:
        by_setting.setdefault(each.setting, []).append(each)
    return [_summary(setting, tuple(of_setting), slos) for setting, of_setting in sorted(by_setting.items(), key=_key)]


def _key(item: tuple[Setting, object]) -> tuple[str, float, int, int]:
    setting = item[0]
    return setting.strategy, setting.rate or 0.0, setting.concurrency or 0, setting.size or 0


def _summary(setting: Setting, measurements: tuple[Measurement, ...], slos: Sequence[Slo]) -> Summary:
    counted = tuple(that_count(measurements))
    calls = sum(each.scheduled for each in counted)
    shares = []
    for place in range(len(slos)):
        hits = sum(each.slo_hits[place] for each in counted)
        shares.append(Figure(hits / calls if calls else 0.0, wilson(hits, calls)))
    return Summary(
        setting,
        measurements,
        counted,
        _of_rates([each.calls_per_s for each in counted]),
        _of_rates([each.tokens_per_s for each in counted]),
        _of_rates([each.goodput for each in counted]),
        tuple(shares),
        tuple(dict.fromkeys(mark for each in measurements for mark in each.marks)),
    )


def _of_rates(values: Sequence[float]) -> Figure:
    within = mean_interval(values)
    # Few repetitions that differ much have a bound below 0, where no rate is.
    return Figure(statistics.median(values), within and Interval(max(0.0, within.low), within.high))


def percentile(summary: Summary, name: str, share: float) -> Figure | None:
    """Return a percentile of a time over the repetitions; ``None``: nothing tells the time.

    Args:
        summary: of the setting.
        name: of the time, such as ``latency``.
        share: 0.5, 0.9, 0.95, 0.99 or an objective's.
    """
    of_repetitions = [each.times[name] for each in summary.counted if name in each.times]
    figures = [each for each in of_repetitions if share in each.percentiles]
    if not figures:
        return None
    value = statistics.median(each.percentiles[share] for each in figures)
    return Figure(value, spanning([each.intervals[share] for each in figures]))


def best_of(summaries: Sequence[Summary], slos: Sequence[Slo] = ()) -> Summary | None:
    """Return the setting with the highest goodput that keeps all objectives; ``None``: none does.

    Settings with a mark that disqualifies are left out.
    """
    kept = [
        summary
        for summary in summaries
        if not summary.disqualified_by and summary.goodput.value > 0 and keeps(summary, slos)
    ]
    return max(kept, key=lambda summary: summary.goodput.value, default=None)


def keeps(summary: Summary, slos: Sequence[Slo]) -> bool:
    """Whether a setting keeps all objectives, as far as its calls say."""
    return all(figure.value >= slo.share for figure, slo in zip(summary.slo_shares, slos, strict=True))


def compared(
    ours: Summary, theirs: Summary, figure: Callable[[Measurement], float | None], *, paired: bool = True
) -> Comparison | None:
    """Return the ratio of a figure of two settings; ``None``: a measurement of both has no such figure.

    The ratio to a figure of 0 is infinite.

    Args:
        ours, theirs: the settings.
        figure: reads a measurement.
        paired: whether both are of one sweep, so that equal repetitions stand next to each other.
    """
    mine = {each.repetition: figure(each) for each in ours.counted}
    other = {each.repetition: figure(each) for each in theirs.counted}
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
