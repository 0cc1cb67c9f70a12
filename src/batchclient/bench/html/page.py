"""The page of a report: its sections in order, and those without pictures."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from batchclient.bench.html import sections
from batchclient.bench.html.markup import Text, box, definitions, page, paragraph, section, table
from batchclient.bench.html.measured import facts
from batchclient.bench.html.pictures import unit_for
from batchclient.bench.html.svg import number
from batchclient.bench.html.view import UNKNOWN, View, list_size, mean
from batchclient.bench.html.words import DEFINITIONS, MARKS, MEASURES, STRATEGY_WORDS, marks_of, share
from batchclient.bench.report import Report
from batchclient.bench.summary import Summary

__all__ = ["html_of"]

_PARTS = ("late", "queued", "server", "ttft", "tpot")
_ENDS = (0.5, 0.95, 0.99)


def html_of(report: Report) -> str:
    """Return a report as a page of HTML, which loads nothing.

    Args:
        report: as it was read, or is to be written.
    """
    view = View(report)
    return page(
        f"Measurement of {report.about['server'].get('model')}",
        [
            _head(view),
            section("What was measured", table("", (), facts(report, view.summaries), is_words=True)),
            *(sections.throughput(view, is_open=is_open) for is_open in view.curves),
            *(sections.latency(view, is_open=is_open) for is_open in view.curves),
            sections.sizes(view),
            _parts(view),
            sections.limits(view),
            _calls(view),
            _surroundings(view),
            _every_cell(view),
            _definitions(view),
        ],
    )


def _head(view: View) -> str:
    about, told = view.report.about, view.report.recommendation
    lines = [paragraph(line) for line in view.report.lines or ("The report gives no recommendation.",)]
    # An answer that is not decided says why itself.
    if told is not None and not any(str(told.get("why")) in line for line in view.report.lines):
        decided = "" if told.get("decided") else " Not decided: these calls do not tell the value from its neighbour."
        lines.append(paragraph(f"Why: {told.get('why')}.{decided}", "small"))
    parts = [
        paragraph(f"{about['started']}, batchclient {about['client'].get('batchclient')}", "small"),
        box("answer", *lines),
    ]
    if not about["complete"]:
        parts.append(box("warning", paragraph("Incomplete: the run ended before all cells were measured.")))
    if clients := [str(summary.setting) for summary in view.summaries if summary.measured_the_client]:
        text = f"Not the server but the client was measured by: {'; '.join(clients)}. These recommend nothing."
        parts.append(box("warning", paragraph(text)))
    if behind := [str(summary.setting) for summary in view.summaries if summary.fell_behind]:
        text = f"Calls arrived faster than they were answered in: {'; '.join(behind)}. These recommend nothing."
        parts.append(box("warning", paragraph(text)))
    if failed := [str(summary.setting) for summary in view.summaries if summary.calls_failed]:
        text = f"Calls failed, or were not answered in time, in: {'; '.join(failed)}. These recommend nothing."
        parts.append(box("warning", paragraph(text)))
    return "\n".join(parts)


def _parts(view: View) -> str:
    units = {measure: unit_for(view.summaries, measure) for measure in _PARTS}
    return section(
        "Parts of the latency",
        view.table(
            "p50 and, below, p95. Latency = late + queued + server for each call; percentiles do not add up.",
            [f"{MEASURES[measure].capitalize()}, {unit.name}" for measure, unit in units.items()],
            lambda summary: [view.two_times(summary, measure, unit) for measure, unit in units.items()],
        ),
    )


def _calls(view: View) -> str:
    marked = [
        (str(summary.setting), f"{mark}, in {count} of {len(summary.cells)} repetitions")
        for summary in view.summaries
        for mark, count in marks_of(summary)
    ]
    seen = dict.fromkeys(mark for summary in view.summaries for mark in summary.marks)
    none = "" if marked else paragraph("No cell is marked: nothing was seen that makes its figures doubtful.")
    heads = ("Repetitions", "Scheduled", "Answered", "Failed", "Unanswered", "With another attempt")
    return section(
        "Calls and marks",
        view.table("What became of the calls of all repetitions.", heads, _ends_of_calls),
        none,
        table("Marked settings.", ("Setting", "Mark"), marked, is_words=True),
        definitions([(mark.capitalize(), MARKS.get(mark, "")) for mark in seen]),
    )


def _ends_of_calls(summary: Summary) -> Sequence[Text]:
    failed: dict[str, int] = {}
    for cell in summary.cells:
        for name, count in cell.failed.items():
            failed[name] = failed.get(name, 0) + count
    errors = ", ".join(f"{count:,} × {name}" for name, count in sorted(failed.items()))
    return [
        str(len(summary.cells)),
        f"{sum(cell.scheduled for cell in summary.cells):,}",
        f"{sum(cell.answered for cell in summary.cells):,}",
        (f"{sum(failed.values()):,}", errors),
        f"{sum(cell.unanswered for cell in summary.cells):,}",
        f"{sum(cell.retried for cell in summary.cells):,}",
    ]


def _surroundings(view: View) -> str:
    heads = (
        "Tokens of a prompt",
        "Tokens of an answer",
        "Calls under way",
        "Prompts per request",
        "Prefix cache hits",
        "Preemptions",
        "Client CPU",
    )
    caption = "Means of the repetitions that count. The server tells cache hits and preemptions around a cell."
    return section("Server and client", view.table(caption, heads, _surroundings_of))


def _surroundings_of(summary: Summary) -> Sequence[Text]:
    hits = [cell.cache_hit_share for cell in summary.counted if cell.cache_hit_share is not None]
    preempted = [
        cell.server["after"]["preemptions"] - cell.server["before"]["preemptions"]
        for cell in summary.counted
        if all("preemptions" in cell.server.get(moment, {}) for moment in ("before", "after"))
    ]
    return [
        number(mean(summary, lambda cell: cell.prompt_tokens_mean)),
        number(mean(summary, lambda cell: cell.output_tokens_mean)),
        number(mean(summary, lambda cell: cell.in_flight_mean)),
        list_size(summary),
        share(fmean(hits)) if hits else UNKNOWN,
        number(fmean(preempted)) if preempted else UNKNOWN,
        share(mean(summary, lambda cell: cell.client_cpu_share)),
    ]


def _every_cell(view: View) -> str:
    unit = view.latency
    rows: list[Sequence[Text]] = []
    for place, cell in enumerate(view.report.cells, 1):
        latency = cell.times.get("latency")
        rows.append(
            [
                (f"{place}. {cell.setting}, repetition {cell.repetition + 1}", ", ".join(cell.marks)),
                f"{cell.scheduled:,}",
                f"{cell.answered:,}",
                number(cell.calls_per_s),
                *(unit.shown(latency.percentiles[of]) if latency else UNKNOWN for of in _ENDS),
            ]
        )
    percentiles = [f"p{of * 100:g} latency, {unit.name}" for of in _ENDS]
    heads = ("Cell", "Scheduled", "Answered", "Calls/s", *percentiles)
    return section("Every cell", table("In the order in which they were measured.", heads, rows))


def _definitions(view: View) -> str:
    used = dict.fromkeys(summary.setting.strategy for summary in view.summaries)
    strategies = [(name, STRATEGY_WORDS[name]) for name in used if name in STRATEGY_WORDS]
    return section("Words", definitions([*strategies, *DEFINITIONS]))
