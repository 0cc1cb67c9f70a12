"""Results of draws as tables.

Rules:
- A *share* is a run's throughput over the best fixed limit's of the same draw. The share of
  ``rated`` is useful answers over the rate's allowance. The share of ``siblings`` is the sum of the
  clients' throughputs over the throughput of one client on that server with the same arm.
- *Latency* is the mean latency over that of the best fixed limit. A ``closed`` job never ends:
  there both latencies are those of the last half, and the limit is the best one there.
- A family's figures are over its draws: mean, tenth percentile and worst; latency at the median.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from benchmarks._common import median, spread, table
from benchmarks.lab.drawn_runs import ArmRun, FixedRun, best
from benchmarks.lab.draws import Draw

__all__ = ["Result", "Summary", "beside_table", "by_group", "figures_table", "percentile", "worst"]

Run = dict[str, Any]
"""One draw of ``--json``, and ``best``: the throughput of its best fixed limit, or ``None``."""
_PAGES = {"with a page": True, "without": False}
_READ = 3
"""Draws of each family and arm that are shown one by one."""


@dataclass(frozen=True, slots=True)
class Result:
    """One arm on one draw beside the runs for comparison.

    Args:
        drawn: the draw.
        run: the arm's.
        grid: the fixed limits; empty where none is compared.
        lone: of siblings, the same arm as the only client.
    """

    drawn: Draw
    run: ArmRun
    grid: Sequence[FixedRun] = ()
    lone: ArmRun | None = None

    @property
    def share(self) -> float:
        """Of the throughput that is the measure here."""
        if self.lone is not None:
            return self.run.half / self.lone.half
        rate = self.drawn.scenario.rate
        if rate is not None:
            return self.run.answered / (rate.calls_per_window / rate.window_s * self.run.duration_s)
        return self.run.whole / best(self.grid).whole

    @property
    def half(self) -> float:
        """The share in the last half; the share of the whole run where there is no grid."""
        return self.run.half / best(self.grid, half=True).half if self.grid else self.share

    @property
    def latency(self) -> float:
        """Over the best fixed limit's."""
        if not self.grid:
            return math.nan
        return self.run.mean_s / best(self.grid, half=self.drawn.family == "closed").mean_s

    @property
    def refused(self) -> float:
        """The share of requests that were answered with 429."""
        return self.run.refused / max(1, self.run.requests)

    @property
    def urgent(self) -> float:
        """The wait of the calls of a higher class, over that with the limit at the server's slots.

        Infinite if none of the calls was answered.
        """
        at_slots = next((run.urgent_s for run in self.grid if run.limit == self.drawn.slots), math.nan)
        return math.inf if math.isnan(self.run.urgent_s) else self.run.urgent_s / at_slots


@dataclass(frozen=True, slots=True)
class Summary:
    """One arm over the draws of one group.

    Args:
        draws: the number of draws.
        mean, tenth, worst: of the shares.
        latency: at the median; ``None`` where latency is not compared.
        beside: further figures of the group, in words.
    """

    draws: int
    mean: float
    tenth: float
    worst: float
    latency: float | None
    beside: str

    @classmethod
    def of(cls, results: Sequence[Result]) -> Summary:
        """Of the draws of one group and arm, at least one."""
        shares = [each.share for each in results]
        mean, tenth = statistics.mean(shares), percentile(shares, 0.1)
        return cls(len(results), mean, tenth, min(shares), _median_latency(results), _beside(results))


def _group(family: str, *, known: bool) -> str:
    """Under which name a draw is counted."""
    return family if family != "once" else "once, known" if known else "once, not known"


def by_group(results: Sequence[Result]) -> dict[str, dict[str, list[Result]]]:
    """By group and arm."""
    groups: dict[str, dict[str, list[Result]]] = {}
    for result in results:
        groups.setdefault(_group(result.run.family, known=result.run.known), {}).setdefault(result.run.arm, []).append(
            result
        )
    return groups


def percentile(values: Sequence[float], share: float) -> float:
    """Between the two values next to that place."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    below = ordered[int(place)]
    above = ordered[min(int(place) + 1, len(ordered) - 1)]
    return below if below == above else below + (place - int(place)) * (above - below)


def figures_table(results: Sequence[Result]) -> str:
    """A row for each family and arm."""
    rows = []
    for group, arms in by_group(results).items():
        for arm, of_arm in arms.items():
            of = Summary.of(of_arm)
            latency = "" if of.latency is None else f"{of.latency:.2f} ×"
            rows.append(
                [group, arm, of.draws, f"{of.mean:.3f}", f"{of.tenth:.3f}", f"{of.worst:.3f}", latency, of.beside]
            )
    return table(("family", "arm", "draws", "mean", "tenth", "worst", "latency", "beside"), rows)


def worst(results: Sequence[Result]) -> Iterator[str]:
    """The worst draws of each family under each arm."""
    for group, arms in by_group(results).items():
        for arm, of_arm in arms.items():
            yield f"\n{group}, {arm}: the worst"
            for result in sorted(of_arm, key=lambda each: each.share)[:_READ]:
                run = result.run
                fixed = f"best fixed {best(result.grid).limit}" if result.grid else "no fixed limits"
                path = " ".join(f"{limit}@{at:g}" for at, limit in run.limits[-6:])
                yield f"  {result.share:.3f} seed {run.seed}: {_described(result.drawn.scenario)}"
                yield f"      {fixed}; the arm at {run.limit:.0f} at the end ({path}); last: {run.reason}"


def _described(value: Any) -> str:
    """A value, of a dataclass the fields that are not as usual."""
    if isinstance(value, tuple):
        return f"({', '.join(map(_described, value))})"
    if not is_dataclass(value):
        return f"{value:.3g}" if isinstance(value, float) else str(value)
    given = [(field.name, getattr(value, field.name)) for field in fields(value)]
    usual = {field.name: field.default for field in fields(value)}
    shown = [f"{name} {_described(got)}" for name, got in given if got != usual[name] and got not in ("", {})]
    return f"{type(value).__name__}({', '.join(shown)})"


def _median_latency(results: Sequence[Result]) -> float | None:
    latencies = [each.latency for each in results if not math.isnan(each.latency)]
    return statistics.median(latencies) if latencies else None


def _beside(results: Sequence[Result]) -> str:
    family = results[0].drawn.family
    if family == "rated":
        return f"refused {statistics.mean(each.refused for each in results):.1%} of requests"
    if family == "siblings":
        least = [each.run.least for each in results]
        return f"smallest share: median {statistics.median(least):.2f}, tenth {percentile(least, 0.1):.2f}"
    if family == "small":
        waits = [each.urgent for each in results]
        return (
            f"higher class waits: median {statistics.median(waits):.2f} ×, ninth tenth {percentile(waits, 0.9):.2f} ×"
        )
    if family == "closed":
        parts = {name: [each for each in results if each.run.page is page] for name, page in _PAGES.items()}
        medians = {name: _median_latency(part) for name, part in parts.items()}
        said = [f"{name} {median:.2f} ×" for name, median in medians.items() if median is not None]
        return f"latency {', '.join(said)}" if said else ""
    failed = sum(each.run.failed for each in results)
    return f"failed {failed / max(1, failed + sum(each.run.answered for each in results)):.1%}" if failed else ""


def beside_table(here: Sequence[Run], beside: Sequence[Run]) -> str:
    """The runs of two checkouts by their own laboratories: two rows for each group of draws.

    A share can stand still where both the arm and the best fixed limit became faster. So the last
    columns have the throughput of each over that of the other checkout, draw by draw: the median,
    and from the least to the most.
    """
    made = []
    for group in dict.fromkeys(_group(run["family"], known=run["known"]) for run in here):
        ours, theirs = (
            {run["seed"]: run for run in runs if _group(run["family"], known=run["known"]) == group}
            for runs in (here, beside)
        )
        both = [(ours[seed], theirs[seed]) for seed in ours if seed in theirs]
        over = [_over(both, figure) for figure in ("whole", "best")]
        made.append([group, "here", *_figures([one for one, _ in both]), *over])
        made.append([group, "beside", *_figures([other for _, other in both]), "", ""])
    shares = ("draws", "share: mean", "tenth", "worst")
    over_beside = ("over beside's: throughput", "best fixed")
    return table(("family", "checkout", *shares, "refused", "failed", "latency", *over_beside), made)


def _figures(runs: Sequence[Run]) -> list[str]:
    shares = [run["share"] for run in runs]
    latencies = [run["latency_ratio"] for run in runs if not math.isnan(run["latency_ratio"])]
    failed = sum(run["failed"] for run in runs)
    return [
        str(len(runs)),
        *(f"{share:.3f}" for share in (statistics.mean(shares), percentile(shares, 0.1), min(shares))),
        f"{statistics.mean(run['refused'] / max(1, run['requests']) for run in runs):.1%}",
        f"{failed / max(1, failed + sum(run['answered'] for run in runs)):.1%}",
        f"{median(latencies):.2f} ×" if latencies else "",
    ]


def _over(both: Sequence[tuple[Run, Run]], figure: str) -> str:
    ratios = [one[figure] / other[figure] for one, other in both if one[figure] and other[figure]]
    return f"{median(ratios):.3f} ({spread(ratios)})" if ratios else ""
