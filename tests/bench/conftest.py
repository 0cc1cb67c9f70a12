"""Sessions on a simulated server in virtual time."""

import asyncio
import random

import pytest

from batchclient.bench.generator import Times
from batchclient.bench.intervals import Interval
from batchclient.bench.measurement import Figures, Measurement
from batchclient.bench.session import begin
from batchclient.bench.workload import Workload
from batchclient.simulator import SimulatedServer, SimulatorTransport
from batchclient.testing import VirtualLoop

URL = "http://simulated/v1"
SHORT = Workload(prompt_tokens=32, output_tokens=8)
QUICK = Times(warm_up_s=0.5, window_s=2.0, grace_s=10.0)


def made(setting, repetition, rate, latency_s=0.1, slos=(1.0,), marks=(), **fields):
    """A measurement with a throughput and a latency."""
    shares = (0.5, 0.9, 0.95, 0.99)
    figures = Figures(
        dict.fromkeys(shares, latency_s), dict.fromkeys(shares, Interval(latency_s, latency_s * 1.01)), latency_s
    )
    calls = 1000
    return Measurement(
        setting, repetition, 10.0, calls, calls, 0, {}, {"latency": figures}, rate, rate * 100, rate * 50, 50.0, 50.0,
        1.0, rate, slos, tuple(round(share * calls) for share in slos), 8.0, marks=tuple(mark.name for mark in marks), **fields,
    )  # fmt: skip


@pytest.fixture
def virtually():
    """Run a coroutine in virtual time."""

    def run(coroutine):
        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            return runner.run(coroutine)

    return run


@pytest.fixture
def session():
    """Begin a session on a simulated server, in virtual time."""

    async def make(*slos, profile="gpu", workload=SHORT, times=QUICK, server=None, **options):
        transport = SimulatorTransport(server or SimulatedServer(profile))
        options = {"cpu_s": lambda: 0.0, **options}
        return await begin(URL, workload, times, slos, transport=lambda url, headers: transport, **options)

    return make


@pytest.fixture
def dice():
    return random.Random(20_261_126)
