"""The settings of a measurement as a table for the terminal.

Rules:
- One row for each setting. What has no room is left out: the least needed column first.
- ``failed`` counts the calls that failed or were not answered in time, if there are any.
- On a terminal that is too narrow for a table each setting has two lines.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from batchclient.bench.html.svg import number
from batchclient.bench.html.words import share, unit_of
from batchclient.bench.slo import Slo, shown_s
from batchclient.bench.summary import Summary, percentile

__all__ = ["table_of"]

_GAP = 2
_NARROW = 60
_UNKNOWN = "–"


@dataclass(frozen=True, slots=True)
class _Column:
    head: str
    texts: tuple[str, ...]
    need: int
    """The smaller, the later the column is left out."""

    @property
    def width(self) -> int:
        return max(map(len, (self.head, *self.texts)))


@dataclass(frozen=True, slots=True)
class _Settings:
    """A table of settings that looks at the width it has."""

    summaries: tuple[Summary, ...]
    slos: tuple[Slo, ...]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        marks = list(dict.fromkeys(mark for summary in self.summaries for mark in summary.marks))
        yield self._table(options.max_width, marks) if options.max_width >= _NARROW else self._stacked(marks)
        for place, mark in enumerate(marks, 1):
            yield Text(f"({place}) {mark}")

    def _table(self, width: int, marks: Sequence[str]) -> Table:
        columns = self._columns(marks)
        while sum(column.width + _GAP for column in columns) - _GAP > width and len(columns) > 2:
            columns.remove(max(columns, key=lambda column: column.need))
        table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
        for place, column in enumerate(columns):
            # A name that is too long goes on in a second line; a figure is never cut.
            table.add_column(Text(column.head), justify="right" if place else "left", no_wrap=bool(place))
        for row in zip(*(column.texts for column in columns), strict=True):
            table.add_row(*map(Text, row))
        return table

    def _columns(self, marks: Sequence[str]) -> list[_Column]:
        p50, p95 = ([percentile(summary, "latency", of) for summary in self.summaries] for of in (0.5, 0.95))
        unit = unit_of(each.value for each in (*p50, *p95) if each is not None)
        by_slo = [
            _Column(
                _within(slo), tuple(share(summary.slo_shares[place].value) for summary in self.summaries), 2 + place
            )
            for place, slo in enumerate(self.slos)
        ]
        last = 2 + len(by_slo)
        without = [sum(cell.without_answer for cell in summary.cells) for summary in self.summaries]
        failed = [_Column("failed", tuple(f"{each:,}" for each in without), 1)] if any(without) else []
        return [
            _Column("setting", tuple(_name(summary, marks) for summary in self.summaries), 0),
            _Column("calls/s", tuple(number(summary.calls_per_s.value) for summary in self.summaries), 0),
            _Column("tokens/s", tuple(number(summary.tokens_per_s.value) for summary in self.summaries), last),
            _Column(f"p50 {unit.name}", tuple(unit.shown(each.value) if each else _UNKNOWN for each in p50), last + 1),
            _Column(f"p95 {unit.name}", tuple(unit.shown(each.value) if each else _UNKNOWN for each in p95), 1),
            *by_slo,
            *failed,
        ]

    def _stacked(self, marks: Sequence[str]) -> Text:
        lines = []
        for summary in self.summaries:
            p95 = percentile(summary, "latency", 0.95)
            told = [f"{number(summary.calls_per_s.value)} calls/s", f"p95 {shown_s(p95.value)}" if p95 else "no answer"]
            if without := sum(cell.without_answer for cell in summary.cells):
                told.append(f"{without:,} failed")
            lines += [_name(summary, marks), f"  {', '.join(told)}"]
            lines += [
                f"  {_within(slo)}: {share(figure.value)}"
                for figure, slo in zip(summary.slo_shares, self.slos, strict=True)
            ]
        return Text("\n".join(lines))


def table_of(summaries: Sequence[Summary], slos: Sequence[Slo]) -> RenderableType:
    """Return a table of settings for the terminal, for any width.

    Args:
        summaries: of the settings.
        slos: the objectives.
    """
    return _Settings(tuple(summaries), tuple(slos))


def _name(summary: Summary, marks: Sequence[str]) -> str:
    own = ", ".join(str(place) for place, mark in enumerate(marks, 1) if mark in summary.marks)
    return f"{summary.setting} ({own})" if own else str(summary.setting)


def _within(slo: Slo) -> str:
    measure = "" if slo.measure == "latency" else f"{slo.measure} "
    return f"{measure}within {shown_s(slo.bound_s)}"
