"""Several event loops, closed loops, forks, and asyncio without ``async with``: a clear error or a fresh start."""

import asyncio
import gc
import os
import subprocess
import sys
import textwrap
import threading
import warnings

import anyio
import pytest
import trio
import trio.testing
from tests.shell.clocks import VirtualLoop, run
from tests.shell.scripted import ScriptedTransport, answer_to, make_client, settle

from batchclient import ConfigError
from batchclient._client import engine as engine_module
from batchclient._shell.backend import AsyncioBackend


def in_python(code, *options, timeout_s=20):
    """Run code in another Python with every warning an error; return what it wrote."""
    done = subprocess.run(
        [sys.executable, "-W", "error", *options, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        cwd=os.getcwd(),
    )
    return done.returncode, done.stdout, done.stderr


def test_asyncio_run_twice_with_one_client():
    server = ScriptedTransport()
    client = make_client(server)

    async def main(prompt):
        return (await client.complete(prompt)).text

    assert [run(main, "first"), run(main, "second")] == [answer_to("first"), answer_to("second")]
    assert client.statistics().succeeded == 1


def test_asyncio_and_then_trio_with_one_client():
    server = ScriptedTransport()
    client = make_client(server)

    async def main():
        return (await client.complete("asyncio")).text

    async def trio_main():
        with pytest.raises(ConfigError, match="async with"):
            await client.complete("too early")
        async with client:
            return (await client.complete("trio")).text

    assert run(main) == answer_to("asyncio")
    assert trio.run(trio_main) == answer_to("trio")


def test_trio_without_async_with_is_refused():
    client = make_client(ScriptedTransport())

    async def main():
        with pytest.raises(ConfigError, match="async with"):
            await client.complete("p")
        with pytest.raises(ConfigError, match="async with"):
            await client.batch_map(["p"], "{}")

    trio.run(main)


def test_a_loop_that_ends_with_calls_pending_leaves_a_client_that_can_be_used(recwarn):
    server = ScriptedTransport(held=True)
    client = make_client(server)

    async def main():
        for prompt in ("flying", "queued"):
            asyncio.ensure_future(client.complete(prompt))
        await server.arrived(1)

    run(main)
    server.release()

    async def again():
        return (await client.complete("again")).text

    assert run(again) == answer_to("again")
    gc.collect()
    assert [str(warning.message) for warning in recwarn] == []


def test_a_loop_closed_over_pending_calls_leaves_a_client_that_can_be_used(caplog):
    """Nobody cancels anything here: the tasks are collected as garbage."""
    server = ScriptedTransport(held=True)
    client = make_client(server, limit=1)
    loop = VirtualLoop()
    # asyncio complains of tasks that are destroyed pending, which is not what this is about.
    loop.set_exception_handler(lambda loop, context: None)

    async def main():
        tasks = [asyncio.ensure_future(client.complete(prompt, timeout_s=60)) for prompt in ("flying", "queued")]
        await server.arrived(1)
        return tasks

    tasks = loop.run_until_complete(main())
    loop.close()
    del tasks
    server.held = False

    async def again():
        return (await client.complete("again")).text

    assert run(again) == answer_to("again")
    # An error in a collected coroutine would be an unraisable exception, which fails the test.
    gc.collect()
    assert "Event loop is closed" not in caplog.text


@pytest.mark.parametrize("home", ["asyncio", "trio"])
def test_a_call_from_a_second_live_loop_is_refused(home):
    server = ScriptedTransport(held=True)
    client, outcomes = make_client(server), []

    async def intruder():
        for call in (client.complete("p"), client.batch_map(["p"], "{}")):
            with pytest.raises(ConfigError, match="another running event loop"):
                await call
            outcomes.append("refused")

    async def keep(prompt):
        outcomes.append((await client.complete(prompt)).text)

    async def main():
        async with client, anyio.create_task_group() as group:
            group.start_soon(keep, "mine")
            await server.arrived(1)
            for other in ("asyncio", "trio"):
                thread = threading.Thread(target=anyio.run, args=(intruder,), kwargs={"backend": other})
                thread.start()
                thread.join()
            server.release()

    anyio.run(main, backend=home)
    assert outcomes == [*["refused"] * 4, answer_to("mine")]


CHANGES = [
    lambda client: client.pause(),
    lambda client: client.resume(),
    lambda client: client.retune(limit=1),
    lambda client: client.abort(),
    lambda client: client.add_endpoint("http://other/v1"),
]


def test_changes_from_another_thread_are_refused_and_change_nothing():
    server = ScriptedTransport(held=True)
    client, refused = make_client(server, limit=5), []

    def change_all():
        for change in CHANGES:
            with pytest.raises(ConfigError, match="another running event loop"):
                change(client)
            refused.append(change)

    async def in_a_loop():
        change_all()

    async def main():
        call = asyncio.ensure_future(client.complete("mine"))
        await server.arrived(1)
        before = client.statistics().endpoints
        for target in (change_all, lambda: asyncio.run(in_a_loop())):
            thread = threading.Thread(target=target)
            thread.start()
            thread.join()
        assert refused == CHANGES * 2
        assert client.statistics().endpoints == before
        server.release()
        return (await call).text

    assert run(main) == answer_to("mine")
    # A later loop knows of none of them either.
    assert run(lambda: client.complete("later")).text == answer_to("later")


def test_a_change_while_the_loop_stands_still_holds_when_it_goes_on():
    server = ScriptedTransport()
    client = make_client(server)
    loop = VirtualLoop()
    assert loop.run_until_complete(client.complete("p")).text == answer_to("p")
    client.pause()
    client.add_endpoint("http://other/v1")
    client.retune(limit=3)
    held = loop.create_task(client.complete("held"))
    loop.run_until_complete(asyncio.sleep(1))
    assert [endpoint.limit for endpoint in client.statistics().endpoints] == [3, 3]
    assert not held.done()
    client.resume()
    assert loop.run_until_complete(held).text == answer_to("held")
    loop.run_until_complete(client.aclose())
    loop.close()


def refuse_task(loop, coroutine, **_):
    coroutine.close()
    raise AssertionError("a task of the client's would begin at once")


def test_a_loop_that_begins_tasks_at_once_is_a_loop_like_any_other():
    """As with ``asyncio.eager_task_factory``; before Python 3.12 nothing of the client's may ask for such a task."""

    async def documents():
        for each in ("a", "b"):
            yield each

    async def function(row, client):
        return row if row == "a" else (await client.complete(row)).text

    async def main():
        loop = asyncio.get_running_loop()
        loop.set_task_factory(getattr(asyncio, "eager_task_factory", refuse_task))
        async with make_client(ScriptedTransport()) as client:
            read = [row.answer.text async for row in client.stream_map(documents(), "{}", ordered=True)]
            assert read == [answer_to("a"), answer_to("b")]
            assert [row.answer async for row in client.run(function, ["a", "b"], ordered=True)] == ["a", answer_to("b")]
        loop.set_task_factory(None)

    run(main)


# Real sockets, in processes of their own ---------------------------------------------------------------------------

MAIN = """
    import asyncio
    from batchclient import BatchClient, Http
    from tests.fakes.raw import answers_in_a_thread

    async def main(client):
        answers = await asyncio.gather(*(client.complete(f"p{number}", max_tokens=8) for number in range(20)))
        print(answers[7].text)
"""


@pytest.mark.parametrize("backend", [None, "httpx"])
def test_asyncio_run_twice_without_async_with_ends_without_a_word(backend):
    status, out, err = in_python(
        MAIN
        + f"""
    import gc
    with answers_in_a_thread() as url:
        client = BatchClient(url, model="m", probe=False, http=Http(backend={backend!r}))
        asyncio.run(main(client))
        gc.collect()
        asyncio.run(main(client))
    """
    )
    assert (status, out, err) == (0, "<p7>\n<p7>\n", "")


def test_a_client_that_is_dropped_in_a_live_loop_closes_its_connections():
    status, out, err = in_python(
        MAIN
        + """
    import gc
    async def use_and_drop(url):
        await main(BatchClient(url, model="m", probe=False))
        gc.collect()
        for _ in range(20):
            await asyncio.sleep(0)
    with answers_in_a_thread() as url:
        asyncio.run(use_and_drop(url))
    """
    )
    assert (status, out, err) == (0, "<p7>\n", "")


def test_asyncio_run_that_ends_over_pending_calls_ends_without_a_word():
    status, out, err = in_python(
        """
    import asyncio
    from batchclient import BatchClient, Http
    from tests.fakes.raw import answers_in_a_thread

    async def main(client, arrived):
        tasks = [asyncio.ensure_future(client.complete(f"p{number}")) for number in range(3)]
        await asyncio.get_running_loop().run_in_executor(None, arrived.wait)

    with answers_in_a_thread(silent=True) as (url, arrived):
        asyncio.run(main(BatchClient(url, model="m", probe=False), arrived))
    print("over")
    """
    )
    assert (status, out, err) == (0, "over\n", "")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.parametrize("backend", [None, "httpx"])
def test_after_a_fork_the_child_has_fresh_pools_and_the_parents_go_on(backend):
    status, out, err = in_python(
        f"""
    BACKEND = {backend!r}
"""
        + """
    import asyncio, gc, os, sys
    from batchclient import BatchClient, Http
    from tests.fakes.raw import answers_in_a_process

    async def parent(client):
        print("parent", (await client.complete("before", max_tokens=8)).text, flush=True)
        child = os.fork()
        if child == 0:
            try:
                # This is the parent's loop, frozen: the child starts one of its own.
                assert client.statistics().succeeded == 0
                gc.collect()
                asyncio.run(in_child(client))
            except BaseException as error:
                print("child failed", repr(error), flush=True)
            finally:
                sys.stdout.flush()
                os._exit(0)
        os.waitpid(child, 0)
        print("parent", (await client.complete("after", max_tokens=8)).text, flush=True)
        assert client.statistics().succeeded == 2

    async def in_child(client):
        print("child", (await client.complete("inside", max_tokens=8)).text, flush=True)
        await client.aclose()

    with answers_in_a_process() as (url, connections):
        client = BatchClient(url, model="m", probe=False, http=Http(backend=BACKEND, read_timeout_s=5))
        asyncio.run(parent(client))
        print("the server's connections", connections())
    """,
        "-W",
        "ignore::DeprecationWarning",
    )
    assert err == ""
    assert out == ("parent <before>\nchild <inside>\nparent <after>\nthe server's connections 2\n")
    assert status == 0


def test_a_pending_client_that_is_dropped_warns():
    """Its calls hold it, so that it takes a closed loop to drop one."""
    server = ScriptedTransport(held=True)
    client = make_client(server)

    async def main():
        client.pause()
        call = asyncio.ensure_future(client.complete("p"))
        await settle()
        assert client.statistics().queued == 1
        return call

    loop = asyncio.new_event_loop()
    call = loop.run_until_complete(main())
    loop.close()
    loop.call_exception_handler = lambda _: None  # of the pending task
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        del call, client
        gc.collect()
    assert [(each.category, str(each.message).partition(" ")[0]) for each in warned] == [(ResourceWarning, "unclosed")]
