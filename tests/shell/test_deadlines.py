"""``timeout_s`` in virtual time: kept to 50 ms wherever the call is."""

import anyio
import pytest
from tests.shell.clocks import count_alive
from tests.shell.scripted import Reply, ScriptedTransport, answer_to, error, make_client, settle, stream

from batchclient import Backoff, DeadlineExceeded

KEPT_TO_S = 0.05


async def timed(call):
    """The call's error and how long it took."""
    before = anyio.current_time()
    with pytest.raises(DeadlineExceeded) as caught:
        await call
    return caught.value, anyio.current_time() - before


async def test_in_flight():
    server = ScriptedTransport(held=True)
    async with make_client(server) as client:
        caught, took_s = await timed(client.complete("p", timeout_s=1.5))
        assert took_s == pytest.approx(1.5, abs=KEPT_TO_S)
        assert isinstance(caught, TimeoutError)
        assert caught.attempt == 1
        assert "while the server worked" in str(caught)
        await settle()
    assert server.states == ["cancelled"]


async def test_mid_stream():
    server = ScriptedTransport(lambda sent: Reply(chunks=[*stream(sent, last=False), anyio.Event()]))
    async with make_client(server) as client:
        _, took_s = await timed(client.complete("p", timeout_s=2))
        assert took_s == pytest.approx(2, abs=KEPT_TO_S)


async def test_in_the_queue():
    server = ScriptedTransport(held=True)
    async with make_client(server, limit=1) as client, anyio.create_task_group() as group:
        group.start_soon(client.complete, "first")
        await server.arrived(1)
        caught, took_s = await timed(client.complete("second", timeout_s=0.25))
        assert took_s == pytest.approx(0.25, abs=KEPT_TO_S)
        assert "in the queue" in str(caught)
        assert caught.attempt == 0
        server.release()
    assert server.prompts == [["first"]]


async def test_while_waiting_for_a_place_in_the_queue():
    server = ScriptedTransport(held=True)
    async with make_client(server, limit=1, max_queued=1) as client, anyio.create_task_group() as group:
        group.start_soon(client.complete, "first")
        await server.arrived(1)
        group.start_soon(client.complete, "second")
        await settle()
        caught, took_s = await timed(client.complete("third", timeout_s=0.25))
        assert took_s == pytest.approx(0.25, abs=KEPT_TO_S)
        assert "place in the queue" in str(caught)
        server.release()
    assert sorted(sum(server.prompts, [])) == ["first", "second"]


class LongPause:
    """A policy that waits for half a minute."""

    def decide(self, failure, attempt, elapsed_s, rng):
        return 30.0


async def test_in_backoff():
    server = ScriptedTransport(error(503))
    async with make_client(server, retry=LongPause()) as client:
        caught, took_s = await timed(client.complete("p", timeout_s=3))
        assert took_s == pytest.approx(3, abs=KEPT_TO_S)
        assert "tried again" in str(caught)
        await anyio.sleep(60)
    assert len(server.sent) == 1


async def test_while_paused():
    server = ScriptedTransport()
    async with make_client(server) as client:
        client.pause()
        _, took_s = await timed(client.complete("p", timeout_s=3))
        assert took_s == pytest.approx(3, abs=KEPT_TO_S)
    assert server.sent == []


async def test_the_clients_own_timeout_is_for_calls_that_give_none():
    server = ScriptedTransport(held=True)
    async with make_client(server, timeout_s=2) as client:
        _, took_s = await timed(client.complete("p"))
        assert took_s == pytest.approx(2, abs=KEPT_TO_S)
        _, took_s = await timed(client.complete("p", timeout_s=1))
        assert took_s == pytest.approx(1, abs=KEPT_TO_S)


async def test_it_covers_all_attempts():
    server = ScriptedTransport(*[error(500)] * 100)
    async with make_client(server, retry=Backoff(max_attempts=100)) as client:
        _, took_s = await timed(client.complete("p", timeout_s=10))
        assert took_s == pytest.approx(10, abs=KEPT_TO_S)
    assert len(server.sent) > 2


async def test_the_mates_of_an_expired_call_are_answered():
    server = ScriptedTransport(held=True)
    async with make_client(server) as client:
        outcomes = []

        async def call(prompt, timeout_s):
            try:
                outcomes.append((prompt, (await client.complete(prompt, timeout_s=timeout_s)).text))
            except DeadlineExceeded:
                outcomes.append((prompt, "late"))

        async with anyio.create_task_group() as group:
            group.start_soon(call, "hasty", 1)
            group.start_soon(call, "patient", 100)
            group.start_soon(call, "endless", None)
            await anyio.sleep(5)
            server.release()
    assert outcomes[0] == ("hasty", "late")
    assert sorted(outcomes[1:]) == [("endless", answer_to("endless")), ("patient", answer_to("patient"))]
    assert len(server.sent) == 1


async def test_an_earlier_deadline_given_later_is_kept():
    server = ScriptedTransport(held=True)
    async with make_client(server) as client, anyio.create_task_group() as group:
        for timeout_s in (9, 3, 6, 1):
            group.start_soon(expect_late, client, timeout_s)
            await anyio.sleep(0.1)


async def expect_late(client, timeout_s):
    _, took_s = await timed(client.complete("p", timeout_s=timeout_s))
    assert took_s == pytest.approx(timeout_s, abs=KEPT_TO_S)


async def test_no_timer_is_left_once_calls_with_deadlines_are_answered():
    server, alive = ScriptedTransport(), count_alive()
    async with make_client(server) as client:
        await client.complete("p", timeout_s=600)
        await settle()
        assert count_alive() == alive
        before = anyio.current_time()
    assert anyio.current_time() == before
