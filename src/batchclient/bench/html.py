"""The report for people: one HTML file, made from the JSON alone.

Rules:
- One file: inline SVG and CSS, no script, and nothing is loaded from anywhere. It is readable on a
  dark and a light screen, on a phone, and in print.
- The answer stands first; every picture has the table of its figures below it.
- A setting from which nothing is recommended is drawn hollow, and is called the best one nowhere.
- The page has no text of prompts or answers and no key, since the JSON has none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from html import escape
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from batchclient.bench.marks import MARKS
from batchclient.bench.measurement import SHARES, Measurement, Setting
from batchclient.bench.pictures import Line, Picture, Point, can_draw, drawn
from batchclient.bench.report import Report
from batchclient.bench.slo import Slo
from batchclient.bench.strategies import BASELINE, STRATEGIES
from batchclient.bench.summary import Figure, Summary, best_of, percentile, summaries_of
from batchclient.bench.words import UNKNOWN, Unit, in_brackets, number, share, unit_of

__all__ = ["html_of", "write_page"]

_AS_GOOD = 0.97
"""The share of the highest throughput at the knee, as a search has it."""
_ENDS = (0.5, 0.95, 0.99)
"""The percentiles of a latency in tables, / 100."""
_MOST_LIMITS = 6
"""Lines in the picture of limits."""
_STYLE = """
:root { --paper: #fff; --ink: #1a1a1a; --faint: #9a9a9a; --box: #f0f4f8; --good: #e4f3ea; --line-0: #0b62a4;
  --line-1: #b34700; --line-2: #00725c; --line-3: #8b3a83; --line-4: #6b5900; --line-5: #333; color-scheme: light; }
@media screen and (prefers-color-scheme: dark) { :root { --paper: #14171a; --ink: #e8e8e8; --faint: #7d858d;
  --box: #20262c; --good: #173a28; --line-0: #66b3f0; --line-1: #ff9c57; --line-2: #3fcfae; --line-3: #e29bdb;
  --line-4: #e0c84a; --line-5: #c8c8c8; color-scheme: dark; } }
body { font: 15px/1.45 system-ui, "DejaVu Sans", sans-serif; color: var(--ink); background: var(--paper);
  max-width: 1060px; margin: 0 auto; padding: 1rem; }
h1 { font-size: 1.4rem; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 2rem 0 .5rem; border-bottom: 1px solid var(--faint); }
p, dd { max-width: 46rem; margin: .3rem 0; overflow-wrap: anywhere; }
.box { border-left: 4px solid var(--line-0); background: var(--box); padding: .5rem .9rem; margin: 1rem 0; }
.warning { border-color: var(--line-1); }
.wide { overflow-x: auto; margin: .6rem 0 1rem; }
table { border-collapse: collapse; font-size: .87rem; }
caption { text-align: left; padding-bottom: .3rem; }
th, td { padding: .15rem .55rem; text-align: right; vertical-align: top; border-bottom: 1px solid var(--faint);
  font-variant-numeric: tabular-nums; white-space: nowrap; }
thead th { white-space: normal; vertical-align: bottom; }
th:first-child, .words td { text-align: left; font-weight: 400; white-space: normal; min-width: 8rem; }
small { display: block; font-size: .85em; }
tr.best > * { background: var(--good); }
figure { display: flex; flex-wrap: wrap; gap: 0 1rem; margin: .8rem 0; }
svg { width: 100%; max-width: 500px; height: auto; }
dt { font-weight: 600; margin-top: .6rem; }
dd { margin-left: 1rem; }
@page { size: A4; margin: 14mm 12mm; }
@media print { body { font-size: 9.5pt; max-width: none; padding: 0; } .wide { overflow: visible; }
  * { print-color-adjust: exact; -webkit-print-color-adjust: exact; } svg { max-width: 48%; } table { font-size: 8pt; }
  figure, .box, tr, dt { break-inside: avoid; } h2, dt, caption { break-after: avoid; }
  th, td { padding: .05rem .3rem; } }
"""
_WORDS = {
    "adaptive": "BatchClient as it is: it finds the limit of calls in flight itself.",
    "fixed": "BatchClient with a fixed limit.",
    "lists": "BatchClient with a fixed limit and lists of the given size.",
    "singles": "BatchClient with a fixed limit; every call is a request of its own.",
    "async-openai": "openai.AsyncOpenAI without retries, behind a semaphore, in a process of its own.",
    "In flight": "The callers of a closed load, each of whom makes the next call when the last one is answered. It "
    "says nothing about an arrival rate. Lists have as many more callers as their size: a list forms only where calls "
    "wait, and the wait is part of their latency.",
    "Calls/s as a load": "An open load, whose arrivals come at random and wait for nobody.",
    "Latency": "From a call's scheduled time to its answer. A call of a closed load is scheduled when its caller has "
    "the last answer. A latency has three parts, which add up for each call; their percentiles do not.",
    "Late": "From the scheduled time until the call is handed to the client.",
    "Queued": "From there until the request that was answered is sent: earlier attempts are in it.",
    "Server": "From there until the answer, with the network.",
    "Time to first token (ttft)": "From a call's scheduled time to the first token of its answer.",
    "Time per output token (tpot)": "From the first token of an answer to its last, divided by its tokens less one.",
    "Scheduled, answered, failed, unanswered": "The calls that were scheduled in the window, and their ends. "
    "Unanswered calls were not back at the end of the grace time. They and the failed ones have no latency, and miss "
    "every objective.",
    "Goodput": "The calls that met all objectives, per second of the window; without an objective all answered ones.",
    "Figures and intervals": "A figure is the median of the repetitions. One that measured the client is in no "
    "figure, unless more than half of a setting's did. In brackets stands its interval, with a confidence of 95 %: of "
    "percentiles that of order statistics, over all repetitions; of shares Wilson's; of rates Student's over the "
    "repetitions, of which there must be three. A dash is an end that so few calls do not tell. Two settings are "
    "compared by the ratios within each repetition: where such a ratio may be 1, no difference was seen.",
    "Knee": "The smallest load that reaches 97 % of the highest throughput; it has a ring. Where the highest load "
    "alone does, the throughput may still grow, and there is none.",
}
Text = str | tuple[str, str]
"""A text of a table; two texts: the second is drawn small."""
Read = Callable[[Summary], Figure | None]


class Column(NamedTuple):
    """A column of a table of settings."""

    head: str
    text: Callable[[Summary], Text]


def write_page(report: Report, path: Path) -> None:
    """Write a report for people.

    Raises:
        OSError: the file cannot be written.
    """
    path.write_text(html_of(report), encoding="utf-8", errors="backslashreplace")


def html_of(report: Report) -> str:
    """Return a report as a page of HTML, which loads nothing."""
    return _Page(report).html()


class _Page:
    def __init__(self, report: Report) -> None:
        self._report = report
        self._slos = report.slos
        self._summaries = summaries_of(report.measurements, report.slos)
        recommended = report.recommendation
        self._found = None if recommended is None else recommended.rate or recommended.limit
        ours = [each for each in self._summaries if each.setting.strategy != BASELINE]
        if recommended is not None:
            ours = [each for each in ours if _load_of(each.setting) == self._found]
        self._best = best_of(ours, self._slos)
        self._pictures = 0

    def html(self) -> str:
        report = self._report
        title = f"Measurement of {report.about.server.model or 'a server'}"
        policy = "default-src 'none'; style-src 'unsafe-inline'"
        return (
            '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<h1>{escape(title)}</h1>\n"
            + "\n".join(self._head())
            + _section("What was measured", _table("", (), _facts(report, self._summaries), look="words"))
            + "".join(self._loads(is_open=is_open) for is_open in (False, True))
            + _section("The adaptive limit in time", self._limits())
            + _section("Calls, server and client", self._table(_CALLS, "Of all repetitions, or their means."))
            + _section("Marks", _definitions(self._marks()))
            + _section("Every measurement", _every_measurement(report.measurements))
            + _section("Words", _definitions(_WORDS))
            + "\n</body>\n</html>\n"
        )

    def _head(self) -> list[str]:
        about, recommended = self._report.about, self._report.recommendation
        lines = [*self._report.lines] or ["The report gives no recommendation."]
        # An answer that is not decided says why itself.
        if recommended is not None and not any(recommended.why in line for line in lines):
            lines.append(f"Why: {recommended.why}.")
        parts = [_paragraph(f"{about.started}, batchclient {about.client.get('batchclient')}"), _box("box", *lines)]
        if not about.complete:
            parts.append(_box("box warning", "Incomplete: the run ended before all was measured."))
        for mark in MARKS.values():
            names = [str(each.setting) for each in self._summaries if mark in each.disqualified_by]
            if names:
                text = f"{mark.name.capitalize()}: {'; '.join(names)}. Nothing is recommended from these."
                parts.append(_box("box warning", text))
        return parts

    def _loads(self, *, is_open: bool) -> str:
        """Return the sections on throughput and latency under closed or open loads."""
        summaries = [each for each in self._summaries if (each.setting.rate is not None) == is_open]
        if not summaries:
            return ""
        load = "arrivals per second" if is_open else "calls in flight"
        unit = _unit_for(summaries, "latency", self._slos)
        latency = [_times("latency", of, unit) for of in _ENDS]
        asked = [
            _times(slo.measure, slo.share, _unit_for(summaries, slo.measure, self._slos))
            for slo in self._slos
            if (slo.measure, slo.share) not in (("latency", of) for of in _ENDS)
        ]
        within = [
            Column(f"Within {slo}", lambda each, place=place: _with_interval(each.slo_shares[place], share))  # type: ignore[misc]
            for place, slo in enumerate(self._slos)
        ]
        pictures = [
            self._picture(summaries, load, "calls per second", lambda each: each.calls_per_s, has_knee=True),
            self._picture(summaries, load, "tokens per second", lambda each: each.tokens_per_s),
        ]
        times = [self._time_picture(summaries, load, slo.measure, slo.share) for slo in self._slos]
        times = times or [self._time_picture(summaries, load, "latency", 0.95)]
        intervals = "In brackets the interval of 95 %."
        return (
            _section(f"Throughput by {load}", _figure(*pictures), self._table(_RATES, intervals, summaries))
            + _section(
                f"Latency by {load}", _figure(*times), self._table([*latency, *asked, *within], intervals, summaries)
            )
            + _section(
                f"Parts of the latency by {load}",
                self._table([_two_times(name, summaries) for name in _PARTS], "p50 and, below, p95.", summaries),
            )
        )

    def _time_picture(self, summaries: Sequence[Summary], load: str, measure: str, of: float) -> str:
        unit = _unit_for(summaries, measure, self._slos)
        bounds = [
            (slo.bound_s * unit.per_s, str(slo)) for slo in self._slos if (slo.measure, slo.share) == (measure, of)
        ]

        def read(summary: Summary) -> Figure | None:
            figure = percentile(summary, measure, of)
            if figure is None or figure.interval is None:
                return figure
            low, high = (end * unit.per_s for end in figure.interval)
            return Figure(figure.value * unit.per_s, figure.interval._replace(low=low, high=high))

        name = f"p{of * 100:g} {_MEASURES[measure]}, {unit.name}"
        return self._picture(summaries, load, name, read, bounds=bounds, is_time=True)

    def _picture(
        self,
        summaries: Sequence[Summary],
        load: str,
        name: str,
        read: Read,
        *,
        bounds: Sequence[tuple[float, str]] = (),
        is_time: bool = False,
        has_knee: bool = False,
    ) -> str:
        """Return a figure along the loads, a line for each client."""
        lines: list[Line] = []
        for client, of_client in _by_client(summaries).items():
            knee = self._knee_of(of_client) if has_knee else None
            points = tuple(
                Point(
                    _load_of(each.setting),
                    figure.value,
                    figure.interval,
                    is_hollow=bool(each.disqualified_by),
                    is_ringed=_load_of(each.setting) == knee,
                )
                for each in of_client
                if (figure := read(each)) is not None
            )
            if points:
                label = f"{client} (knee: {knee:g})" if knee is not None else client
                lines.append(Line(label, points, _look_of(of_client[0].setting.strategy, len(lines))))
        return self._drawn(Picture(load, name, lines, bounds, is_time)) if lines else ""

    def _knee_of(self, of_client: Sequence[Summary]) -> float | None:
        if isinstance(self._found, int | float) and not self._slos:
            # What the search calls the knee is the knee.
            return float(self._found)
        rates = [(_load_of(each.setting), each.calls_per_s.value) for each in of_client if not each.disqualified_by]
        highest = max((per_s for _, per_s in rates), default=0.0)
        knee = next((load for load, per_s in rates if per_s and per_s >= _AS_GOOD * highest), None)
        # Where the highest load alone does, the throughput may still grow.
        return None if not rates or knee == rates[-1][0] else knee

    def _drawn(self, picture: Picture) -> str:
        if not can_draw():
            return ""
        self._pictures += 1
        return drawn(picture, f"picture-{self._pictures}")

    def _table(self, columns: Sequence[Column], caption: str, summaries: Sequence[Summary] | None = None) -> str:
        """Return a table with a row for each setting."""
        rows: list[Sequence[Text]] = []
        for each in self._summaries if summaries is None else summaries:
            notes = ["best" if self._report.recommendation is None else "recommended"] if each is self._best else []
            rows.append([(str(each.setting), ", ".join([*notes, *each.marks])), *(one.text(each) for one in columns)])
        best = [place for place, each in enumerate(summaries or self._summaries) if each is self._best]
        return _table(caption, ["Setting", *(one.head for one in columns)], rows, best=best)

    def _limits(self) -> str:
        times = self._report.about.times
        end = times.warm_up_s + times.window_s
        changed = [
            each for each in self._report.measurements if each.limit_changes and each.setting.strategy == "adaptive"
        ]
        lines = [
            Line(
                f"{each.setting}, {each.repetition + 1}",
                (*(Point(at, limit) for at, limit in seen), Point(end, seen[-1][1])),
                place,
            )
            for place, each in enumerate(changed[:_MOST_LIMITS])
            if (seen := [(at, limit) for at, limit in each.limit_changes if at <= end])
        ]
        picture = Picture("seconds since the beginning", "limit of calls in flight", lines, is_stepped=True)
        rows = [
            [
                f"{each.setting}, repetition {each.repetition + 1}",
                *(_limit_at(each, at) for at in (0.0, times.warm_up_s, end)),
                str(len(each.limit_changes) - 1),
                UNKNOWN if each.ramp_s is None else number(each.ramp_s),
            ]
            for each in changed
        ]
        heads = ("Setting", "At first", "As the window begins", "As it ends", "Changes", "Seconds to 90 %")
        return _figure(self._drawn(picture) if lines else "") + _table("", heads, rows)

    def _marks(self) -> dict[str, str]:
        found = {}
        for mark in MARKS.values():
            counts = [(each, sum(mark.name in one.marks for one in each.measurements)) for each in self._summaries]
            seen = [f"{each.setting} ({count} of {len(each.measurements)})" for each, count in counts if count]
            if seen:
                found[mark.name.capitalize()] = f"{mark.meaning} Seen in: {'; '.join(seen)}."
        return found or {"None": "Nothing was seen that makes the figures doubtful."}


# Figures as texts -------------------------------------------------------------------------------------------------

_MEASURES = {"latency": "latency", "ttft": "time to first token", "tpot": "time per output token"}
_PARTS = ("late", "queued", "server", "ttft", "tpot")


def _with_interval(figure: Figure, write: Callable[[float], str] = number) -> Text:
    return write(figure.value), in_brackets(figure.interval, write)


def _mean(
    read: Callable[[Measurement], float | None], write: Callable[[float], str] = number
) -> Callable[[Summary], Text]:
    """Return what writes the mean of a figure over the repetitions that count."""

    def text(summary: Summary) -> Text:
        known = [value for each in summary.counted if (value := read(each)) is not None]
        return write(fmean(known)) if known else UNKNOWN

    return text


def _sum(read: Callable[[Measurement], int]) -> Callable[[Summary], Text]:
    return lambda summary: f"{sum(map(read, summary.measurements)):,}"


def _failed(summary: Summary) -> Text:
    failed = sum((Counter(each.failed) for each in summary.measurements), Counter[str]())
    return f"{failed.total():,}", ", ".join(f"{count:,} × {name}" for name, count in sorted(failed.items()))


def _list_size(summary: Summary) -> Text:
    requests = sum((Counter(each.list_sizes) for each in summary.counted), Counter[int]())
    return number(sum(size * count for size, count in requests.items()) / requests.total()) if requests else UNKNOWN


def _preemptions(each: Measurement) -> float | None:
    counts = [each.server.get(moment, {}).get("preemptions") for moment in ("before", "after")]
    return None if counts[0] is None or counts[1] is None else counts[1] - counts[0]


_RATES = (
    Column("Calls/s", lambda each: _with_interval(each.calls_per_s)),
    Column("Tokens/s", lambda each: _with_interval(each.tokens_per_s)),
    Column("Output tokens/s", _mean(lambda each: each.output_tokens_per_s)),
    Column("Goodput, calls/s", lambda each: _with_interval(each.goodput)),
)
_CALLS = (
    Column("Repetitions", lambda each: str(len(each.measurements))),
    Column("Scheduled", _sum(lambda each: each.scheduled)),
    Column("Answered", _sum(lambda each: each.answered)),
    Column("Failed", _failed),
    Column("Unanswered", _sum(lambda each: each.unanswered)),
    Column("Bad answers", _sum(lambda each: each.bad)),
    Column("With another attempt", _sum(lambda each: each.retried)),
    Column("Tokens of a prompt", _mean(lambda each: each.prompt_tokens_mean)),
    Column("Tokens of an answer", _mean(lambda each: each.output_tokens_mean)),
    Column("Under way", _mean(lambda each: each.in_flight_mean)),
    Column("Prompts per request", _list_size),
    Column("Prefix cache hits", _mean(lambda each: each.cache_hit_share, share)),
    Column("Preemptions", _mean(_preemptions)),
    Column("Client CPU", _mean(lambda each: each.client_cpu_share, share)),
)


def _times(measure: str, of: float, unit: Unit) -> Column:
    def text(summary: Summary) -> Text:
        figure = percentile(summary, measure, of)
        return UNKNOWN if figure is None else _with_interval(figure, unit.shown)

    return Column(f"p{of * 100:g} {_MEASURES[measure]}, {unit.name}", text)


def _two_times(measure: str, summaries: Sequence[Summary]) -> Column:
    unit = _unit_for(summaries, measure)

    def text(summary: Summary) -> Text:
        figures = [percentile(summary, measure, of) for of in (0.5, 0.95)]
        shown = [unit.shown(each.value) for each in figures if each is not None]
        return (shown[0], shown[1]) if shown else UNKNOWN

    return Column(f"{_MEASURES.get(measure, measure).capitalize()}, {unit.name}", text)


def _unit_for(summaries: Iterable[Summary], measure: str, slos: Sequence[Slo] = ()) -> Unit:
    """Return the unit for a time's percentiles and objectives."""
    figures = [percentile(each, measure, of) for each in summaries for of in SHARES]
    bounds = [slo.bound_s for slo in slos if slo.measure == measure]
    return unit_of([*(figure.value for figure in figures if figure is not None), *bounds])


def _load_of(setting: Setting) -> float:
    return setting.rate if setting.rate is not None else float(setting.concurrency or 0)


def _by_client(summaries: Sequence[Summary]) -> dict[str, list[Summary]]:
    """Return each client's settings along the loads; a size of lists is a client."""
    found: dict[str, list[Summary]] = {}
    for each in sorted(summaries, key=lambda each: _load_of(each.setting)):
        size = each.setting.size
        name = each.setting.strategy if size is None else f"{each.setting.strategy} of {size}"
        found.setdefault(name, []).append(each)
    return found


def _look_of(strategy: str, place: int) -> int:
    """Return the look of a strategy, the same in all pictures; several sizes of lists differ."""
    return (
        len(STRATEGIES) + place
        if strategy == "lists" and place > STRATEGIES.index("lists")
        else STRATEGIES.index(strategy)
    )


def _limit_at(measured: Measurement, at: float) -> str:
    before = [limit for seconds, limit in measured.limit_changes if seconds <= at]
    return f"{before[-1]:,}" if before else UNKNOWN


def _every_measurement(measurements: Sequence[Measurement]) -> str:
    unit = unit_of(each.times["latency"].percentiles[0.99] for each in measurements if "latency" in each.times)
    rows: list[Sequence[Text]] = [
        [
            (f"{place}. {each.setting}, repetition {each.repetition + 1}", ", ".join(each.marks)),
            f"{each.scheduled:,}",
            f"{each.answered:,}",
            number(each.calls_per_s),
            *(unit.shown(each.times["latency"].percentiles[of]) if each.times else UNKNOWN for of in _ENDS),
        ]
        for place, each in enumerate(measurements, 1)
    ]
    heads = ["Setting", "Scheduled", "Answered", "Calls/s", *(f"p{of * 100:g} latency, {unit.name}" for of in _ENDS)]
    return _table("In the order in which they were made.", heads, rows)


def _facts(report: Report, summaries: Sequence[Summary]) -> list[tuple[str, str]]:
    """Return what was measured, as names and facts."""
    about, calls, times = report.about, report.about.workload, report.about.times
    openai = f", openai {version}" if (version := about.client.get("openai")) else ""
    spread = f"lengths spread by {calls.spread:g}" if calls.spread else "all of one length"
    prompts = (
        f"{calls.prompt_tokens:,} tokens, {spread}"
        if calls.own_prompts is None
        else f"{calls.own_prompts:,} own in turn"
    )
    if calls.prefix_reuse:
        prompts += f"; {calls.prefix_reuse:.0%} of each are alike"
    exact = "each" if calls.fixed_length else "at most, as the server ends them"
    return [
        ("Server", f"{about.server.name or 'unknown kind'}, at {about.server.url}"),
        ("Client", f"batchclient {about.client.get('batchclient')}, Python {about.client.get('python')}{openai}"),
        ("Machine of the client", f"{about.machine.get('cores')} cores, {about.machine.get('system')}"),
        ("Calls", calls.call),
        ("Prompts", prompts),
        ("Answers", "embeddings" if calls.call == "embed" else f"{calls.output_tokens:,} tokens {exact}"),
        ("Loads", "; ".join(dict.fromkeys(each.setting.load for each in summaries))),
        ("Times", f"{times.warm_up_s:g} s warm-up, {times.window_s:g} s window, {times.grace_s:g} s grace at most"),
        ("Objectives", "; ".join(map(str, report.slos)) or "none"),
        ("Seed", str(calls.seed)),
    ]


# HTML: every text is escaped --------------------------------------------------------------------------------------


def _section(title: str, *parts: str) -> str:
    kept = [part for part in parts if part]
    return "\n".join(["\n<section>", f"<h2>{escape(title)}</h2>", *kept, "</section>"]) if kept else ""


def _paragraph(text: str) -> str:
    return f"<p>{escape(text)}</p>"


def _box(look: str, *lines: str) -> str:
    return f'<div class="{look}">{"".join(map(_paragraph, lines))}</div>'


def _figure(*pictures: str) -> str:
    return f"<figure>{''.join(pictures)}</figure>" if any(pictures) else ""


def _definitions(words: dict[str, str]) -> str:
    entries = "".join(f"<dt>{escape(word)}</dt><dd>{escape(meaning)}</dd>\n" for word, meaning in words.items())
    return f"<dl>\n{entries}</dl>"


def _table(
    caption: str, heads: Sequence[str], rows: Sequence[Sequence[Text]], *, best: Sequence[int] = (), look: str = ""
) -> str:
    """Return a table; nothing where it has no rows. The first column is the head of its row."""
    if not rows:
        return ""
    head = f"<thead><tr>{''.join(f'<th>{escape(each)}</th>' for each in heads)}</tr></thead>\n" if heads else ""
    body = "".join(
        f"<tr{' class=best' if place in best else ''}><th>{_text(row[0])}</th>"
        f"{''.join(f'<td>{_text(each)}</td>' for each in row[1:])}</tr>\n"
        for place, row in enumerate(rows)
    )
    table = f'<table class="{look}"><caption>{escape(caption)}</caption>\n{head}<tbody>\n{body}</tbody></table>'
    return f'<div class="wide">{table}</div>'


def _text(text: Text) -> str:
    if isinstance(text, str):
        return escape(text)
    return f"{escape(text[0])}<small>{escape(text[1])}</small>" if text[1] else escape(text[0])
