"""``batching=Batching(single_flight=True)`` through the client: one request for equal calls, each caller's own end; without it nothing changes."""

import anyio
import pytest
from tests.shell.scripted import ScriptedTransport, answer_to, error, make_client, settle
from tests.shell.test_cancellation import start

from batchclient import Batching, ClientClosed


async def test_equal_calls_share_a_request_and_have_their_answers():
    server = ScriptedTransport(held=True)
    async with make_client(server, batching=Batching(single_flight=True)) as client, anyio.create_task_group() as group:
        calls = start(group, client, ["p"] * 5, temperature=0)
        await server.arrived(1)
        calls += start(group, client, ["p"] * 5, temperature=0)
        await settle()
        server.release()
        for call in calls:
            await call.over.wait()
        assert all(call.answered for call in calls)
        assert len({id(call.outcome) for call in calls}) == 10
        assert server.prompts == [["p"]]
        statistics = client.statistics()
        assert (statistics.submitted, statistics.succeeded, statistics.shared) == (10, 10, 9)


@pytest.mark.parametrize(
    ("given", "params"),
    [
        ({}, {"temperature": 0}),
        ({"batching": Batching(single_flight=True)}, {}),
        ({"batching": Batching(single_flight=True)}, {"temperature": 0.1}),
    ],
    ids=["not asked for", "no temperature", "a temperature"],
)
async def test_nothing_is_shared_unless_it_is_asked_for(given, params):
    server = ScriptedTransport()
    async with make_client(server, **given) as client, anyio.create_task_group() as group:
        for call in start(group, client, ["p", "p"], **params):
            await call.over.wait()
        assert [prompt for prompts in server.prompts for prompt in prompts] == ["p", "p"]
        assert client.statistics().shared == 0


async def test_tenants_share_nothing():
    server = ScriptedTransport()
    async with make_client(server, batching=Batching(single_flight=True)) as client, anyio.create_task_group() as group:
        calls = [call for tenant in ("a", "b") for call in start(group, client, ["p"], temperature=0, tenant=tenant)]
        for call in calls:
            await call.over.wait()
        assert server.prompts == [["p"], ["p"]]


async def test_the_connection_closes_when_the_last_has_left():
    server = ScriptedTransport(held=True)
    async with make_client(server, batching=Batching(single_flight=True)) as client, anyio.create_task_group() as group:
        calls = start(group, client, ["p", "p"], temperature=0)
        await server.arrived(1)
        for call in calls:
            call.scope.cancel()
            await call.over.wait()
        await settle()
        assert server.states == ["cancelled"]
        statistics = client.statistics()
        assert (statistics.cancelled, statistics.in_flight, statistics.queued) == (2, 0, 0)


async def test_documents_of_a_map_share_too():
    server = ScriptedTransport()
    async with make_client(server, batching=Batching(single_flight=True)) as client:
        answers = await client.batch_map(["a", "b", "a", "a"], "{}", temperature=0)
        assert [answer.text for answer in answers] == [answer_to(prompt) for prompt in ("a", "b", "a", "a")]
        assert [prompt for prompts in server.prompts for prompt in prompts] == ["a", "b"]
        rows = client.stream_map(["c"] * 10, "{}", temperature=0)
        await anext(rows)
        await rows.aclose()
        await settle()
        statistics = client.statistics()
        assert (statistics.queued, statistics.in_flight) == (0, 0)
    assert server.closed


async def test_nobody_joins_a_client_that_drains():
    server = ScriptedTransport(held=True)
    async with make_client(server, batching=Batching(single_flight=True)) as client, anyio.create_task_group() as group:
        (first,) = start(group, client, ["p"], temperature=0)
        await server.arrived(1)
        group.start_soon(client.drain)
        await settle()
        with pytest.raises(ClientClosed):
            await client.complete("p", temperature=0)
        server.release()
    assert first.answered
