"""Streams and maps as plain iterators: which thread runs what, what is read ahead, and what is left when one stops early."""

import gc
import threading
from functools import partial

import anyio
import pytest

from batchclient import Batching, ConfigError
from batchclient import sync as sync_module
from batchclient._threads.iterators import SyncRowStream
from tests.seams import bridge_of
from tests.shell.scripted import Reply, ScriptedTransport, answer_to, echo, stream
from tests.shell.test_bridge import Calls, holds, interrupt_when, running_loop, wait_until
from tests.shell.test_maps import Source
from tests.shell.test_sync import make_sync, release


def texts(rows):
    return [row.answer.text if row.error is None else row.error for row in rows]


# Maps: which thread runs what ----------------------------------------------------------------------------------------


def test_documents_and_prompts_are_made_in_the_thread_that_takes_the_rows():
    threads = set()

    def documents():
        for number in range(3000):
            threads.add(threading.get_ident())
            yield number
        threads.add(threading.get_ident())

    def prompt(number):
        threads.add(threading.get_ident())
        return f"p{number}"

    with make_sync(ScriptedTransport()) as client:
        answers = client.batch_map(documents(), prompt)
    assert [answer.text for answer in answers] == [answer_to(f"p{number}") for number in range(3000)]
    assert threads == {threading.get_ident()}


def test_the_documents_may_come_of_calls_of_the_same_client():
    with make_sync(ScriptedTransport()) as client:
        documents = (client.complete(f"p{number}").text for number in range(5))
        answers = client.batch_map(documents, "{}")
    assert [answer.text for answer in answers] == [answer_to(answer_to(f"p{number}")) for number in range(5)]


# Maps: what is read --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("look_ahead", [1, 5, 64])
def test_never_more_than_look_ahead_documents_are_open(look_ahead):
    source, yielded, most = Source(range(500)), 0, 0
    with make_sync(ScriptedTransport()) as client:
        for _ in client.stream_map(source, lambda number: f"p{number}", look_ahead=look_ahead):
            most = max(most, source.read - yielded)
            yielded += 1
    assert (yielded, source.read) == (500, 500)
    assert most <= look_ahead


def test_nothing_is_read_before_the_first_row_is_asked_for_nor_while_none_is_taken():
    source = Source(range(100))
    with make_sync(ScriptedTransport()) as client:
        rows = client.stream_map(source, lambda number: f"p{number}", look_ahead=10)
        assert source.read == 0
        next(rows)
        assert source.read == 10
        rows.close()
    assert source.read == 10


def test_a_slow_source_is_read_on_while_no_row_is_ready(monkeypatch):
    """Each look at the clock says that the slice is over."""
    monkeypatch.setattr(sync_module, "SyncRowStream", partial(SyncRowStream, slice_s=-1.0))
    source, server = Source(range(40)), ScriptedTransport(held=True)
    with make_sync(server) as client:
        rows, calls = client.stream_map(source, lambda number: f"p{number}", look_ahead=30), Calls()
        calls.start("rows", list, rows)
        wait_until(lambda: source.read == 30)
        release(client, server)
        assert len(calls.join()["rows"]) == 40


def test_rows_that_are_ready_do_not_wait_for_a_slow_source(monkeypatch):
    monkeypatch.setattr(sync_module, "SyncRowStream", partial(SyncRowStream, slice_s=-1.0))
    source = Source(range(1000))
    with make_sync(ScriptedTransport()) as client:
        rows = client.stream_map(source, lambda number: f"p{number}")
        next(rows)
        assert source.read < 100
        rows.close()


def test_the_event_loop_has_other_turns_while_many_documents_are_opened():
    with make_sync(ScriptedTransport()) as client:
        client.complete("p")
        loop, opened = bridge_of(client).call_now(running_loop), [0]
        rows = client.stream_map(range(1000), lambda number: f"p{number}", look_ahead=1000)

        def look():
            opened.append(client.statistics().submitted - 1)
            if opened[-1] < 1000:
                loop.call_soon(look)

        bridge_of(client).ask(loop.call_soon, look)
        next(rows)
        wait_until(lambda: opened[-1] == 1000)
    assert max(after - before for before, after in zip(opened, opened[1:])) <= 64


def test_the_error_of_a_source_comes_after_the_rows_that_were_read():
    class Failing:
        read = 0

        def __iter__(self):
            return self

        def __next__(self):
            self.read += 1
            if self.read == 4:
                raise OSError("the disk")
            return f"p{self.read}"

    source = Failing()
    with make_sync(ScriptedTransport()) as client:
        rows, taken = client.stream_map(source, "{}", ordered=True), []
        with pytest.raises(OSError, match="the disk"):
            for row in rows:
                taken.append(row.answer.text)
        assert taken == [answer_to(f"p{number}") for number in (1, 2, 3)]
        assert list(rows) == []
    assert source.read == 4


def test_a_source_that_cannot_be_iterated_says_so_at_the_first_row():
    class Broken:
        def __iter__(self):
            raise OSError("no cursor")

    with make_sync(ScriptedTransport()) as client:
        rows = client.stream_map(Broken(), "{}")
        with pytest.raises(OSError, match="no cursor"):
            next(rows)
        assert list(rows) == []


async def documents():
    yield "a"


@pytest.mark.parametrize("docs", ["text", b"bytes", {"a": 1}, 3, None, documents()])
def test_what_is_no_iterable_of_documents_is_refused(docs):
    with make_sync(ScriptedTransport()) as client:
        for call in (client.stream_map, client.batch_map):
            with pytest.raises(ConfigError) as caught:
                call(docs, "{}")
            assert caught.value.field == "docs"
            assert ("is for BatchClient" in str(caught.value)) == hasattr(docs, "__aiter__")


# Maps: stopping early ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["close", "with", "break", "interrupt"])
def test_a_map_that_is_left_cancels_what_is_open(how):
    server = ScriptedTransport(echo, held=True)
    with make_sync(server, limit=2, batching=Batching(max_size=1)) as client:
        if how == "interrupt":
            interrupted = threading.Event()
            threading.Thread(
                target=lambda: (wait_until(lambda: len(server.sent) == 2), interrupted.set()), daemon=True
            ).start()
            interrupt_when(interrupted)
            rows = client.stream_map([f"p{number}" for number in range(10)], "{}")
            with pytest.raises(KeyboardInterrupt):
                next(rows)
            assert list(rows) == []
        else:
            rows = client.stream_map([f"p{number}" for number in range(10)], "{}")
            calls = Calls()
            calls.start("next", next, rows)
            wait_until(lambda: len(server.sent) == 2)
            bridge_of(client).ask(server.sent[0].release)
            calls.join()
            if how == "close":
                rows.close()
                rows.close()
                assert list(rows) == []
            elif how == "with":
                with pytest.raises(ZeroDivisionError), rows as entered:
                    assert entered is rows
                    1 / 0
            else:
                gc.disable()
                calls.outcomes.clear(), calls.threads.clear()
                del rows
                gc.enable()
        wait_until(lambda: client.statistics().in_flight == 0 == client.statistics().queued)
        wait_until(lambda: server.open == 0)
        assert "cancelled" in server.states


def test_a_map_closed_from_another_thread_ends_its_iteration():
    server = ScriptedTransport(held=True)
    with make_sync(server) as client:
        rows, calls = client.stream_map(["p"], "{}"), Calls()
        calls.start("rows", list, rows)
        wait_until(lambda: server.sent)
        rows.close()
        assert calls.join() == {"rows": []}
        wait_until(lambda: server.states == ["cancelled"])


def test_two_threads_do_not_read_the_source_at_the_same_time(monkeypatch):
    reads, goes_on, waits = threading.Event(), threading.Event(), threading.Event()

    def source():
        yield "p0"
        reads.set()
        goes_on.wait()
        yield "p1"

    class Telling:
        """A lock that tells that a thread waits for it."""

        def __init__(self):
            self.lock = make_lock()
            self.acquire, self.release = self.lock.acquire, self.lock.release

        def __enter__(self):
            if not self.acquire(blocking=False):
                waits.set()
                self.acquire()

        def __exit__(self, *_):
            self.release()

    make_lock = threading.Lock
    with make_sync(ScriptedTransport()) as client:
        with monkeypatch.context() as patched:
            patched.setattr(threading, "Lock", Telling)
            rows, calls = client.stream_map(source(), "{}"), Calls()
        calls.start("one", next, rows)
        reads.wait()
        calls.start("other", next, rows)
        waits.wait()
        goes_on.set()
        assert sorted(row.index for row in calls.join().values()) == [0, 1]


# Streams -------------------------------------------------------------------------------------------------------------


def endless(sent):
    """Half of the answer, and never the rest."""
    return Reply(chunks=[*stream(sent, last=False), anyio.Event()])


def test_a_stream_sends_nothing_before_it_is_iterated():
    server = ScriptedTransport()
    with make_sync(server) as client:
        stream_ = client.stream("p")
        stream_.close()
        assert list(stream_) == []
    assert server.sent == []


@pytest.mark.parametrize("how", ["close", "with", "break", "interrupt"])
def test_a_stream_that_is_left_closes_its_connection(how):
    server = ScriptedTransport(endless)
    with make_sync(server) as client:
        pieces = client.stream("p")
        next(pieces)
        if how == "close":
            pieces.close()
            pieces.close()
            assert list(pieces) == []
        elif how == "with":
            with pieces:
                pass
        elif how == "break":
            gc.disable()
            del pieces
            gc.enable()
        else:
            waits = threading.Event()
            threading.Thread(
                target=lambda: (wait_until(lambda: holds(bridge_of(client), under_way=1)), waits.set())
            ).start()
            interrupt_when(waits)
            with pytest.raises(KeyboardInterrupt):
                next(pieces)
        wait_until(lambda: server.states == ["closed"])
        wait_until(lambda: client.statistics().in_flight == 0)


def test_a_stream_closed_from_another_thread_ends_its_iteration():
    server = ScriptedTransport(endless)
    with make_sync(server) as client:
        pieces, calls = client.stream("p"), Calls()
        calls.start("pieces", list, pieces)
        wait_until(lambda: server.sent and holds(bridge_of(client), under_way=1))
        pieces.close()
        assert len(calls.join()["pieces"]) <= 1
        wait_until(lambda: server.states == ["closed"])


def test_what_is_under_way_can_be_read():
    with make_sync(ScriptedTransport(endless)) as client:
        pieces, rows = client.stream("p"), client.stream_map(["p"], "{}")
        assert repr(pieces) == "<SyncStream: not begun, 0 pieces taken>"
        assert repr(rows) == "<SyncRowStream: 0 read, 0 yielded>"
        next(pieces)
        assert repr(pieces) == "<SyncStream: under way, 1 pieces taken>"


def test_streams_fetch_all_that_is_ready_at_once():
    server = ScriptedTransport()
    with make_sync(server) as client:
        crossings = []
        bridge = bridge_of(client)
        call_now = bridge.call_now
        bridge.call_now = lambda *args: (crossings.append(args[0]), call_now(*args))[1]
        pieces = client.stream("p")
        next(pieces)
        wait_until(lambda: server.states == ["read"] and client.statistics().in_flight == 0)
        list(pieces)
        # The first piece, whatever came with it, what came later, and the end.
        assert len(crossings) <= 3
