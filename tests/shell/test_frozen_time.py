"""Clocks that stand still or jump: a test has frozen time with freezegun, the machine was suspended, the event loop stood still."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest
from freezegun import freeze_time

from batchclient import AdaptiveLimit, Backoff, Batching, DeadlineExceeded
from tests.shell.clocks import VirtualLoop, WatchedLoop
from tests.shell.scripted import Reply, ScriptedTransport, answer_to, echo, error, make_client
from tests.shell.test_sync import make_sync


def ask(client):
    """What waits for time on its way: company, a retry's pause."""
    with ThreadPoolExecutor(4) as pool:
        return [answer.text for answer in pool.map(client.complete, "abcd")]


@pytest.mark.parametrize("day", ["2001-01-01", "2090-01-01"])
def test_calls_are_answered_in_a_client_made_meanwhile(day):
    with freeze_time(day), make_sync(ScriptedTransport(error(503)), retry=Backoff(base_s=0.01)) as client:
        assert ask(client) == [answer_to(each) for each in "abcd"]
        assert [each.text for each in client.batch_map(["e", "f"], str)] == [answer_to("e"), answer_to("f")]


@pytest.mark.parametrize("day", ["2001-01-01", "2090-01-01"])
def test_calls_are_answered_in_a_client_that_was_there_before(day):
    with make_sync(ScriptedTransport()) as client:
        client.complete("before")
        with freeze_time(day, tick=True):
            assert ask(client) == [answer_to(each) for each in "abcd"]
        with freeze_time(day):
            assert ask(client) == [answer_to(each) for each in "abcd"]
        assert ask(client) == [answer_to(each) for each in "abcd"]


def test_a_deadline_passes():
    with freeze_time("2001-01-01"), make_sync(ScriptedTransport(held=True)) as client:
        with pytest.raises(DeadlineExceeded):
            client.complete("p", timeout_s=0.05)


# The event loop's own clock


def in_virtual_time(main):
    with asyncio.Runner(loop_factory=WatchedLoop) as runner:
        return runner.run(main())


def test_a_machine_that_was_suspended_judges_every_deadline_once():
    """An hour is gone at once: every deadline is judged once, and nothing is sent again for it."""

    async def main():
        loop = asyncio.get_running_loop()
        server = ScriptedTransport(held=True)
        async with make_client(server, limit=4, batching=Batching(max_size=1)) as client:
            calls = [asyncio.ensure_future(client.complete(f"{n}", timeout_s=60)) for n in range(20)]
            patient = [asyncio.ensure_future(client.complete(f"p{n}")) for n in range(4)]
            await server.arrived(4)
            loop.clock += 3600
            done = await asyncio.gather(*calls, return_exceptions=True)
            assert {type(each) for each in done} == {DeadlineExceeded}
            server.release()
            assert [each.text for each in await asyncio.gather(*patient)] == [f"<p{n}|0>" for n in range(4)]
            assert len(server.sent) == 4 + 4
            assert client.statistics().failed == 20

    in_virtual_time(main)


@pytest.mark.parametrize("setting", ["p95_latency_s", "auto"])
def test_of_a_loop_that_stands_still_nothing_is_measured(setting):
    """Answers that lay unread for five seconds say nothing of their server."""

    async def main(stall_s, slow_s):
        loop = asyncio.get_running_loop()
        arguments = {"limit": AdaptiveLimit(start=32, max=32, p95_latency_s=1.0)}
        if setting == "auto":
            arguments = {"limit": AdaptiveLimit(start=32, max=32)}

        def reply(sent):
            return Reply(chunks=[0.3 + slow_s, *echo(sent).chunks])

        server = ScriptedTransport(*[reply] * 4000)
        async with make_client(server, batching=Batching(max_size=1), **arguments) as client:

            async def work(count):
                await asyncio.gather(*(client.complete(f"{n}", max_tokens=1) for n in range(count)))

            await work(1600)
            for _ in range(2):
                calls = asyncio.ensure_future(work(256))
                await asyncio.sleep(0.2)
                loop.clock += stall_s
                await calls
            return {each.reason for each in client.statistics().adjustments}

    def run(**arguments):
        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            return runner.run(main(**arguments))

    undisturbed = run(stall_s=0.0, slow_s=0.0)
    # The limits that were set are the same, and so is what was thought of the server.
    assert run(stall_s=5.0, slow_s=0.0) == undisturbed
    if setting == "p95_latency_s":
        # A server that is slow itself is another matter.
        assert "p95 latency 2.3 s, 1 s asked for" in run(stall_s=0.0, slow_s=2.0)


def test_nothing_watches_the_loop_between_calls():
    async def main():
        server = ScriptedTransport(held=True)
        alive = asyncio.get_running_loop().alive
        async with make_client(server, limit="auto") as client:
            assert alive() == []
            call = asyncio.ensure_future(client.complete("p"))
            await server.arrived(1)
            assert any(isinstance(each, asyncio.TimerHandle) for each in alive())
            server.release()
            await call
            await asyncio.sleep(0)
            assert alive() == []
        held = ScriptedTransport(held=True)
        async with make_client(held, limit=8) as client:
            call = asyncio.ensure_future(client.complete("p"))
            await held.arrived(1)
            assert not any(isinstance(each, asyncio.TimerHandle) for each in alive())
            held.release()
            await call
            client.retune(limit="auto")
            held.held = True
            call = asyncio.ensure_future(client.complete("p"))
            await held.arrived(2)
            assert any(isinstance(each, asyncio.TimerHandle) for each in alive())
            held.release()
            await call

    in_virtual_time(main)
