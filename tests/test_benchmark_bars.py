"""The bars of the benchmarks with ``--check``: what misses them, and what cannot be judged."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import pytest

pytestmark = pytest.mark.long

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture
def first_job(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module("first_job")


@pytest.fixture
def limits_vllm(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module("limits_vllm")


@pytest.fixture
def night(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module("night")


@pytest.fixture
def bulk(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module("bulk")


def job(ours: list[float], *rivals: list[float], failed: int = 0) -> dict:
    """A case: the seconds of the default client and of ``AsyncOpenAI``'s arms, round by round."""
    arms = {"batchclient": ours} | {f"AsyncOpenAI, {index}": took for index, took in enumerate(rivals)}
    runs = {name: [{"took_s": each, "failed": 0, "other": 0.0} for each in took] for name, took in arms.items()}
    runs["batchclient"][0]["failed"] = failed
    return {"cases": [{"cell": "64 × 64", "runs": runs}]}


def test_a_job_is_held_against_the_best_rival_of_its_own_round(first_job: ModuleType) -> None:
    assert first_job.shortfalls(job([1.0, 2.0, 1.0], [1.0, 4.0, 1.0], [3.0, 2.0, 3.0])) == []
    assert first_job.shortfalls(job([1.1, 2.2, 1.0], [1.0, 4.0, 1.0], [3.0, 2.0, 3.0])) == [
        "64 × 64: the median ratio is 1.10, above 1.05"
    ]


def test_one_slow_round_of_a_job_is_too_many(first_job: ModuleType) -> None:
    assert first_job.shortfalls(job([1.0, 1.2, 1.0], [1.0, 1.0, 1.0])) == [
        "64 × 64: the worst ratio is 1.20, above 1.15"
    ]


def test_a_failed_call_is_no_fast_job(first_job: ModuleType) -> None:
    assert first_job.shortfalls(job([0.1, 1.0, 1.0], [1.0, 1.0, 1.0], failed=1)) == [
        "64 × 64: the worst ratio is inf, above 1.15"
    ]


def test_a_bound_that_never_holds_makes_no_arm(first_job: ModuleType) -> None:
    def arms(calls: int) -> list[str]:
        return list(first_job.arms_of(first_job.Cell(calls, 1), {"limit=256": {"limit": 256}}))

    assert arms(64) == ["batchclient", "batchclient, limit=256", "AsyncOpenAI, all at once"]
    assert arms(300)[2:] == ["AsyncOpenAI, all at once", "AsyncOpenAI, 64", "AsyncOpenAI, 256"]
    assert "AsyncOpenAI, all at once, open pool" in arms(3000)


def case(rates: dict[str, float], *, noisy: str = "") -> dict:
    """A case with one window per arm; the window of ``noisy`` was disturbed."""
    runs = {name: [{"per_s": rate, "other": 0.9 if name == noisy else 0.1}] for name, rate in rates.items()}
    return {"case": "agents", "bars": {"best fixed": 0.9, "server_metrics=False": 0.95}, "runs": runs}


def test_a_limit_is_held_against_the_best_fixed_one_and_the_client_without_the_page(limits_vllm: ModuleType) -> None:
    rates = {"default": 90.0, "server_metrics=False": 94.0, "16": 70.0, "64": 100.0}
    assert limits_vllm.shortfalls([case(rates)], 0.3) == []
    assert limits_vllm.shortfalls([case(rates | {"default": 89.0})], 0.3) == [
        "agents: the default client's share of best fixed is 0.89, below 0.9",
        "agents: the default client's share of server_metrics=False is 0.95, below 0.95",
    ]


@pytest.mark.parametrize("noisy", ["default", "16"])
def test_a_bar_without_a_quiet_window_is_missed(limits_vllm: ModuleType, noisy: str) -> None:
    rates = {"default": 90.0, "server_metrics=False": 90.0, "16": 70.0, "64": 100.0}
    (first, *_) = limits_vllm.shortfalls([case(rates, noisy=noisy)], 0.3)
    assert first.startswith("agents: the default client's share of best fixed is not known")


def test_a_bar_against_an_arm_that_was_left_out_is_missed(limits_vllm: ModuleType) -> None:
    (said,) = limits_vllm.shortfalls([case({"default": 90.0, "64": 100.0})], 0.3)
    assert "server_metrics=False is not known" in said


def killed(**faults: object) -> dict:
    """The account of one kill of batchclient's job, beside a script that lost everything."""
    run = {"share": 0.5, "status": 0, "lost": 0, "torn": 0, "sent_again": 60, "output_after": {"twice": 0}} | faults
    lost = run | {"lost": 2000, "torn": 1}
    return {"runs": {"a script": [lost], "`batchclient map --resume`": [run]}, "most_sent_again": 1024}


@pytest.mark.parametrize(
    ("faults", "missed"),
    [
        ({}, []),
        ({"lost": 1}, ["killed at 0.50: {'lost': 1}"]),
        ({"torn": 1}, ["killed at 0.50: {'torn': 1}"]),
        ({"status": 1}, ["killed at 0.50: {'status': 1}"]),
        ({"output_after": {"twice": 2}}, ["killed at 0.50: {'twice': 2}"]),
        ({"sent_again": 1025}, ["killed at 0.50: {'sent_again': 1025}"]),
    ],
)
def test_a_killed_job_is_held_against_its_own_bars_alone(night: ModuleType, faults: dict, missed: list[str]) -> None:
    assert night.shortfalls(killed(**faults)) == missed


def test_an_output_is_counted_by_rows_lines_that_cannot_be_read_and_repeats(night: ModuleType, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    out.write_text('{"text": "row 000001 a"}\n{"text": "row 000001 a"}\n{"text": null}\n{"text": "row 0000')
    assert night.look(out) == {"answered": 1, "twice": 1, "torn": 1}
    assert night.look(tmp_path / "none") == {"answered": 0, "twice": 0, "torn": 0}


def test_a_long_job_is_judged_by_its_last_tenth_and_by_the_memory_after_its_first(bulk: ModuleType) -> None:
    samples = [(rows, rows / 10_000 if rows <= 900 else 0.09 + (rows - 900) / 1000, 50 + rows / 100) for rows in
               range(0, 1001, 50)]  # fmt: skip
    samples[3] = (150, 0.015, 99.0)
    told = bulk.shares_of(samples, 1000)
    assert told["last_rows_per_s"] == pytest.approx(1000) and told["rows_per_s"] == pytest.approx(1000 / 0.19)
    assert told["growth_mib"] == pytest.approx(99 - 51) and told["peak_mib"] == 99


def test_the_bars_of_a_long_job(bulk: ModuleType) -> None:
    good = {
        "rows": 1_000_000,
        "last_rows_per_s": 20_000,
        "growth_mib": 20,
        "resume_s": 15,
        "resume_mib": 150,
        "requests": 0,
    }
    assert bulk.shortfalls({"command": good, "map": {"rows": 5, "last_rows_per_s": 30_000, "growth_mib": 1}}) == []
    bad = {
        "rows": 1_000_000,
        "last_rows_per_s": 19_999,
        "growth_mib": 21,
        "resume_s": 16,
        "resume_mib": 151,
        "requests": 1,
    }
    assert len(bulk.shortfalls({"command": bad})) == 5
    assert len(bulk.shortfalls({"command": bad | {"rows": 2_000_000}})) == 4, "the time is a million rows'"


def test_a_request_that_comes_within_a_rest_breaks_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that was sent while the refusal was on its way does not."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    odd_servers = importlib.import_module("odd_servers")
    refused = [(10.0, 8, 429), (10.05, 8, 429)]
    for at, broken in ((10.08, 0), (11.0, 1), (12.02, 1), (12.04, 0)):
        assert odd_servers.rests_broken([*refused, (at, 8, 200)], 2) == broken
    assert odd_servers.rests_broken([*refused, (11.0, 8, 200)], None) == 0
    assert odd_servers.refused([*refused, (11.0, 8, 200), (11.0, 0, 0)]) == 0.75
