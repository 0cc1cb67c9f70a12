"""The limit that finds itself, on a real server: beside a sweep, under a KV cache that is too small, and with prefixes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from batchclient import AdaptiveLimit, Adjustment
from tests.gpu.loads import by_us, count_for, fixed_length, prompts
from tests.gpu.machine import Found
from tests.gpu.report import Report
from tests.gpu.servers import LocalVllm
from tests.gpu.targets import Target
from tests.live.test_prefixes import test_a_shuffled_input_hits_the_cache_as_one_grouped_by_hand_does as grouped_by_hand

pytestmark = pytest.mark.gpu

SWEEP = (4, 16, 64, 256)
MAX_TOKENS = 16
PREEMPTIONS = "vllm:num_preemptions_total"
ENOUGH = 0.7
"""What a found limit must reach of the best of the sweep, the time it takes to find it included."""

# The prefix cases of tests/live, on the server of this suite (the fixture `tight`).
test_a_shuffled_input_hits_the_cache_as_one_grouped_by_hand_does = grouped_by_hand


def run(coroutine: Any) -> Any:
    return asyncio.run(asyncio.wait_for(coroutine, 900))


@pytest.fixture(scope="module")
def sweep(vllm: Target, report: Report) -> tuple[int, float]:
    """(how many prompts a run has, the best prompts/s of the numbers in ``SWEEP``)."""

    async def story() -> tuple[int, dict[int, float]]:
        count = await count_for(vllm, MAX_TOKENS)
        rates = {}
        for limit in SWEEP:
            rates[limit] = (await by_us(vllm, prompts(count), MAX_TOKENS, limit=limit)).prompts_per_s
        return count, rates

    count, rates = run(story())
    for limit, rate in rates.items():
        report.figure(
            "limits", "a number as limit", rate, "prompts/s", limit=limit, max_tokens=MAX_TOKENS, prompts=count
        )
    return count, max(rates.values())


def test_a_found_limit_comes_near_the_best_of_a_sweep(vllm: Target, report: Report, sweep: tuple[int, float]) -> None:
    count, best = sweep
    rates = [run(by_us(vllm, prompts(count), MAX_TOKENS, limit="auto")).prompts_per_s for _ in range(2)]
    report.figure("limits", "found / best of the sweep", max(rates) / best, "×", max_tokens=MAX_TOKENS, prompts=count)
    assert max(rates) >= ENOUGH * best


def test_a_time_that_is_asked_for_lowers_the_limit(vllm: Target, report: Report) -> None:
    """A millisecond is less than any answer takes: the limit falls, and the client says why. It is let go where that does not help."""

    async def story() -> list[Adjustment]:
        async with vllm.client(limit=AdaptiveLimit(max=128, p95_latency_s=0.001)) as client:
            # A window of an objective has 1,000 answers, or lasts for five seconds.
            await client.batch_map(prompts(3000), "{}", max_tokens=MAX_TOKENS, **fixed_length(vllm))
            return [change for change in client.statistics().adjustments if change.setting == "limit"]

    changes = run(story())
    lowest = min((change.new for change in changes), default=128)
    report.figure("limits", "lowest limit under a latency that cannot be kept", lowest, "sequences", before=128)
    assert lowest < 128
    assert all(change.reason for change in changes)


def test_a_small_kv_cache_is_not_thrashed(own_vllm: Found, report: Report) -> None:
    """Room for about 9 of these answers at their full length. A flood is preempted again and again; a limit that begins low stays where
    more in flight brings nothing. (One that begins at 128 has all these prompts under way before it can learn anything.)
    """
    with LocalVllm(own_vllm, kv_tokens=4096) as process:
        tight = Target.of_process(process, 2048)

        async def story() -> dict[str, tuple[float, float]]:
            results = {}
            for name, settings in (
                ("flood", {"limit": 64, "probe": False}),
                ("found", {"limit": AdaptiveLimit(start=8)}),
            ):
                before = tight.gauge(PREEMPTIONS)
                done = await by_us(tight, prompts(96), 448, **settings)
                results[name] = (tight.gauge(PREEMPTIONS) - before, done.prompts_per_s)
            return results

        results = run(story())
    for name, (preemptions, rate) in results.items():
        report.figure("limits", f"{name}: preemptions", preemptions, "", kv_tokens=4096, prompts=96, max_tokens=448)
        report.figure("limits", f"{name}: prompts/s", rate, "prompts/s", kv_tokens=4096, prompts=96, max_tokens=448)
    assert results["flood"][0] > 0, "the flood was not preempted: the cache is not small"
    assert results["found"][0] < results["flood"][0]
    assert results["found"][1] > ENOUGH * results["flood"][1]


def test_a_second_pass_over_the_same_prompts_hits_the_prefix_cache(vllm: Target, report: Report) -> None:
    names = [f"vllm:prefix_cache_{what}_total" for what in ("hits", "queries")]
    texts = prompts(64, words=200)

    async def story() -> float:
        await by_us(vllm, texts, 1)
        before = [vllm.gauge(name) for name in names]
        await by_us(vllm, texts, 1)
        hits, queries = (vllm.gauge(name) - old for name, old in zip(names, before, strict=True))
        return hits / queries

    share = run(story())
    report.figure("prefixes", "prompt tokens found in the cache, second pass", share, "share", prompts=64, words=200)
    assert share > 0.5
