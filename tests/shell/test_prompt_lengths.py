"""How long prompts are expected to be, against what a server counts: texts of several scripts through a whole client."""

import anyio
import pytest
from tests.seams import watch_cores
from tests.shell.scripted import make_client

from tests.core import Submitted
from batchclient.simulator import (
    SimulatedServer,
    SimulatorTransport,
    count_tokens,
)

LIBRARIES = ("asyncio",)

TEXTS = {
    "English": "The quick brown fox jumps over the lazy dog, and then it sleeps for a while. ",
    "Chinese": "批量推理把许多小请求合并成少数几个大请求，从而提高吞吐量。",
    "code": "def f(x):\n    return [y ** 2 for y in range(x) if y % 3 == 0]\n",
    "digits": "3.14159265358979323846 2718281828459045235 1414213562373095048 ",
    "emoji": "🎉🚀 ça va très bien, merci 🙂 ",
}


@pytest.fixture
def estimates(monkeypatch):
    """How many tokens each submitted prompt, as it is written in a request, was thought to have."""
    seen = {}

    def look(event):
        if type(event) is Submitted:
            seen[event.request.prompt] = event.request.prompt_tokens

    watch_cores(monkeypatch, told=look)
    return seen


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("max_tokens", [1, 32], ids=["plain", "streamed"])
async def test_estimates_are_within_a_few_percent_of_the_servers_count_after_some_calls(name, max_tokens, estimates):
    transport = SimulatorTransport(SimulatedServer("gpu", model="m"))
    client = make_client(transport, limit=64)
    guesses, seen = [], estimates
    async with client:

        async def call(repeats, number):
            prompt = f"{number}: " + TEXTS[name] * repeats
            answer = await client.complete(prompt, max_tokens=max_tokens)
            wire = next(wire for wire in seen if wire.decode().startswith(f'"{number}: '))
            guesses.append((number, seen[wire], len(wire) // 4 + 1, answer.usage.prompt_tokens))

        for start in range(0, 256, 32):
            async with anyio.create_task_group() as group:
                for number in range(start, start + 32):
                    group.start_soon(call, 1 + number % 17, number)
    late = [guess for guess in guesses if guess[0] >= 128]
    error = sum(abs(estimate - real) / real for _, estimate, _, real in late) / len(late)
    before = sum(abs(constant - real) / real for _, _, constant, real in late) / len(late)
    assert error < 0.08
    assert error < before


async def test_two_scripts_of_one_model_do_not_spoil_each_other(estimates):
    transport = SimulatorTransport(SimulatedServer("gpu", model="m"))
    client = make_client(transport, limit=64)
    async with client:
        for number in range(40):
            async with anyio.create_task_group() as group:
                for name in ("English", "Chinese"):
                    group.start_soon(client.complete, f"{number}{TEXTS[name] * 3}")
        for name in ("English", "Chinese"):
            estimates.clear()
            await client.complete(TEXTS[name] * 3)
            (estimate,) = estimates.values()
            assert estimate == pytest.approx(count_tokens(TEXTS[name] * 3), rel=0.1)
