"""The bars that the default must reach on draws, and whether it reaches them.

The bars are those of the design page "The limit that does no harm". Where the page does not say how
a figure is taken over draws, the rule stands here. The smallest share of ``siblings`` is taken at
the tenth percentile, the wait of the higher class of ``small`` at the median, the refused share of
``rated`` in the mean.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks.lab.drawn_table import Result, by_group, percentile

__all__ = ["COMPARED_WITH", "Finding", "check"]

_BARS = {
    "once, known": (0.99, 0.96),
    "once, not known": (0.98, 0.94),
    "closed": (0.985, 0.95),
    "late": (0.97, 0.90),
    "refusing": (0.98, 0.92),
    "changes": (0.96, 0.90),
    "small": (0.97, 0.92),
}
"""(mean, tenth percentile) of the share."""
_PREFIXES = ("sessions", "agents")
COMPARED_WITH = {"sessions": ("fixed-256", "no-limit"), "agents": ("fixed-256", "no-limit"), "neighbour": ("fixed-64",)}
"""Arms that the default's share is held against."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One bar; ``at_most``: values below the bar reach it."""

    group: str
    measure: str
    value: float
    bar: float
    at_most: bool = False

    @property
    def reached(self) -> bool:
        """Whether it is."""
        return self.value <= self.bar if self.at_most else self.value >= self.bar

    @property
    def described(self) -> str:
        """The figure and its bar."""
        bar = "at most" if self.at_most else "at least"
        return f"{self.group}: {self.measure} {self.value:.3f}, to be {bar} {self.bar:.3f}"

    def __str__(self) -> str:
        return f"{'reached' if self.reached else 'MISSED '} {self.described}"


def check(results: Sequence[Result]) -> Iterator[Finding]:
    """Every bar of the families that there are."""
    for group, arms in by_group(results).items():
        default = arms["default"]
        shares = [each.share for each in default]
        if group in _BARS:
            mean, tenth = _BARS[group]
            yield Finding(group, "mean", statistics.mean(shares), mean)
            yield Finding(group, "tenth percentile", percentile(shares, 0.1), tenth)
        if group == "closed":
            yield from _check_closed(default)
        elif group in _PREFIXES:
            yield from _check_prefixes(group, default, [arms[arm] for arm in COMPARED_WITH[group]])
        elif group == "neighbour":
            theirs = [each.share for each in arms["fixed-64"]]
            yield Finding(group, "mean, against a fixed 64's", statistics.mean(shares), statistics.mean(theirs))
        elif group == "rated":
            yield Finding(group, "useful answers of the allowance", statistics.mean(shares), 0.95)
            yield Finding(group, "refused", statistics.mean(each.refused for each in default), 0.05, at_most=True)
        elif group == "siblings":
            yield Finding(group, "sum of one client's", statistics.mean(shares), 0.95)
            yield Finding(group, "smallest share", percentile([each.run.least for each in default], 0.1), 0.5)
        elif group == "small":
            yield Finding(group, "higher class", statistics.median(each.urgent for each in default), 1.5, at_most=True)
        if "no-page" in arms:
            yield from _check_page(group, default, arms["no-page"])


def _check_closed(default: Sequence[Result]) -> Iterator[Finding]:
    mean, tenth = _BARS["closed"]
    halves = [each.half for each in default]
    yield Finding("closed", "mean of the last half", statistics.mean(halves), mean)
    yield Finding("closed", "tenth percentile of the last half", percentile(halves, 0.1), tenth)
    for page, bar in ((True, 0.8), (False, 1.1)):
        latencies = [each.latency for each in default if each.run.page is page]
        if latencies:
            where = "with" if page else "without"
            yield Finding("closed", f"latency {where} a page", statistics.median(latencies), bar, at_most=True)


def _check_prefixes(group: str, default: Sequence[Result], others: Sequence[Sequence[Result]]) -> Iterator[Finding]:
    mean = statistics.mean(each.share for each in default)
    better = max(statistics.mean(each.share for each in other) for other in others)
    yield Finding(group, "mean", mean, max(0.88, better))
    best_of = {each.run.seed: 0.0 for each in default}
    for each in (result for other in others for result in other):
        best_of[each.run.seed] = max(best_of[each.run.seed], each.share)
    ratios = [each.share / best_of[each.run.seed] for each in default]
    yield Finding(group, "tenth percentile, of the better of the two", percentile(ratios, 0.1), 0.9)


def _check_page(group: str, default: Sequence[Result], without: Sequence[Result]) -> Iterator[Finding]:
    """The default, which reads the server's page, against itself without it, where there is a page."""
    shares = {each.run.seed: each.share for each in without}
    ratios = [each.share / shares[each.run.seed] for each in default if each.run.page and shares[each.run.seed]]
    if ratios:
        yield Finding(group, "with a page, tenth percentile", percentile(ratios, 0.1), 0.95)
        below = sum(ratio < 0.85 for ratio in ratios) / len(ratios)
        yield Finding(group, "with a page, share of draws below 0.85", below, 1 / 40, at_most=True)
