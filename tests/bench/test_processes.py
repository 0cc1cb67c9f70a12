"""``AsyncOpenAI`` in several processes, on a server of real sockets."""

import asyncio
import json
import subprocess
import sys
from array import array

import pytest
from tests.bench.conftest import URL

from batchclient.bench import BenchFailed, Closed, Poisson, Setting, Times, Workload
from batchclient.bench.calls import Calls
from batchclient.bench.cell import FAILED, cell_of
from batchclient.bench.generator import Window
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


def test_a_process_that_is_late_by_its_own_work_has_company_and_the_first_try_is_in_no_output(monkeypatch):
    """The event loop was 20 ms late with 0.7 of a core; with two processes it is in time."""
    made, written = [], []

    def window(lag_s, cpu_share):
        calls = Calls()
        for place in range(200):
            at = 100.0 + place / 100
            calls.note_request(calls.begin(at, at), at)
            calls.answered(place, at + 0.05, 1, 1)
        return Window(calls, 100.0, 102.0, cpu_share, array("d", [lag_s] * 100))

    async def alone(*arguments):
        made.append(1)
        return window(0.02, 0.7)

    async def together(count, *arguments):
        made.append(count)
        return window(0.001, 0.4)

    monkeypatch.setattr("batchclient.bench.session.generate", alone)
    monkeypatch.setattr("batchclient.bench.session.generate_in_processes", together)
    monkeypatch.setattr("os.cpu_count", lambda: 4)

    async def run(server):
        session = Session(Target(server.base_url, server.model), None, WORKLOAD, Times(0, 2, 5))
        session.on_window = lambda setting, repetition, window: written.append(window)
        return await session.cell(Setting("async-openai", rate=100.0))

    with EmbeddedServer("instant") as server:
        measured = asyncio.run(run(server))
    assert made == [1, 2]
    assert measured.marks == ()
    assert [each.cpu_share for each in written] == [0.4]


def test_an_answer_that_is_no_json_is_a_failed_call_of_the_rival():
    """A proxy's page in place of an answer: the client raises what it happens to raise."""

    async def run(server):
        session = Session(Target(server.base_url, server.model), None, WORKLOAD, Times(0, 0.3, 5))
        return await session.cell(Setting("async-openai", concurrency=2))

    with EmbeddedServer("instant", faults=["html"]) as server:
        measured = asyncio.run(run(server))
    assert measured.answered == 0
    assert sum(measured.failed.values()) == measured.scheduled > 0
    assert FAILED in measured.marks


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
