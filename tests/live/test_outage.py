"""A real vLLM is killed with SIGKILL while it works, and started again on the same port: every call with time left succeeds."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest

from batchclient import BatchClient
from tests.live.fixtures import OTHER_CORE, booted
from tests.live.servers import SAME_IN_ANY_COMPANY, VllmServer

pytestmark = pytest.mark.vllm

CALLS = 2000
BOOT_S = 240.0


@pytest.fixture(scope="module")
def mortal() -> Iterator[VllmServer]:
    """A server of our own to kill."""
    with booted(SAME_IN_ANY_COMPANY) as live:
        yield live.process


def test_every_call_with_time_left_outlives_a_killed_server(mortal: VllmServer) -> None:
    async def story() -> None:
        async with BatchClient(mortal.base_url, model=mortal.model, outage_patience_s=BOOT_S) as client:
            reference = [await client.complete(f"def f{i}(", max_tokens=16, temperature=0) for i in range(4)]
            calls = [
                asyncio.create_task(client.complete(f"def f{i}(", max_tokens=16, temperature=0, timeout_s=2 * BOOT_S))
                for i in range(CALLS)
            ]
            short = asyncio.create_task(client.complete("def g(", max_tokens=16, timeout_s=2.0))
            while client.statistics().succeeded < CALLS // 10:
                await asyncio.sleep(0.01)
            in_flight = client.statistics().in_flight
            await asyncio.to_thread(mortal.kill)
            killed_at = time.monotonic()
            assert not all(call.done() for call in calls)
            rebooted = VllmServer(SAME_IN_ANY_COMPANY, port=mortal.port, env=OTHER_CORE)
            try:
                await asyncio.to_thread(rebooted.start)
                back_s = time.monotonic() - killed_at
                answers = await asyncio.gather(*calls)
                whole_s = time.monotonic() - killed_at
            finally:
                await asyncio.to_thread(rebooted.stop)
            statistics = client.statistics()
            await asyncio.gather(short, return_exceptions=True)
        print(f"{in_flight} in flight when killed; back after {back_s:.1f} s, all answered after {whole_s:.1f} s")
        print(statistics)
        assert len(answers) == CALLS
        # Greedy decoding says the same before and after, to whoever asked.
        for before, after in zip(reference, answers, strict=False):
            assert after.text == before.text
        assert all(answer.usage is not None and answer.usage.completion_tokens > 0 for answer in answers)
        assert statistics.failed <= 1, "the one call whose time ran out"

    asyncio.run(asyncio.wait_for(story(), 3 * BOOT_S))
