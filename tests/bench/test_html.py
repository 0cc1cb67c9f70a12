"""The report as a page: sections, pictures, what is marked; the page loads nothing and hides nothing."""

import asyncio
import io
import re
from dataclasses import replace
from datetime import UTC, datetime
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest
from rich.console import Console
from tests.bench.conftest import SHORT, URL

from batchclient.bench import Interval, Setting, Slo, Times
from batchclient.bench.html import html_of
from batchclient.bench.html.curves import knee_of
from batchclient.bench.html.svg import Bound, Line, Point, amount_axis, chart, doubling_axis, number
from batchclient.bench.html.words import DEFINITIONS, MARKS, STRATEGY_WORDS
from batchclient.bench.marks import BEHIND, BUSY, CACHED, FAILED, LATE, OTHERS, RETRIED
from batchclient.bench.report import read_report, report_of, write_report
from batchclient.bench.search import Outcome, so_far
from batchclient.bench.session import begin
from batchclient.bench.summary import summaries_of
from batchclient.bench.sweep import cells, settings_of
from batchclient.cli._bench_table import table_of
from batchclient.simulator import SimulatedServer, SimulatorTransport
from batchclient.testing import VirtualLoop

KEY = "sk-swordfish"
SLOS = [Slo("p95<120ms"), Slo("ttft p90<50ms")]
VOID = {"meta", "br"}


@pytest.fixture(scope="module")
def measured():
    """The report of a real sweep in virtual time, and the prompts that were sent."""

    async def run():
        transport = SimulatorTransport(SimulatedServer("gpu"))
        session = await begin(
            URL,
            SHORT,
            Times(0.1, 0.4, 5.0),
            SLOS,
            api_key=KEY,
            transport=lambda url, headers: transport,
            cpu_s=lambda: 0.0,
        )
        settings = settings_of(["adaptive", "streamed", "singles"], concurrency=[2, 16], sizes=[2, 8])
        # So many that the adaptive limit moves.
        settings.append(Setting("adaptive", concurrency=80))
        done = [cell async for cell in cells(session, settings, repeat=2)]
        report = report_of(
            session, done, datetime(2026, 11, 26, tzinfo=UTC), lines=["p95 < 120 ms: so many", "suggested: this"]
        )
        return report, [session.workload.prompt(at) for at in (0, 1, 2, 7)]

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(run())


@pytest.fixture(scope="module")
def report(measured):
    return measured[0]


@pytest.fixture(scope="module")
def page(report):
    return Page(html_of(report))


class Page(HTMLParser):
    """A page, read: its elements must be closed in order."""

    def __init__(self, text):
        super().__init__()
        self.text, self.open, self.elements, self.words = text, [], [], []
        self.headings, self.rows = [], []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th") and self.rows:
            self.rows[-1].append("")
        if tag == "h2":
            self.headings.append("")

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)
        if "h2" in self.open:
            self.headings[-1] += data
        if "tr" in self.open and self.rows[-1]:
            self.rows[-1][-1] += f" {data}" if "small" in self.open else data

    def tags(self, name):
        return [attrs for tag, attrs in self.elements if tag == name]

    @property
    def pictures(self):
        found = re.findall(r"<svg .*?</svg>", self.text, re.DOTALL)
        return {each.get("id"): each for each in map(ElementTree.fromstring, found)}

    @property
    def hollow(self):
        """The markers that are drawn hollow."""
        parts = [part for picture in self.pictures.values() for part in picture.iter()]
        return [part for part in parts if part.get("fill") == "none" and part.tag in ("polygon", "circle")
                and part.get("r") in (None, "4.0")]  # fmt: skip

    def row(self, name):
        """The texts of the first row with this head."""
        return next(row for row in self.rows if row and row[0].startswith(name))


def marked(report, change):
    """The report with other cells: ``change`` returns what to replace in a cell."""
    return replace(report, cells=tuple(replace(cell, **change(cell)) for cell in report.cells))


def test_the_sections_stand_in_the_order_of_a_readers_questions(page):
    assert page.headings == [
        "What was measured",
        "Throughput by concurrency",
        "Latency by concurrency",
        "Latency and throughput by batch size",
        "Parts of the latency",
        "The adaptive limit's way",
        "Calls and marks",
        "Server and client",
        "Every cell",
        "Words",
    ]
    text = "".join(page.words)
    assert text.index("p95 < 120 ms: so many") < text.index("suggested: this") < text.index("What was measured")


def test_a_report_that_was_written_and_read_gives_the_same_page(report, tmp_path, page):
    write_report(report, tmp_path / "r.json")
    again = read_report(tmp_path / "r.json")
    assert again.cells == report.cells
    assert html_of(again) == page.text


def test_the_page_loads_nothing_and_has_no_script(page):
    names = {tag for tag, _ in page.elements}
    assert not names & {"script", "link", "img", "iframe", "object", "embed", "use", "image", "a"}
    for _, attrs in page.elements:
        assert not {name for name in attrs if name.startswith(("on", "src", "href", "xlink"))}
    assert not re.search(r"url\(|@import|@font-face", page.text)
    assert {"http-equiv": "Content-Security-Policy", "content": "default-src 'none'; style-src 'unsafe-inline'"} in (
        page.tags("meta")
    )


def test_every_picture_and_every_table_says_what_it_shows(page):
    pictures = page.pictures
    assert len(pictures) == len(page.tags("svg")) > 5, "each has an id of its own"
    for ident, picture in pictures.items():
        title, description = picture[0], picture[1]
        assert (title.tag, description.tag) == ("title", "desc")
        assert picture.get("aria-labelledby").split() == [title.get("id"), description.get("id")]
        assert title.text
        assert len(description.text) > 20, ident
    assert page.tags("caption") and len(page.tags("caption")) == len(page.tags("table"))
    assert all(attrs.get("scope") in ("col", "row") for attrs in page.tags("th"))


def test_every_setting_has_its_figures_in_a_table(page, report):
    for summary in summaries_of(report.cells, report.slos):
        row = page.row(str(summary.setting))
        interval = summary.calls_per_s.interval
        assert interval is None, "two repetitions tell none"
        assert row[1] == number(summary.calls_per_s.value)


def test_the_table_of_batch_sizes_has_singles_lists_and_the_servers_part(page, report):
    lists = [row for row in page.rows if row and row[0].startswith("16 in flight")]
    assert [row[1] for row in lists] == ["1", "2", "8"]
    assert lists[0][0] == "16 in flight singles"
    assert len({len(row) for row in lists}) == 1
    loads = [row[0].split(" in flight")[0] for row in page.rows if row and re.match(r"\d+ in flight", row[0])]
    assert loads == ["2", "2", "16", "16", "16"]
    summaries = {str(each.setting): each for each in summaries_of(report.cells, report.slos)}
    assert lists[2][3].startswith(number(summaries["streamed of 8, 16 in flight"].tokens_per_s.value))


def test_prompts_and_keys_are_in_no_page(page, measured):
    assert KEY not in page.text
    for prompt in measured[1]:
        assert " ".join(prompt.split()[:4]) not in page.text


def test_text_from_outside_is_escaped(report):
    evil = "<script>alert(1)</script>&\"'"
    cell = replace(
        report.cells[0],
        setting=Setting(evil, concurrency=2),
        failed={evil: 2},
        marks=(evil,),
        times=report.cells[0].times,
    )
    about = {**report.about, "server": {"url": evil, "name": evil, "model": evil}, "started": evil}
    told = Page(html_of(replace(report, cells=(cell, *report.cells), about=about, lines=(evil,))))
    assert not told.tags("script")
    assert "".join(told.words).count(evil) >= 6
    assert told.pictures


def test_a_setting_that_measured_the_client_is_hollow_and_is_not_the_best(report, page):
    assert not page.hollow
    best = next(row[0] for row in page.rows if row and " best" in row[0]).split(" best")[0]
    told = Page(html_of(marked(report, lambda cell: {"marks": (LATE,)} if str(cell.setting) == best else {})))
    assert told.hollow
    assert f"Not the server but the client was measured by: {best}." in "".join(told.words)
    assert not any(row[0].startswith(f"{best} best") for row in told.rows if row)
    assert "recommends nothing: see the marks" in "".join(told.words)


@pytest.mark.parametrize(
    ("mark", "said"),
    [
        (FAILED, "Calls failed, or were not answered in time, in"),
        (BEHIND, "Calls arrived faster than they were answered in"),
    ],
)
def test_a_setting_whose_server_failed_or_fell_behind_is_hollow_and_is_not_the_best(report, page, mark, said):
    best = next(row[0] for row in page.rows if row and " best" in row[0]).split(" best")[0]
    told = Page(html_of(marked(report, lambda cell: {"marks": (mark,)} if str(cell.setting) == best else {})))
    assert told.hollow
    # A browser that darkens pages leaves white as it is, and makes dark edges white.
    assert "#fff" not in "".join(re.findall(r"<svg .*?</svg>", told.text))
    assert f"{said}: {best}." in "".join(told.words)
    assert not any(row[0].startswith(f"{best} best") for row in told.rows if row)


def test_no_setting_is_the_best_where_all_measured_the_client(report):
    told = Page(html_of(marked(report, lambda cell: {"marks": (BUSY,)})))
    assert not any(attrs.get("class") == "best" for attrs in told.tags("tr"))


def test_another_client_is_not_this_clients_best_setting(report):
    def others(cell):
        return {"setting": replace(cell.setting, strategy="async-openai")} if cell.setting.strategy == "singles" else {}

    told = Page(html_of(marked(report, others)))
    best = [row[0] for row in told.rows if row and " best" in row[0]]
    assert best and not any(name.startswith("async-openai") for name in best)


def test_marks_are_told_in_words(report):
    told = "".join(Page(html_of(marked(report, lambda cell: {"marks": (OTHERS,)}))).words)
    assert "the server had other work, in 2 of 2 repetitions" in told
    assert MARKS[OTHERS] in told
    assert MARKS[BUSY] not in told


def test_every_mark_has_a_meaning(report):
    assert set(MARKS) == {BEHIND, BUSY, CACHED, FAILED, LATE, OTHERS, RETRIED}


def test_a_repetition_that_measured_the_client_is_in_no_figure_of_the_page(report):
    def one_of_three(cell):
        return {"marks": (LATE,), "output_tokens_mean": 9e6, "output_tokens_per_s": 9e6} if cell.repetition == 2 else {}

    three = replace(report, cells=(*report.cells, *(replace(cell, repetition=2) for cell in report.cells[:9])))
    assert "9,000,000" not in "".join(Page(html_of(marked(three, one_of_three))).words)


def test_what_failed_and_what_did_not_come_back_is_told(report):
    told = Page(html_of(marked(report, lambda cell: {"failed": {"ReadTimedOut": 3}, "unanswered": 5, "retried": 4})))
    row = next(row for row in told.rows if row and "6 × ReadTimedOut" in " ".join(row))
    assert row[-3:] == ["6 6 × ReadTimedOut", "10", "8"]


def test_an_incomplete_report_says_so_and_an_empty_one_is_a_page(report):
    told = "".join(Page(html_of(replace(report, cells=(), lines=(), about={**report.about, "complete": False}))).words)
    assert "Incomplete: the run ended before all cells were measured." in told
    assert "The report gives no recommendation." in told


def test_cells_without_an_answer_have_no_latency_and_still_a_page(report):
    nothing = {
        "answered": 0,
        "times": {},
        "calls_per_s": 0.0,
        "tokens_per_s": 0.0,
        "goodput": 0.0,
        "slo_shares": (0.0, 0.0),
    }
    told = Page(html_of(marked(report, lambda cell: nothing)))
    assert "singles, 2 in flight" in " ".join(told.words)


def test_a_search_without_a_decision_says_so(report):
    told = {"why": "64 breaks the objective", "decided": False}
    words = "".join(Page(html_of(replace(report, recommendation=told))).words)
    assert "Why: 64 breaks the objective. Not decided" in words
    assert "Not decided" not in "".join(Page(html_of(replace(report, recommendation={**told, "decided": True}))).words)
    lines = ("p95 < 2 s: limit 32", "not decided: 64 breaks the objective.")
    words = "".join(Page(html_of(replace(report, recommendation=told, lines=lines))).words)
    assert words.count("64 breaks the objective") == 1


@pytest.mark.parametrize("slos", [(), (Slo("p95<120ms"),)])
def test_the_value_that_a_search_found_is_the_one_recommended_and_the_knee(report, slos):
    """Also where a higher value has more goodput, or another one is the knee of the medians."""

    def searched(cell):
        more = {1: 10.0, 2: 20.0, 3: 30.0, 4: 30.1}[1 + report.cells.index(cell) % 4]
        setting = Setting("fixed", concurrency=2 ** (report.cells.index(cell) % 4))
        return {"setting": setting, "calls_per_s": more, "goodput": more, "slo_hits": (), "slo_shares": ()}

    told = {"why": "4 gains nothing", "decided": True, "limit": 2, "rate": None}
    cells = marked(report, searched).cells
    if slos:
        cells = tuple(replace(cell, slo_hits=(cell.scheduled,), slo_shares=(1.0,)) for cell in cells)
    page = Page(html_of(replace(report, cells=cells, recommendation=told, slos=slos)))
    assert page.row("fixed, 2 in flight")[0].split("flight ")[1] == ("recommended" if slos else "recommended, knee")
    assert ("fixed (knee: 4)" if slos else "fixed (knee: 2)") in page.words
    assert not any(" best" in row[0] for row in page.rows if row)


@pytest.mark.parametrize(
    ("own", "reuse", "said"),
    [
        (None, None, "none: prompts differ from the first token"),
        (None, 0.8, "80% of each"),
        (9, None, "none: each has a number in front"),
        (9, 0.8, "that of the prompts themselves"),
    ],
)
def test_the_shared_beginning_of_prompts_is_told(report, own, reuse, said):
    workload = {**report.about["workload"], "own_prompts": own, "prefix_reuse": reuse}
    page = Page(html_of(replace(report, about={**report.about, "workload": workload})))
    assert page.row("Shared beginning of prompts")[1] == said


def test_an_objective_whose_percentile_is_not_measured_is_drawn_with_the_nearest_one(report, page):
    nearest = "It is the report's nearest percentile to that of p97 < 120 ms."
    told = Page(html_of(replace(report, slos=(Slo("p97<120ms"), *SLOS[1:]))))
    assert f"p95 latency by concurrency, with intervals of 95 %. {nearest}" in "".join(told.words)
    assert "nearest percentile" not in "".join(page.words)


def test_rates_have_sections_of_their_own(report):
    def open_load(cell):
        return {"setting": replace(cell.setting, rate=float(cell.setting.concurrency), concurrency=None)}

    told = Page(html_of(marked(report, open_load)))
    assert "Throughput by arrival rate" in told.headings
    assert "Throughput by concurrency" not in told.headings
    assert "arrivals per second" in told.words


def test_a_page_of_sixty_cells_with_restless_limits_has_less_than_a_megabyte(report):
    changes = tuple((at / 4000, 10 + at % 90) for at in range(4000))
    many = [
        replace(cell, setting=replace(cell.setting, concurrency=2**power), limit_changes=changes)
        for power in range(5)
        for cell in report.cells
    ]
    assert len(many) >= 60
    page = Page(html_of(replace(report, cells=tuple(many))))
    assert len(page.text.encode()) < 1_000_000
    # Each line has no more steps than can be seen.
    steps = [path.get("d").count("H") for path in page.pictures["limits"].iter("path")]
    assert steps and 50 < max(steps) <= 301


def test_all_words_of_the_page_have_a_meaning():
    assert len(DEFINITIONS) == 14
    assert all(meaning.endswith(".") and "\n" not in meaning for _, meaning in DEFINITIONS)
    assert set(STRATEGY_WORDS) == {"adaptive", "fixed", "lists", "streamed", "singles", "async-openai"}


# Knees, axes and marks --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("points", "knee"),
    [
        ([(1, 10), (2, 20), (4, 40)], None),
        ([(1, 10), (2, 20), (4, 20.5)], 2),
        ([(1, 10), (2, 20), (4, 20.9)], None),
        # A fall, and a growth after it: the highest throughput counts.
        ([(1, 10), (2, 20), (4, 19), (8, 30)], None),
        ([(1, 10), (2, 20), (4, 19)], 2),
        ([(8, 100), (128, 118)], None),
        ([(8, 100)], None),
    ],
)
def test_the_knee_is_the_smallest_load_near_the_highest_throughput_as_a_search_has_it(points, knee):
    assert knee_of(points) == knee
    found = so_far({load: Outcome((), 1, (), (per_s,)) for load, per_s in points}).value
    assert found == (points[-1][0] if knee is None else knee)


def test_nothing_answered_has_no_knee():
    assert knee_of([(1, 0.0), (2, 0.0)]) is None


def test_the_knee_is_ringed_where_it_lies(report):
    told = marked(
        report,
        lambda cell: (
            {"calls_per_s": 50.0}
            if cell.setting.strategy == "singles"
            else {"calls_per_s": cell.setting.concurrency * 1.0}
        ),
    )
    page = Page(html_of(told))
    picture = page.pictures["throughput-closed-0"]
    rings = [each for each in picture.iter("circle") if each.get("r") == "8.5"]
    assert len(rings) == 2, "one at the point, one in the legend"
    assert "singles (knee: 2)" in page.words
    assert page.row("singles, 2 in flight")[0].endswith("knee")


def test_calls_that_failed_are_no_throughput_to_have_a_knee_by(report):
    def failing_above(cell):
        high = {"calls_per_s": 500.0, "marks": (FAILED,)}
        return high if cell.setting.concurrency == 80 else {"calls_per_s": 50.0, "marks": ()}

    page = Page(html_of(marked(report, failing_above)))
    assert page.row("adaptive, 2 in flight")[0].endswith("knee")


def test_each_doubling_has_the_same_length():
    axis = doubling_axis("load", [8, 1, 32, 2])
    places = [axis.place(value) for value in (2, 4, 8, 16)]
    gaps = [after - before for before, after in zip(places, places[1:], strict=False)]
    assert gaps == pytest.approx([gaps[0]] * 3)
    assert [text for _, text in axis.ticks] == ["1", "2", "8", "32"]
    assert 0 < axis.place(1) < axis.place(32) < 1
    assert doubling_axis("load", [5]).place(5) == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("values", "ends", "top"),
    [
        ([3, 9], [], 10),
        ([212], [], 250),
        ([100], [120], 150),
        # An interval far above the figures does not press them to the floor.
        ([100], [5000, float("inf")], 150),
        ([], [], 1),
        ([0.0], [0.0], 1),
    ],
)
def test_an_axis_for_amounts_begins_at_zero(values, ends, top):
    axis = amount_axis("x", values, ends)
    assert (axis.low, axis.high) == (0, pytest.approx(top))
    assert 2 <= len(axis.ticks) <= 8


def test_times_that_differ_much_have_a_logarithmic_axis():
    axis = amount_axis("ms", [0.4, 60.0], may_be_log=True)
    assert axis.is_log and axis.label == "ms (logarithmic)"
    assert axis.low <= 0.4 < 60 <= axis.high
    assert not amount_axis("ms", [4.0, 60.0], may_be_log=True).is_log


def drawn(points, **options):
    x, y = doubling_axis("load", [1, 4]), amount_axis("calls", [100])
    return ElementTree.fromstring(chart("p", "t", "d", x, y, [Line("one", tuple(points), 0)], **options))


def test_points_stand_where_their_figures_say():
    circles = list(drawn([Point(1, 0), Point(4, 100)]).iter("circle"))
    low, high = circles[:2]
    grid = [float(line.get("y1")) for line in drawn([]).iter("line") if line.get("stroke") == "#d8d8d8"]
    assert float(low.get("cy")) == pytest.approx(max(grid), abs=0.1)
    assert float(high.get("cy")) == pytest.approx(min(grid), abs=0.1)
    assert float(low.get("cx")) < float(high.get("cx"))


@pytest.mark.parametrize(
    ("interval", "caps"), [(Interval(40, 60), 2), (Interval(float("-inf"), 60), 1), (Interval(40, 1e6), 1)]
)
def test_the_end_of_a_bar_that_is_not_known_has_no_cap(interval, caps):
    colour = "#0072b2"
    lines = [
        each
        for each in drawn([Point(1, 50, *interval)]).iter("line")
        if each.get("stroke") == colour and not each.get("stroke-width")
    ]
    assert len([each for each in lines if each.get("y1") == each.get("y2")]) == caps
    assert len([each for each in lines if each.get("x1") == each.get("x2")]) == 1


def test_an_objective_lies_across_the_picture_at_its_bound():
    picture = drawn([Point(1, 100)], bounds=[Bound(50, "p95 < 50 ms")])
    across, sample = (each for each in picture.iter("line") if each.get("stroke") == "#b00000")
    grid = {float(line.get("y1")) for line in picture.iter("line") if line.get("stroke") == "#d8d8d8"}
    assert float(across.get("y1")) == float(across.get("y2")) == pytest.approx((min(grid) + max(grid)) / 2, abs=0.1)
    assert any(text.text == "p95 < 50 ms" for text in picture.iter("text"))


def test_lines_differ_in_more_than_colour():
    x, y = doubling_axis("load", [1, 4]), amount_axis("calls", [100])
    lines = [Line(str(look), (Point(1, 50), Point(4, 60)), look) for look in range(16)]
    picture = ElementTree.fromstring(chart("p", "t", "d", x, y, lines))
    looks = [(path.get("stroke"), path.get("stroke-dasharray")) for path in picture.iter("path")]
    assert len(set(looks)) == 16
    assert len({dashes for _, dashes in looks[:8]}) == 8


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.0004, "0"),
        (0.0099999999, "0.010"),
        (2.5, "2.50"),
        (9.999, "10.0"),
        (99.96, "100"),
        (1234.5, "1,234"),
    ],
)
def test_numbers_have_three_digits(value, text):
    assert number(value) == text


# The terminal -----------------------------------------------------------------------------------------------------


def shown(report, width):
    console = Console(width=width, file=io.StringIO(), color_system=None)
    console.print(table_of(summaries_of(report.cells, report.slos), report.slos))
    return console.file.getvalue().rstrip("\n").splitlines()


def test_the_terminals_table_fits_and_cuts_no_figure(report):
    told = marked(report, lambda cell: {"marks": (LATE,)} if cell.setting.strategy == "singles" else {})
    for width in (120, 80, 60):
        lines = shown(told, width)
        assert max(map(len, lines)) <= width and "…" not in "".join(lines)
        for summary in summaries_of(told.cells, told.slos):
            assert any(number(summary.calls_per_s.value) in line.split() for line in lines)
        assert f"(1) {LATE}" in lines
    lines = shown(told, 120)
    assert "within 120 ms" in lines[0] and any(line.startswith("singles, 2 in flight (1) ") for line in lines)


def test_a_settings_marks_stand_in_the_order_of_their_meanings(report):
    marks = {"singles, 2 in flight": (LATE, BUSY), "singles, 16 in flight": (BUSY, LATE)}
    told = "\n".join(shown(marked(report, lambda cell: {"marks": marks.get(str(cell.setting), ())}), 120))
    assert "singles, 2 in flight (1, 2)" in told
    assert "singles, 16 in flight (1, 2)" in told
