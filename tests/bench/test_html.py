"""The report as a page: it loads nothing and hides nothing; pictures where matplotlib is, and tables."""

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

from batchclient.bench import Interval, Recommendation, Setting, Slo, Times
from batchclient.bench.html import html_of
from batchclient.bench.marks import BAD, BEHIND, BUSY, FAILED, LATE, MARKS
from batchclient.bench.pictures import Line, Picture, Point, can_draw, drawn
from batchclient.bench.report import read_report, report_of, write_report
from batchclient.bench.session import Run, begin
from batchclient.bench.strategies import STRATEGIES
from batchclient.bench.summary import summaries_of
from batchclient.bench.sweep import settings_of, sweep_in
from batchclient.bench.words import number, share, unit_of
from batchclient.cli._bench_run import table_of
from batchclient.simulator import SimulatedServer, SimulatorTransport
from batchclient.testing import VirtualLoop

KEY = "sk-swordfish"
SLOS = [Slo("p95<120ms"), Slo("ttft p90<50ms")]
needs_matplotlib = pytest.mark.skipif(not can_draw(), reason="matplotlib is missing")


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
        settings = settings_of(["adaptive", "lists", "singles"], concurrency=[2, 16], sizes=[2, 8])
        done = await sweep_in(Run(session), settings, 2)
        moved = {"limit_changes": ((0.0, 256), (0.3, 384))}
        done = [replace(each, **(moved if each.setting.strategy == "adaptive" else {})) for each in done]
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


@pytest.fixture(autouse=True)
def tables_alone(page, monkeypatch):
    """Pictures take a second: the page of the fixture alone has them."""
    monkeypatch.setattr("batchclient.bench.html.can_draw", lambda: False)


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
        if tag != "meta":
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
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

    @property
    def pictures(self):
        found = re.findall(r"<svg .*?</svg>", self.text, re.DOTALL)
        return [ElementTree.fromstring(each) for each in found]

    @property
    def best(self):
        """The setting that is called the best."""
        return {row[0] for row in self.rows if row and " best" in row[0]}


def marked(report, change):
    """The report with other measurements: ``change`` returns what to replace in one."""
    return replace(report, measurements=tuple(replace(each, **change(each)) for each in report.measurements))


def test_the_answer_stands_before_the_sections(page):
    text = "".join(page.words)
    assert text.index("p95 < 120 ms: so many") < text.index("suggested: this") < text.index("What was measured")
    assert page.headings == [
        "What was measured",
        "Throughput by calls in flight",
        "Latency by calls in flight",
        "Parts of the latency by calls in flight",
        "The adaptive limit in time",
        "Calls, server and client",
        "Marks",
        "Every measurement",
        "Words",
    ]


def test_a_report_that_was_written_and_read_gives_the_same_page(report, tmp_path):
    write_report(report, tmp_path / "r.json")
    assert html_of(read_report(tmp_path / "r.json")) == html_of(report)


def test_the_page_loads_nothing_and_has_no_script(page):
    assert not {"script", "link", "img", "iframe", "object"} & {tag for tag, _ in page.elements}
    for _, attrs in page.elements:
        assert not {"src", "onclick", "onload"} & attrs.keys()
        assert all(attrs[name].startswith("#") for name in ("href", "xlink:href") if name in attrs)
    assert "url(http" not in page.text and "@import" not in page.text


def test_every_setting_has_its_figures_in_a_table(page, report):
    for summary in summaries_of(report.measurements, report.slos):
        rows = [row for row in page.rows if row and row[0].startswith(str(summary.setting))]
        assert any(row[1].startswith(number(summary.calls_per_s.value)) for row in rows)
    assert any(row[0] == "Answers" and row[1] == "8 tokens each" for row in page.rows if row)


def test_without_matplotlib_the_page_has_the_same_tables(report, page):
    plain = Page(html_of(report))
    assert plain.rows == page.rows and plain.pictures == []


def test_prompts_and_keys_are_in_no_page(page, measured):
    assert KEY not in page.text
    assert not any(prompt in page.text for prompt in measured[1])


def test_text_from_outside_is_escaped(report):
    odd = "<script>alert(1)</script>"
    server = replace(report.about.server, model=odd, name=odd)
    text = html_of(replace(report, about=replace(report.about, server=server), lines=(odd,)))
    assert "<script" not in text and "&lt;script&gt;" in text


@pytest.mark.parametrize("mark", [each for each in MARKS.values() if each.disqualifies], ids=str)
def test_a_setting_with_a_mark_that_disqualifies_is_not_the_best(report, page, mark):
    (best,) = page.best
    name = best.removesuffix(" best")
    other = Page(html_of(marked(report, lambda each: {"marks": (mark.name,)} if str(each.setting) == name else {})))
    assert other.best and name not in {each.removesuffix(" best") for each in other.best}
    words = "".join(other.words)
    assert f"{mark.name.capitalize()}: {name}. Nothing is recommended from these." in words
    assert mark.meaning in words


def test_no_setting_is_the_best_where_all_measured_the_client(report):
    assert not Page(html_of(marked(report, lambda each: {"marks": (BUSY.name,)}))).best


def test_another_client_is_not_this_clients_best_setting(report):
    def other(each):
        fast = {"setting": replace(each.setting, strategy="async-openai"), "goodput": 1e6}
        return fast if each.setting.strategy == "singles" else {}

    assert "async-openai" not in "".join(Page(html_of(marked(report, other))).best)


def test_what_failed_and_what_did_not_come_back_is_shown(report):
    lost = {
        "answered": 1,
        "failed": {"ServerFault": 2},
        "unanswered": 3,
        "scheduled": 6,
        "retried": 4,
        "bad": 1,
        "slo_hits": (0, 0),
    }
    page = Page(html_of(marked(report, lambda each: lost)))
    row = next(row for row in page.rows if row and row[0].startswith("singles, 2") and row[1] == "2")
    assert row[2:8] == ["12", "2", "4 4 × ServerFault", "6", "2", "8"]


def test_an_incomplete_report_says_so_and_an_empty_one_is_a_page(report):
    about = replace(report.about, complete=False)
    assert "Incomplete: " in html_of(replace(report, about=about))
    assert Page(html_of(replace(report, measurements=(), lines=()))).best == set()


def test_measurements_without_an_answer_have_no_latency_and_still_a_page(report):
    silent = {"times": {}, "calls_per_s": 0.0, "goodput": 0.0, "answered": 0, "slo_hits": (0, 0)}
    assert not Page(html_of(marked(report, lambda each: silent))).best


def test_the_value_that_a_search_found_is_the_one_recommended(report):
    searched = replace(
        report, objectives=(), recommendation=Recommendation(16, None, "32 gains nothing", None, decided=False)
    )
    searched = marked(searched, lambda each: {"setting": replace(each.setting, strategy="fixed", size=None)})
    page = Page(html_of(searched))
    assert {row[0] for row in page.rows if row and "recommended" in row[0]} == {"fixed, 16 in flight recommended"}
    assert "Why: 32 gains nothing." in "".join(page.words)


def test_rates_have_sections_of_their_own(report):
    rates = marked(report, lambda each: {"setting": replace(each.setting, rate=float(each.setting.concurrency))})
    assert "Latency by arrivals per second" in Page(html_of(rates)).headings


def test_every_strategy_is_explained(page):
    words = "".join(page.words)
    assert all(name in words for name in STRATEGIES)


# Pictures ---------------------------------------------------------------------------------------------------------


@needs_matplotlib
def test_pictures_say_what_they_show_in_the_pages_colours(page):
    assert len(page.pictures) == 5
    for picture in page.pictures:
        assert picture.get("role") == "img" and " by " in picture.get("aria-label")
        text = ElementTree.tostring(picture, encoding="unicode")
        assert "var(--line-0)" in text and "var(--ink)" in text
        assert not re.search(r"#0[1-9]0[1-9]0[1-9]", text)
    names = re.findall(r' id="([^"]+)"', page.text)
    assert len(names) == len(set(names))


def picture_of(*points, bounds=()):
    picture = Picture("load", "calls", [Line("one", points, 0)], bounds)
    return drawn(picture, "p")


@needs_matplotlib
def test_hollow_and_ringed_points_and_objectives_are_drawn():
    plain = picture_of(Point(1, 5, Interval(4, 6)), Point(2, 9, Interval(float("-inf"), float("inf"))))
    assert "var(--paper)" not in plain
    assert "var(--paper)" in picture_of(Point(1, 5), Point(2, 9, is_hollow=True))
    assert picture_of(Point(1, 5), Point(2, 9, is_ringed=True)) != picture_of(Point(1, 5), Point(2, 9))
    assert "p95 &lt; 1 s" in picture_of(Point(1, 5), Point(2, 9), bounds=[(7, "p95 < 1 s")])


@needs_matplotlib
def test_a_picture_of_many_points_is_small():
    steps = tuple(Point(at / 9000, 9 + at % 7) for at in range(4000))
    assert len(drawn(Picture("seconds", "limit", [Line("one", steps, 0)], is_stepped=True), "p")) < 150_000


# Words ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
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


def test_shares_and_units():
    assert [share(each) for each in (0.0, 0.0001, 0.5, 0.99999, 1.0)] == ["0 %", "0.1 %", "50.0 %", "99.9 %", "100 %"]
    assert (unit_of([0.4, 9.0]).shown(0.4), unit_of([12.0]).shown(0.4)) == ("400", "0.400")
    assert unit_of([]).shown(float("inf")) == "–"


# The terminal -----------------------------------------------------------------------------------------------------


def shown(report, width):
    console = Console(width=width, file=io.StringIO(), color_system=None)
    console.print(table_of(summaries_of(report.measurements, report.slos), report.slos))
    return console.file.getvalue().rstrip("\n").splitlines()


def test_the_terminals_table_fits_and_cuts_no_figure(report):
    late = marked(report, lambda each: {"marks": (LATE.name,)} if each.setting.strategy == "singles" else {})
    for width in (120, 80, 60):
        lines = shown(late, width)
        assert max(map(len, lines)) <= width and "…" not in "".join(lines)
        for summary in summaries_of(late.measurements, late.slos):
            assert any(number(summary.calls_per_s.value) in line.split() for line in lines)
        assert f"(1) {LATE.name}" in lines
    lines = shown(late, 120)
    assert "within 120 ms" in lines[0] and any(line.startswith("singles, 2 in flight (1) ") for line in lines)


def test_a_settings_marks_stand_in_the_order_of_their_meanings(report):
    marks = {
        "singles, 2 in flight": (LATE.name, BUSY.name),
        "singles, 16 in flight": (BUSY.name, LATE.name),
    }
    lines = "\n".join(shown(marked(report, lambda each: {"marks": marks.get(str(each.setting), ())}), 120))
    assert "singles, 2 in flight (1, 2)" in lines
    assert "singles, 16 in flight (1, 2)" in lines


def test_the_marks_that_disqualify():
    assert {each for each in MARKS.values() if each.disqualifies} == {FAILED, BAD, BEHIND, LATE, BUSY}
