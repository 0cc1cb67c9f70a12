"""The settings of a measurement as a table: a row each, and below it what their marks mean."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group
from rich.table import Table
from rich.text import Text

from batchclient.bench.html.svg import number
from batchclient.bench.html.words import share, unit_of
from batchclient.bench.slo import Slo, shown_s
from batchclient.bench.summary import Summary, percentile

__all__ = ["table_of"]


def table_of(summaries: Sequence[Summary], slos: Sequence[Slo]) -> Group:
    """Return a table of settings; ``failed`` counts calls that failed or had no answer in time.

    Args:
        summaries: of the settings.
        slos: the objectives.
    """
    marks = list(dict.fromkeys(mark for summary in summaries for mark in summary.marks))
    times = [[percentile(summary, "latency", of) for of in (0.5, 0.95)] for summary in summaries]
    unit = unit_of(each.value for both in times for each in both if each is not None)
    without = [sum(cell.without_answer for cell in summary.cells) for summary in summaries]
    heads = ["calls/s", "tokens/s", f"p50 {unit.name}", f"p95 {unit.name}", *map(_within, slos)]
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("setting", overflow="fold")
    for head in heads + ["failed"] * any(without):
        table.add_column(Text(head), justify="right", overflow="fold")
    for summary, both, failed in zip(summaries, times, without, strict=True):
        own = ", ".join(str(place) for place, mark in enumerate(marks, 1) if mark in summary.marks)
        cells = [f"{summary.setting} ({own})" if own else str(summary.setting)]
        cells += [number(summary.calls_per_s.value), number(summary.tokens_per_s.value)]
        cells += [unit.shown(each.value) if each else "–" for each in both]
        cells += [share(each.value) for each in summary.slo_shares]
        table.add_row(*map(Text, cells + [f"{failed:,}"] * any(without)))
    return Group(table, *(Text(f"({place}) {mark}") for place, mark in enumerate(marks, 1)))


def _within(slo: Slo) -> str:
    measure = "" if slo.measure == "latency" else f"{slo.measure} "
    return f"{measure}within {shown_s(slo.bound_s)}"
