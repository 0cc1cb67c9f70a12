"""Two reports side by side: the ratio of each figure of each setting that both have."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass

from batchclient import ConfigError
from batchclient.bench.measurement import Measurement, Setting
from batchclient.bench.report import Report
from batchclient.bench.summary import Comparison, compared, summaries_of

__all__ = ["FIGURES", "Bound", "Difference", "differences", "workload_differences"]


def _latency(share: float) -> Callable[[Measurement], float | None]:
    # Where no call was answered, a caller waits for ever.
    return lambda each: each.times["latency"].percentiles[share] if "latency" in each.times else math.inf


FIGURES: dict[str, Callable[[Measurement], float | None]] = {
    "goodput": lambda each: each.goodput,
    "calls_per_s": lambda each: each.calls_per_s,
    "tokens_per_s": lambda each: each.tokens_per_s,
    "p50": _latency(0.5),
    "p95": _latency(0.95),
    "p99": _latency(0.99),
}
_BOUND = re.compile(rf"(?P<figure>{'|'.join(FIGURES)})\s*(?P<side>[<>])\s*(?P<ratio>\d+(?:\.\d+)?)")


@dataclass(frozen=True, slots=True)
class Difference:
    """A figure of a setting, in the second report as a ratio to the first.

    Args:
        setting: in both reports.
        figure: a name of ``FIGURES``.
        comparison: second to first.
    """

    setting: Setting
    figure: str
    comparison: Comparison


@dataclass(frozen=True, slots=True)
class Bound:
    """A ratio that must not be crossed: ``goodput<0.95``, ``p95>1.1``.

    For example::

        Bound("goodput<0.95").is_broken(difference)

    Args:
        text: figure, ``<`` or ``>``, ratio.

    Raises:
        ConfigError: the text has another form.
    """

    text: str

    def __post_init__(self) -> None:
        if _BOUND.fullmatch(self.text.strip()) is None:
            figures = ", ".join(FIGURES)
            raise ConfigError(f"{self.text!r} is no bound; its form is 'goodput<0.95' or 'p95>1.1', with {figures}")

    def is_broken(self, difference: Difference) -> bool:
        """Whether the ratio is beyond the bound, and is no noise as far as the repetitions tell.

        Repetitions that are too few for an interval all have to be beyond the bound.
        """
        form = _BOUND.fullmatch(self.text.strip())
        assert form is not None, "checked when made"
        comparison, ratio = difference.comparison, float(form["ratio"])
        if form["figure"] != difference.figure:
            return False
        if comparison.interval is None:
            return comparison.most < ratio if form["side"] == "<" else comparison.least > ratio
        beyond = comparison.ratio < ratio if form["side"] == "<" else comparison.ratio > ratio
        return beyond and comparison.is_difference


def workload_differences(first: Report, second: Report) -> list[str]:
    """Return how the workloads differ, one sentence each.

    A sweep that lacks a setting of the first one differs, too: nobody would notice a bound that the
    missing setting breaks. Two searches never measure the same values.
    """
    lines = []
    for part in ("workload", "times"):
        before, after = (asdict(getattr(report.about, part)) for report in (first, second))
        for name, value in before.items():
            if name != "seed" and after[name] != value:
                lines.append(f"{name.replace('_', ' ')}: {value} and {after[name]}")
    if [slo.text for slo in first.slos] != [slo.text for slo in second.slos]:
        lines.append("the objectives differ")
    if first.recommendation is second.recommendation is None:
        there = {each.setting for each in second.measurements}
        missing = dict.fromkeys(str(each.setting) for each in first.measurements if each.setting not in there)
        if missing:
            lines.append(f"only the first report has: {'; '.join(missing)}")
    return lines


def differences(first: Report, second: Report) -> list[Difference]:
    """Return the ratios, second to first, of every setting that both reports have."""
    before = {summary.setting: summary for summary in summaries_of(first.measurements, first.slos)}
    found = []
    for summary in summaries_of(second.measurements, second.slos):
        if (other := before.get(summary.setting)) is not None:
            for name, read in FIGURES.items():
                if (comparison := compared(summary, other, read, paired=False)) is not None:
                    found.append(Difference(summary.setting, name, comparison))
    return found
