"""``Batching(max_size=function)`` as a caller gives it."""

import anyio
import pytest

from batchclient import Batching, ConfigError
from tests.shell.scripted import ScriptedTransport, make_client


async def sizes(server, client, count):
    async with client, anyio.create_task_group() as group:
        for number in range(count):
            group.start_soon(lambda number=number: client.complete("x" * (1 + 40 * (number % 2)), max_tokens=1))
    # trio starts tasks in any order.
    return sorted((len(prompts) for prompts in server.prompts), reverse=True)


async def test_the_textbook_table():
    server, depths = ScriptedTransport(), []

    def table(queue_depth):
        depths.append(queue_depth)
        return 4 if queue_depth < 20 else 16

    assert await sizes(server, make_client(server, batching=Batching(max_size=table), limit=64), 30) == [16, 4, 4, 4, 2]
    assert depths[0] == 30


async def test_it_goes_past_max_list_and_not_past_the_server():
    server = ScriptedTransport()
    client = make_client(server, batching=Batching(max_size=lambda queue_depth: 10**9), limit=2000)
    assert await sizes(server, client, 1030) == [1024, 6]


async def test_one_that_fails_leaves_the_clients_own_rule(caplog):
    server = ScriptedTransport()
    assert await sizes(
        server,
        make_client(server, preset="latency", batching=Batching(max_size=lambda queue_depth: 1 // 0), limit=64),
        32,
    ) == [16, 16]
    assert [record.levelname for record in caplog.records] == ["WARNING"]


@pytest.mark.parametrize("answer", [None, "8", 8.0, True, [8]], ids=repr)
async def test_what_is_no_whole_number_is_ignored_and_said_once(answer, caplog):
    server = ScriptedTransport()
    client = make_client(server, preset="latency", batching=Batching(max_size=lambda queue_depth: answer), limit=64)
    with caplog.at_level("DEBUG", "batchclient"):
        assert await sizes(server, client, 48) == [16, 16, 16]
    (record,) = [record for record in caplog.records if record.event == "max_size_failed"]
    assert record.levelname == "WARNING"
    assert f"max_size answers a {type(answer).__name__}, not a whole number" in caplog.text


async def test_it_may_fail_now_and_then():
    server = ScriptedTransport()
    table = Batching(max_size=lambda queue_depth: 2 // (queue_depth != 8))
    assert await sizes(server, make_client(server, batching=table, limit=64), 16) == [8, 2, 2, 2, 2]


@pytest.mark.parametrize(
    ("field", "value"),
    [("max_size", 0), ("max_size", "16")],
)
async def test_what_they_are_not(field, value):
    with pytest.raises(ConfigError) as caught:
        Batching(**{field: value})
    assert caught.value.field == f"batching.{field}"


async def test_they_can_be_changed_while_running():
    server = ScriptedTransport()
    client = make_client(server, limit=64)
    client.retune(batching=Batching(max_size=lambda queue_depth: 5))
    assert await sizes(server, client, 10) == [5, 5]
