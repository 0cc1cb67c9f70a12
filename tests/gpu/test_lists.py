"""Lists on a vLLM: beside singles, and given up. What they answer is in tests/contract."""

from __future__ import annotations

import asyncio
import statistics
import time
from typing import Any

import pytest

from batchclient import Batching
from tests.gpu.loads import prompts
from tests.gpu.report import Report
from tests.gpu.targets import Target

pytestmark = pytest.mark.gpu

RUNNING = "vllm:num_requests_running"


def run(coroutine: Any) -> Any:
    return asyncio.run(asyncio.wait_for(coroutine, 600))


def test_a_list_takes_no_longer_than_singles(vllm: Target, report: Report) -> None:
    async def story(max_size: int) -> float:
        async with vllm.client(limit=64, batching=Batching(max_size=max_size)) as client:
            await client.complete("warm up", max_tokens=1)
            started = time.monotonic()
            await client.batch_map(prompts(1024), "{}", max_tokens=1, temperature=0)
            return time.monotonic() - started

    pairs = [(run(story(64)), run(story(1))) for _ in range(3)]
    ratio = statistics.median(single / together for together, single in pairs)
    report.figure("lists", "prompts/s, lists of up to 64 / singles", ratio, "×", max_tokens=1, prompts=1024)
    assert ratio > 0.9


def test_an_abandoned_list_stops_on_the_server(vllm: Target) -> None:
    async def story() -> None:
        async with vllm.client() as client:
            calls = [client.complete(text, max_tokens=1900, ignore_eos=True) for text in prompts(16)]
            tasks = [asyncio.create_task(call) for call in calls]
            await vllm.until(lambda: vllm.gauge(RUNNING) >= 8, 60)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            cancelled = time.monotonic()
            while await asyncio.to_thread(vllm.gauge, RUNNING) > 1:
                # An engine with nothing to do says nothing: its gauge keeps the last value until the next step.
                await client.complete("a", max_tokens=1)
                assert time.monotonic() - cancelled < 30
            assert client.statistics().abandoned == 0

    run(story())
