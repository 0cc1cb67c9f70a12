"""Views: work of two kinds over one limit, one queue and one set of servers."""

import gc

import anyio
import anyio.lowlevel
import pytest
from tests.shell.scripted import ScriptedTransport, echo, make_client, settle

from batchclient import BatchClient, ClientClosed, ConfigError, SyncBatchClient
from batchclient.simulator import EmbeddedServer


def sizes(server):
    return [len(sent.prompts) for sent in server.sent]


async def ask(client, count, **arguments):
    async with anyio.create_task_group() as group:
        for number in range(count):
            group.start_soon(lambda number=number: client.complete(f"text {number}", max_tokens=4, **arguments))


async def test_calls_of_a_view_have_its_class_and_its_tenant():
    async with make_client(ScriptedTransport(echo)) as client:
        view = client.view(priority=2, tenant="chat")
        await ask(view, 3)
        await ask(view, 1, priority=1, tenant="own")
        await ask(client, 2)
        now = client.statistics()
        assert now.submitted == view.statistics().submitted == 6
        assert set(now.priorities) == {0, 1, 2}
        assert set(now.tenants) == {"chat", "own"}


async def test_a_view_with_a_preset_has_that_ones_lists_and_shares_no_request_with_others():
    server = ScriptedTransport(echo)
    async with make_client(server, limit=256) as client:
        await ask(client, 40)
        await ask(client.view(preset="latency"), 40)
        await ask(client.view(preset="throughput"), 40)
    assert sorted(sizes(server)) == sorted([32, 8, 16, 16, 8, 40])


async def test_maps_streams_and_functions_of_a_view_are_its_own():
    async with make_client(ScriptedTransport(echo)) as client:
        view = client.view(priority=1)
        await view.batch_map(["a", "b"], "{}", max_tokens=4)
        assert {row.index async for row in view.stream_map(["a"], "{}", max_tokens=4)} == {0}

        async def function(row, own):
            return await own.complete(row, max_tokens=4)

        assert [row.index async for row in view.run(function, ["a"])] == [0]
        assert set(client.statistics().priorities) == {1}


async def test_a_view_and_its_client_share_limit_queue_and_end():
    async with make_client(ScriptedTransport(echo), limit=4) as client:
        view = client.view(priority=1)
        await ask(view, 1)
        assert view.statistics().endpoints == client.statistics().endpoints
        view.pause()
        async with anyio.create_task_group() as group:
            group.start_soon(ask, client, 1)
            await settle()
            assert client.statistics().queued == 1
            client.resume()
        await view.aclose()
        with pytest.raises(ClientClosed):
            await client.complete("x")


async def test_a_view_that_is_dropped_warns_of_nothing(recwarn):
    async with make_client(ScriptedTransport(echo), limit=4) as client:
        async with anyio.create_task_group() as group:
            group.start_soon(ask, client, 1)
            await anyio.lowlevel.checkpoint()
            client.view(priority=1)
            gc.collect()
        assert not recwarn.list


def test_a_view_of_the_blocking_client_is_one():
    with EmbeddedServer(model="m") as server, SyncBatchClient(server.base_url, model="m") as client:
        view = client.view(priority=1, preset="latency")
        assert view.complete("x", max_tokens=2).text
        assert [row.index for row in view.stream_map(["a", "b"], "{}", ordered=True, max_tokens=2)] == [0, 1]
        assert set(client.statistics().priorities) == {1}


@pytest.mark.parametrize(
    ("arguments", "field"),
    [({"priority": 1.5}, "priority"), ({"tenant": ""}, "tenant"), ({"preset": "fast"}, "preset")],
)
def test_what_a_view_cannot_have_is_refused(arguments, field):
    client = BatchClient("http://localhost/v1", model="m", from_environment=False)
    with pytest.raises(ConfigError) as refused:
        client.view(**arguments)
    assert refused.value.field == field
