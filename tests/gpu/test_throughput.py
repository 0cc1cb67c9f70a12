"""What HTTP and this client cost, measured against the engine itself, and against AsyncOpenAI + gather, on the same server."""

from __future__ import annotations

import asyncio
import statistics
from typing import Any

import pytest

from tests.gpu.loads import Run, by_engine, by_openai, by_us, count_for, prompts
from tests.gpu.machine import Found
from tests.gpu.report import Report
from tests.gpu.servers import model_size
from tests.gpu.targets import Target

pytestmark = pytest.mark.gpu

LENGTHS = (1, 32, 256)
IN_FLIGHT = (64, 256)
PAIRS = 3
FASTER_THAN_THE_ENGINE = 1.2
"""A ratio above this says that the measurement is wrong, not that the client is good."""
LEAST_OF_THE_ENGINE = 0.25
"""Where generating takes most of the time: a client that lets the engine wait for longer than it works has failed."""


def run(coroutine: Any) -> Any:
    return asyncio.run(asyncio.wait_for(coroutine, 1800))


@pytest.fixture(scope="module")
def counts(vllm: Target) -> dict[int, int]:
    """How many prompts make a run of a few seconds, by ``max_tokens``."""
    return {max_tokens: run(count_for(vllm, max_tokens)) for max_tokens in LENGTHS}


@pytest.fixture(scope="module")
def engine(vllm: Target, found: Found, counts: dict[int, int]) -> dict[int, Run]:
    """The engine's own runs, all in one process."""
    if found.python is None or vllm.process is None:
        pytest.skip("needs a vLLM that this run started: only then is the engine's model and memory known")
    return by_engine(found, counts)


@pytest.mark.parametrize("max_tokens", LENGTHS)
def test_prompts_over_http_against_the_engine_itself(
    vllm: Target, found: Found, engine: dict[int, Run], counts: dict[int, int], report: Report, max_tokens: int
) -> None:
    own = engine[max_tokens]
    runs = [run(by_us(vllm, prompts(counts[max_tokens]), max_tokens)) for _ in range(PAIRS)]
    rate = statistics.median(done.prompts_per_s for done in runs)
    conditions = {"model": model_size(found), "max_tokens": max_tokens, "prompts": counts[max_tokens]}
    report.figure("throughput", "LLM.generate", own.prompts_per_s, "prompts/s", **conditions)
    report.figure("throughput", "LLM.generate", own.tokens_per_s, "tokens/s", **conditions)
    report.figure("throughput", "this client over HTTP", rate, "prompts/s", **conditions)
    report.figure("throughput", "this client over HTTP", rate * max_tokens, "tokens/s", **conditions)
    report.figure("throughput", "this client / LLM.generate", rate / own.prompts_per_s, "×", **conditions)
    assert rate / own.prompts_per_s < FASTER_THAN_THE_ENGINE
    if max_tokens == max(LENGTHS):
        assert rate / own.prompts_per_s > LEAST_OF_THE_ENGINE


@pytest.mark.parametrize("max_tokens", LENGTHS)
def test_prompts_against_async_openai(
    vllm: Target, found: Found, counts: dict[int, int], report: Report, max_tokens: int
) -> None:
    """Against it at its best of two numbers in flight; pairs in turn."""
    rates: list[float] = []
    cpu: list[float] = []
    for _ in range(PAIRS):
        count = counts[max_tokens]
        theirs = [run(by_openai(vllm, prompts(count), max_tokens, in_flight)) for in_flight in IN_FLIGHT]
        best = max(theirs, key=lambda done: done.prompts_per_s)
        ours = run(by_us(vllm, prompts(count), max_tokens))
        rates.append(ours.prompts_per_s / best.prompts_per_s)
        cpu.append(ours.cpu_s / best.cpu_s)
    conditions = {"model": model_size(found), "max_tokens": max_tokens, "prompts": counts[max_tokens]}
    report.figure("throughput", "this client / AsyncOpenAI at its best", statistics.median(rates), "×", **conditions)
    report.figure("throughput", "CPU of this client / of AsyncOpenAI", statistics.median(cpu), "×", **conditions)
    assert statistics.median(rates) > 0.9
    assert statistics.median(cpu) < 1
