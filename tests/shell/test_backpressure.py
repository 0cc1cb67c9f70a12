"""A full queue makes callers wait in order, or refuses them."""

import anyio
import pytest

from batchclient import Batching, QueueFull
from tests.shell.scripted import ScriptedTransport, make_client, settle


async def fill(client, server, group, prompts):
    """Make calls one after the other; the first is in flight, the rest is queued."""
    for prompt in prompts:
        group.start_soon(client.complete, prompt)
        await settle()


async def test_a_full_queue_lets_callers_in_in_order():
    server = ScriptedTransport(held=True)
    prompts = [f"{number:02}" for number in range(20)]
    async with make_client(server, limit=1, max_queued=3) as client, anyio.create_task_group() as group:
        await fill(client, server, group, prompts)
        statistics = client.statistics()
        assert (statistics.in_flight, statistics.queued, statistics.waiting) == (1, 3, 16)
        server.release()
    assert sum(server.prompts, []) == prompts


async def test_a_full_queue_refuses_calls_where_that_was_asked_for():
    server = ScriptedTransport(held=True)
    async with (
        make_client(server, limit=1, max_queued=2, when_full="raise") as client,
        anyio.create_task_group() as group,
    ):
        await fill(client, server, group, ["a", "b", "c"])
        with pytest.raises(QueueFull, match="max_queued=2") as caught:
            await client.complete("d")
        assert caught.value.retryable
        assert caught.value.attempt == 0
        server.release()
    assert sum(server.prompts, []) == ["a", "b", "c"]


async def test_a_refused_call_leaves_room_for_the_next():
    server = ScriptedTransport(held=True)
    async with make_client(server, limit=1, max_queued=1, when_full="raise") as client:
        async with anyio.create_task_group() as group:
            await fill(client, server, group, ["a", "b"])
            with pytest.raises(QueueFull):
                await client.complete("c")
            server.release()
        assert (await client.complete("d")).text


async def test_never_more_in_flight_than_the_limit():
    server = ScriptedTransport(held=True)
    async with (
        make_client(server, limit=5, batching=Batching(max_size=2, refill_s=0)) as client,
        anyio.create_task_group() as group,
    ):
        for number in range(40):
            group.start_soon(client.complete, f"{number}")
        for _ in range(200):
            await settle()
            in_flight = sum(len(each.prompts) for each in server.sent if each.state == "open")
            assert in_flight <= 5
            assert client.statistics().in_flight == in_flight
            held = [each for each in server.sent if each.state == "open" and not each.gate.is_set()]
            if not held:
                break
            held[-1].release()
    assert len(sum(server.prompts, [])) == 40


async def test_a_map_waits_where_a_call_would_be_refused():
    server = ScriptedTransport()
    async with make_client(server, limit=1, max_queued=1, when_full="raise") as client:
        answers = await client.batch_map([f"{number}" for number in range(50)], "{}")
    assert len(answers) == 50


async def test_a_call_heavier_than_the_limit_runs_alone():
    server = ScriptedTransport(held=True)
    async with make_client(server, limit=4) as client, anyio.create_task_group() as group:
        await fill(client, server, group, ["light"])
        group.start_soon(lambda: client.complete("heavy", n=8))
        await settle()
        assert server.prompts == [["light"]]
        server.sent[0].release()
        await server.arrived(2)
        assert client.statistics().in_flight == 8
        group.start_soon(client.complete, "later")
        await settle()
        assert len(server.sent) == 2
        server.release()
