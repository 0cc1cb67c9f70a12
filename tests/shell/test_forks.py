"""What a forked child finds while its parent is at work: its own calls go, and what the parent has begun is the parent's."""

import asyncio
import gc
import os
import signal
import threading

import pytest
from tests.shell.clocks import run
from tests.shell.scripted import Reply, ScriptedTransport, answer_to, make_client, stream
from tests.shell.test_loops import in_python
from tests.shell.test_sync import make_sync

from batchclient import ClientClosed
from batchclient.maps import map_of


def forking(test):
    """Mark a test that forks, perhaps beside threads, of which Python warns from 3.12 on."""
    test = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")(test)
    return pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")(test)


REFUSED = "what was begun before a fork belongs to the parent process"
LONGEST_S = 5


def in_child(work):
    """Call a function in a forked child; return what it returned or raised, as text. A child that hangs is killed."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(LONGEST_S)
            os.write(writing, str(work()).encode())
        except BaseException as error:
            os.write(writing, f"{type(error).__name__}: {error}".encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as said:
        text = said.read()
    status = os.waitpid(child, 0)[1]
    return text if status == 0 else f"killed by signal {status}"


def half(sent):
    """Begin an answer, and never end it."""
    return Reply(chunks=[*stream(sent, last=False), 3600.0])


@forking
@pytest.mark.parametrize("arguments", ["", "http=Http(backend='httpx'), telemetry=Telemetry()"])
def test_a_child_calls_though_a_thread_of_its_parent_was_importing_for_its_first_call(arguments):
    """The lock of a module that a thread imports stays locked in the child for ever: a first call imports nothing."""
    status, out, err = in_python(
        f"ARGUMENTS = {arguments!r}"
        + """
import os, signal, sys, threading
from importlib.machinery import PathFinder, SourceFileLoader
from batchclient import Http, SyncBatchClient, Telemetry
from tests.fakes.raw import answers_in_a_thread

reached, parent = threading.Event(), os.getpid()

class Slow(SourceFileLoader):
    # Never ends the execution of a module in the client's thread.
    def exec_module(self, module):
        if os.getpid() == parent and threading.current_thread().name == "batchclient":
            reached.set()
            threading.Event().wait()
        super().exec_module(module)

class Finder:
    def find_spec(self, name, path=None, target=None):
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and type(spec.loader) is SourceFileLoader:
            spec.loader.__class__ = Slow
        return spec

def call():
    client.complete("before", max_tokens=8)
    reached.set()

signal.alarm(15)
with answers_in_a_thread() as url:
    client = eval(f"SyncBatchClient(url, model='m', {ARGUMENTS})")
    sys.meta_path.insert(0, Finder())
    threading.Thread(target=call, daemon=True).start()
    reached.wait()
    child = os.fork()
    if child == 0:
        try:
            signal.alarm(5)
            print(client.complete("inside", max_tokens=8, timeout_s=3).text, flush=True)
        except BaseException as error:
            print(repr(error), flush=True)
        finally:
            os._exit(0)
    print(os.waitpid(child, 0)[1], flush=True)
    os._exit(0)
""",
        "-W",
        "ignore::DeprecationWarning",
    )
    assert (status, out, err) == (0, "<inside>\n0\n", "")


@forking
def test_a_child_is_refused_the_stream_and_the_map_that_its_parent_has_begun():
    server = ScriptedTransport(half)
    client = make_client(server)

    async def main():
        pieces, rows = client.stream("p"), client.stream_map(["a", "b"], "{}", ordered=True)
        await map_of(rows).begin()
        await anext(pieces)
        await anext(rows)
        while not map_of(rows).finished():
            await asyncio.sleep(0)
        states = list(server.states)

        async def take(source):
            try:
                return await anext(source)
            finally:
                await source.aclose()

        async def again():
            return (await client.complete("q")).text

        for source in (pieces, rows):
            assert in_child(lambda source=source: asyncio.run(take(source))) == f"ClientClosed: {REFUSED}"
        assert in_child(lambda: asyncio.run(again())) == answer_to("q")
        # What a child drops tells the parent nothing.
        assert in_child(gc.collect).isdigit()
        assert (server.states, (await anext(rows)).answer.text) == (states, answer_to("b"))
        await client.aclose()

    run(main)


@forking
def test_a_child_is_refused_pieces_and_rows_that_a_thread_of_its_parent_takes_or_has_fetched():
    with make_sync(ScriptedTransport()) as client:
        ready = client.stream_map(["a", "b", "c"], "{}", ordered=True)
        next(ready)
        asked, more = threading.Event(), threading.Event()

        def documents():
            yield "a"
            asked.set()
            more.wait()

        taken = client.stream_map(documents(), "{}", look_ahead=1)
        next(taken)
        taking = threading.Thread(target=next, args=(taken, None))
        taking.start()
        asked.wait()
        try:
            for rows in (ready, taken):
                assert in_child(lambda rows=rows: next(rows)) == f"ClientClosed: {REFUSED}"
                assert in_child(rows.close) == "None"
        finally:
            more.set()
            taking.join()
        assert next(ready).index == 1
    with pytest.raises(ClientClosed):
        client.complete("p")
