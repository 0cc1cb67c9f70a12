"""Faults and outages on the simulated server, in virtual time: nothing is lost, little is sent twice, and it soon goes on as before."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import pytest
from tests.shell.clocks import run

from batchclient import Backoff, BatchClient, BatchClientError, ConnectFailed, DeadlineExceeded
from batchclient.simulator import SimulatedServer, SimulatorTransport, expected_text
from batchclient.transport import Timeouts, WireRequest

pytestmark = pytest.mark.long

CALLS = 10_000


class Machine(SimulatorTransport):
    """A server that can be killed and started anew."""

    is_up = True
    refusals = 0

    async def send(self, request: WireRequest, timeouts: Timeouts):
        if not self.is_up:
            self.refusals += 1
            raise ConnectFailed("no connection: refused")
        return await super().send(request, timeouts)

    async def kill(self) -> None:
        self.is_up = False
        await self.aclose()

    def start(self) -> None:
        self.is_up = True


class SeededBackoff:
    """The default retry policy, with jitter that is the same in every run.

    One request in ten fails, and a call ends with its fifth failure: by chance one run in a hundred has such a call.
    """

    def __init__(self) -> None:
        self._rng = Random(7)

    def decide(self, failure: BatchClientError, attempt: int, elapsed_s: float, rng: Random) -> float | None:
        return Backoff().decide(failure, attempt, elapsed_s, self._rng)


def make_client(server: SimulatedServer | Machine, **settings: Any) -> BatchClient:
    """A client of a server in this process."""
    machine = server if isinstance(server, Machine) else Machine(server)
    arguments: dict[str, Any] = {"model": "m", "retry": SeededBackoff(), **settings}
    return BatchClient("http://simulated/v1", http=lambda url, headers: machine, **arguments)


def prompts(count: int = CALLS) -> list[str]:
    return [f"Call number {i}: say something" for i in range(count)]


@pytest.mark.parametrize(
    ("limit", "count"),
    # Lists are as long as the limit lets them be: only under one limit can requests be compared.
    [("auto", "prompts"), (64, "requests")],
)
def test_with_one_request_in_ten_lost_or_refused_every_call_succeeds_for_a_fifth_more(limit: Any, count: str) -> None:
    async def story(*faults: str) -> int:
        server = SimulatedServer(model="m", faults=faults, seed=7)
        async with make_client(server, limit=limit) as client:
            calls = [client.complete(prompt, max_tokens=5, temperature=0) for prompt in prompts()]
            answers = await asyncio.gather(*calls)
            statistics = client.statistics()
        for prompt, answer in zip(prompts(), answers, strict=True):
            assert answer.text == expected_text(prompt, max_tokens=5, temperature=0)
        assert (statistics.succeeded, statistics.failed) == (CALLS, 0)
        sent = server.statistics()[count]
        assert isinstance(sent, int)
        return sent

    quiet, faulty = run(story), run(story, "cut,rate=0.05", "status=503,rate=0.05")
    # After a refusal lists wait for answers, and are longer.
    assert (count == "requests" or quiet < faulty) and faulty <= 1.2 * quiet


@pytest.mark.parametrize("outage_s", [5.0, 25.0])
def test_a_killed_server_costs_no_call_and_soon_after_it_is_back_the_throughput_is(outage_s: float) -> None:
    async def story() -> None:
        machine = Machine(SimulatedServer(model="m"))
        async with make_client(machine) as client:
            done: list[float] = []

            async def caller(number: int) -> None:
                for turn in range(1000):
                    prompt = f"Caller {number}, call {turn}"
                    answer = await client.complete(prompt, max_tokens=128, temperature=0)
                    assert answer.text == expected_text(prompt, max_tokens=128, temperature=0)
                    done.append(loop.time())

            loop = asyncio.get_running_loop()
            callers = [asyncio.create_task(caller(number)) for number in range(64)]
            try:
                await asyncio.sleep(30.0)
                killed_at = loop.time()
                await machine.kill()
                await asyncio.sleep(0.4)
                at_once = machine.refusals
                await asyncio.sleep(outage_s - 0.4)
                # Probes only: one call each, at pauses that grow to a second.
                assert 3 <= machine.refusals - at_once <= 3 + outage_s
                machine.start()
                back_at = loop.time()
                await asyncio.sleep(80.0)
            finally:
                for call in callers:
                    call.cancel()
                await asyncio.gather(*callers, return_exceptions=True)
            assert client.statistics().failed == 0
            before = sum(killed_at - 20.0 < at <= killed_at for at in done)
            after = sum(back_at + 60.0 < at <= back_at + 80.0 for at in done)
            assert after >= 0.9 * before

    run(story)


def test_an_outage_beyond_patience_fails_application_calls_with_its_cause_and_holds_maps() -> None:
    async def story() -> None:
        machine = Machine(SimulatedServer(model="m"))
        async with make_client(machine, limit=8, outage_patience_s=10.0) as client:
            loop = asyncio.get_running_loop()
            await client.complete("it has answered", max_tokens=4)
            await machine.kill()
            began_at = loop.time()
            rows = asyncio.create_task(client.batch_map(prompts(100), "{}", max_tokens=4, temperature=0))

            async def fails(after_s: float, kind: type[Exception], **params: Any) -> None:
                with pytest.raises(kind) as caught:
                    await client.complete("Anybody there?", max_tokens=4, **params)
                assert loop.time() - began_at == pytest.approx(after_s, abs=0.3)
                assert "refused" in str(caught.value) or kind is DeadlineExceeded

            await asyncio.gather(
                fails(10.0, ConnectFailed),
                fails(10.0, ConnectFailed, timeout_s=60.0),
                fails(3.0, DeadlineExceeded, timeout_s=3.0),
            )
            # Made in the middle of the outage: its patience begins with it.
            began_at = loop.time()
            await fails(10.0, ConnectFailed)
            assert not rows.done()
            machine.start()
            answers = await rows
        assert [answer.text for answer in answers] == [
            expected_text(prompt, max_tokens=4, temperature=0) for prompt in prompts(100)
        ]

    run(story)
