"""``AsyncOpenAI`` in several processes, on a server of real sockets."""

import asyncio

import pytest

from batchclient.bench import Closed, Poisson, Setting, Times, Workload
from batchclient.bench.cell import cell_of
from batchclient.bench.processes import generate_in_processes
from batchclient.bench.strategies import Target
from batchclient.simulator import EmbeddedServer

WORKLOAD = Workload(prompt_tokens=16, output_tokens=4)


def test_two_processes_make_the_load_together():
    async def run(server):
        target = Target(server.base_url, server.model, api_key="key", fields={"ignore_eos": True})
        setting, times = Setting("async-openai", rate=60.0), Times(0.2, 0.8, 5)
        return await generate_in_processes(2, setting, target, WORKLOAD, Poisson(60.0), times, 1, 1000)

    with EmbeddedServer("instant", api_key="key") as server:
        window = asyncio.run(run(server))
        prompts = server.prompts
    measured = cell_of(Setting("async-openai", rate=60.0), 0, window)
    # Two draws of 30 a second; the number is the same on a busy machine.
    drawn = [at for seed in (1000, 1001) for at in Poisson(30.0).times(1.0, seed) if at >= 0.2]
    assert measured.answered == measured.scheduled == len(drawn)
    assert measured.failed == {}
    assert measured.answered <= prompts
    assert window.ends - window.begins == pytest.approx(0.8)


def test_a_process_that_fails_is_no_quiet_part_of_a_load():
    async def run():
        target = Target("no-url", "m")
        setting = Setting("no-strategy", concurrency=2)
        await generate_in_processes(2, setting, target, WORKLOAD, Closed(2), Times(0, 1, 1), 1, 1)

    with pytest.raises(RuntimeError, match="has failed"):
        asyncio.run(run())
