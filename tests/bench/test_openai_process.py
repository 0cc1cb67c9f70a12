"""``AsyncOpenAI`` in its process, on a server of real sockets."""

import asyncio
import json
import subprocess
import sys

import pytest
from tests.bench.conftest import URL

from batchclient.bench import BenchFailed, Poisson, Setting, Times, Workload
from batchclient.bench.marks import FAILED
from batchclient.bench.openai_process import answers_in_process
from batchclient.bench.session import Session
from batchclient.bench.strategies import Target
from batchclient.simulator import EmbeddedServer, expected_text

WORKLOAD = Workload(prompt_tokens=16, output_tokens=4)
COMMAND = [sys.executable, "-c", "from batchclient.bench.openai_process import main; main()"]


def measure(server, setting, times, workload=WORKLOAD, windows=None, **options):
    async def run():
        target = Target(server.base_url, server.model, **options)
        session = Session(target, None, server.model, workload, times, seed=1)
        session.on_window = lambda setting, repetition, window: windows is None or windows.append(window)
        return await session.measure(setting), session.first_number

    return asyncio.run(run())


def test_the_process_makes_the_calls_of_the_schedule_with_the_servers_key():
    windows, times = [], Times(0.2, 0.8, 5)
    with EmbeddedServer("instant", api_key="key") as server:
        measured, number = measure(server, Setting("async-openai", rate=60.0), times, windows=windows, api_key="key")
        prompts = server.prompts
    (window,) = windows
    # The arrivals are those that this process would make; so is their number, also on a busy machine.
    drawn = [at for at in Poisson(60.0).times(1.0, 1_000_003) if at >= 0.2]
    counted = sorted(at - window.begins + 0.2 for at in window.calls.scheduled if window.begins <= at < window.ends)
    assert counted == pytest.approx(drawn)
    assert measured.answered == measured.scheduled == len(drawn) <= prompts
    assert measured.failed == {} and measured.retried == 0
    assert set(measured.list_sizes) == {1} and measured.times["server"].max > 0
    # No prompt of the process comes again in the session.
    assert number > len(window.calls)


def test_a_process_that_fails_is_no_quiet_measurement(capfd):
    async def run():
        session = Session(Target(URL), None, "m", WORKLOAD, Times(0, 1, 1))
        await session.measure(Setting("async-openai", concurrency=-1, rate=1.0))

    with pytest.raises(BenchFailed, match="has failed"):
        asyncio.run(run())
    assert "Traceback" in capfd.readouterr().err


def test_a_process_whose_parent_is_gone_makes_no_more_calls():
    job = {
        "job": "window",
        "target": {"base_url": URL, "model": "m", "api_key": None, "fields": {}, "headers": {}},
        "workload": {"prompt_tokens": 4, "output_tokens": 4},
        # The first arrival is hours away: no call is made in this test.
        "load": {"rate": 1e-6},
        "limit": None,
        "times": {"warm_up_s": 600, "window_s": 600, "grace_s": 600},
        "seed": 1,
        "first_number": 1,
    }
    pipe = subprocess.PIPE
    with subprocess.Popen(COMMAND, stdin=pipe, stdout=pipe, text=True) as process:
        try:
            process.stdin.write(json.dumps(job) + "\n")
            process.stdin.close()
            assert process.wait(30) == 1
        finally:
            process.kill()


def test_an_answer_that_is_no_json_is_a_failed_call():
    """A proxy's page in place of an answer: the client raises what it happens to raise."""
    with EmbeddedServer("instant", faults=["html"]) as server:
        measured, _ = measure(server, Setting("async-openai", concurrency=2), Times(0, 0.3, 5))
    assert measured.answered == 0
    assert sum(measured.failed.values()) == measured.scheduled > 0
    assert FAILED.name in measured.marks


def test_all_prompts_have_their_answers_in_their_order():
    prompts = [f"label {number}" for number in range(9)]
    with EmbeddedServer("instant") as server:
        texts, seconds, cpu_s = asyncio.run(answers_in_process(Target(server.base_url, server.model), prompts, 4, 3))
        requests = server.requests
    assert texts == [expected_text(prompt, max_tokens=4, temperature=0) for prompt in prompts]
    assert seconds > 0 and cpu_s > 0
    # One call more, before the clock starts.
    assert requests == 10
