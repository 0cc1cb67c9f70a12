"""What bounds a whole call and what bounds an attempt, where more calls are made at once than a server takes."""

import inspect
import json
import pickle
from inspect import signature

import anyio
import pytest

from batchclient import (
    Backoff,
    BadRequest,
    BatchClient,
    BatchMapFailed,
    ConnectFailed,
    DeadlineExceeded,
    Http,
    SyncBatchClient,
)
from batchclient.simulator import Profile, SimulatedServer, SimulatorTransport
from batchclient.types import NOT_GIVEN
from tests.seams import connected
from tests.shell.scripted import Reply, ScriptedTransport, answer_to, echo, make_client, settle
from tests.shell.test_complete import call_all
from tests.shell.test_sync import make_sync

PROMPTS = [f"p{number}" for number in range(40)]


async def outcomes_with(**settings):
    """Forty calls of two seconds each, four at a time: twenty seconds."""
    server = SimulatedServer(Profile("slow", "", step_s=0.5), model="m")
    async with make_client(SimulatorTransport(server), limit=4, **settings) as client:
        return list((await call_all(client, PROMPTS, max_tokens=4, temperature=0, ignore_eos=True)).values())


async def too_late_after(call):
    """The call's error, and the seconds that it took."""
    began = anyio.current_time()
    with pytest.raises(DeadlineExceeded) as caught:
        await call
    return caught.value, anyio.current_time() - began


async def test_a_call_in_flight_ends_at_its_time_and_its_request_with_it():
    server = ScriptedTransport(held=True)
    async with make_client(server) as client:
        late, seconds = await too_late_after(client.complete("p", timeout_s=1.5))
        assert seconds == pytest.approx(1.5, abs=0.05)
        assert isinstance(late, TimeoutError)
        assert late.attempt == 1
        assert "while the server worked" in str(late)
        await settle()
        assert server.states == ["cancelled"]


async def test_the_clients_own_timeout_is_for_calls_that_give_none():
    async with make_client(ScriptedTransport(held=True), timeout_s=2) as client:
        for given, expected in (({}, 2), ({"timeout_s": 1}, 1)):
            _, seconds = await too_late_after(client.complete("p", **given))
            assert seconds == pytest.approx(expected, abs=0.05)


async def test_a_calls_timeout_counts_the_queue_and_the_error_says_so_and_what_helps():
    outcomes = await outcomes_with(timeout_s=5.0)
    late = [one for one in outcomes if isinstance(one, Exception)]
    assert len(late) >= 24
    assert {type(one) for one in late} == {DeadlineExceeded}
    for error in late:
        assert " s in the queue" in str(error)
        assert "calls are queued, and 4 sequences may be in flight" in str(error)
        assert "give more time, or none, and bound the server's silence with http=Http(read_timeout_s=…)" in str(error)
        assert "refuse calls earlier, with a lower max_calls and when_full='raise'" in str(error)


@pytest.mark.parametrize("settings", [{}, {"http": Http(read_timeout_s=5.0)}])
async def test_without_it_or_with_a_bound_on_silence_nothing_fails(settings):
    assert not [one for one in await outcomes_with(**settings) if isinstance(one, Exception)]


async def test_none_is_no_bound_and_what_is_not_given_is_the_default():
    for http, bounds in (
        (None, (5.0, 600.0)),
        (Http(backend="httpx"), (5.0, 600.0)),
        (Http(read_timeout_s=None), (5.0, None)),
        (Http(connect_timeout_s=None), (None, 600.0)),
    ):
        server = ScriptedTransport()
        async with make_client(server, http=pickle.loads(pickle.dumps(http))) as client:
            await client.complete("p")
        assert (server.sent[0].timeouts.connect_s, server.sent[0].timeouts.read_s) == bounds


async def test_what_was_answered_waits_half_a_second_for_the_end_of_its_body():
    server = ScriptedTransport(lambda sent: Reply(chunks=[*echo(sent).chunks, 100.0]))
    async with make_client(server) as client:
        stream = client.stream("p", max_tokens=16)
        assert "".join([piece.text async for piece in stream]) == answer_to("p")
        await anyio.sleep(0.49)
        assert server.states == ["open"]
        await anyio.sleep(0.02)
        assert server.states == ["closed"]


async def test_a_lone_calls_usage_is_waited_for_two_seconds_and_an_errors_words_five():
    choice = {"index": 0, "text": "a", "finish_reason": "stop"}
    told = b"data: " + json.dumps({"id": "1", "choices": [choice]}).encode() + b"\n\n"
    for reply, outcome, seconds in (
        (Reply(chunks=[told, 100.0]), "a", 2.0),
        (Reply(400, chunks=[b"no", 100.0]), "400: no", 5.0),
    ):
        async with make_client(ScriptedTransport(reply), dialect="openai") as client:
            began = anyio.current_time()
            try:
                said = "".join([piece.text async for piece in client.stream("p", max_tokens=16)])
            except BadRequest as error:
                said = str(error)
            assert said.startswith(outcome)
            assert anyio.current_time() - began == pytest.approx(seconds, abs=1e-6)


def after_ten_seconds(sent):
    return Reply(chunks=[10.0, *echo(sent).chunks])


async def test_a_calls_none_is_no_bound_whatever_the_clients():
    async with make_client(ScriptedTransport(*[after_ten_seconds] * 6), timeout_s=5.0) as client:

        async def by_stream(prompt, **timeout):
            return "".join([piece.text async for piece in client.stream(prompt, **timeout)])

        async def by_map(prompt, **timeout):
            return (await client.batch_map([prompt], "{}", **timeout))[0].text

        async def by_call(prompt, **timeout):
            return (await client.complete(prompt, **timeout)).text

        for way in (by_call, by_stream, by_map):
            assert await way("p", timeout_s=None) == answer_to("p")
            with pytest.raises((DeadlineExceeded, BatchMapFailed)):
                await way("p")
    with make_sync(ScriptedTransport(), timeout_s=1e-9) as client:
        assert client.complete("p", timeout_s=None).text == answer_to("p")
        assert client.batch_map(["p"], "{}", timeout_s=None)[0].text == answer_to("p")
        assert [row.answer.text for row in client.stream_map(["p"], "{}", timeout_s=None)] == [answer_to("p")]


def test_every_call_has_the_clients_timeout_by_default():
    calls = {
        f"{kind.__name__}.{name}": signature(method).parameters["timeout_s"].default
        for kind in (BatchClient, SyncBatchClient)
        for name, method in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_") and "timeout_s" in signature(method).parameters
    }
    assert len(calls) == 24
    assert set(calls.values()) == {NOT_GIVEN}


class BlackHole(ScriptedTransport):
    """No connection is ever made: each try lasts as long as it may."""

    def __init__(self):
        super().__init__()
        self.tried_s = []

    async def send(self, request, timeouts):
        self.tried_s.append(timeouts.connect_s)
        await anyio.sleep(timeouts.connect_s)
        raise ConnectFailed("connect timeout")


@pytest.mark.parametrize(
    ("timeout_s", "http", "tried_s"),
    [(4, None, 2.0), (1.5, None, 1.0), (60, None, 5.0), (None, None, 5.0), (4, Http(connect_timeout_s=3.0), 3.0)],
)
async def test_a_connection_takes_half_of_its_calls_time_at_most(timeout_s, http, tried_s):
    hole = BlackHole()
    # An address: the client asks the server's pages over a real socket, and a name may take the resolver seconds.
    async with connected(
        "http://127.0.0.1:1/v1", calls=lambda _: hole, model="m", http=http, retry=Backoff(max_attempts=1)
    ) as client:
        await call_all(client, ["a"], max_tokens=1, timeout_s=timeout_s)
    assert hole.tried_s[0] == pytest.approx(tried_s, abs=0.1)


async def test_calls_of_a_server_that_no_connection_reaches_are_answered_by_another_in_their_time():
    servers = {"http://hole/v1": BlackHole(), "http://other/v1": ScriptedTransport()}
    async with connected(list(servers), calls=servers.get, model="m") as client:
        outcomes = await call_all(client, PROMPTS, max_tokens=1, timeout_s=4)
    assert servers["http://hole/v1"].tried_s
    assert {prompt: outcome.text for prompt, outcome in outcomes.items()} == {p: answer_to(p) for p in PROMPTS}
