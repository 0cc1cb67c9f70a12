"""One slow row stops nothing: with a journal the rows behind it are read, sent and finished, in flat memory.

The slow row is answered once the source has no further document; a map that waits for the row has no answer for it.
"""

import gc
import json
import sqlite3
import threading

import anyio
import pytest
from pydantic import BaseModel
from tests.journal.jobs import look, run_job, sent_prompts
from tests.shell.scripted import Reply, ScriptedTransport, answer_to, echo, error, make_client, settle
from tests.shell.test_sync import make_sync

from batchclient import BadRequest, Batching, Completion, Journal, JournalFailed, MissingField
from batchclient.journal.held import HeldJournal
from batchclient.retry import Backoff
from batchclient.maps import map_of

AHEAD = 64
COUNT = 400


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    # A look-ahead as small as this one waits for each group.
    monkeypatch.setattr("batchclient._maps.journaled.GROUP_S", 0.005)


class Text(str):
    """A document that can be counted while it lives."""

    def __eq__(self, other):
        return str(self) == str(other)

    __hash__ = str.__hash__


def alive():
    """How many completions and texts there are, those of other tests among them."""
    gc.collect()
    return [sum(type(each) is kind for each in gc.get_objects()) for kind in (Completion, Text)]


class SlowServer(ScriptedTransport):
    """Answers at once, but for one prompt: that waits until ``is_over`` is set. Some others are refused."""

    def __init__(self, slow="Say: 0", refused=()):
        super().__init__()
        self.slow, self.refused = slow, refused
        self.is_over = threading.Event()
        self.in_memory = []
        """New completions, and documents of the class ``Text``, when the slow row is answered."""

    def documents(self, made):
        """The documents; behind the last one the slow row is answered."""
        before = alive()
        yield from made
        self.in_memory = [now - then for now, then in zip(alive(), before, strict=True)]
        self.is_over.set()

    async def send(self, request, timeouts):
        looks = 0
        while self.slow.encode() + b'"' in request.body and not self.is_over.is_set():
            await anyio.sleep(0.01)
            looks += 1
            assert looks < 1_000, "the documents are not read to their end"
        self.script = [self.reply]
        return await super().send(request, timeouts)

    def reply(self, sent):
        return error(400) if sent.prompts[0] in self.refused else echo(sent)


OPTIONS = {"limit": 16, "batching": Batching(max_size=1), "retry": Backoff(max_attempts=1)}


async def awaiting(server, documents, prompt="Say: {}", **arguments):
    with anyio.fail_after(60):
        async with make_client(server, **OPTIONS) as client:
            return [row async for row in client.stream_map(documents, prompt, look_ahead=AHEAD, **arguments)]


async def asynchronous(server, documents, *given, **arguments):
    async def source():
        for document in documents:
            yield document

    return await awaiting(server, source(), *given, **arguments)


async def blocking(server, documents, prompt="Say: {}", **arguments):
    def run():
        with make_sync(server, **OPTIONS) as client:
            return list(client.stream_map(documents, prompt, look_ahead=AHEAD, **arguments))

    with anyio.fail_after(60):
        return await anyio.to_thread.run_sync(run, abandon_on_cancel=True)


WAYS = pytest.mark.parametrize("stream_map", [awaiting, asynchronous, blocking])


def told(rows):
    return [(row.index, row.document, row.answer and row.answer.text, row.reused, row.attempts) for row in rows]


@WAYS
async def test_rows_behind_a_slow_one_are_sent_and_come_in_order(path, stream_map):
    server = SlowServer()
    documents = server.documents(Text(number) for number in range(COUNT))
    rows = await stream_map(server, documents, journal=path, ordered=True)
    assert told(rows) == [(n, str(n), answer_to(f"Say: {n}"), False, 1) for n in range(COUNT)]
    assert all(type(row.document) is Text for row in rows)
    assert sorted(sent_prompts(server)) == sorted(f"Say: {n}" for n in range(COUNT))
    # Neither the answers nor the documents of the rows that wait are in memory.
    assert max(server.in_memory) <= 2 * AHEAD, server.in_memory


@WAYS
async def test_a_resumed_job_s_rows_behind_a_slow_one_are_read_and_not_held(path, stream_map):
    await run_job([str(number) for number in range(1, COUNT)], path)
    server = SlowServer()
    documents = server.documents(str(number) for number in range(COUNT))
    rows = await stream_map(server, documents, journal=path, ordered=True)
    assert told(rows) == [(n, str(n), answer_to(f"Say: {n}"), n > 0, 1) for n in range(COUNT)]
    assert sent_prompts(server) == ["Say: 0"] and server.in_memory[0] <= 2 * AHEAD


@WAYS
@pytest.mark.parametrize("ordered", [False, True])
async def test_equals_of_a_slow_row_stop_no_other(path, stream_map, ordered):
    server = SlowServer()
    made = [{"x": "0", "id": f"own {n}"} if n % 3 else {"x": f"{n % 7}"} for n in range(COUNT)]
    documents = server.documents(iter(made))
    rows = await stream_map(server, documents, "Say: {x}", journal=Journal(path, dedupe=True), ordered=ordered)
    assert sorted(sent_prompts(server)) == [f"Say: {n}" for n in range(7)] and len(look(path)) == 7
    if not ordered:
        rows.sort(key=lambda row: row.index)
    assert [row.document for row in rows] == made
    assert [row.answer.text for row in rows] == [answer_to(f"Say: {document['x']}") for document in made]
    assert sum(row.reused for row in rows) == COUNT - 7
    assert [row.id for row in rows if "id" in row.document] == [each["id"] for each in made if "id" in each]


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("others", ["answered", "refused"])
async def test_equals_of_a_slow_row_that_is_refused_have_its_error(path, ordered, others):
    """Where no row is answered, none is in the journal."""
    server = SlowServer(refused=[f"Say: {n}" for n in range(1 if others == "answered" else COUNT)])
    documents = server.documents("0" if n % 5 else f"{n}" for n in range(COUNT))
    rows = await awaiting(server, documents, journal=Journal(path, dedupe=True), ordered=ordered)
    refused = [row.document for row in rows if type(row.error) is BadRequest]
    assert len(rows) == COUNT and len(refused) == (COUNT if others == "refused" else COUNT - COUNT // 5 + 1)
    assert set(refused) == {"0"} or others == "refused"
    assert all(row.attempts == 1 for row in rows)


@WAYS
async def test_failed_rows_behind_a_slow_one_keep_their_errors(path, stream_map):
    server = SlowServer(refused=[f"Say: {n}" for n in range(1, COUNT, 2)])
    documents = server.documents({"x": n} if n % 4 else {"y": n} for n in range(2, COUNT))
    server.slow = "Say: 2"
    rows = await stream_map(server, documents, "Say: {x}", journal=path, ordered=True)
    kinds = {0: MissingField, 1: BadRequest, 2: type(None), 3: BadRequest}
    assert [type(row.error) for row in rows] == [kinds[n % 4] for n in range(2, COUNT)]
    assert all(row.error.status == 400 for row in rows if type(row.error) is BadRequest)
    assert "document 394" in str(rows[394].error)


@pytest.mark.parametrize("stream_map", [awaiting, blocking])
async def test_documents_of_a_list_are_handed_out_themselves(path, stream_map):
    made = [{"x": f"{n}"} for n in range(COUNT)]
    server = SlowServer()

    def release(prompt):
        if prompt["x"] == str(COUNT - 1):
            server.is_over.set()
        return f"Say: {prompt['x']}"

    rows = await stream_map(server, made, release, journal=path, ordered=True)
    assert all(row.document is document for row, document in zip(rows, made, strict=True))


async def test_a_document_that_cannot_be_written_aside_stays_and_counts(path):
    server, made = SlowServer(), []

    class Local:
        """Its class has no name by which pickle finds it."""

        def __init__(self, number):
            self.number = number
            made.append(number)

    taken = []
    with anyio.fail_after(60):
        async with make_client(server, **OPTIONS) as client, anyio.create_task_group() as group:
            documents = (Local(number) for number in range(300))
            prompt = lambda document: f"Say: {document.number}"  # noqa: E731
            rows = client.stream_map(documents, prompt, journal=path, ordered=True, look_ahead=AHEAD)

            async def take():
                async for row in rows:
                    taken.append(row.document.number)

            group.start_soon(take)
            while rows.counts.answered < AHEAD - 1:
                await anyio.sleep(0.01)
            await settle(100)
            assert made == list(range(AHEAD)) and map_of(rows).room == 0
            server.is_over.set()
    assert taken == list(range(300))


class Word(BaseModel):
    word: str


async def test_an_answer_that_comes_back_is_parsed_again(path):
    class Server(SlowServer):
        def reply(self, sent):
            text = Word(word=sent.prompts[0]).model_dump_json()
            choices = [{"index": 0, "text": text, "finish_reason": "stop"}]
            return Reply(chunks=[json.dumps({"model": "m", "choices": choices}).encode()])

    server = Server()
    documents = server.documents(str(number) for number in range(COUNT))
    rows = await awaiting(server, documents, journal=path, ordered=True, response_model=Word)
    assert [row.answer.choices[0].parsed for row in rows] == [Word(word=f"Say: {number}") for number in range(COUNT)]


async def test_nothing_is_read_further_while_nobody_takes(path):
    read = []

    def source():
        for number in range(COUNT):
            read.append(number)
            yield str(number)

    server = ScriptedTransport()
    async with make_client(server, **OPTIONS) as client:
        rows = client.stream_map(source(), "Say: {}", journal=path, ordered=True, look_ahead=AHEAD)
        assert (await anext(rows)).index == 0
        while rows.counts.answered < len(read):
            await anyio.sleep(0.01)
        await settle(100)
        assert len(read) <= 1 + AHEAD and map_of(rows).room <= 1


async def test_a_slow_row_that_comes_to_its_turn_behind_a_slow_taker_stops_nothing(path):
    """The look-ahead is full of finished rows when the slow row becomes the next one."""
    server = SlowServer(slow="Say: 100")
    documents = server.documents(str(number) for number in range(COUNT))
    with anyio.fail_after(60):
        async with make_client(server, **OPTIONS) as client:
            rows, taken = client.stream_map(documents, "Say: {}", journal=path, ordered=True, look_ahead=AHEAD), []
            async for row in rows:
                taken.append(row.index)
                if row.index < 100:
                    # All that may be sent has ended, and is on the disk.
                    while len(server.sent) < 100 and rows.counts.answered < min(100, row.index + AHEAD):
                        await anyio.sleep(0.001)
    assert taken == list(range(COUNT))


async def test_a_record_that_was_damaged_since_is_not_handed_out(path, monkeypatch):
    monkeypatch.setattr("batchclient.journal.held.record_in", lambda line: None)
    server = SlowServer()
    with pytest.raises(JournalFailed, match="was damaged; the same map asks it again"):
        await awaiting(server, server.documents(str(n) for n in range(COUNT)), journal=path, ordered=True)


class Looked:
    """A value of a row; ``look`` is called while the row is put aside."""

    def __init__(self, look):
        self.look = look

    def __conform__(self, protocol):
        self.look()
        return b"left"


def test_a_profiler_that_holds_the_tables_objects_for_a_while_disturbs_nothing(path):
    """``gc.get_objects()`` gives it a cursor, and later that one ends while another row is put aside."""
    held, kept = HeldJournal.open(path), []

    def look():
        kept.extend(each for each in gc.get_objects() if type(each) is sqlite3.Cursor)

    for of, do in (1, look), (2, kept.clear):
        held.put_aside(of, [(n, Looked(do) if n == 1 else b"left", None, 0, None, 0) for n in range(3)])
    assert held.take_back(2, range(3)) == [(b"left", None)] * 3
    held.close()
