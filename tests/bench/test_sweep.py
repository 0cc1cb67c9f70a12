"""Sweeps, summaries, reports and comparisons."""

import json
import random
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial

import pytest
from tests.bench.conftest import SHORT, URL, made

from batchclient.bench import BenchFailed, Recommendation, Setting, Slo, Times, Workload, find, sweep
from batchclient.bench.answer import lines_of_sweep
from batchclient.bench.compare import FIGURES, Bound, differences, workload_differences
from batchclient.bench.marks import BAD, BEHIND, BUSY, FAILED, LATE, RETRIED
from batchclient.bench.session import Run, begin
from batchclient.bench.report import read_report, report_of, write_report
from batchclient.bench.strategies import options_of
from batchclient.bench.summary import best_of, compared, summaries_of
from batchclient.bench.sweep import order_of, settings_of, sweep_in
from batchclient.errors import ConfigError
from batchclient.options import Batching
from batchclient.simulator import SimulatedServer, SimulatorTransport

CANARY = "swordfish"
QUICK = Times(0.2, 0.5, 5.0)


async def measured(session, settings, repeat=3, **options):
    return await sweep_in(Run(session, **options), settings, repeat)


SLOS = [Slo("p95<1s")]
ONE, TWO = Setting("fixed", concurrency=32), Setting("lists", 32, 32)


def test_a_sweep_has_every_strategy_under_every_load():
    settings = settings_of(["adaptive", "lists"], concurrency=[8, 64], sizes=[1, 32])
    assert settings == [
        Setting("adaptive", None, 8),
        Setting("adaptive", None, 64),
        Setting("lists", 1, 8),
        Setting("lists", 1, 64),
        Setting("lists", 32, 64),
    ]
    assert settings_of(["singles"], rates=[5.0], concurrency=[64]) == [Setting("singles", None, 64, 5.0)]


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"strategies": ["fast"], "concurrency": [1]}, "strategies"),
        ({"strategies": ["adaptive"]}, "concurrency"),
        ({"strategies": ["adaptive"], "concurrency": [1, 2], "rates": [1.0]}, "concurrency"),
    ],
)
def test_a_wrong_sweep_is_refused(options, field):
    with pytest.raises(ConfigError) as refused:
        settings_of(**options)
    assert refused.value.field == field


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda url: sweep(url, None, Slo("ttft p95<1s"), strategies=["async-openai"], concurrency=[32]), "slo"),
        (lambda url: sweep(url, Workload(call="embed"), Slo("tpot p95<1s"), concurrency=[32]), "slo"),
        (lambda url: sweep(url, concurrency=[32], repeat=0), "repeat"),
        (lambda url: find(url, Workload(call="embed"), Slo("ttft p95<1s")), "slo"),
    ],
)
async def test_a_wrong_measurement_is_refused_before_a_call(make, field):
    with pytest.raises(ConfigError) as refused:
        await make("http://nobody.invalid/v1")
    assert refused.value.field == field


async def test_the_same_seed_gives_the_same_order_and_the_same_figures(session):
    settings = settings_of(["fixed", "singles"], concurrency=[2, 4])

    async def run(seed):
        return await measured(await session(times=QUICK, seed=seed), settings, repeat=2)

    first, again, other = await run(1), await run(1), await run(2)
    assert first == again
    assert [cell.setting for cell in first] != [cell.setting for cell in other]
    assert {(cell.setting, cell.repetition) for cell in first} == {(each, n) for each in settings for n in (0, 1)}


async def test_a_budget_is_kept_within_a_cell(session):
    begun = await session(times=QUICK)
    assert 1 <= len(await measured(begun, settings_of(["fixed"], concurrency=[1, 2, 3, 4]), budget_s=1.6)) <= 2


async def test_a_first_cell_without_an_answer_ends_the_sweep(session):
    with pytest.raises(BenchFailed, match="BadRequest"):
        server = SimulatedServer("gpu", faults=["status=400,after=1"])
        begun = await session(times=Times(0.0, 0.1, 1.0), server=server)
        await measured(begun, [Setting("singles", rate=50.0)])


async def test_a_server_that_goes_away_ends_the_sweep_after_two_cells(session):
    seen = []
    with pytest.raises(BenchFailed, match="no call was answered in the last two measurements: .*BadRequest"):
        begun = await session(times=Times(0.0, 0.1, 1.0), server=SimulatedServer("gpu", faults=["status=400,after=9"]))
        await measured(begun, [Setting("singles", concurrency=1)], 9, on_measurement=seen.append)
    assert [bool(cell.answered) for cell in seen[-3:]] == [True, False, False]
    assert all(FAILED in each.disqualified_by for each in seen[-2:])


def test_a_drift_of_the_machine_turns_no_equals_into_a_difference(dice):
    """20 % up or down over the run, three repetitions, noise of 2 % in each cell."""
    wrong, runs = 0, 400
    for run in range(runs):
        drift, found = random.Random(run).choice([-0.2, 0.2]), []
        for repetition in range(3):
            for place, setting in enumerate(order_of([ONE, TWO], run, repetition)):
                done = (2 * repetition + place) / 5
                found.append(made(setting, repetition, 100 * (1 + drift * done) * dice.gauss(1, 0.02)))
        first, second = summaries_of(found, [Slo("p95<1s")])
        wrong += compared(first, second, FIGURES["goodput"]).is_difference
    assert wrong / runs <= 0.05


def test_a_real_difference_is_seen(dice):
    found = [
        made(setting, repetition, (100 if setting is ONE else 130) * dice.gauss(1, 0.01))
        for repetition in range(3)
        for setting in (ONE, TWO)
    ]
    first, second = summaries_of(found, [Slo("p95<1s")])
    assert compared(first, second, FIGURES["goodput"]).is_difference
    assert best_of([first, second], [Slo("p95<1s")]).setting is TWO


def test_one_repetition_tells_no_difference():
    first, second = summaries_of([made(ONE, 0, 10), made(TWO, 0, 90)], [Slo("p95<1s")])
    comparison = compared(first, second, FIGURES["goodput"])
    assert not comparison.is_difference
    assert "one repetition" in str(comparison)


def test_cells_that_measured_the_client_recommend_nothing():
    slos = [Slo("p95<1s")]
    found = [made(ONE, 0, 10), made(TWO, 0, 90, marks=(BUSY,))]
    assert best_of(summaries_of(found, slos), slos).setting is ONE
    only = [made(TWO, 0, 90, marks=(BUSY,))]
    assert best_of(summaries_of(only, slos), slos) is None
    assert lines_of_sweep(only, slos)[0].endswith(
        "no recommendation: this machine was too busy to measure the server (see the marks)"
    )


def test_one_late_repetition_is_in_no_figure_and_the_others_count():
    slos = [Slo("p95<1s")]
    found = [
        made(ONE, place, rate, marks=marks) for place, (rate, marks) in enumerate([(100, ()), (10, (LATE,)), (102, ())])
    ]
    (summary,) = summaries_of(found, slos)
    assert summary.calls_per_s.value == 101
    assert not summary.measured_the_client
    assert summary.marks == (LATE.name,)
    assert len(summary.measurements) == 3
    assert best_of([summary], slos) is summary
    (summary,) = summaries_of([*found[:2], made(ONE, 2, 11, marks=(BUSY,))], slos)
    assert summary.measured_the_client
    assert best_of([summary], slos) is None
    # A server that failed in one repetition is no better for the others.
    (summary,) = summaries_of([*found[:1], made(ONE, 1, 10, marks=(FAILED,))], slos)
    assert best_of([summary], slos) is None


def test_two_repetitions_have_no_interval_and_tell_no_difference():
    first, second = summaries_of([made(ONE, 0, 10), made(ONE, 1, 11), made(TWO, 0, 90), made(TWO, 1, 91)], SLOS)
    assert first.calls_per_s.interval is None
    for paired in (True, False):
        comparison = compared(second, first, FIGURES["goodput"], paired=paired)
        assert not comparison.is_difference
        assert comparison.said_of("goodput").endswith("× (2 repetitions)")


def test_no_rate_is_below_zero():
    (summary,) = summaries_of([made(ONE, place, rate) for place, rate in enumerate((1, 10, 100))], SLOS)
    assert summary.calls_per_s.interval.low == 0.0
    assert summary.calls_per_s.interval.high > 100


def test_a_setting_that_breaks_the_objective_is_no_equal_of_the_best():
    found = [
        made(each, place, 100 + place, slos=(share,)) for place in range(3) for each, share in ((ONE, 1.0), (TWO, 0.9))
    ]
    assert not any(line.startswith("no difference seen to") for line in lines_of_sweep(found, SLOS))


def test_a_share_that_is_too_near_to_the_objective_is_not_decided():
    near = lines_of_sweep([made(ONE, 0, 10, slos=(0.955,))], SLOS)
    assert near[1] == "not decided: 0.955 [0.940, 0.966] of the calls are within 1 s, and 0.95 are to be."
    assert not any("not decided" in line for line in lines_of_sweep([made(ONE, 0, 10, slos=(0.99,))], SLOS))


def test_every_objective_has_its_figure():
    found = [made(ONE, 0, 10, slos=(1.0, 1.0))]
    line = lines_of_sweep(found, [Slo("p95<1s"), Slo("p50<1s")])[0]
    assert line.startswith("p95 < 1 s and p50 < 1 s: fixed, 32 in flight → 100 ms [100 ms, 101 ms] and 100 ms [")


def test_the_adaptive_limit_is_not_compared_with_a_lesser_one_where_the_best_is_not_known():
    own, low, high = (Setting(name, concurrency=each) for name, each in (("adaptive", 64), ("fixed", 8), ("fixed", 64)))
    known = lines_of_sweep([made(own, 0, 90), made(low, 0, 40), made(high, 0, 100)], SLOS)
    assert "adaptive against the best fixed setting (fixed, 64 in flight): goodput 0.90 × (one repetition)" in "".join(
        known
    )
    marked = lines_of_sweep([made(own, 0, 90), made(low, 0, 40), made(high, 0, 100, marks=(BUSY,))], SLOS)
    assert not any("adaptive against" in line for line in marked)
    same = Setting("singles", concurrency=64)
    marked = lines_of_sweep([made(own, 0, 90), made(same, 0, 40), made(high, 0, 100, marks=(BUSY,))], SLOS)
    assert "adaptive against a fixed setting (singles, 64 in flight): " in "".join(marked)


async def test_attempts_that_failed_are_told_of_the_recommended_setting(session):
    """One request of ten is refused, and the client's retries answer all calls."""
    begun = await session(server=SimulatedServer("gpu", faults=["status=500,rate=0.1"]), times=Times(0.2, 2, 30))
    (cell,) = await measured(begun, [Setting("singles", concurrency=8)], repeat=1)
    assert RETRIED.name in cell.marks
    assert cell.answered == cell.scheduled
    assert cell.retried / cell.scheduled == pytest.approx(0.1, abs=0.06)
    lines = lines_of_sweep([cell], [])
    assert (
        lines[1]
        == f"{cell.retried / cell.scheduled:.1%} of the calls needed another attempt: the server fails or refuses some requests."
    )
    assert lines[-1].startswith("suggested: ")


def test_lists_are_suggested_as_they_were_measured():
    (line,) = [each for each in lines_of_sweep([made(Setting("lists", 32, 48), 0, 10)], []) if "suggested" in each]
    assert line == (
        'suggested: BatchClient(…, limit=48, preset="throughput", batching=Batching(max_size=32, list_tokens=1000000,'
        " chat_list_tokens=1000000))"
    )
    setting = Setting("lists", 32, 48)
    assert options_of(setting) == {
        "limit": 48,
        "preset": "throughput",
        "batching": Batching(max_size=32, list_tokens=1_000_000, chat_list_tokens=1_000_000),
    }
    (line,) = [each for each in lines_of_sweep([made(Setting("singles", None, 4), 0, 10)], []) if "suggested" in each]
    assert "batching=Batching(max_size=1)" in line


@pytest.mark.parametrize("measure", [find, partial(sweep, strategies=["fixed"], concurrency=[2, 4], repeat=3)])
async def test_find_and_sweep_end_as_the_command_does(measure):
    async def end(*slos, faults=(), tokens=8, **options):
        server = SimulatorTransport(SimulatedServer("gpu", faults=faults))
        work = Workload(prompt_tokens=16, output_tokens=tokens)
        with pytest.raises(BenchFailed) as ended:
            await measure(URL, work, *slos, times=Times(1.0, 4.0, 5.0), transport=lambda *_: server, **options)
        return ended.value.message

    assert (await end(faults=["stall,after=40"])).startswith("no call was answered in the last two measurements: ")
    assert (await end(Slo("ttft p95<10s"), tokens=1)).startswith("slo ttft p95<10s: no answer to fixed tells this time")
    assert await end(faults=["stall"], budget_s=5.0) == "the first call had no answer within the budget"


def test_cells_in_which_calls_failed_recommend_nothing():
    found = [made(ONE, 0, 10), made(TWO, 0, 90, marks=(FAILED,))]
    assert best_of(summaries_of(found)).setting is ONE
    assert best_of(summaries_of(found[1:])) is None
    assert "no recommendation: calls failed" in lines_of_sweep(found[1:], [])[0]


def test_a_rate_that_falls_behind_is_not_recommended():
    slow, fast = Setting("fixed", rate=5.0), Setting("fixed", rate=9.0)
    found = [made(slow, 0, 5), made(fast, 0, 9, marks=(BEHIND,))]
    assert best_of(summaries_of(found, SLOS), SLOS).setting is slow
    line = lines_of_sweep(found[1:], SLOS)[0]
    assert line.endswith("no recommendation: calls arrived faster than they were answered (see the marks)")


def test_the_answer_says_why_nothing_is_compared():
    rival, slos = Setting("async-openai", concurrency=32), [Slo("p95<1s")]
    for theirs, why in (
        ({"marks": (BUSY,)}, "this machine was too busy to measure the server (see the marks)"),
        ({"marks": (FAILED,)}, "calls failed (see the marks)"),
        ({"slos": (0.5,)}, "none keeps p95 < 1 s"),
    ):
        lines = lines_of_sweep([made(ONE, 0, 10), made(rival, 0, 10, **theirs)], slos)
        assert f"AsyncOpenAI: {why}; nothing is compared." in lines


def test_settings_that_break_the_objective_are_not_recommended():
    slos = [Slo("p95<1s")]
    found = [made(ONE, 0, 10), made(TWO, 0, 90, slos=(0.9,))]
    assert best_of(summaries_of(found, slos), slos).setting is ONE
    assert "none keeps it" in lines_of_sweep([made(TWO, 0, 90, slos=(0.9,))], slos)[0]


def test_the_answer_names_the_setting_and_its_equals(dice):
    rival = Setting("async-openai", concurrency=32)
    found = [
        made(setting, repetition, rate * dice.gauss(1, 0.02))
        for repetition in range(3)
        for setting, rate in ((ONE, 100), (TWO, 100), (rival, 50))
    ]
    lines = lines_of_sweep(found, [Slo("p95<1s")])
    assert lines[0].startswith("p95 < 1 s: ")
    assert any(line.startswith("no difference seen to: ") for line in lines)
    assert any("against AsyncOpenAI (32 in flight): " in line for line in lines)
    assert lines[-1].startswith("suggested: BatchClient(…")


_written = {}
"""By options, what ``report`` made: the same in every test."""


@pytest.fixture
def report(virtually, session, tmp_path):
    """A report of a quick sweep, written down."""

    def make(name="r.json", **options):
        asked = tuple(options.items())
        if asked not in _written:
            _written[asked] = measured_report(**options)
        path = tmp_path / name
        write_report(_written[asked], path)
        return _written[asked], path

    def measured_report(**options):
        async def run():
            workload = Workload(prompt_tokens=16, output_tokens=4, prompts=[f"{CANARY} one", f"{CANARY} two"])
            begun = await session(
                Slo("p95<1s"), times=QUICK, workload=workload, api_key=f"key-{CANARY}", headers={"X-Own": CANARY}
            )
            found = await measured(begun, settings_of(["fixed", "lists"], concurrency=[4], sizes=[2]), **options)
            return report_of(begun, found, datetime.now(UTC), lines=lines_of_sweep(found, begun.slos))

        return virtually(run())

    return make


def test_a_report_is_read_as_it_was_written(report):
    written, path = report()
    assert read_report(path) == written
    told = json.loads(path.read_text())
    assert told["schema"] == 2
    cell = told["measurements"][0]
    assert {"setting", "scheduled", "answered", "unanswered", "failed"} <= cell.keys()
    assert cell["setting"].keys() == {"strategy", "size", "concurrency", "rate"}
    assert cell["times"]["latency"]["percentiles"].keys() == {"0.5", "0.9", "0.95", "0.99"}


def test_a_report_holds_no_text_and_no_key(report):
    _, path = report()
    assert CANARY not in path.read_text()


def test_a_report_against_itself_is_no_difference(report):
    written, _ = report(repeat=3)
    found = differences(written, written)
    assert found
    assert not any(each.comparison.is_difference for each in found)
    assert all(each.comparison.ratio == pytest.approx(1.0) for each in found)
    assert not any(Bound(text).is_broken(each) for each in found for text in ("goodput<0.99", "p95>1.01"))


def test_a_worse_report_breaks_its_bound(report):
    written, _ = report(repeat=3)
    slower = replace(
        written, measurements=tuple(replace(cell, goodput=cell.goodput * 0.8) for cell in written.measurements)
    )
    broken = [each for each in differences(written, slower) if Bound("goodput<0.95").is_broken(each)]
    assert len(broken) == 2


@pytest.mark.parametrize(("repeat", "counts"), [(1, 1), (2, 2), (3, 3)])
def test_a_server_that_answers_nothing_in_time_breaks_its_bound(report, repeat, counts):
    written, _ = report(repeat=repeat)
    dead = replace(written, measurements=tuple(replace(cell, goodput=0.0, times={}) for cell in written.measurements))
    for text in ("goodput<0.95", "p95>1.1"):
        assert len([each for each in differences(written, dead) if Bound(text).is_broken(each)]) == 2
        assert not any(Bound(text).is_broken(each) for each in differences(dead, written))
        assert not any(Bound(text).is_broken(each) for each in differences(dead, dead))


def test_repetitions_too_few_for_an_interval_all_have_to_be_beyond_a_bound(report):
    written, _ = report(repeat=2)
    rates = {cell.repetition: 100.0 + cell.repetition for cell in written.measurements}
    before = replace(
        written, measurements=tuple(replace(cell, goodput=rates[cell.repetition]) for cell in written.measurements)
    )

    def broken(*goodputs):
        after = [replace(cell, goodput=goodputs[cell.repetition]) for cell in before.measurements]
        return [
            each
            for each in differences(before, replace(before, measurements=tuple(after)))
            if Bound("goodput<0.95").is_broken(each)
        ]

    assert not broken(80.0, 99.0)
    assert len(broken(80.0, 90.0)) == 2


def test_other_workloads_are_named(report):
    written, _ = report()
    about = replace(written.about, workload=replace(written.about.workload, output_tokens=99))
    assert workload_differences(written, replace(written, about=about)) == ["output tokens: 4 and 99"]
    assert workload_differences(written, written) == []
    # A sweep that was stopped early lacks a setting.
    shorter = replace(written, measurements=written.measurements[:1])
    assert workload_differences(written, shorter) == [f"only the first report has: {written.measurements[1].setting}"]
    assert workload_differences(shorter, written) == []
    searched = replace(written, recommendation=Recommendation(4, None, "so", None, decided=True))
    assert workload_differences(searched, replace(searched, measurements=shorter.measurements)) == []


@pytest.mark.parametrize("text", ["", "goodput", "goodput=1", "speed<1", "p95<x"])
def test_what_is_no_bound_is_refused(text):
    with pytest.raises(ConfigError, match="goodput<0.95"):
        Bound(text)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("{", "no report, or a damaged one"),
        ("[]", "should be a dictionary"),
        ('{"cells": [], "schema": 1}', "it is of schema 1, and this version reads 2"),
        ('{"schema": 2}', "about: Field required"),
        ("[" * 100_000, "no report, or a damaged one"),
    ],
)
def test_what_is_no_report_is_refused(tmp_path, content, why):
    path = tmp_path / "r.json"
    path.write_text(content)
    with pytest.raises(ConfigError, match=why):
        read_report(path)


@pytest.mark.parametrize(
    ("place", "value", "why"),
    [
        (("schema",), "new", "it is of schema 'new', and this version reads 2"),
        (("objectives",), "p95<1s", r"objectives: Input should be a valid tuple"),
        (("objectives",), [3], r"objectives\.0: Input should be a valid string"),
        (("objectives",), ["fast"], "is no objective"),
        (("lines",), {"a": 1}, "lines: Input should be a valid tuple"),
        (("recommendation",), [1], "recommendation: Input should be a dictionary"),
        (("about", "server"), "localhost", r"about\.server: "),
        (("about", "workload", "spread"), "wide", r"about\.workload\.spread: Input should be a valid number"),
        (("about", "times", "warm_up_s"), None, r"about\.times\.warm_up_s: Input should be a valid number"),
        (("measurements",), 7, "measurements: Input should be a valid tuple"),
        (("measurements", 1), 7, r"measurements\.1: Input should be a dictionary"),
        (("measurements", 1, "scheduled"), "many", r"measurements\.1\.scheduled: Input should be a valid integer"),
        (("measurements", 1, "failed"), {"E": "x"}, r"measurements\.1\.failed\.E: Input should be a valid integer"),
        (("measurements", 1, "times", "latency"), 5, r"measurements\.1\.times\.latency: Input should be a dictionary"),
        (
            ("measurements", 1, "times", "latency", "percentiles", "0.95"),
            "x",
            r"percentiles\.0\.95: Input should be a valid",
        ),
        (("measurements", 1, "times", "latency", "intervals", "0.95"), [1], r"times\.latency\.intervals\.0\.95"),
        (("measurements", 1, "limit_changes"), [[1]], r"measurements\.1\.limit_changes\.0"),
        (("measurements", 1, "marks"), 1, r"measurements\.1\.marks: Input should be a valid tuple"),
        (("measurements", 1, "slo_hits"), [1_000_000], r"measurements\.1\.slo_hits: calls for each objective"),
        (("measurements", 1, "slo_hits"), [], r"measurements\.1\.slo_hits: calls for each objective"),
    ],
    ids=str,
)
def test_a_wrong_field_of_a_report_is_named(report, place, value, why):
    _, path = report()
    told = json.loads(path.read_text())
    part = told
    for name in place[:-1]:
        part = part[name]
    part[place[-1]] = value
    path.write_text(json.dumps(told))
    with pytest.raises(ConfigError, match=why) as refused:
        read_report(path)
    assert refused.value.message.startswith(f"{path}: ")


async def test_the_percentile_of_an_objective_is_read_again(session, tmp_path):
    begun = await session(Slo("p99.9<1s"), times=QUICK)
    written = report_of(begun, await measured(begun, [Setting("fixed", concurrency=4)], repeat=1), datetime.now(UTC))
    write_report(written, tmp_path / "r.json")
    assert read_report(tmp_path / "r.json") == written
    assert 0.999 in written.measurements[0].times["latency"].percentiles


def test_a_report_of_an_earlier_version_is_read(report):
    written, path = report()
    told = json.loads(path.read_text())
    for cell in told["measurements"]:
        assert cell.pop("retried") == cell.pop("bad") == 0
    path.write_text(json.dumps(told))
    assert read_report(path) == written
