"""Interactive calls amid a deep queue of background work, on the embedded server in virtual time."""

from __future__ import annotations

import asyncio
import statistics

import pytest

from batchclient import BatchClient
from batchclient.simulator import SimulatedServer, SimulatorTransport
from tests.shell.clocks import run

pytestmark = pytest.mark.long

BACKGROUND = 10_000
INTERACTIVE = 60
LIMIT = 64


def make_client(**settings: object) -> BatchClient:
    server = SimulatedServer("gpu", model="m", output_lengths="lognormal:40:0.9")
    return BatchClient(
        "http://simulated/v1",
        model="m",
        limit=LIMIT,
        http=lambda url, headers: SimulatorTransport(server),
        **settings,
    )


async def interactive(client: BatchClient, priority: int) -> list[float]:
    """Seconds that calls took which come one every third of a second."""
    now = asyncio.get_running_loop().time
    taken: list[float] = []

    async def call(number: int) -> None:
        started = now()
        await client.complete(f"Question {number}?", max_tokens=64, temperature=0, priority=priority)
        taken.append(now() - started)

    await asyncio.sleep(3.0)
    tasks = []
    for number in range(INTERACTIVE):
        tasks.append(asyncio.create_task(call(number)))
        await asyncio.sleep(1 / 3)
    await asyncio.gather(*tasks)
    return taken


async def amid_a_queue(preset: str, priority: int, callers: int) -> list[float]:
    """With so many callers of background work at once, each making its next call as soon as it has its answer."""
    async with make_client(preset=preset) as client:

        async def work(caller: int) -> None:
            for number in range(1_000_000):
                await client.complete(f"Background {caller} {number}", max_tokens=128, temperature=0)

        tasks = [asyncio.create_task(work(caller)) for caller in range(callers)]
        taken = await interactive(client, priority)
        snapshot = client.statistics()
        if callers > LIMIT:
            assert snapshot.priorities[0].queued >= callers - 2 * LIMIT, "the queue is deep until the end"
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return taken


@pytest.mark.parametrize("preset", ["latency", "balanced", "throughput"])
def test_interactive_calls_do_not_feel_a_queue_of_ten_thousand(preset: str) -> None:
    """At most 1.5 times the latency they have with as many sequences in flight and nobody queued."""
    # With these callers and one or two interactive calls at a time the server is as full, and nobody waits for a permit.
    alone = run(amid_a_queue, preset, 0, LIMIT - 4)
    amid = run(amid_a_queue, preset, 1, BACKGROUND)
    mean, p95 = statistics.fmean(amid) / statistics.fmean(alone), sorted(amid)[-3] / sorted(alone)[-3]
    print(f"{preset}: mean {mean:.2f}, p95 {p95:.2f} of {statistics.fmean(alone):.2f} s")
    assert mean <= 1.5
    assert p95 <= 1.5
