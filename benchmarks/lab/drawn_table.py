"""Results of draws as tables.

Rules:
- A *share* is a run's throughput over the best fixed limit's of the same draw. The share of
  ``rated`` is useful answers over the rate's allowance. The share of ``siblings`` is the sum of the
  clients' throughputs over the throughput of one client on that server with the same arm.
- *Latency* is the mean latency over that of the best fixed limit. A ``closed`` job never ends:
  there both latencies are those of the last half, and the limit is the best one there.
- A family's figures are over its draws: mean, tenth percentile, how many are below a half; latency
  at the median.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks.lab.drawn_runs import ArmRun, FixedRun, best
from benchmarks.lab.draws import Draw

__all__ = ["Result", "Summary", "by_group", "described", "group_of", "lines", "page_lines", "page_ratio", "percentile"]

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
        mean, tenth, worst, below_half: of the shares; the last counts the shares below a half.
        half_mean, half_tenth: of the shares in the last half.
        latency: at the median; ``None`` where latency is not compared.
        beside: further figures of the group, in words.
    """

    draws: int
    mean: float
    tenth: float
    worst: float
    below_half: int
    half_mean: float
    half_tenth: float
    latency: float | None
    beside: str

    @classmethod
    def of(cls, results: Sequence[Result]) -> Summary:
        """Of the draws of one group and arm, at least one."""
        shares, halves = [each.share for each in results], [each.half for each in results]
        return cls(
            len(results),
            statistics.mean(shares),
            percentile(shares, 0.1),
            min(shares),
            sum(share < 0.5 for share in shares),
            statistics.mean(halves),
            percentile(halves, 0.1),
            _median_latency(results),
            _beside(results),
        )


def group_of(drawn: Draw) -> str:
    """Under which name a draw is counted."""
    if drawn.family != "once":
        return drawn.family
    return "once, known" if drawn.known else "once, not known"


def by_group(results: Sequence[Result]) -> dict[str, dict[str, list[Result]]]:
    """By group and arm."""
    groups: dict[str, dict[str, list[Result]]] = {}
    for result in results:
        groups.setdefault(group_of(result.drawn), {}).setdefault(result.run.arm, []).append(result)
    return groups


def percentile(values: Sequence[float], share: float) -> float:
    """Between the two values next to that place."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    below = ordered[int(place)]
    above = ordered[min(int(place) + 1, len(ordered) - 1)]
    return below if below == above else below + (place - int(place)) * (above - below)


def described(drawn: Draw) -> str:
    """A draw's parameters in one line; lengths as mean~sigma."""
    scenario, server, calls = drawn.scenario, drawn.scenario.server, drawn.scenario.workload.calls
    parts = [
        (
            f"{calls.prompts.mean_tokens:.0f}~{calls.prompts.sigma:.1f} to "
            f"{calls.outputs.mean_tokens:.0f}~{calls.outputs.sigma:.1f} tokens"
        ),
        (
            f"step {server.step_s * 1e3:.1f} ms, {server.compute_s * 1e6:.0f} µs compute, "
            f"{server.sequence_s * 1e6:.0f} µs a sequence"
        ),
        f"prefill {server.prefill_token_s * 1e6:.0f} µs, {server.step_tokens} a step",
        f"{server.max_num_seqs} sequences, KV {server.kv_tokens}",
    ]
    for name in ("count", "turns", "pause_s"):
        if (value := getattr(scenario.workload, name, None)) is not None:
            parts.append(f"{name} {value:.3g}")
    if scenario.cache is not None:
        held = scenario.cache.tokens / scenario.cache.held_tokens
        parts.append(f"cache for {held:.0f} prefixes of {scenario.cache.found_tokens}")
    if calls.timeout_s is not None:
        parts.append(f"patience {calls.timeout_s:.2f} s")
    if server.max_queued is not None:
        parts.append(f"429 above {server.max_queued}")
    if scenario.rate is not None:
        parts.append(f"{scenario.rate.calls_per_window} calls in {scenario.rate.window_s:.1f} s")
    for change in scenario.changes:
        what = {
            "slowdown": change.slowdown,
            "outputs ×": change.output_scale,
            "foreign": change.tenant_sequences or None,
        }
        parts += [f"{name} {value:.3g} at {change.at_s:.0f} s" for name, value in what.items() if value is not None]
    if scenario.clients > 1:
        parts.append(f"{scenario.clients} clients")
    if scenario.gateway_s is not None:
        parts.append(f"gateway {scenario.gateway_s:.0f} s")
    parts.append(f"unsteady {scenario.unsteadiness:g}")
    parts.append(f"{'known' if drawn.known else 'not known'}, {'page' if drawn.has_page else 'no page'}")
    parts.append(f"{scenario.duration_s:.0f} s")
    return "; ".join(parts)


def lines(results: Sequence[Result]) -> Iterator[str]:
    """The table, and the worst draws under each arm."""
    groups = by_group(results)
    yield "| family | arm | draws | mean | tenth | below 0.5 | worst | last half: mean | tenth | latency | beside |"
    yield "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---|"
    for group, arms in groups.items():
        for arm, of_arm in arms.items():
            yield _row(group, arm, of_arm)
    for group, arms in groups.items():
        for arm, of_arm in arms.items():
            yield ""
            yield f"{group}, {arm}: the worst"
            for result in sorted(of_arm, key=lambda each: each.share)[:_READ]:
                yield from _read(result)


def _row(group: str, arm: str, results: Sequence[Result]) -> str:
    of = Summary.of(results)
    latency = f"{of.latency:.2f}" if of.latency is not None else ""
    return (
        f"| {group} | {arm} | {of.draws} | {of.mean:.3f} | {of.tenth:.3f} | {of.below_half} | {of.worst:.3f}"
        f" | {of.half_mean:.3f} | {of.half_tenth:.3f} | {latency} | {of.beside} |"
    )


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


def _read(result: Result) -> Iterator[str]:
    run = result.run
    fixed = f"best fixed {best(result.grid).limit}" if result.grid else "no fixed limits"
    path = " ".join(f"{limit}@{at:g}" for at, limit in run.limits[-6:])
    yield f"  {result.share:.3f} seed {run.seed}: {described(result.drawn)}"
    yield f"      {fixed}; the arm at {run.limit:.0f} at the end ({path}); last: {run.reason}"


def page_lines(pairs: Sequence[tuple[ArmRun, ArmRun]]) -> Iterator[str]:
    """The same arm with and without the server's page: the ratio of the throughputs."""
    families: dict[str, list[float]] = {}
    for with_page, without in pairs:
        families.setdefault(with_page.family, []).append(page_ratio(with_page, without))
    yield "| family | draws | with a page over without: mean | tenth | below 0.85 | worst |"
    yield "|---|---:|---:|---:|---:|---:|"
    for family, ratios in families.items():
        below = sum(ratio < 0.85 for ratio in ratios)
        yield (
            f"| {family} | {len(ratios)} | {statistics.mean(ratios):.3f} | {percentile(ratios, 0.1):.3f}"
            f" | {below} | {min(ratios):.3f} |"
        )


def page_ratio(with_page: ArmRun, without: ArmRun) -> float:
    """The throughput with a page over that without; of ``rated`` the answers."""
    if with_page.family == "rated":
        return with_page.answered / max(1, without.answered)
    return with_page.whole / without.whole if without.whole else 1.0
