"""The answer of a measurement in words: its first lines, and the terminal's last.

Rules:
- A line says the figure, its interval, and what it is compared with.
- What could not be told apart is "no difference seen"; what was not decided is said so.
"""

from __future__ import annotations

from collections.abc import Sequence

from batchclient.bench.cell import Cell
from batchclient.bench.find import TOO_BUSY, SearchResult
from batchclient.bench.intervals import Interval
from batchclient.bench.slo import Slo, shown_s
from batchclient.bench.strategies import RIVAL
from batchclient.bench.summary import Figure, Summary, best_of, compared, percentile, summaries_of

__all__ = ["lines_of_search", "lines_of_sweep", "measurements"]

_SHARE = 0.95
_OURS = ("adaptive", "fixed", "lists", "streamed", "singles")


def lines_of_search(result: SearchResult, slos: Sequence[Slo], over: str) -> list[str]:
    """Return the answer of a search."""
    objective = " and ".join(map(str, slos)) or "the knee"
    found, recommended = result.found, result.recommended
    assert found is not None, "a search has measured something"
    if not any(cell.answered for cell in result.cells):
        return [f"{objective}: {_silent(result.cells)}"]
    ended = "" if result.complete else f"; the budget ended the search after {measurements(len(result.cells))}"
    if recommended is None and ended:
        return [f"{objective}: not decided: {found.why}{ended}"]
    if recommended is None:
        return [f"{objective}: no {over} keeps it; {found.why}"]
    summaries = {_value(each): each for each in summaries_of(result.cells, slos)}
    assert found.value is not None
    chosen = summaries[found.value]
    line = f"{objective}: {over} {found.value:g} → {_p(chosen, slos)}, {_throughput(chosen)}"
    if found.neighbour is not None:
        line += f"; at {found.neighbour:g}: {_p(summaries[found.neighbour], slos)}"
    lines = [line + "."]
    if not recommended.decided:
        lines.append(f"not decided: {recommended.why}{ended}.")
    limit = f', limit={recommended.limit}, preset="{recommended.preset}"' if over == "limit" else ""
    lines.append(f"suggested: {_constructor(limit)}")
    return lines


def lines_of_sweep(cells: Sequence[Cell], slos: Sequence[Slo]) -> list[str]:
    """Return the answer of a sweep."""
    summaries = summaries_of(cells, slos)
    objective = " and ".join(map(str, slos)) or "most answers per second"
    ours = [each for each in summaries if each.setting.strategy in _OURS]
    best = best_of(ours, slos)
    if best is None:
        return [f"{objective}: no recommendation: {_why_nothing(ours, slos)}"]
    lines = [f"{objective}: {best.setting} → {_p(best, slos)}, {_throughput(best)}."]
    alike = [
        str(each.setting)
        for each in summaries
        if each.setting != best.setting
        and each.setting.strategy in _OURS
        and each.is_trusted
        and (ratio := compared(best, each, lambda cell: cell.goodput)) is not None
        and ratio.interval is not None
        and not ratio.is_difference
    ]
    if alike:
        lines.append(f"no difference seen to: {'; '.join(alike)}.")
    lines += _against(best, [each for each in summaries if each.setting.strategy == RIVAL], slos)
    lines += _adaptive(summaries, slos)
    lines.append(f"suggested: {_suggested(best)}")
    return lines


def _why_nothing(summaries: Sequence[Summary], slos: Sequence[Slo]) -> str:
    """Return why none of the settings is recommended."""
    if not summaries:
        return f"{RIVAL} alone was measured"
    cells = [cell for each in summaries for cell in each.cells]
    if not any(cell.answered for cell in cells):
        return _silent(cells)
    if slos and any(each.is_trusted for each in summaries):
        return "none keeps it"
    reasons = []
    if any(each.measured_the_client for each in summaries):
        reasons.append(TOO_BUSY)
    if any(each.calls_failed for each in summaries):
        reasons.append("calls failed")
    return f"{', or '.join(reasons)} (see the marks)"


def _silent(cells: Sequence[Cell]) -> str:
    """Return what is said of cells without an answer."""
    return "no call was answered" if any(cell.scheduled for cell in cells) else "no call was scheduled"


def measurements(count: int) -> str:
    """Return a number of measurements in words."""
    return "1 measurement" if count == 1 else f"{count:,} measurements"


def _against(best: Summary, rivals: Sequence[Summary], slos: Sequence[Slo]) -> list[str]:
    """Compare with the rival at its best; where that is not known, under the same load."""
    if not rivals:
        return []
    rival = best_of(rivals, slos)
    if any(each.measured_the_client for each in rivals):
        same = [each for each in rivals if _value(each) == _value(best) and each.is_trusted]
        rival = same[0] if same else None
    if rival is None:
        why = _why_nothing(rivals, slos).replace("keeps it", f"keeps {' and '.join(map(str, slos))}")
        return [f"AsyncOpenAI: {why}; nothing is compared."]
    told = []
    for figure, read in (("calls/s", lambda cell: cell.calls_per_s), ("p95", _latency)):
        comparison = compared(best, rival, read)
        if comparison is not None:
            told.append(comparison.said_of(figure))
    return [f"{best.setting.strategy} against AsyncOpenAI ({rival.setting.load}): {', '.join(told)}."]


def _latency(cell: Cell) -> float | None:
    return cell.times["latency"].percentiles[_SHARE] if "latency" in cell.times else None


def _adaptive(summaries: Sequence[Summary], slos: Sequence[Slo]) -> list[str]:
    """Return how near the adaptive limit comes to the best fixed setting of the same kind."""
    best = best_of([each for each in summaries if each.setting.strategy in _OURS[1:]], slos)
    own = best_of([each for each in summaries if each.setting.strategy == "adaptive"], slos)
    if best is None or own is None:
        return []
    share = compared(own, best, lambda cell: cell.goodput)
    ramps = [cell.ramp_s for cell in own.cells if cell.ramp_s is not None]
    soon = f", up to speed after {sorted(ramps)[len(ramps) // 2]:.0f} s" if ramps else ""
    if share is None:
        return []
    return [f"adaptive against the best fixed setting ({best.setting}): {share.said_of('goodput')}{soon}."]


def _suggested(best: Summary) -> str:
    setting = best.setting
    limit = "" if setting.strategy == "adaptive" or setting.concurrency is None else f", limit={setting.concurrency}"
    size = 1 if setting.strategy == "singles" else setting.size
    batching = "" if size is None else f", batching=Batching(max_size={size})"
    given = f"{limit}{batching}"
    return _constructor(f'{given}, preset="balanced"' if given else "")


def _constructor(given: str) -> str:
    """Return the client's constructor with the suggested arguments."""
    return f"BatchClient(…{given})" if given else "BatchClient(…): the defaults do"


def _value(summary: Summary) -> float:
    return summary.setting.rate if summary.setting.rate is not None else float(summary.setting.concurrency or 0)


def _p(summary: Summary, slos: Sequence[Slo]) -> str:
    """Return the bounded percentile, or the 95th of the latency, with its interval."""
    name, share = (slos[0].measure, slos[0].share) if slos else ("latency", _SHARE)
    # A share that no cell has a percentile of is told as the share itself.
    if share not in (0.5, 0.9, 0.95, 0.99):
        figure = summary.slo_shares[0]
        return f"{figure.value:.3f} of the calls within {_interval(figure, lambda value: f'{value:.3f}')}".rstrip()
    told = percentile(summary, name, share)
    if told is None:
        return "no answer"
    label = "" if slos else "p95 "
    return f"{label}{shown_s(told.value)} {_interval(told, shown_s)}".rstrip()


def _interval(figure: Figure, write: object) -> str:
    interval: Interval | None = figure.interval
    if interval is None:
        return ""
    assert callable(write)
    return f"[{write(interval.low)}, {write(interval.high)}]"


def _throughput(summary: Summary) -> str:
    return f"{summary.calls_per_s.value:,.3g} calls/s, {summary.tokens_per_s.value:,.0f} tokens/s in and out"
