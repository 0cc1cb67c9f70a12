"""Sessions on a simulated server in virtual time."""

import asyncio
import random

import pytest

from batchclient.bench.generator import Times
from batchclient.bench.session import begin
from batchclient.bench.workload import Workload
from batchclient.simulator.server import SimulatedServer
from batchclient.simulator.transport import SimulatorTransport
from batchclient.testing import VirtualLoop

URL = "http://simulated/v1"
SHORT = Workload(prompt_tokens=32, output_tokens=8)
QUICK = Times(warm_up_s=0.5, window_s=2.0, grace_s=10.0)


@pytest.fixture
def virtually():
    """Run a coroutine in virtual time."""

    def run(coroutine):
        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            return runner.run(coroutine)

    return run


@pytest.fixture
def session():
    """Begin a session on a simulated server; call within ``virtually``."""

    async def make(*slos, profile="gpu", workload=SHORT, times=QUICK, server=None, **options):
        transport = SimulatorTransport(server or SimulatedServer(profile))
        options = {"cpu_s": lambda: 0.0, **options}
        return await begin(URL, workload, times, slos, transport=lambda url, headers: transport, **options)

    return make


@pytest.fixture
def dice():
    return random.Random(20_261_126)
