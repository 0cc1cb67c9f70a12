"""Several servers behind one client: engines in virtual time, so that throughput is a number and no guess."""

import anyio
import pytest

from batchclient import BatchClient
from batchclient.simulator import SimulatedServer, SimulatorTransport
from batchclient.simulator.profiles import Profile

LIBRARIES = ("asyncio",)
"""How a call is placed has nothing to do with the event loop."""

# 64 sequences: 10 ms for the memory and 0.1 ms each for the arithmetic, so that the knee is at 100.
COSTS = Profile("t", "", step_s=0.010, sequence_s=0.0001, prefill_token_s=5e-6, max_num_seqs=256, kv_tokens=1_000_000)
LIMIT = 64
SECONDS = 40.0
WARM_UP_S = 4.0


def make_fleet(*servers, **arguments):
    """A client whose endpoints are these simulated servers."""
    urls = [f"http://server-{number}/v1" for number in range(len(servers))]
    arguments = {"limit": LIMIT, "model": "simulated", **arguments}
    client = BatchClient(urls, **arguments)
    transports = {url: SimulatorTransport(server) for url, server in zip(urls, servers, strict=True)}
    client._make_transport = transports.__getitem__
    return client


def server(speed=1.0, **arguments):
    return SimulatedServer(COSTS, speed=speed, output_lengths="lognormal:24:0.5", **arguments)


async def throughput(client, callers, seconds=SECONDS, meanwhile=None):
    """Answers per second of so many callers, each of whom calls again and again."""
    answers = []

    async def caller(number):
        for turn in range(1_000_000):
            await client.complete(f"caller {number}, turn {turn}", max_tokens=64)
            answers.append(anyio.current_time())

    async with client, anyio.create_task_group() as group:
        start = anyio.current_time()
        for number in range(callers):
            group.start_soon(caller, number)
        if meanwhile is not None:
            group.start_soon(meanwhile)
        await anyio.sleep_until(start + seconds)
        group.cancel_scope.cancel()
    counted = [at for at in answers if at >= start + WARM_UP_S]
    return len(counted) / (seconds - WARM_UP_S)


@pytest.mark.parametrize("preset", ["latency", "balanced"])
async def test_a_replica_three_times_slower_takes_its_share_of_a_deep_queue(preset):
    fast, slow = [await throughput(make_fleet(server(speed), preset=preset), 200, 20.0) for speed in (1.0, 1 / 3)]
    assert fast == pytest.approx(3 * slow, rel=0.1)
    both = await throughput(make_fleet(server(1 / 3), server(), preset=preset), 200, 20.0)
    assert both >= 0.9 * (fast + slow)


@pytest.mark.parametrize("callers", [4, 16, 48])
async def test_a_shallow_queue_stays_on_the_fast_replica(callers):
    """The ideal split is the best of all fixed ones: for these servers it is to leave the slow one alone."""
    ideal = 0.0
    for on_slow in (0, callers // 8, callers // 4, callers // 2):
        parts = [await throughput(make_fleet(server()), callers - on_slow, 20.0)]
        if on_slow:
            parts.append(await throughput(make_fleet(server(1 / 3)), on_slow, 20.0))
        ideal = max(ideal, sum(parts))
    both = await throughput(make_fleet(server(1 / 3), server()), callers)
    assert both >= 0.9 * ideal


@pytest.mark.parametrize("callers", [16, 200])
async def test_a_replica_that_becomes_three_times_slower_is_given_less(callers):
    first, second = server(), server()

    async def degrade():
        await anyio.sleep(WARM_UP_S)
        first.engine.slowdown = 3.0

    both = await throughput(make_fleet(first, second), callers, meanwhile=degrade)
    if callers > 2 * LIMIT:
        fast, slow = [await throughput(make_fleet(server(speed)), 100, 20.0) for speed in (1.0, 1 / 3)]
        ideal = fast + slow
    else:
        ideal = await throughput(make_fleet(server()), callers, 20.0)
    assert both >= 0.9 * ideal
