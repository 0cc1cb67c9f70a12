"""``AsyncOpenAI`` in several processes, on a server of real sockets."""

import asyncio
import json
import subprocess
import sys

import pytest
from tests.bench.conftest import URL

from batchclient.bench import BenchFailed, Closed, Poisson, Setting, Times, Workload
from batchclient.bench.cell import cell_of
from batchclient.bench.processes import generate_in_processes
from batchclient.bench.session import Session
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
    # The arrivals are those of one process; so is their number, also on a busy machine.
    drawn = [at for at in Poisson(60.0).times(1.0, 1) if at >= 0.2]
    counted = sorted(at - window.begins + 0.2 for at in window.calls.scheduled if window.begins <= at < window.ends)
    assert counted == pytest.approx(drawn)
    assert measured.answered == measured.scheduled == len(drawn)
    assert set(window.calls.attempts) == {1}
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


def test_a_process_whose_parent_is_gone_makes_no_more_calls():
    command = [sys.executable, "-c", "from batchclient.bench.processes import main; main()"]
    told = {
        "setting": {"strategy": "async-openai", "concurrency": 1},
        "target": {"base_url": URL, "model": "m", "api_key": None, "fields": {}, "headers": {}},
        "workload": {"prompt_tokens": 4, "output_tokens": 4},
        "load": {"callers": 1},
        "times": {"warm_up_s": 600, "window_s": 600, "grace_s": 600},
        "seed": 1,
        "turn": [0, 1],
        "numbers": [1, 1],
    }
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        try:
            process.stdin.write(json.dumps(told) + "\n")
            process.stdin.flush()
            assert process.stdout.readline() == "ready\n"
            # Far in the future, by any clock: no call is made in this test.
            process.stdin.write("1e12\n")
            process.stdin.close()
            assert process.wait(30) == 1
        finally:
            process.kill()


def test_there_are_no_more_processes_than_callers(monkeypatch):
    """A cell of 8 callers needed four processes; the next cell has two callers."""
    counts = []

    async def noting(count, *arguments):
        counts.append(count)
        raise RuntimeError("enough")

    monkeypatch.setattr("batchclient.bench.session.generate_in_processes", noting)

    async def run(server):
        session = Session(Target(server.base_url, server.model), None, WORKLOAD, Times(0, 0.1, 5), processes=4)
        for callers in (8, 2):
            with pytest.raises(BenchFailed, match="enough"):
                await session.cell(Setting("async-openai", concurrency=callers))
        return await session.cell(Setting("async-openai", concurrency=1))

    with EmbeddedServer("instant") as server:
        measured = asyncio.run(run(server))
    assert counts == [4, 2]
    assert measured.answered == measured.scheduled > 0
