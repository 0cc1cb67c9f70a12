"""One caller goes, at any moment: the others have their answers, and the server is let off when nobody is left."""

import asyncio

import anyio
import pytest
import trio
import trio.testing
from tests.seams import watch_cores
from tests.shell.clocks import count_alive, run
from tests.shell.scripted import (
    Reply,
    ScriptedTransport,
    answer_to,
    error,
    make_client,
    plain,
    settle,
)

from batchclient import AuthenticationFailed, CallAborted, Completion
from tests.core import Answered, SendBatch


class Call:
    """One call in a task of its own."""

    def __init__(self, client, prompt, params):
        self.client, self.prompt, self.params = client, prompt, params
        self.scope = anyio.CancelScope()
        self.outcome = None
        self.over = anyio.Event()

    async def run(self):
        with self.scope:
            try:
                self.outcome = await self.client.complete(self.prompt, **self.params)
            except Exception as error:
                self.outcome = error
        self.over.set()

    @property
    def answered(self):
        return isinstance(self.outcome, Completion) and self.outcome.text == answer_to(self.prompt)


def start(group, client, prompts, **params):
    calls = [Call(client, prompt, params) for prompt in prompts]
    for call in calls:
        group.start_soon(call.run)
    return calls


async def test_cancelled_in_the_turn_of_the_call_nothing_is_left_of_it():
    server = ScriptedTransport()
    async with make_client(server) as client:
        with anyio.CancelScope() as scope:
            scope.cancel()
            await client.complete("gone")
        await settle()
        # trio may send it before it delivers the cancellation.
        assert server.states in ([], ["cancelled"])
        statistics = client.statistics()
        assert (statistics.queued, statistics.in_flight, statistics.cancelled) == (0, 0, 1)


async def test_cancelled_in_the_queue_nothing_is_sent_for_it():
    server = ScriptedTransport(held=True)
    async with make_client(server, limit=1) as client, anyio.create_task_group() as group:
        (first,) = start(group, client, ["first"])
        await server.arrived(1)
        gone, stays = start(group, client, ["gone", "stays"])
        await settle()
        assert client.statistics().queued == 2
        gone.scope.cancel()
        await gone.over.wait()
        assert client.statistics().queued == 1
        server.release()
        await stays.over.wait()
        assert first.answered and stays.answered
    assert server.prompts == [["first"], ["stays"]]


@pytest.mark.parametrize("max_tokens", [1, 16])
async def test_cancelled_in_flight_its_mates_are_answered_and_its_permit_is_kept(max_tokens):
    server = ScriptedTransport(held=True)
    async with make_client(server, limit=4) as client, anyio.create_task_group() as group:
        gone, *mates = start(group, client, ["gone", "a", "b"], max_tokens=max_tokens)
        await server.arrived(1)
        gone.scope.cancel()
        await gone.over.wait()
        statistics = client.statistics()
        assert (statistics.in_flight, statistics.abandoned, statistics.cancelled) == (3, 1, 1)
        server.release()
        for mate in mates:
            await mate.over.wait()
            assert mate.answered
        await settle()
        statistics = client.statistics()
        assert (statistics.in_flight, statistics.abandoned) == (0, 0)
        assert gone.outcome is None
    assert server.states == ["read"]


async def test_the_connection_is_closed_before_the_headers_when_the_last_caller_has_gone():
    server = ScriptedTransport(held=True)
    async with make_client(server) as client, anyio.create_task_group() as group:
        one, other = start(group, client, ["one", "other"])
        await server.arrived(1)
        one.scope.cancel()
        await one.over.wait()
        await settle()
        assert server.states == ["open"]
        other.scope.cancel()
        await other.over.wait()
        await settle()
        assert server.states == ["cancelled"]
        assert client.statistics().in_flight == 0


def test_a_transport_that_is_cancelled_within_a_nursery_of_its_own_is_no_fault(caplog):
    """As trio connects: each of the nursery's tasks is cancelled, and the group of these ends is raised."""

    async def sleep_in_nursery(*_):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            await trio.sleep_forever()

    async def main():
        server = ScriptedTransport()
        server.send = sleep_in_nursery
        async with make_client(server) as client:
            with trio.move_on_after(1):
                await client.complete("gone")
            await settle()
            assert client.statistics().in_flight == 0

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert not caplog.records


async def test_cancelled_after_the_answer_came_its_mate_still_has_its_own(monkeypatch):
    """The answers of both are handed out in one step; one caller is cancelled in that very step."""
    server = ScriptedTransport(lambda sent: Reply(chunks=[plain(sent)]))
    watch_cores(monkeypatch, told=lambda event: isinstance(event, Answered) and gone.scope.cancel())
    async with make_client(server) as client, anyio.create_task_group() as group:
        gone, mate = start(group, client, ["gone", "mate"], max_tokens=1)
        await mate.over.wait()
        await gone.over.wait()
        assert mate.answered
        # trio gives a task that was already woken its answer; asyncio cancels it all the same.
        assert gone.outcome is None or gone.answered
        statistics = client.statistics()
        assert (statistics.succeeded, statistics.cancelled) == (2, 0)


async def cancelled_in_the_turn_of(outcome):
    """One caller's task is cancelled, and the outcome of the list comes before it has had its turn."""
    server = ScriptedTransport()
    async with make_client(server) as client:
        gone, mate = (asyncio.ensure_future(client.complete(prompt, max_tokens=1)) for prompt in ("gone", "mate"))

        def cancel_then_answer(sent):
            gone.cancel()
            return outcome(client, sent)

        server.script.append(cancel_then_answer)
        with pytest.raises(asyncio.CancelledError):
            await gone
        await settle()
        assert client.statistics().in_flight == 0
        return (await asyncio.gather(mate, return_exceptions=True))[0]


def test_cancelled_in_the_turn_an_answer_comes():
    answer = run(cancelled_in_the_turn_of, lambda client, sent: Reply(chunks=[plain(sent)]))
    assert answer.text == answer_to("mate")


def test_cancelled_in_the_turn_an_error_comes():
    answer = run(cancelled_in_the_turn_of, lambda client, sent: error(401))
    assert isinstance(answer, AuthenticationFailed)


async def test_a_batch_that_is_given_up_before_its_task_began_sends_nothing(monkeypatch):
    server, before = ScriptedTransport(), count_alive()

    def abort_what_was_sent(commands):
        # Taken in when the batch's task was made, and before that takes its first step.
        if any(isinstance(command, SendBatch) for command in commands):
            client.abort()

    watch_cores(monkeypatch, commanded=abort_what_was_sent)
    async with make_client(server) as client:
        with pytest.raises(CallAborted):
            await client.complete("gone")
        await settle()
        assert server.sent == []
        assert client.statistics().in_flight == 0
        assert count_alive() == before
