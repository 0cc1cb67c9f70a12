"""Sweeps, summaries, reports and comparisons."""

import json
import random
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from batchclient.bench import BenchFailed, Interval, Setting, Slo, Times, Workload
from batchclient.bench.answer import lines_of_sweep
from batchclient.bench.cell import BUSY, FAILED, Cell, Figures
from batchclient.bench.compare import FIGURES, Bound, differences, workload_differences
from batchclient.bench.report import read_report, report_of, write_report
from batchclient.bench.summary import best_of, compared, summaries_of
from batchclient.bench.sweep import cells, order_of, settings_of
from batchclient.errors import ConfigError
from batchclient.simulator.server import SimulatedServer

CANARY = "swordfish"
QUICK = Times(0.2, 0.5, 5.0)


async def measured(session, settings, **options):
    return [cell async for cell in cells(session, settings, **options)]


def made(setting, repetition, rate, latency_s=0.1, slos=(1.0,), marks=()):
    """A cell with a throughput and a latency."""
    shares = (0.5, 0.9, 0.95, 0.99)
    figures = Figures(
        dict.fromkeys(shares, latency_s), dict.fromkeys(shares, Interval(latency_s, latency_s * 1.01)), latency_s
    )
    calls = 1000
    return Cell(
        setting, repetition, 10.0, calls, calls, 0, {}, {"latency": figures}, rate, rate * 100, rate * 50, 50.0, 50.0,
        1.0, rate, slos, tuple(round(share * calls) for share in slos), 8.0, marks=marks,
    )  # fmt: skip


ONE, TWO = Setting("fixed", concurrency=32), Setting("streamed", 32, 32)


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


def test_the_same_seed_gives_the_same_order_and_the_same_figures(virtually, session):
    settings = settings_of(["fixed", "singles"], concurrency=[2, 4])

    async def run(seed):
        return await measured(await session(times=QUICK, seed=seed), settings, repeat=2)

    first, again, other = virtually(run(1)), virtually(run(1)), virtually(run(2))
    assert first == again
    assert [cell.setting for cell in first] != [cell.setting for cell in other]
    assert {(cell.setting, cell.repetition) for cell in first} == {(each, n) for each in settings for n in (0, 1)}


def test_a_budget_is_kept_within_a_cell(virtually, session):
    async def run():
        begun = await session(times=QUICK)
        return await measured(begun, settings_of(["fixed"], concurrency=[1, 2, 3, 4]), budget_s=1.6)

    assert 1 <= len(virtually(run())) <= 2


def test_a_first_cell_without_an_answer_ends_the_sweep(virtually, session):
    async def run():
        server = SimulatedServer("gpu", faults=["status=400,after=1"])
        begun = await session(times=Times(0.0, 0.1, 1.0), server=server)
        await measured(begun, [Setting("singles", rate=50.0)])

    with pytest.raises(BenchFailed, match="BadRequest"):
        virtually(run())


def test_a_server_that_goes_away_ends_the_sweep_after_two_cells(virtually, session):
    seen = []

    async def run():
        begun = await session(times=Times(0.0, 0.1, 1.0), server=SimulatedServer("gpu", faults=["status=400,after=9"]))
        async for cell in cells(begun, [Setting("singles", concurrency=1)], repeat=9):
            seen.append(cell)

    with pytest.raises(BenchFailed, match="no call was answered in the last two measurements: .*BadRequest"):
        virtually(run())
    assert [bool(cell.answered) for cell in seen[-3:]] == [True, False, False]
    assert all(cell.calls_failed for cell in seen[-2:])


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


def test_cells_in_which_calls_failed_recommend_nothing():
    found = [made(ONE, 0, 10), made(TWO, 0, 90, marks=(FAILED,))]
    assert best_of(summaries_of(found)).setting is ONE
    assert best_of(summaries_of(found[1:])) is None
    assert "no recommendation: calls failed" in lines_of_sweep(found[1:], [])[0]


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


@pytest.fixture
def report(virtually, session, tmp_path):
    """A report of a quick sweep, written down."""

    def make(name="r.json", **options):
        async def run():
            workload = Workload(prompt_tokens=16, output_tokens=4, prompts=[f"{CANARY} one", f"{CANARY} two"])
            begun = await session(
                Slo("p95<1s"), times=QUICK, workload=workload, api_key=f"key-{CANARY}", headers={"X-Own": CANARY}
            )
            found = await measured(begun, settings_of(["fixed", "lists"], concurrency=[4], sizes=[2]), **options)
            return report_of(begun, found, datetime.now(UTC), lines=lines_of_sweep(found, begun.slos))

        made_report, path = virtually(run()), tmp_path / name
        write_report(made_report, path)
        return made_report, path

    return make


def test_a_report_is_read_as_it_was_written(report):
    written, path = report()
    assert read_report(path) == written
    told = json.loads(path.read_text())
    assert told["schema"] == 1
    cell = told["cells"][0]
    assert {"strategy", "size", "concurrency", "rate", "scheduled", "answered", "unanswered", "failed"} <= cell.keys()
    assert cell["times"]["latency"].keys() == {"p50", "p90", "p95", "p99", "max", "intervals"}


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
    slower = replace(written, cells=tuple(replace(cell, goodput=cell.goodput * 0.8) for cell in written.cells))
    broken = [each for each in differences(written, slower) if Bound("goodput<0.95").is_broken(each)]
    assert len(broken) == 2


def test_other_workloads_are_named(report):
    written, _ = report()
    about = {**written.about, "workload": {**written.about["workload"], "output_tokens": 99}}
    assert workload_differences(written, replace(written, about=about)) == ["output tokens: 4 and 99"]
    assert workload_differences(written, written) == []


@pytest.mark.parametrize("text", ["", "goodput", "goodput=1", "speed<1", "p95<x"])
def test_what_is_no_bound_is_refused(text):
    with pytest.raises(ConfigError, match="goodput<0.95"):
        Bound(text)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("{", "damaged"),
        ("[]", "no report"),
        ('{"cells": []}', "schema None"),
        ('{"schema": 1, "cells": [{}]}', "damaged"),
    ],
)
def test_what_is_no_report_is_refused(tmp_path, content, why):
    path = tmp_path / "r.json"
    path.write_text(content)
    with pytest.raises(ConfigError, match=why):
        read_report(path)
