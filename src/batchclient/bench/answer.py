"""The answer of a measurement in words: its first lines, and the terminal's last.

Rules:
- A line says the figure, its interval, and what it is compared with.
- Where figures may be equal, the line says "no difference seen"; it also says what was not decided.
- Of the recommended setting the attempts that failed and were made again are named.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from batchclient.bench.find import TOO_BUSY, SearchResult
from batchclient.bench.marks import BUSY, LATE, MARKS, RETRIED
from batchclient.bench.measurement import Measurement, Setting
from batchclient.bench.slo import Slo, shown_s
from batchclient.bench.strategies import BASELINE, options_of
from batchclient.bench.summary import Figure, Summary, best_of, compared, keeps, percentile, summaries_of

__all__ = ["count_of", "lines_of_search", "lines_of_sweep"]

_SHARE = 0.95


def lines_of_search(result: SearchResult, slos: Sequence[Slo], over: str) -> list[str]:
    """Return the answer of a search."""
    objective = " and ".join(map(str, slos)) or "the knee"
    found, recommended = result.found, result.recommended
    if not any(each.answered for each in result.measurements):
        return [f"{objective}: {_nothing_in(result.measurements)}"]
    ended = "" if result.complete else f"; the budget ended the search after {count_of(len(result.measurements))}"
    if recommended is None and not found.decided:
        return [f"{objective}: not decided: {found.why}{ended or ', as far as these calls tell'}"]
    if recommended is None:
        return [f"{objective}: no {over} keeps it; {found.why}"]
    summaries = {
        each.setting.rate or each.setting.concurrency: each for each in summaries_of(result.measurements, slos)
    }
    assert found.value is not None, "something is recommended"
    chosen = summaries[found.value]
    line = f"{objective}: {over} {found.value:g} → {_times(chosen, slos)}, {_throughput(chosen)}"
    if found.neighbour is not None:
        line += f"; at {found.neighbour:g}: {_times(summaries[found.neighbour], slos)}"
    lines = [line + ".", *_retried(chosen)]
    if not recommended.decided:
        lines.append(f"not decided: {recommended.why}{ended}.")
    return [*lines, f"suggested: {_constructor(chosen.setting)}"]


def lines_of_sweep(measured: Sequence[Measurement], slos: Sequence[Slo]) -> list[str]:
    """Return the answer of a sweep."""
    summaries = summaries_of(measured, slos)
    objective = " and ".join(map(str, slos)) or "most answers per second"
    ours = [each for each in summaries if each.setting.strategy != BASELINE]
    best = best_of(ours, slos)
    if best is None:
        return [f"{objective}: no recommendation: {_why_nothing(ours, slos)}"]
    lines = [f"{objective}: {best.setting} → {_times(best, slos)}, {_throughput(best)}.", *_retried(best)]
    lines += [
        f"not decided: {share.value:.3f} {_interval(share, '{:.3f}'.format)} of the calls are within"
        f" {shown_s(slo.bound_s)}, and {slo.share:g} are to be."
        for share, slo in zip(best.slo_shares, slos, strict=True)
        if share.interval is not None and share.interval.has(slo.share)
    ]
    alike = [
        str(each.setting)
        for each in ours
        if each is not best
        and not each.disqualified_by
        and keeps(each, slos)
        and (ratio := compared(best, each, lambda one: one.goodput)) is not None
        and ratio.interval is not None
        and not ratio.is_difference
    ]
    if alike:
        lines.append(f"no difference seen to: {'; '.join(alike)}.")
    lines += _against_baseline(best, [each for each in summaries if each.setting.strategy == BASELINE], slos)
    lines += _adaptive_against_fixed(ours, slos)
    return [*lines, f"suggested: {_constructor(best.setting)}"]


def _why_nothing(summaries: Sequence[Summary], slos: Sequence[Slo]) -> str:
    """Return why none of the settings is recommended."""
    if not summaries:
        return f"{BASELINE} alone was measured"
    measured = [one for each in summaries for one in each.measurements]
    if not any(each.answered for each in measured):
        return _nothing_in(measured)
    if slos and not all(each.disqualified_by for each in summaries):
        return "none keeps it"
    seen = {mark for each in summaries for mark in each.disqualified_by}
    reasons = [TOO_BUSY] if any(each.measured_the_client for each in summaries) else []
    reasons += [mark.name for mark in MARKS.values() if mark in seen - {LATE, BUSY}]
    return f"{', or '.join(reasons)} (see the marks)"


def _retried(summary: Summary) -> list[str]:
    """Say how many calls needed another attempt, where more than 1 % did."""
    if RETRIED.name not in summary.marks:
        return []
    share = summary.retried_share
    return [f"{share:.1%} of the calls needed another attempt: the server fails or refuses some requests."]


def _nothing_in(measured: Sequence[Measurement]) -> str:
    """Return what is said of measurements without an answer."""
    return "no call was answered" if any(each.scheduled for each in measured) else "no call was scheduled"


def count_of(number: int) -> str:
    """Return a number of measurements in words."""
    return "1 measurement" if number == 1 else f"{number:,} measurements"


def _against_baseline(best: Summary, others: Sequence[Summary], slos: Sequence[Slo]) -> list[str]:
    """Compare with ``AsyncOpenAI`` at its best; where that is not known, under the same load."""
    if not others:
        return []
    other = _best_known(best, others, slos)
    if other is None:
        why = _why_nothing(others, slos).replace("keeps it", f"keeps {' and '.join(map(str, slos))}")
        return [f"AsyncOpenAI: {why}; nothing is compared."]
    figures = [("calls/s", compared(best, other, lambda each: each.calls_per_s)), ("p95", compared(best, other, _p95))]
    said = [comparison.said_of(name) for name, comparison in figures if comparison is not None]
    return [f"{best.setting.strategy} against AsyncOpenAI ({other.setting.load}): {', '.join(said)}."]


def _best_known(own: Summary, others: Sequence[Summary], slos: Sequence[Slo]) -> Summary | None:
    """Return the best of other settings; where that is not known, one under the same load."""
    if not any(each.measured_the_client for each in others):
        return best_of(others, slos)
    same = [each for each in others if each.setting.load == own.setting.load and not each.disqualified_by]
    return max(same, key=lambda each: each.goodput.value, default=None)


def _p95(measured: Measurement) -> float | None:
    return measured.times["latency"].percentiles[_SHARE] if "latency" in measured.times else None


def _adaptive_against_fixed(ours: Sequence[Summary], slos: Sequence[Slo]) -> list[str]:
    """Return how near the adaptive limit comes to the best fixed setting."""
    own = best_of([each for each in ours if each.setting.strategy == "adaptive"], slos)
    fixed = [each for each in ours if each.setting.strategy != "adaptive"]
    best = None if own is None else _best_known(own, fixed, slos)
    if own is None or best is None or (share := compared(own, best, lambda each: each.goodput)) is None:
        return []
    name = "a" if any(each.measured_the_client for each in fixed) else "the best"
    ramps = [each.ramp_s for each in own.counted if each.ramp_s is not None]
    soon = f", up to speed after {sorted(ramps)[len(ramps) // 2]:.0f} s" if ramps else ""
    return [f"adaptive against {name} fixed setting ({best.setting}): {share.said_of('goodput')}{soon}."]


def _constructor(setting: Setting) -> str:
    """Return the client's constructor, as it was measured."""
    given = {name: f'"{value}"' if isinstance(value, str) else value for name, value in options_of(setting).items()}
    if not given:
        return "BatchClient(…): the defaults do"
    return f"BatchClient(…, {', '.join(f'{name}={value}' for name, value in given.items())})"


def _times(summary: Summary, slos: Sequence[Slo]) -> str:
    """Return the bounded percentiles, or the 95th of the latency, with their intervals."""
    label = "" if slos else "p95 "
    figures = [percentile(summary, slo.measure, slo.share) for slo in slos] or [percentile(summary, "latency", _SHARE)]
    shown = [f"{shown_s(each.value)} {_interval(each, shown_s)}".rstrip() if each else "not known" for each in figures]
    return label + " and ".join(shown) if any(figures) else "no answer"


def _interval(figure: Figure, write: Callable[[float], str]) -> str:
    interval = figure.interval
    return "" if interval is None else f"[{write(interval.low)}, {write(interval.high)}]"


def _throughput(summary: Summary) -> str:
    return f"{summary.calls_per_s.value:,.3g} calls/s, {summary.tokens_per_s.value:,.0f} tokens/s in and out"
