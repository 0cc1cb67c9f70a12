"""A server that is killed while it works and started again on its port: every call with time left gets its answer."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from tests.gpu.loads import fixed_length, prompts
from tests.gpu.machine import Found
from tests.gpu.report import Report
from tests.gpu.servers import LocalVllm
from tests.gpu.targets import Target
from tests.live.server_process import free_port

pytestmark = pytest.mark.gpu

CALLS = 1000
BOOT_S = 600.0


def test_calls_outlive_a_restart(own_vllm: Found, report: Report) -> None:
    process = LocalVllm(own_vllm, port=free_port())
    process.start()
    try:
        target = Target.of_process(process, 2048)

        async def story() -> tuple[list[Any], float, float]:
            async with target.client(outage_patience_s=BOOT_S) as client:
                params = {"max_tokens": 16, "temperature": 0, **fixed_length(target)}
                texts = prompts(CALLS)
                tasks = [asyncio.create_task(client.complete(text, timeout_s=2 * BOOT_S, **params)) for text in texts]
                while client.statistics().succeeded < CALLS // 10:
                    await asyncio.sleep(0.01)
                assert not all(task.done() for task in tasks)
                await asyncio.to_thread(process.kill)
                killed = time.monotonic()
                await asyncio.to_thread(process.start)
                back_s = time.monotonic() - killed
                return await asyncio.gather(*tasks), back_s, time.monotonic() - killed

        answers, back_s, whole_s = asyncio.run(asyncio.wait_for(story(), 3 * BOOT_S))
    finally:
        process.stop()
    report.figure("outage", "from the kill until it is healthy again", back_s, "s", calls=CALLS)
    report.figure("outage", "from the kill until all are answered", whole_s, "s", calls=CALLS)
    assert [answer.usage.completion_tokens for answer in answers] == [16] * CALLS
