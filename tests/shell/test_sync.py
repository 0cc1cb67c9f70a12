"""``SyncBatchClient``: the same calls for threads; what they share, what each keeps for itself, and the end."""

import asyncio
import copy
import inspect
import pickle
import threading
import traceback
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib.util import find_spec

import httpx
import pytest
import trio
from pydantic import BaseModel, field_validator

from batchclient import (
    Repair,
    Batching,
    BadRequest,
    BatchClient,
    CallAborted,
    ClientClosed,
    Completion,
    ConfigError,
    SyncBatchClient,
)
from batchclient.simulator import EmbeddedServer, expected_text
from tests.seams import bridge_of, bridged
from tests.shell.scripted import ScriptedTransport, answer_to, error
from tests.shell.test_bridge import NEVER_S, Calls, holds, new_threads, wait_until
from tests.shell.test_loops import in_python
from tests.fakes.raw import answers_in_a_thread

NO_TWIN = {"aclose"}
"""``close`` is its name here."""


def make_sync(transport, **arguments):
    """A client whose every endpoint is the scripted server."""
    defaults = {"model": "m", "probe": False}
    return bridged("http://scripted/v1", http=lambda url, headers: transport, **{**defaults, **arguments})


def release(client, server):
    bridge_of(client).ask(server.release)


@pytest.fixture(scope="module")
def embedded():
    with EmbeddedServer(profile="instant", model="m") as server:
        yield server


# The same as the asynchronous one ------------------------------------------------------------------------------------


def public(kind):
    return {name for name in dir(kind) if not name.startswith("_")}


def test_it_has_every_method_of_the_asynchronous_one():
    assert public(SyncBatchClient) == public(BatchClient) - NO_TWIN | {"close"}


@pytest.mark.parametrize("name", sorted(public(BatchClient) - NO_TWIN) + ["__init__"])
def test_a_method_has_the_same_arguments(name):
    own, theirs = (inspect.signature(getattr(kind, name)) for kind in (SyncBatchClient, BatchClient))
    assert [(one.name, one.kind, one.default) for one in own.parameters.values()] == [
        (one.name, one.kind, one.default) for one in theirs.parameters.values()
    ]
    assert not inspect.iscoroutinefunction(getattr(SyncBatchClient, name))


MESSAGES = [{"role": "user", "content": "How are you?"}]


class Verdict(BaseModel):
    right: bool


def test_a_map_asks_again_where_an_answer_does_not_fit(embedded):
    seen = []

    class Doubted(BaseModel):
        text: str

        @field_validator("text")
        @classmethod
        def is_known(cls, value):
            seen.append(value)
            if len(seen) < 3:
                raise ValueError("not yet")
            return value

    with SyncBatchClient(embedded.base_url, model="m") as client:
        rows = client.stream_map(["a"], "{}", response_model=Doubted, repair=Repair(invalid=2), max_tokens=50)
        (row,) = list(rows)
        assert (row.answer.parsed.text, row.attempts, rows.counts.invalid) == (seen[-1], 3, 2)
        assert client.statistics().wasted_tokens == 2 * row.answer.usage.total_tokens


@pytest.mark.parametrize(
    ("name", "args", "params"),
    [
        ("complete", ("a prompt",), {"max_tokens": 5, "temperature": 0}),
        ("complete", ("a verdict",), {"response_model": Verdict, "max_tokens": 50, "temperature": 0}),
        ("chat", (MESSAGES,), {"max_tokens": 5, "temperature": 0}),
        ("embed", ("a text",), {}),
        ("classify", ("a text",), {}),
        ("score", ("a query", "a document"), {}),
        ("rerank", ("a query", ["one", "other", "third"]), {"top_n": 2}),
        ("log_likelihood", (" a cat",), {"given": "This is"}),
        ("tokenize", ("a text",), {}),
        ("batch_map", (["one", "other"], "{}"), {"max_tokens": 5, "temperature": 0}),
        # Two rows may share a request or not, and then their usages differ.
        ("batch_map", (["one"], "{}"), {"call": "embed"}),
    ],
)
def test_a_call_gives_what_the_asynchronous_one_gives(embedded, name, args, params):
    async def asynchronously():
        async with BatchClient(embedded.base_url, model="m") as client:
            return await getattr(client, name)(*args, **params)

    with SyncBatchClient(embedded.base_url, model="m") as client:
        answer = getattr(client, name)(*args, **params)
    expected = asyncio.run(asynchronously())
    assert type(answer) is type(expected)
    assert without_ids(answer) == without_ids(expected)


def without_ids(answer):
    """What is the same in every run: no request's id, no time."""
    if isinstance(answer, list):
        return [without_ids(one) for one in answer]
    if isinstance(answer, Completion):
        return answer.text, answer.parsed, answer.usage
    return replace(answer, extra={}) if hasattr(answer, "extra") else answer


def test_a_stream_gives_what_the_call_gives(embedded):
    with SyncBatchClient(embedded.base_url, model="m") as client:
        for stream, whole in (
            (
                client.stream("once", max_tokens=30, temperature=0),
                client.complete("once", max_tokens=30, temperature=0),
            ),
            (
                client.stream_chat(MESSAGES, max_tokens=9, temperature=0),
                client.chat(MESSAGES, max_tokens=9, temperature=0),
            ),
        ):
            assert stream.completion is None
            pieces = list(stream)
            assert len(pieces) > 1
            assert "".join(piece.text for piece in pieces) == whole.text == stream.completion.text
            assert stream.completion.usage == whole.usage


def test_an_http_client_of_ones_own_is_used_and_left_open():
    reply = {"choices": [{"index": 0, "text": " fine", "finish_reason": "stop"}]}
    own = httpx.AsyncClient(transport=httpx.MockTransport(lambda request: httpx.Response(200, json=reply)))
    with SyncBatchClient("http://llm.test/v1", model="m", http=own) as client:
        assert client.complete("How are you?", max_tokens=4).text == " fine"
    assert not own.is_closed


@pytest.mark.parametrize("send", [pickle.dumps, copy.copy, copy.deepcopy, lambda client: pickle.dumps(client.complete)])
def test_it_says_why_it_cannot_be_sent_to_another_process(send):
    with make_sync(ScriptedTransport()) as client, pytest.raises(TypeError, match="another process"):
        send(client)
    with pytest.raises(TypeError, match="another process"):
        send(BatchClient("http://localhost:8000/v1", model="m"))


# Threads share requests ----------------------------------------------------------------------------------------------


def test_a_thousand_threads_reach_the_server_in_an_eighth_as_many_requests():
    """A real server in a process of its own, with the latencies of one on a GPU."""
    count = 1000
    answers = {}

    def work(number):
        together.wait()
        answers[number] = client.complete(f"Question {number}:", max_tokens=4, temperature=0).text

    together = threading.Barrier(count)
    with (
        EmbeddedServer("gpu", process=True) as server,
        SyncBatchClient(server.base_url, preset="throughput") as client,
    ):
        threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert server.requests <= count / 8
    assert answers == {
        number: expected_text(f"Question {number}:", max_tokens=4, temperature=0) for number in range(count)
    }


def test_calls_that_threads_make_together_are_one_request():
    server = ScriptedTransport()
    # As long as it takes on a busy machine; what is asked ends the wait.
    with make_sync(server, bridge={"gather_s": NEVER_S}) as client, ThreadPoolExecutor(16) as pool:
        answers = pool.map(client.complete, [f"p{number}" for number in range(16)])
        wait_until(lambda: holds(bridge_of(client), queued=16))
        client.statistics()
        assert [answer.text for answer in answers] == [answer_to(f"p{number}") for number in range(16)]
    assert sorted(server.prompts[0]) == sorted(f"p{number}" for number in range(16))
    assert len(server.sent) == 1


def test_one_bad_call_fails_for_its_own_thread_with_its_own_frames():
    def refuse_bad(sent):
        from tests.shell.scripted import echo

        return error(400, "bad prompt") if any("bad" in prompt for prompt in sent.prompts) else echo(sent)

    server = ScriptedTransport(*[refuse_bad] * 100)

    def caller_of_mine(prompt):
        return client.complete(prompt).text

    with make_sync(server) as client:
        calls = Calls()
        prompts = ["bad one", "bad other", *(f"p{number}" for number in range(30))]
        for prompt in prompts:
            calls.start(prompt, caller_of_mine, prompt)
        outcomes = calls.join()
    one, other = outcomes.pop("bad one"), outcomes.pop("bad other")
    assert isinstance(one, BadRequest) and isinstance(other, BadRequest)
    assert one is not other
    for each in (one, other):
        assert [frame.name for frame in traceback.extract_tb(each.__traceback__)].count("caller_of_mine") == 1
    assert outcomes == {prompt: answer_to(prompt) for prompt in prompts[2:]}


# Giving up -----------------------------------------------------------------------------------------------------------


def test_abort_ends_calls_that_the_loop_has_not_yet_taken():
    server = ScriptedTransport(held=True)
    with make_sync(server, bridge={"gather_s": NEVER_S}) as client:
        calls = Calls()
        calls.start("queued", client.complete, "queued")
        wait_until(lambda: holds(bridge_of(client), queued=1))
        client.abort()
        assert isinstance(calls.join()["queued"], CallAborted)
    assert server.sent == []


# Where it runs -------------------------------------------------------------------------------------------------------


def test_it_works_within_a_running_event_loop(embedded):
    """As in a notebook."""

    async def cell():
        with SyncBatchClient(embedded.base_url, model="m") as client:
            first = client.complete("p", max_tokens=3, temperature=0).text
            pieces = "".join(delta.text for delta in client.stream("p", max_tokens=3, temperature=0))
            rows = [row.answer.text for row in client.stream_map(["p"], "{}", max_tokens=3, temperature=0)]
            return {first, pieces, *rows}

    assert asyncio.run(cell()) == trio.run(cell) == {expected_text("p", max_tokens=3, temperature=0)}


def test_a_hook_may_use_the_plain_methods_and_is_told_why_it_may_not_block():
    seen = []

    def hook(queue_depth):
        seen.append(client.statistics().batches)
        client.retune(limit=7)
        try:
            client.complete("from the hook")
        except ConfigError as refused:
            seen.append(str(refused))
        return 8

    with make_sync(ScriptedTransport(), batching=Batching(max_size=hook)) as client, ThreadPoolExecutor(8) as pool:
        client.pause()
        answers = [pool.submit(client.complete, f"p{number}") for number in range(8)]
        wait_until(lambda: client.statistics().queued == 8)
        client.resume()
        assert [answer.result().text for answer in answers] == [answer_to(f"p{number}") for number in range(8)]
        assert client.statistics().endpoints[0].limit == 7
    assert any("wait for itself" in str(each) for each in seen)


# Its life ------------------------------------------------------------------------------------------------------------


def test_nothing_runs_before_the_first_call_and_after_the_end():
    before = threading.active_count()
    client = make_sync(ScriptedTransport())
    client.pause()
    client.resume()
    client.retune(limit=3)
    client.add_endpoint("http://other/v1")
    assert client.statistics().endpoints[1].base_url == "http://other/v1"
    assert threading.active_count() == before
    assert "idle" in repr(client)
    with client as same:
        assert same is client
        assert client.complete("p").text == answer_to("p")
        assert threading.active_count() == before + 1
    assert threading.active_count() == before
    assert repr(client) == "<SyncBatchClient for http://scripted/v1, http://other/v1: closed>"


def test_after_the_end_calls_are_refused_and_statistics_are_there():
    server = ScriptedTransport()
    client = make_sync(server)
    client.complete("p")
    rows, stream = client.stream_map(["a"], "{}"), client.stream("p")
    client.close()
    for call in (
        lambda: client.complete("p"),
        lambda: client.batch_map(["a"], "{}"),
        lambda: next(rows),
        lambda: next(stream),
        lambda: client.__enter__(),
        lambda: client.add_endpoint("http://other/v1"),
        lambda: client.remove_endpoint("http://scripted/v1"),
    ):
        with pytest.raises(ClientClosed):
            call()
    client.pause()
    client.resume()
    client.abort()
    client.retune(limit=3)
    client.close()
    client.drain()
    assert client.statistics().succeeded == 1
    assert len(server.sent) == 1
    assert server.closed == 1


def test_a_client_closed_before_its_first_call_is_closed():
    client = make_sync(ScriptedTransport())
    client.close()
    with pytest.raises(ClientClosed):
        client.complete("p")
    with pytest.raises(ClientClosed):
        client.add_endpoint("http://other/v1")
    with pytest.raises(ClientClosed), client:
        pass


def test_drain_finishes_what_was_taken_and_takes_no_more():
    server, before = ScriptedTransport(held=True), set(threading.enumerate())
    client = make_sync(server, limit=1)
    calls, draining = Calls(), Calls()
    calls.start("flying", client.complete, "flying")
    wait_until(lambda: server.sent)
    calls.start("queued", client.complete, "queued")
    wait_until(lambda: client.statistics().queued == 1)
    draining.start("drain", client.drain)
    wait_until(lambda: repr(client).endswith(": closed>"))
    with pytest.raises(ClientClosed):
        client.complete("late")
    release(client, server)
    assert {name: answer.text for name, answer in calls.join().items()} == {
        "flying": answer_to("flying"),
        "queued": answer_to("queued"),
    }
    assert draining.join() == {"drain": None}
    assert server.closed == 1
    assert new_threads(before) <= {*calls.threads, *draining.threads}


def test_endpoints_come_and_go_while_calls_are_under_way():
    server = ScriptedTransport()
    with make_sync(server) as client:
        client.complete("p")
        client.add_endpoint("http://other/v1")
        assert len(client.statistics().endpoints) == 2
        client.remove_endpoint("http://scripted/v1")
        assert [each.base_url for each in client.statistics().endpoints] == ["http://other/v1"]
        assert client.complete("p").text == answer_to("p")


def test_a_client_that_is_dropped_ends_its_thread_and_closes_its_connections():
    server, before = ScriptedTransport(), set(threading.enumerate())
    client = make_sync(server)
    client.complete("p")
    (thread,) = new_threads(before)
    del client
    thread.join()
    assert server.closed == 1


# Real sockets, in processes of their own -----------------------------------------------------------------------------


@pytest.mark.parametrize(("backend", "end"), [(None, ""), ("httpx", ""), (None, "del client")])
def test_a_program_ends_without_a_word_however_it_leaves_the_client(backend, end):
    status, out, err = in_python(
        f"""
    from concurrent.futures import ThreadPoolExecutor
    from batchclient import Http, SyncBatchClient
    from tests.fakes.raw import answers_in_a_process

    with answers_in_a_process() as (url, connections):
        client = SyncBatchClient(url, model="m", probe=False, http=Http(backend={backend!r}))
        with ThreadPoolExecutor(20) as pool:
            answers = list(pool.map(client.complete, [f"p{{number}}" for number in range(20)]))
        print(answers[7].text)
        {end}
    """
    )
    assert (status, out, err) == (0, "<p7>\n", "")


def test_ctrl_c_in_a_program_is_a_keyboard_interrupt_and_the_program_ends():
    status, out, err = in_python(
        """
    import os, signal, threading
    from batchclient import SyncBatchClient
    from tests.fakes.raw import answers_in_a_thread

    with answers_in_a_thread(silent=True) as (url, arrived):
        def interrupt():
            arrived.wait()
            os.kill(os.getpid(), signal.SIGINT)
        threading.Thread(target=interrupt, daemon=True).start()
        try:
            SyncBatchClient(url, model="m", probe=False).complete("p")
        except KeyboardInterrupt:
            print("interrupted")
    """
    )
    assert (status, out, err) == (0, "interrupted\n", "")


@pytest.mark.skipif(find_spec("gevent") is None, reason="gevent is not installed")
def test_several_clients_and_loops_live_side_by_side_under_gevents_threads():
    """What gevent makes of their threads shares one thread of the system, and so asyncio's running loop."""
    with answers_in_a_thread() as url:
        status, out, err = in_python(
            f"""
    import gevent.monkey
    gevent.monkey.patch_all()
    import asyncio, faulthandler
    import gevent
    from batchclient import BatchClient, SyncBatchClient

    faulthandler.dump_traceback_later(15, exit=True)
    arguments = dict(base_url={url.replace("127.0.0.1", "localhost")!r}, model="m", probe=False)
    clients = [SyncBatchClient(**arguments) for _ in range(3)]
    jobs = [gevent.spawn(client.complete, "p", max_tokens=8) for _ in range(9) for client in clients]
    print([job.get(timeout=10).text for job in jobs] == 27 * ["<p>"])
    clients[0].close()
    print([row.answer.text for row in clients[1].stream_map(["a", "b"], "{{}}", ordered=True, max_tokens=8)])
    print("".join(piece.text for piece in clients[2].stream("q", max_tokens=8)))

    async def main():
        async with BatchClient(**arguments) as client:
            return (await client.complete("r", max_tokens=8)).text

    print(asyncio.run(main()), clients[1].complete("s", max_tokens=8).text)
    clients[1].close(), clients[2].close()
    """
        )
    assert (status, err) == (0, "")
    assert out == "True\n['<a>', '<b>']\n<q>\n<r> <s>\n"
