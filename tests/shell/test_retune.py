"""Limits through the client: found, changed while running, and every change told with its reason."""

import logging

import anyio
import pytest

from batchclient import AdaptiveLimit, BatchClient, Batching, CallAborted, ConfigError, Queue
from tests.shell.scripted import Reply, ScriptedTransport, echo, make_client, settle


async def busy(client, calls):
    """So many calls at once, each by itself; returns how many went out."""
    async with anyio.create_task_group() as group:
        for number in range(calls):
            group.start_soon(lambda number=number: client.complete(f"call {number}", max_tokens=64))
        await settle()
        sent = client.statistics().in_flight
        group.cancel_scope.cancel()
    return sent


async def test_a_limit_is_changed_while_running():
    server = ScriptedTransport(held=True)
    async with make_client(server, limit=2, batching=Batching(max_size=1)) as client:
        assert await busy(client, 9) == 2
        client.retune(limit=5, batching=Batching(max_size=3))
        assert await busy(client, 9) == 5
        assert client.statistics().endpoints[0].batch_size_cap == 3


async def test_a_new_limit_is_there_for_the_first_call_too():
    server = ScriptedTransport(held=True)
    client = make_client(server, batching=Batching(max_size=1))
    client.retune(limit=5)
    async with client:
        assert await busy(client, 9) == 5


async def test_a_closed_client_may_be_retuned_whatever_became_of_its_servers():
    client = make_client(ScriptedTransport())
    client.add_endpoint("http://second/v1")
    async with client:
        await client.complete("p")
    await client.remove_endpoint("http://second/v1")
    client.retune(limit=3)
    with pytest.raises(ConfigError, match="max_calls"):
        client.retune(queue=Queue(max_calls=0))


async def test_every_change_is_told_with_its_reason(caplog):
    caplog.set_level(logging.DEBUG, "batchclient")
    async with make_client(ScriptedTransport(), limit=6) as client:
        await client.complete("x", max_tokens=1)
        client.retune(limit=4)
        assert client.statistics().endpoints[0].limit_reason == "set by the caller"
    changes = [(each.setting, each.old, each.new, each.reason) for each in client.statistics().adjustments]
    assert changes == [("limit", 6, 4, "set by the caller")]
    assert [tuple(each)[1:] for each in client.story()] == [("http://scripted/v1", "limit 6 → 4", "set by the caller")]
    assert "limit 6 -> 4: set by the caller" in caplog.text


@pytest.mark.parametrize("where", ["max_size", "log"])
async def test_what_a_hook_does_to_the_client_is_done_after_the_step(where):
    """Else a batch would be sent for calls that have ended."""

    def hook(*_):
        if client.statistics().queued or where != "max_size":
            client.abort()
        return 4

    class Handler(logging.Handler):
        emit = hook

    hooks = {"max_size": {"batching": Batching(max_size=hook)}, "log": {}}
    server = ScriptedTransport(held=True)
    log = logging.getLogger("batchclient")
    handler, level = Handler(), log.level
    async with make_client(server, limit=1, **hooks[where]) as client, anyio.create_task_group() as group:
        ended = []

        async def call(prompt):
            with pytest.raises(CallAborted):
                await client.complete(prompt)
            ended.append(prompt)

        if where != "max_size":
            group.start_soon(call, "flying")
            await settle()
        group.start_soon(call, "queued")
        await settle()
        if where == "log":
            log.addHandler(handler)
            log.setLevel(logging.DEBUG)
        try:
            client.retune(limit=2)
        finally:
            log.removeHandler(handler)
            log.setLevel(level)
        await settle()
        assert "queued" in ended
        assert (client.statistics().in_flight, client.statistics().abandoned) == (0, 0)
        assert {sent.state for sent in server.sent} <= {"cancelled"}
        assert [sent.prompts for sent in server.sent] == ([] if where == "max_size" else [["flying"]])


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"limit": 0}, "limit"),
        ({"limit": "gradient"}, "limit"),
        ({"model": "other"}, "model"),
        ({"nonsense": 1}, "nonsense"),
        ({"batching": {"max_size": 3}}, "batching"),
        ({"starvation_s": 3}, "starvation_s"),
        ({"schedule": Queue(order="deadline")}, "schedule"),
    ],
)
async def test_what_cannot_be_changed_is_refused_and_nothing_is_changed(wrong, field):
    server = ScriptedTransport()
    async with make_client(server, limit=7) as client:
        with pytest.raises(ConfigError) as caught:
            client.retune(**{"batching": Batching(max_size=lambda queue_depth: 1), **wrong})
        assert caught.value.field == field
        assert client.statistics().endpoints[0].limit == 7
        await client.batch_map(["a", "b", "c"], "{}", max_tokens=1)
    assert [len(prompts) for prompts in server.prompts] == [3]


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        (lambda: {"limit": "vegas"}, "limit"),
        (lambda: {"limit": AdaptiveLimit(start=9, max=8)}, "limit"),
        (lambda: {"limit": AdaptiveLimit(start=1025)}, "limit"),
        (lambda: {"schedule": Queue(order="shortest_first", group_prefixes=True)}, "queue.group_prefixes"),
        (lambda: {"schedule": Queue(order="deadline", group_prefixes=True)}, "queue.group_prefixes"),
        (lambda: {"limit": AdaptiveLimit(p95_latency_s=0)}, "limit.p95_latency_s"),
        (lambda: {"limit": AdaptiveLimit(time_to_first_token_s=float("nan"))}, "limit.time_to_first_token_s"),
    ],
)
def test_bounds_and_objectives_are_checked_where_they_are_given(arguments, field):
    with pytest.raises(ConfigError) as caught:
        BatchClient("http://h/v1", model="m", **arguments())
    assert caught.value.field == field


def test_a_lower_bound_alone_lowers_the_start_too():
    client = BatchClient("http://h/v1", model="m")
    client.retune(limit=AdaptiveLimit(max=32))
    assert client.statistics().endpoints[0].limit == 32


async def test_a_batching_given_anew_replaces_the_old_one_as_a_whole():
    server = ScriptedTransport()
    async with make_client(server, batching=Batching(max_size=3, list_tokens=7)) as client:
        await client.batch_map(range(4), lambda number: f"{number}", max_tokens=20)
        assert {len(sent.prompts) for sent in server.sent} == {1}
        client.retune(batching=Batching(max_size=4))
        await client.batch_map(range(4), lambda number: f"{number}", max_tokens=20)
        assert len(server.sent[-1].prompts) == 4


def test_a_server_is_given_once():
    with pytest.raises(ConfigError, match="URL number 1 is there twice, as number 3") as caught:
        BatchClient(["http://h/v1", "http://g/v1", "http://h/v1/"], model="m")
    assert caught.value.field == "base_url"


@pytest.mark.parametrize(
    ("objective", "told"),
    [
        ({"p95_latency_s": 1.0}, "p95 latency 2 s, 1 s asked for"),
        ({"time_to_first_token_s": 1.0}, "p95 time to first token 2 s, 1 s asked for"),
    ],
)
async def test_a_limit_comes_down_where_an_objective_is_missed(objective, told):
    server = ScriptedTransport(*[lambda sent: Reply(chunks=[2.0, *echo(sent).chunks])] * 800)
    limit = AdaptiveLimit(start=32, max=32, **objective)
    async with make_client(server, limit=limit) as client:
        await client.batch_map([f"{number}" for number in range(1600)], "{}", max_tokens=64)
        first = client.statistics().adjustments[0]
    assert (first.setting, first.old, first.new, first.reason) == ("limit", 32, 16, told)
