"""Hours of mixed traffic on a real server: nothing that the process holds may grow. Opt-in: ``BATCHCLIENT_SOAK_S=3600``."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import time
from collections import Counter

import pytest

from batchclient import BatchClientError
from tests.gpu.loads import prompts
from tests.gpu.report import Report
from tests.gpu.targets import Target
from tests.soak.samples import descriptors, resident_bytes, tasks

pytestmark = pytest.mark.gpu

SOAK_S = float(os.environ.get("BATCHCLIENT_SOAK_S") or 0)
WARM_UP_SHARE = 0.25
GROWTH_BYTES = 64 * 2**20
"""What may be added after the warm-up, however long it takes: buffers and pools settle, a leak does not."""


def test_hours_of_mixed_traffic_leave_nothing_behind(target: Target, report: Report) -> None:
    if not SOAK_S:
        pytest.skip("opt-in: set BATCHCLIENT_SOAK_S to its length in seconds, such as 3600")
    ends: Counter[str] = Counter()
    samples: list[tuple[int, int]] = []

    async def story() -> None:
        until = time.monotonic() + SOAK_S
        async with target.client() as client:

            async def caller() -> None:
                while time.monotonic() < until:
                    texts = prompts(random.randint(1, 32), words=random.randint(1, 200))
                    timeout_s = random.choice((None, None, 5.0, 0.05))
                    tokens = random.choice((1, 4, 16, 64))
                    calls = [
                        asyncio.ensure_future(client.complete(t, max_tokens=tokens, timeout_s=timeout_s)) for t in texts
                    ]
                    if random.random() < 0.1:
                        await asyncio.sleep(random.uniform(0, 0.05))
                        for call in calls[::2]:
                            call.cancel()
                    for outcome in await asyncio.gather(*calls, return_exceptions=True):
                        ends[type(outcome).__name__] += 1
                        assert not isinstance(outcome, Exception) or isinstance(outcome, BatchClientError), outcome

            async def watcher() -> None:
                while time.monotonic() < until:
                    await asyncio.sleep(min(1.0, SOAK_S / 60))
                    gc.collect()
                    samples.append((resident_bytes(), len(descriptors())))

            await asyncio.gather(watcher(), *[caller() for _ in range(8)])
            await client.drain()
            assert client.statistics().in_flight == 0
        assert tasks() <= 1

    asyncio.run(story())
    after = samples[int(len(samples) * WARM_UP_SHARE) :]
    grown = max(size for size, _ in after[len(after) // 2 :]) - max(size for size, _ in after[: len(after) // 2])
    report.figure(
        "soak", "memory, second half above first", grown / 2**20, "MiB", seconds=SOAK_S, kind=target.kind, **ends
    )
    assert ends["Completion"] > 0
    assert grown < GROWTH_BYTES
    assert max(count for _, count in after) < 1000
