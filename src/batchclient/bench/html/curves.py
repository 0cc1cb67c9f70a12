"""The settings of a measurement as curves: one client's figures along the load, and its knee."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from batchclient.bench.strategies import LISTS
from batchclient.bench.summary import Summary

__all__ = ["Curve", "by_size", "curves_of", "knee_of", "load_of", "one_for_each_strategy"]

_AS_GOOD = 0.97
"""The share of the highest throughput at the knee, as a search has it."""


@dataclass(frozen=True, slots=True)
class Curve:
    """One client under several loads, or with several sizes of lists.

    Args:
        strategy: the client.
        size: prompts per request; ``None``: the strategy's own, or what varies.
        points: the load or the size, and what was measured; ascending.
        found: the load of the knee, as a search found it; ``None``: the points tell it.
    """

    strategy: str
    size: int | None
    points: tuple[tuple[float, Summary], ...]
    found: float | None = None

    @property
    def name(self) -> str:
        """The strategy, with its size."""
        return self.strategy if self.size is None else f"{self.strategy} of {self.size}"

    @property
    def knee(self) -> float | None:
        """The load of the throughput's knee, by the server's figures; ``None``: they show none."""
        if self.found is not None:
            return self.found
        return knee_of([(load, summary.calls_per_s.value) for load, summary in self.points if summary.is_trusted])

    @property
    def best(self) -> tuple[float, float]:
        """The highest goodput and throughput, where the figures are the server's."""
        trusted = [summary for _, summary in self.points if summary.is_trusted]
        return max(((each.goodput.value, each.calls_per_s.value) for each in trusted), default=(0.0, 0.0))


def knee_of(points: Sequence[tuple[float, float]]) -> float | None:
    """Return the smallest load that reaches 97 % of the highest throughput.

    Args:
        points: loads, ascending, and their throughput.

    Returns:
        ``None``: the highest load alone does, so that the throughput may still grow.
    """
    highest = max((per_s for _, per_s in points), default=0.0)
    if not highest:
        return None
    knee = next(load for load, per_s in points if per_s >= _AS_GOOD * highest)
    return None if knee == points[-1][0] else knee


def curves_of(summaries: Iterable[Summary], *, is_open: bool) -> list[Curve]:
    """Return a curve for each strategy and size.

    Args:
        summaries: of all settings.
        is_open: along arrival rates; else along the calls in flight of closed loads.
    """
    groups: dict[tuple[str, int | None], list[tuple[float, Summary]]] = {}
    for summary in summaries:
        if (summary.setting.rate is not None) == is_open:
            key = summary.setting.strategy, summary.setting.size
            groups.setdefault(key, []).append((load_of(summary), summary))
    return [Curve(*key, tuple(sorted(points, key=lambda point: point[0]))) for key, points in groups.items()]


def one_for_each_strategy(curves: Iterable[Curve]) -> list[Curve]:
    """Return each strategy's curve with the highest goodput: a picture of all sizes is unreadable."""
    best: dict[str, Curve] = {}
    for curve in curves:
        before = best.get(curve.strategy)
        if before is None or curve.best > before.best:
            best[curve.strategy] = curve
    return list(best.values())


def by_size(summaries: Sequence[Summary], strategy: str) -> list[tuple[Summary, Curve]]:
    """Return curves along the sizes of lists, one for each load with more than one size.

    Args:
        summaries: of all settings.
        strategy: one that has sizes. Singles are its lists of one prompt.

    Returns:
        The first setting of each load, which names the load, and the curve.
    """
    assert strategy in LISTS
    of_strategy = [each for each in summaries if each.setting.strategy == strategy]
    loads = {_load_key(each) for each in of_strategy}
    have_one = {_load_key(each) for each in of_strategy if each.setting.size == 1}
    singles = [
        each
        for each in summaries
        if each.setting.strategy == "singles" and _load_key(each) in loads and _load_key(each) not in have_one
    ]
    groups: dict[tuple[float, float], list[Summary]] = {}
    for each in (*singles, *of_strategy):
        groups.setdefault(_load_key(each), []).append(each)
    found = []
    for _, group in sorted(groups.items()):
        points = sorted(((float(each.setting.size or 1), each) for each in group), key=lambda point: point[0])
        if len(points) > 1:
            found.append((group[-1], Curve(strategy, None, tuple(points))))
    return found


def load_of(summary: Summary) -> float:
    """Return the arrival rate, or the calls in flight of a closed load."""
    setting = summary.setting
    return setting.rate if setting.rate is not None else float(setting.concurrency or 0)


def _load_key(summary: Summary) -> tuple[float, float]:
    return summary.setting.rate or 0.0, float(summary.setting.concurrency or 0)
