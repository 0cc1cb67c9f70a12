"""The bars of ``benchmarks/first_job.py --check`` and ``benchmarks/limits_vllm.py --check``: what misses them, and what cannot be judged."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture
def first_job(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module("first_job")


@pytest.fixture
def limits_report(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module("_limits_report")


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


def test_a_limit_is_held_against_the_best_fixed_one_and_the_client_without_the_page(limits_report: ModuleType) -> None:
    rates = {"default": 90.0, "server_metrics=False": 94.0, "16": 70.0, "64": 100.0}
    assert limits_report.shortfalls([case(rates)], 0.3) == []
    assert limits_report.shortfalls([case(rates | {"default": 89.0})], 0.3) == [
        "agents: the default client's share of best fixed is 0.89, below 0.9",
        "agents: the default client's share of server_metrics=False is 0.95, below 0.95",
    ]


@pytest.mark.parametrize("noisy", ["default", "16"])
def test_a_bar_without_a_quiet_window_is_missed(limits_report: ModuleType, noisy: str) -> None:
    rates = {"default": 90.0, "server_metrics=False": 90.0, "16": 70.0, "64": 100.0}
    (first, *_) = limits_report.shortfalls([case(rates, noisy=noisy)], 0.3)
    assert first.startswith("agents: the default client's share of best fixed is not known")


def test_a_bar_against_an_arm_that_was_left_out_is_missed(limits_report: ModuleType) -> None:
    (said,) = limits_report.shortfalls([case({"default": 90.0, "64": 100.0})], 0.3)
    assert "server_metrics=False is not known" in said
