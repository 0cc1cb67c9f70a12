"""The user's functions raise: every call ends, nothing hangs, and what ends a program reaches it."""

import asyncio
from contextlib import closing, suppress

import anyio
import pytest
import trio
import trio.testing
from pydantic import BaseModel, field_validator
from tests.shell.clocks import VirtualLoop, run
from tests.shell.scripted import Reply, ScriptedTransport, error, make_client, plain
from tests.shell.test_sync import make_sync

from batchclient import BatchClient, BatchClientError, Batching, ClientClosed, ServerFault


class Own(BaseException):
    """Of the user's; nobody's ``except Exception`` sees it."""


class Raising:
    """One of the user's functions, or an object with a ``decide``."""

    def __init__(self, error):
        self.error = error
        self.called = 0

    def __call__(self, *args):
        self.called += 1
        raise self.error

    decide = __call__


ENDS = [KeyboardInterrupt(), SystemExit(3)]
IN_A_STEP = ["retry", "max_size"]


def busy():
    return error(503)


def calls(client, name):
    """Some calls that need the function."""
    return [client.complete(f"prompt {n}", max_tokens=1) for n in range(9)]


def make(name, raising):
    server = ScriptedTransport(*[busy()] * 3 if name == "retry" else ())
    own = {"batching": Batching(max_size=raising)} if name == "max_size" else {name: raising}
    return make_client(server, **{"batching": Batching(max_size=2), **own})


def ends_of(name, raising):
    """The outcomes of all calls, in one run of asyncio; and what the loop's exception handler was told."""
    unseen, ends = [], []

    async def main():
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: unseen.append(context["exception"]))
        async with make(name, raising) as client:
            ends.extend(await asyncio.gather(*calls(client, name), return_exceptions=True))
            assert client.statistics().in_flight == 0

    run(main)
    return ends, unseen


@pytest.mark.parametrize("name", IN_A_STEP)
@pytest.mark.parametrize("error", ENDS, ids=repr)
def test_what_ends_a_program_ends_it(name, error):
    raising = Raising(error)
    with pytest.raises(type(error)) as caught:
        ends_of(name, raising)
    assert caught.value is error


@pytest.mark.parametrize("error", ENDS, ids=repr)
def test_it_ends_each_run_of_a_loop_that_goes_on(error):
    async def call():
        with suppress(BatchClientError):
            await client.complete("p", max_tokens=1)

    with closing(VirtualLoop()) as loop:
        client = make("retry", Raising(error))
        for _ in range(3):
            with pytest.raises(type(error)):
                loop.run_until_complete(call())
        loop.run_until_complete(client.aclose())


@pytest.mark.parametrize("name", IN_A_STEP)
@pytest.mark.parametrize("raised", [asyncio.CancelledError(), Own()], ids=repr)
def test_a_call_has_its_own_end_and_nobody_is_cancelled(name, raised, caplog):
    """The call ends as if the function had raised any other error."""
    raising = Raising(raised)
    ends, unseen = ends_of(name, raising)
    assert raising.called
    failed = [each for each in ends if isinstance(each, BaseException)]
    assert {type(each) for each in failed} == ({ServerFault} if name == "retry" else set())
    # As asyncio does with what a callback of its own raises.
    assert set(unseen) == (set() if isinstance(raised, asyncio.CancelledError) else {raised})
    assert "failed" in caplog.text


@pytest.mark.parametrize("name", IN_A_STEP)
@pytest.mark.parametrize("error", [*ENDS, Own()], ids=repr)
def test_on_trio_it_comes_out_of_the_nursery(name, error):
    async def main():
        async with make(name, Raising(error)) as client, anyio.create_task_group() as group:
            for call in calls(client, name):
                group.start_soon(lambda call=call: call)

    with pytest.raises(BaseException) as caught:  # noqa: PT011
        trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    if isinstance(error, Own):
        assert error in leaves(caught.value)
    else:
        assert caught.value is error, "in a group it would be an error to Python"


def leaves(error):
    return [leaf for each in error.exceptions for leaf in leaves(each)] if hasattr(error, "exceptions") else [error]


@pytest.mark.parametrize("name", IN_A_STEP)
@pytest.mark.parametrize("raised", ENDS, ids=repr)
def test_it_reaches_the_thread_that_waits(name, raised):
    raising = Raising(raised)
    own = {"batching": Batching(max_size=raising)} if name == "max_size" else {name: raising}
    with make_sync(ScriptedTransport(busy()), **own) as client:
        with pytest.raises(type(raised)) as caught:
            client.complete("p", max_tokens=1)
        assert caught.value is raised


def test_a_thread_that_calls_after_the_end_is_told_that_the_client_is_closed():
    with make_sync(ScriptedTransport(busy()), retry=Raising(SystemExit(3))) as client:
        with pytest.raises(SystemExit):
            client.complete("p", max_tokens=1)
        assert client.statistics().failed == 1, "it waits for the end"
        for _ in range(2):
            with pytest.raises(ClientClosed, match="the client is closed; make a new one"):
                client.complete("p", max_tokens=1)


def test_a_validator_that_exits_within_a_map():
    class Answer(BaseModel):
        text: str

        @field_validator("text")
        @classmethod
        def leave(cls, value):
            raise SystemExit(3)

    async def main():
        server = ScriptedTransport(
            *[lambda sent: Reply(chunks=[plain(sent).replace(b"<", b'{\\"text\\": \\"').replace(b">", b'\\"}')])] * 2
        )
        async with make_client(server, batching=Batching(max_size=1)) as client:
            await client.batch_map(["a", "b"], lambda document: document, response_model=Answer, max_tokens=1)

    with pytest.raises(SystemExit):
        run(main)


@pytest.mark.parametrize("raised", [Own(), asyncio.CancelledError()], ids=repr)
def test_a_prompt_function_that_raises_leaves_no_map_waiting(raised):
    async def documents():
        for number in range(3):
            yield number
            await asyncio.sleep(0)

    async def main():
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
        async with make_client(ScriptedTransport()) as client:
            return [row.error async for row in client.stream_map(documents(), Raising(raised), max_tokens=1)]

    if isinstance(raised, Own):
        with pytest.raises(Exception, match="cancelled before all were read"):
            run(main)
    else:
        assert [str(each) for each in run(main)] == ["prompt raised CancelledError"] * 3


@pytest.mark.parametrize("end", ["aclose", "drain"])
def test_a_transport_that_does_not_close_keeps_none_open(end):
    """Its error is the caller's to see; the others are closed all the same."""
    broken, good = ScriptedTransport(), ScriptedTransport()
    broken.aclose = Raising(OSError("busy"))

    async def main():
        servers = {"http://a/v1": broken, "http://b/v1": good}
        client = BatchClient([*servers], model="m", http=lambda url, headers: servers[url])
        await client.complete("p")
        with pytest.raises(OSError, match="busy"):
            await getattr(client, end)()
        assert good.closed == 1
        await client.aclose()
        assert (broken.aclose.called, good.closed) == (1, 1), "nothing is left to be closed"

    run(main)
    assert broken.aclose.called == 1, "by the loop's end either"


@pytest.mark.parametrize("model", ["m", None])
@pytest.mark.parametrize("raised", [asyncio.CancelledError(), Own()], ids=repr)
def test_what_a_transport_raises_is_the_calls_failure(model, raised):
    """Also while the server is asked for its model; nothing is told to the loop."""
    unseen = []

    async def main():
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: unseen.append(context))
        server = ScriptedTransport()
        server.send = Raising(raised)
        async with make_client(server, model=model) as client:
            with pytest.raises(BatchClientError, match="internal error|asking for") as caught:
                await client.complete("p")
        assert type(raised).__name__ in str(caught.value)

    run(main)
    assert unseen == []
