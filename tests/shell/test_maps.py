"""Maps: order, ids, laziness, errors of documents and of sources, and what is left when one stops early."""

import asyncio
import gc
import sys
import weakref
from contextlib import aclosing

import anyio
import pytest
from tests.shell.clocks import count_alive, run
from tests.shell.scripted import ScriptedTransport, answer_to, echo, error, make_client, settle

from batchclient import (
    Queue,
    BadRequest,
    BatchClient,
    Batching,
    ClientClosed,
    Completion,
    MissingField,
    DeadlineExceeded,
    QueueFull,
    RowStream,
    SyncRowStream,
)
from batchclient.simulator import Profile, SimulatedServer, SimulatorTransport
from batchclient.maps import map_of


class Source:
    """Documents that count how many of them were read."""

    def __init__(self, documents, on_read=None):
        self.iterator = iter(documents)
        self.read = 0
        self.on_read = on_read

    def __iter__(self):
        return self

    def __next__(self):
        document = next(self.iterator)
        self.read += 1
        if self.on_read is not None:
            self.on_read(self.read)
        return document


class AsyncSource(Source):
    """The same for ``async for``; with ``slow_s`` between documents."""

    def __init__(self, documents, on_read=None, slow_s=None):
        super().__init__(documents, on_read)
        self.slow_s = slow_s
        self.closed = False

    __iter__ = None

    def __aiter__(self):
        return self

    async def __anext__(self):
        if self.slow_s is not None:
            await anyio.sleep(self.slow_s)
        try:
            return next(self)
        except StopIteration:
            raise StopAsyncIteration from None


KINDS = [Source, AsyncSource]


def texts(count):
    return [f"text {number}" for number in range(count)]


@pytest.mark.parametrize("kind", [list, *KINDS])
async def test_a_batch_map_answers_in_input_order(kind):
    server = ScriptedTransport()
    async with make_client(server, limit=8) as client:
        answers = await client.batch_map(kind(texts(100)), "Say: {}")
    assert [answer.text for answer in answers] == [answer_to(f"Say: {text}") for text in texts(100)]


async def test_a_stream_map_yields_as_answers_come():
    server = ScriptedTransport(held=True)
    async with make_client(server, limit=4, batching=Batching(max_size=1)) as client:
        rows = client.stream_map(texts(4), "{}")
        async with anyio.create_task_group() as group:
            got = []

            async def take():
                async for row in rows:
                    got.append((row.index, row.document, row.completion.text))

            group.start_soon(take)
            await server.arrived(4)
            for sent in (server.sent[2], server.sent[0], server.sent[3], server.sent[1]):
                sent.release()
                await settle()
    assert [(document, text) for _, document, text in got] == [
        (sent.prompts[0], answer_to(sent.prompts[0]))
        for sent in (server.sent[2], server.sent[0], server.sent[3], server.sent[1])
    ]
    assert sorted(index for index, _, _ in got) == [0, 1, 2, 3]


async def test_an_ordered_stream_map_holds_back_what_comes_early():
    server = ScriptedTransport(held=True)
    async with make_client(server, limit=3, batching=Batching(max_size=1)) as client:
        rows = client.stream_map(texts(3), "{}", ordered=True)
        got = []
        async with anyio.create_task_group() as group:

            async def take():
                async for row in rows:
                    got.append(row.index)

            group.start_soon(take)
            await server.arrived(3)
            by_prompt = {sent.prompts[0]: sent for sent in server.sent}
            by_prompt["text 2"].release()
            by_prompt["text 1"].release()
            await settle()
            assert got == []
            by_prompt["text 0"].release()
    assert got == [0, 1, 2]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("look_ahead", [1, 3, 10])
async def test_never_more_than_look_ahead_documents_are_open(kind, look_ahead):
    """Also when look_ahead is below the limit."""
    server = ScriptedTransport()
    yielded = 0
    most = 0

    def on_read(read):
        nonlocal most
        most = max(most, read - yielded)

    source = kind(texts(50), on_read)
    async with make_client(server, limit=4, batching=Batching(max_size=2)) as client:
        async for _ in client.stream_map(source, "{}", look_ahead=look_ahead):
            yielded += 1
            await settle(3)
    assert yielded == 50
    assert most == look_ahead


@pytest.mark.parametrize("kind", KINDS)
async def test_nothing_is_read_before_results_are_asked_for(kind):
    source = kind(texts(10))
    async with make_client(ScriptedTransport()) as client:
        rows = client.stream_map(source, "{}")
        await settle()
        assert source.read == 0
        await rows.aclose()


async def test_by_default_at_least_1024_documents_are_read_ahead():
    server = ScriptedTransport(held=True)
    source = Source(texts(5000))
    async with make_client(server, limit=8) as client, anyio.create_task_group() as group:
        rows = client.stream_map(source, "{}")
        group.start_soon(anext, rows)
        await settle(2000)
        assert source.read == 1024
        server.release()
        await settle()
        await rows.aclose()


def slow_source(kind, count, read_s):
    """Documents that take so long to read that virtual time passes; the event loop has no turn meanwhile."""
    loop = asyncio.get_running_loop()

    def pass_time(_):
        loop.clock += read_s

    return kind(texts(count), pass_time)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_handed_out_while_the_look_ahead_fills(kind):
    async def main():
        source, behind = slow_source(kind, 500, 0.001), []
        async with make_client(ScriptedTransport(), limit=64) as client:
            async for _ in client.stream_map(source, "{}", look_ahead=500):
                behind.append(source.read - len(behind))
        return behind

    behind = run(main)
    assert len(behind) == 500
    assert max(behind) < 100


def test_a_slow_taker_does_not_keep_the_documents_from_being_read():
    async def main():
        source, read = slow_source(Source, 500, 0.001), []
        async with make_client(ScriptedTransport(), limit=64) as client:
            async for _ in client.stream_map(source, "{}", look_ahead=500):
                asyncio.get_running_loop().clock += 0.01
                read.append(source.read)
        return read

    read = run(main)
    assert read[100] >= 400


def test_others_have_turns_while_many_rows_that_are_ready_are_taken():
    """The first row is late, so that all others are ready when it comes."""
    server = ScriptedTransport(held=True)

    async def main():
        loop = asyncio.get_running_loop()
        taken, turns = 0, []

        async def other():
            while True:
                turns.append(taken)
                await asyncio.sleep(0)

        async with make_client(server, limit=64, batching=Batching(max_size=1)) as client:
            rows = client.stream_map(texts(64), "{}", ordered=True)
            first = asyncio.ensure_future(anext(rows))
            await server.arrived(64)
            server.release()
            await first
            task = asyncio.ensure_future(other())
            async for _ in rows:
                taken += 1
                loop.clock += 0.001
            task.cancel()
        return turns

    turns = run(main)
    assert max(later - earlier for earlier, later in zip(turns, turns[1:], strict=False)) <= 6


def test_rows_show_their_health_and_counts_and_an_end_and_nothing_else():
    for kind, end in ((RowStream, "aclose"), (SyncRowStream, "close")):
        assert {name for name in dir(kind) if name[0] != "_"} == {"health", "counts", end}


def test_the_look_ahead_is_enough_for_all_endpoints():
    """And for one that comes later."""

    async def main():
        server = ScriptedTransport(held=True)
        urls = [f"http://server-{number}/v1" for number in range(5)]
        client = BatchClient(urls, model="m", limit=224, http=lambda url, headers: server)
        async with client, anyio.create_task_group() as group:
            rows = client.stream_map(texts(5000), "{}")
            group.start_soon(anext, rows)
            await settle(200)
            assert client.statistics().in_flight == 5 * 224
            assert map_of(rows).room == 0
            client.add_endpoint("http://server-5/v1")
            assert map_of(rows).room == 4 * 224
            group.cancel_scope.cancel()

    run(main)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ordered", [False, True])
async def test_a_source_that_raises_midway_loses_no_row_before(kind, ordered):
    def break_off(read):
        if read == 6:
            raise OSError("the disk")

    server = ScriptedTransport()
    got = []
    async with make_client(server) as client:
        with pytest.raises(OSError, match="the disk"):
            async for row in client.stream_map(kind(texts(10), break_off), "{}", ordered=ordered):
                got.append(row.completion.text)
    assert sorted(got) == [answer_to(text) for text in texts(5)]


@pytest.mark.parametrize("kind", [list, *KINDS])
async def test_an_empty_input_is_an_empty_map(kind):
    server = ScriptedTransport()
    async with make_client(server) as client:
        assert await client.batch_map(kind([]), "{}") == []
        assert [row async for row in client.stream_map(kind([]), "{}")] == []
    assert server.sent == []


def refuse_the_bad(sent):
    return error(400, "this prompt is bad") if any("bad" in prompt for prompt in sent.prompts) else echo(sent)


async def test_a_bad_row_stops_nothing():
    server = ScriptedTransport(*[refuse_the_bad] * 50)
    async with make_client(server) as client:
        rows = [row async for row in client.stream_map(["a", "bad", None, "b"], "{}", ordered=True)]
    assert [type(row.error) for row in rows] == [type(None), BadRequest, MissingField, type(None)]
    assert [row.completion is None for row in rows] == [False, True, True, False]
    assert rows[2].error.field == "prompt"
    assert "document 2" in str(rows[2].error)


async def test_a_callable_may_raise_what_it_likes():
    def prompt(document):
        if document == "b":
            raise LookupError("no such thing")
        return [1, 2] if document == "c" else document

    server = ScriptedTransport()
    async with make_client(server) as client:
        answers = await client.batch_map(["a", "b", "c"], prompt, return_exceptions=True)
    assert [type(answer) for answer in answers] == [Completion, LookupError, Completion]
    assert server.prompts == [["a"], [[1, 2]]]


@pytest.mark.parametrize("kind", KINDS)
async def test_aclose_cancels_what_is_left(kind):
    server = ScriptedTransport(held=True)
    source = kind(texts(1000))
    async with make_client(server, limit=4, batching=Batching(max_size=1)) as client:
        rows = client.stream_map(source, "{}")
        async with anyio.create_task_group() as group:
            group.start_soon(anext, rows)
            await server.arrived(4)
            server.sent[1].release()
        await rows.aclose()
        await rows.aclose()
        await settle()
        statistics = client.statistics()
        assert (statistics.queued, statistics.in_flight) == (0, 0)
        assert set(server.states) <= {"read", "cancelled"}
        with pytest.raises(StopAsyncIteration):
            await anext(rows)
        read = source.read
        await settle()
        assert source.read == read


@pytest.mark.parametrize("kind", KINDS)
async def test_what_is_cancelled_unsent_is_not_counted_as_a_request(kind):
    server = ScriptedTransport()
    async with make_client(server, limit=1, batching=Batching(max_size=1)) as client:
        rows = client.stream_map(kind(texts(100)), "{}")
        for _ in range(3):
            await anext(rows)
        await rows.aclose()
        await settle()
        statistics = client.statistics()
        assert statistics.batches == len(server.sent) < 10
        assert statistics.list_sizes == {1: len(server.sent)}


@pytest.mark.parametrize("kind", KINDS)
async def test_a_break_out_of_the_loop_cancels_what_is_left(kind):
    server, before = ScriptedTransport(), count_alive()
    source = kind(texts(1000))
    async with make_client(server, limit=4, batching=Batching(max_size=1)) as client:
        async for row in client.stream_map(source, "{}"):
            assert row.completion
            break
        gc.collect()
        await settle(50)
        statistics = client.statistics()
        assert (statistics.queued, statistics.in_flight, statistics.waiting) == (0, 0, 0)
        assert statistics.cancelled > 900
        assert count_alive() == before


async def test_an_error_within_async_with_cancels_what_is_left():
    """A traceback holds the loop's frame, and so the map, which is not dropped."""
    async with make_client(ScriptedTransport(), limit=4, batching=Batching(max_size=1)) as client:
        with pytest.raises(ZeroDivisionError) as kept:
            async with client.stream_map(texts(1000), "{}") as rows:
                async for row in rows:
                    1 / (row.completion is None)
        await settle(50)
        statistics = client.statistics()
        assert (statistics.queued, statistics.in_flight, statistics.waiting) == (0, 0, 0)
        assert statistics.cancelled > 900
    assert kept.tb is not None


async def test_a_client_can_be_left_over_a_map_that_was_left():
    """On trio the nursery would wait for the reader for ever."""
    source = AsyncSource(texts(1000), slow_s=1)
    kept = None
    async with make_client(ScriptedTransport()) as client:
        kept = client.stream_map(source, "{}")
        await anext(kept)
    read = source.read
    await anyio.sleep(100)
    assert source.read == read
    with pytest.raises(ClientClosed, match="before all documents were read"):
        while True:
            row = await anext(kept)
            assert row.completion is not None or isinstance(row.error, ClientClosed)


async def test_an_async_generator_is_closed_when_its_map_is():
    closed = []

    async def documents():
        try:
            for text in texts(100):
                yield text
        finally:
            await settle(2)
            closed.append(True)

    async with make_client(ScriptedTransport()) as client:
        async with aclosing(client.stream_map(documents(), "{}", look_ahead=3)) as rows:
            await anext(rows)
            await settle()
        await settle()
        assert closed == [True]


async def test_a_client_closed_in_the_turn_a_map_begins_ends_the_map():
    async with make_client(ScriptedTransport()) as client:
        rows = client.stream_map(AsyncSource(texts(3), slow_s=1), "{}")
        outcomes = []

        async def take():
            try:
                await anext(rows)
            except ClientClosed as caught:
                outcomes.append(caught)

        async with anyio.create_task_group() as group:
            before = count_alive()
            group.start_soon(take)
            # The task that takes, and the one that reads.
            while count_alive() < before + 2:
                await settle(1)
            await client.aclose()
        assert len(outcomes) == 1


async def test_aclose_from_elsewhere_wakes_the_one_who_waits():
    server = ScriptedTransport(held=True)
    async with make_client(server) as client, anyio.create_task_group() as group:
        rows = client.stream_map(texts(10), "{}")
        over = []

        async def take():
            over.append([row async for row in rows])

        group.start_soon(take)
        await server.arrived(1)
        await rows.aclose()
        await settle()
        assert over == [[]]


async def test_two_may_take_from_one_map():
    server = ScriptedTransport()
    async with make_client(server, limit=2) as client:
        rows = client.stream_map(texts(50), "{}")
        got = []

        async def take():
            async for row in rows:
                got.append(row.document)
                await settle(1)

        async with anyio.create_task_group() as group:
            group.start_soon(take)
            group.start_soon(take)
    assert sorted(got) == sorted(texts(50))


async def test_a_documents_time_counts_from_when_it_is_sent():
    """Four at a time, a second each: the last of 100 is read at once, and sent when most are answered."""
    server = SimulatedServer(Profile("slow", "", step_s=0.25, max_num_seqs=4), model="m")
    async with make_client(SimulatorTransport(server), limit=8) as client:
        before = anyio.current_time()
        answers = await client.batch_map(texts(100), "{}", timeout_s=4, max_tokens=4, temperature=0, ignore_eos=True)
        assert len(answers) == 100
        assert anyio.current_time() - before > 20


@pytest.mark.parametrize("given", [{"timeout_s": 2}, {}])
async def test_a_documents_time_ends_its_call_and_the_next_has_its_own(given):
    server = ScriptedTransport(held=True)
    async with make_client(server, limit=1, timeout_s=2 if not given else 60, batching=Batching(max_size=1)) as client:
        before = anyio.current_time()
        outcomes = await client.batch_map(texts(3), "{}", return_exceptions=True, **given)
        assert anyio.current_time() - before == pytest.approx(6, abs=0.1)
    assert {type(outcome) for outcome in outcomes} == {DeadlineExceeded}


async def test_a_map_is_never_refused_for_a_full_queue():
    server = ScriptedTransport()
    async with make_client(server, limit=1, queue=Queue(max_calls=2, when_full="raise")) as client:
        outcomes = await client.batch_map(texts(100), "{}", return_exceptions=True)
    assert QueueFull not in {type(outcome) for outcome in outcomes}


# Ids ---------------------------------------------------------------------------------------------------------------


async def ids(documents, prompt="{}", *, make=make_client, **params):
    async with make(ScriptedTransport()) as client:
        return [row.id async for row in client.stream_map(documents, prompt, ordered=True, **params)]


async def test_a_documents_own_id_is_its_rows():
    documents = [{"id": "x", "text": "a"}, {"id": 7, "text": "a"}, {"id": "", "text": "a"}, {"text": "a"}]
    found = await ids(documents, "{text}")
    assert found[:2] == ["x", "7"]
    assert all("-" in each for each in found[2:])


async def test_repeats_are_numbered():
    found = await ids(["a", "b", "a", "a", "b"])
    names = [each.rpartition("-") for each in found]
    assert [number for _, _, number in names] == ["0", "0", "1", "2", "1"]
    assert len(set(found)) == 5
    assert names[0][0] == names[2][0] == names[3][0] != names[1][0]


async def test_ids_are_the_same_in_every_run_and_on_any_order_of_answers():
    documents = ["a", "b", "a", "ü"]
    assert await ids(documents, max_tokens=3) == await ids(iter(documents), max_tokens=3)
    # They are what resuming rests on: a change here loses every journal ever written.
    assert await ids(["a", "a"], max_tokens=3) == ["2cea449fb54d5f8e-0", "2cea449fb54d5f8e-1"]


@pytest.mark.parametrize(
    "change", [{"max_tokens": 4}, {"model": "other"}, {"seed": 1}, {"temperature": 0}, {"prompt": "{}!"}]
)
async def test_another_parameter_is_another_id(change):
    change = dict(change)
    prompt = change.pop("prompt", "{}")
    assert await ids(["a"], max_tokens=3) != await ids(["a"], prompt, **{"max_tokens": 3, **change})


@pytest.mark.parametrize("same", [{"timeout_s": 5}, {"look_ahead": 2}])
async def test_how_a_map_is_run_is_not_in_the_ids(same):
    assert await ids(["a"], max_tokens=3) == await ids(["a"], max_tokens=3, **same)


async def test_a_bad_documents_row_has_an_id_too():
    found = await ids([None, {"id": "own"}])
    assert found == ["row-0", "own"]


# Memory ------------------------------------------------------------------------------------------------------------


def test_what_a_map_has_yielded_needs_no_garbage_collector():
    """Rows and requests hold each other while they are open; a circle left behind would pile up until a collection."""

    class Text(str):
        pass

    kept = []

    def documents():
        for text in texts(50):
            document = Text(text)
            kept.append(weakref.ref(document))
            yield document
            del document

    async def main():
        async with make_client(ScriptedTransport()) as client:
            gc.collect()
            gc.disable()
            try:
                async for _ in client.stream_map(documents(), "{}"):
                    del _
                # The last batch's task has its turn to end.
                await settle()
                return sum(ref() is not None for ref in kept)
            finally:
                gc.enable()

    assert run(main) == 0


def test_the_memory_of_a_map_is_flat():
    """What is held after 50,000 documents is what was held after 10,000, counted in blocks of Python's allocator."""
    server = ScriptedTransport()

    async def main():
        blocks = []
        async with make_client(server, limit=256, batching=Batching(max_size=256)) as client:
            taken = 0
            documents = (f"document number {number}" for number in range(50_000))
            async for _ in client.stream_map(documents, "{}", max_tokens=1):
                taken += 1
                if taken % 10_000 == 0:
                    server.sent.clear()
                    gc.collect()
                    blocks.append(sys.getallocatedblocks())
        return blocks

    blocks = run(main)
    assert len(blocks) == 5
    # A block per 20 documents would be a leak of nothing that a document has.
    assert blocks[-1] - blocks[0] < 40_000 / 20, blocks
