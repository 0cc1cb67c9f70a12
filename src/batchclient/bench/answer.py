"""The answer of a measurement in words: its first lines, and the terminal's last.

Rules:
- A line says the figure, its interval, and what it is compared with.
- What could not be told apart is "no difference seen"; what was not decided is said so.
- Attempts that failed and were made again are told of the recommended setting.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from batchclient.bench.cell import RETRIED, Cell
from batchclient.bench.find import TOO_BUSY, SearchResult
from batchclient.bench.slo import Slo, shown_s
from batchclient.bench.strategies import RIVAL, batching_of, preset_of
from batchclient.bench.summary import Figure, Summary, best_of, compared, keeps, percentile, summaries_of
from batchclient.options import Batching

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
    if recommended is None and not found.decided:
        return [f"{objective}: not decided: {found.why}{ended or ', as far as these calls tell'}"]
    if recommended is None:
        return [f"{objective}: no {over} keeps it; {found.why}"]
    summaries = {_value(each): each for each in summaries_of(result.cells, slos)}
    assert found.value is not None
    chosen = summaries[found.value]
    line = f"{objective}: {over} {found.value:g} → {_p(chosen, slos)}, {_throughput(chosen)}"
    if found.neighbour is not None:
        line += f"; at {found.neighbour:g}: {_p(summaries[found.neighbour], slos)}"
    lines = [line + ".", *_retried(chosen)]
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
    lines = [f"{objective}: {best.setting} → {_p(best, slos)}, {_throughput(best)}.", *_retried(best)]
    lines += [
        f"not decided: {share.value:.3f} {_interval(share, _three)} of the calls are within {shown_s(slo.bound_s)}, "
        f"and {slo.share:g} are to be."
        for share, slo in zip(best.slo_shares, slos, strict=True)
        if share.interval is not None and share.interval.has(slo.share)
    ]
    alike = [
        str(each.setting)
        for each in summaries
        if each.setting != best.setting
        and each.setting.strategy in _OURS
        and each.is_trusted
        and keeps(each, slos)
        and (ratio := compared(best, each, lambda cell: cell.goodput)) is not None
        and ratio.interval is not None
        and not ratio.is_difference
    ]
    if alike:
        lines.append(f"no difference seen to: {'; '.join(alike)}.")
    lines += _against(best, [each for each in summaries if each.setting.strategy == RIVAL], slos)
    lines += _adaptive(summaries, slos)
    # No setting of a client's makes plain lists: where these are best, the best client is another.
    usable = best_of([each for each in ours if each.setting.strategy != "lists"], slos)
    lines.append(f"suggested: {_suggested(usable)}" if usable else "suggested: none: a client streams its lists")
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
    if any(each.fell_behind for each in summaries):
        reasons.append("calls arrived faster than they were answered")
    return f"{', or '.join(reasons)} (see the marks)"


def _retried(summary: Summary) -> list[str]:
    """Say how many calls needed another attempt, where more than 1 % did."""
    if RETRIED not in summary.marks:
        return []
    share = summary.retried_share
    return [f"{share:.1%} of the calls needed another attempt: the server fails or refuses some requests."]


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
    rival = _other(best, rivals, slos)
    if rival is None:
        why = _why_nothing(rivals, slos).replace("keeps it", f"keeps {' and '.join(map(str, slos))}")
        return [f"AsyncOpenAI: {why}; nothing is compared."]
    told = []
    for figure, read in (("calls/s", lambda cell: cell.calls_per_s), ("p95", _latency)):
        comparison = compared(best, rival, read)
        if comparison is not None:
            told.append(comparison.said_of(figure))
    return [f"{best.setting.strategy} against AsyncOpenAI ({rival.setting.load}): {', '.join(told)}."]


def _other(own: Summary, others: Sequence[Summary], slos: Sequence[Slo]) -> Summary | None:
    """Return the best of other settings; where that is not known, one under the same load."""
    if not any(each.measured_the_client for each in others):
        return best_of(others, slos)
    same = [each for each in others if each.setting.load == own.setting.load and each.is_trusted]
    return max(same, key=lambda each: each.goodput.value, default=None)


def _latency(cell: Cell) -> float | None:
    return cell.times["latency"].percentiles[_SHARE] if "latency" in cell.times else None


def _adaptive(summaries: Sequence[Summary], slos: Sequence[Slo]) -> list[str]:
    """Return how near the adaptive limit comes to the best fixed setting."""
    own = best_of([each for each in summaries if each.setting.strategy == "adaptive"], slos)
    fixed = [each for each in summaries if each.setting.strategy in _OURS[1:]]
    if own is None or not fixed:
        return []
    best = _other(own, fixed, slos)
    if best is None:
        return []
    name = "a" if any(each.measured_the_client for each in fixed) else "the best"
    share = compared(own, best, lambda cell: cell.goodput)
    ramps = [cell.ramp_s for cell in own.counted if cell.ramp_s is not None]
    soon = f", up to speed after {sorted(ramps)[len(ramps) // 2]:.0f} s" if ramps else ""
    if share is None:
        return []
    return [f"adaptive against {name} fixed setting ({best.setting}): {share.said_of('goodput')}{soon}."]


def _suggested(best: Summary) -> str:
    setting = best.setting
    limit = "" if setting.strategy == "adaptive" or setting.concurrency is None else f", limit={setting.concurrency}"
    given = batching_of(setting)
    batching = f", batching={given}" if given != Batching() else ""
    return _constructor(f'{limit}{batching}, preset="{preset_of(setting)}"' if limit or batching else "")


def _constructor(given: str) -> str:
    """Return the client's constructor with the suggested arguments."""
    return f"BatchClient(…{given})" if given else "BatchClient(…): the defaults do"


def _value(summary: Summary) -> float:
    return summary.setting.rate if summary.setting.rate is not None else float(summary.setting.concurrency or 0)


def _p(summary: Summary, slos: Sequence[Slo]) -> str:
    """Return the bounded percentiles, or the 95th of the latency, with their intervals."""
    label = "" if slos else "p95 "
    told = [percentile(summary, slo.measure, slo.share) for slo in slos] or [percentile(summary, "latency", _SHARE)]
    shown = [f"{shown_s(each.value)} {_interval(each, shown_s)}".rstrip() if each else "not told" for each in told]
    return label + " and ".join(shown) if any(told) else "no answer"


def _three(share: float) -> str:
    return f"{share:.3f}"


def _interval(figure: Figure, write: Callable[[float], str]) -> str:
    interval = figure.interval
    return "" if interval is None else f"[{write(interval.low)}, {write(interval.high)}]"


def _throughput(summary: Summary) -> str:
    return f"{summary.calls_per_s.value:,.3g} calls/s, {summary.tokens_per_s.value:,.0f} tokens/s in and out"
