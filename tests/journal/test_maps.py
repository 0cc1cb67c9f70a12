"""Maps with a journal: what is handed out is on the disk, and a later run takes it from there."""

import asyncio
import gc
import json
import stat
import subprocess
import sys
import threading

import anyio
import pytest
from pydantic import BaseModel
from tests.journal.jobs import answers, look, run_job, sent_prompts, states, texts
from tests.shell import clocks
from tests.shell.scripted import Reply, ScriptedTransport, answer_to, echo, error, make_client, settle

from batchclient import (
    AuthenticationFailed,
    Backoff,
    BadRequest,
    BatchClient,
    Batching,
    BatchMapFailed,
    ClientClosed,
    ConfigError,
    Journal,
    JournalFailed,
    Repair,
    Server,
    ServerFault,
    SyncBatchClient,
)
from batchclient._maps.progress import Counts
from batchclient._settings import sending_of
from batchclient.health import no_answers
from batchclient.journal.held import HeldJournal, JournalInUse
from batchclient.simulator import EmbeddedServer
from batchclient.maps import map_of

ALONE = {"batching": Batching(max_size=1), "retry": Backoff(max_attempts=1)}


def failing(*bad, status=400, **statuses):
    """A server that refuses some prompts; requests hold one prompt each."""
    refused = dict.fromkeys(bad, status) | statuses

    class Server(ScriptedTransport):
        async def send(self, request, timeouts):
            self.script = [lambda sent: error(refused[sent.prompts[0]]) if sent.prompts[0] in refused else echo(sent)]
            return await super().send(request, timeouts)

    return Server()


@pytest.mark.parametrize("ordered", [False, True])
async def test_a_finished_job_is_read_back_and_nothing_is_sent(path, ordered):
    first, server = await run_job(texts(300), path, ordered=ordered)
    assert answers(first).keys() == set(range(300)) and not any(row.reused for row in first)
    again, silent = await run_job(texts(300), path, ordered=ordered)
    assert silent.sent == []
    assert all(row.reused and row.attempts == 1 for row in again)
    assert answers(again) == answers(first)
    assert {row.id for row in again} == {row.id for row in first}
    if ordered:
        assert [row.index for row in again] == list(range(300))


async def test_a_row_is_handed_out_after_its_commit(path, monkeypatch):
    may_sync, asked, sync, synced = threading.Event(), threading.Event(), HeldJournal.sync, []

    def waiting(self):
        lines = path.read_bytes().splitlines()
        if len(lines) > 1:
            asked.set()
            assert may_sync.wait(20)
        sync(self)
        synced[:] = lines[1:]

    monkeypatch.setattr(HeldJournal, "sync", waiting)
    async with make_client(ScriptedTransport(), limit=4) as client:
        rows = client.stream_map(texts(60), "Say: {}", journal=path, look_ahead=20)
        async with anyio.create_task_group() as group:
            handed_out = []

            async def take():
                async for row in rows:
                    handed_out.append(row)
                    assert len(synced) >= len(handed_out)

            group.start_soon(take)
            await anyio.to_thread.run_sync(asked.wait, 20)
            await settle(200)
            assert handed_out == [] and len(look(path)) == 6
            may_sync.set()
    assert answers(handed_out).keys() == set(range(60)) and len(look(path)) == 60


async def test_a_job_that_was_left_goes_on_where_it_was_and_added_or_moved_rows_cost_the_added_ones(path):
    seen = []
    async with make_client(ScriptedTransport(), limit=4) as client:
        rows = client.stream_map(texts(200), "Say: {}", journal=path, look_ahead=32)
        async for row in rows:
            seen.append(f"Say: {row.document}")
            if len(seen) == 50:
                break
        await rows.aclose()
    kept = len(look(path))
    assert 50 <= kept <= 200
    again, server = await run_job([*reversed(texts(200)), "another", *texts(3)], path)
    assert len(sent_prompts(server)) == 204 - kept == sum(not row.reused for row in again)
    assert set(seen) & set(sent_prompts(server)) <= {f"Say: {text}" for text in texts(3)}
    assert answers(again).keys() == set(range(204))


async def test_repeats_have_an_answer_each(path):
    numbers = iter(range(10**6))

    def counted(sent):
        reply = echo(sent)
        reply.chunks = [chunk.replace(b"<Say", b"<%d Say" % next(numbers)) for chunk in reply.chunks]
        return reply

    documents = ["a", "b", "a", "a", "b"] * 20
    server = ScriptedTransport(*[counted] * 1000)
    first, _ = await run_job(documents, path, server=server, client=ALONE, ordered=True)
    given = [row.answer.text for row in first]
    assert len(set(given)) == 100
    again, silent = await run_job(documents, path, ordered=True)
    assert [row.answer.text for row in again] == given and silent.sent == []
    # More repeats than before: the rest is new.
    more, server = await run_job([*documents, "a", "a"], path, ordered=True)
    assert [row.answer.text for row in more[:100]] == given and sent_prompts(server) == ["Say: a"] * 2


@pytest.mark.parametrize("ordered", [False, True])
async def test_with_dedupe_equal_rows_are_asked_once_and_share_answer_and_error(path, ordered):
    documents = [{"id": f"own {n}", "x": x} if n < 9 else {"x": x} for n, x in enumerate([*"aabcb"] * 20)]
    journal = Journal(path, dedupe=True)
    for sent in (["Say: a", "Say: b", "Say: c"], []):
        server = failing("Say: b")
        async with make_client(server, **ALONE, limit=1) as client:
            rows = client.stream_map(documents, "Say: {x}", journal=journal, ordered=ordered, look_ahead=7)
            taken = sorted([row async for row in rows], key=lambda row: row.index)
            assert rows.counts.reused == client.statistics().reused == 100 - len(sent)
        assert sent_prompts(server) == sent
        for row in taken:
            x = row.document["x"]
            assert type(row.error) is BadRequest if x == "b" else row.answer.text == answer_to(f"Say: {x}")
        assert [row.id for row in taken[:9]] == [f"own {n}" for n in range(9)] and len({row.id for row in taken}) == 100
        answers = [row.answer for row in taken if row.answer is not None]
        assert len({id(answer.choices[0]) for answer in answers}) == len(answers), "no two callers share an answer"
    assert states(path) == ["answered", "answered", "failed"]
    _, server = await run_job([{"x": x} for x in "aac"], path, prompt="Say: {x}", client=ALONE)
    assert sent_prompts(server) == ["Say: a"], "without it each row has an answer of its own"


async def test_with_dedupe_a_row_that_waits_ends_as_its_equal_does(path, monkeypatch):
    documents, journal = ["a", "a", "b", "a"], Journal(path, dedupe=True)
    # Refused before the first answer, and no answer at all.
    with anyio.fail_after(5):
        refused, server = await run_job(documents, journal, server=failing("Say: a", "Say: b"), client=ALONE)
    assert [type(row.error) for row in refused] == [BadRequest] * 4 and len(server.sent) == 2
    # Cut short by the end of the client, and of the map.
    for leave in ("client", "rows"):
        server = ScriptedTransport(held=True)
        async with make_client(server) as client:
            rows, ended = client.stream_map(documents, "Say: {}", journal=journal), []

            async def take(rows=rows, ended=ended):
                ended.extend([row async for row in rows])

            async with anyio.create_task_group() as group:
                group.start_soon(take)
                await server.arrived(1)
                await (client if leave == "client" else rows).aclose()
        assert [type(row.error) for row in ended] == ([ClientClosed] * 4 if leave == "client" else [])
        assert look(path) == []
    # The disk fails under the equal's answer.
    with monkeypatch.context() as patch:
        put = HeldJournal.put
        patch.setattr(HeldJournal, "put", lambda self, lines: put(self, lines if self.job is None else [None]))
        with pytest.raises(JournalFailed):
            await run_job(documents, path.with_name("other"))
    rows, server = await run_job(documents, journal)
    assert len(answers(rows)) == 4 and sorted(sent_prompts(server)) == ["Say: a", "Say: b"]


async def test_a_moved_server_and_another_key_change_nothing(path):
    await run_job(texts(20), path, client={"api_key": "k1"})
    server = ScriptedTransport()
    options = {"model": "m", "api_key": "k2", "probe": False}
    async with BatchClient("http://moved/v1", http=lambda url, headers: server, **options) as client:
        rows = [row async for row in client.stream_map(texts(20), "Say: {}", journal=path)]
    assert all(row.reused for row in rows) and server.sent == []


async def test_another_job_is_refused_by_what_differs_and_a_journal_without_rows_takes_it(path):
    journal = Journal(path, settings={"version": 1})
    arguments = {"prompt": "Say: {}", "max_tokens": 4, "stop": ["secret"]}
    await run_job(texts(3), journal, **arguments)
    server = ScriptedTransport()
    for changed, field, said in [
        ({"prompt": "Tell: {}"}, "template", "template;"),
        ({"prompt": lambda text: f"Say: {text}"}, "template", "template;"),
        ({"max_tokens": 3}, "max_tokens", "max_tokens;"),
        ({"stop": None}, "stop", "stop;"),
        ({"temperature": 0}, "temperature", "temperature;"),
        ({"model": "another"}, "model", r"model \(m, now another\);"),
        ({"call": "chat", "max_tokens": 5}, "call", "call, max_tokens;"),
        ({"journal": Journal(path, settings={"version": 2})}, "version", "version;"),
        ({"journal": path}, "version", "version;"),
    ]:
        with pytest.raises(ConfigError, match=f"is of another job: {said} its 3 rows stay as they are") as refused:
            await run_job(texts(3), **{"journal": journal, **arguments, **changed}, server=server)
        assert refused.value.field == field and server.sent == [] and "secret" not in str(refused.value)
    rows, _ = await run_job(texts(3), journal, **arguments, server=server)
    assert all(row.reused for row in rows)

    other = path.with_name("other")
    await run_job(texts(3), other, prompt="Tell: {}", client=ALONE, server=failing(*(f"Tell: {t}" for t in texts(3))))
    assert look(other) == [], "where all are refused alike, the fault is not the rows'"
    rows, _ = await run_job(texts(3), other)
    assert len(look(other)) == 3
    with pytest.raises(ConfigError, match="of another job: template"):
        await run_job(texts(3), other, prompt="Tell: {}")


async def test_resume_false_refuses_a_file_that_is_there(path):
    new = Journal(path, resume=False)
    await run_job(texts(7), new)
    server = ScriptedTransport()
    with pytest.raises(ConfigError, match="resume=False refuses it") as refused:
        await run_job(texts(7), new, server=server)
    assert refused.value.field == "resume" and server.sent == [] and len(look(path)) == 7
    path.with_name("empty").touch()
    rows, _ = await run_job(texts(7), path.with_name("empty"))
    assert len(rows) == 7


@pytest.mark.parametrize("retry_failed", [False, True])
async def test_which_failed_rows_run_again(path, retry_failed):
    documents, server = ["a", "b", "c", "d"], failing("Say: b", **{"Say: d": 503})
    first, _ = await run_job(documents, path, server=server, client=ALONE, ordered=True)
    assert [type(row.error) for row in first] == [type(None), BadRequest, type(None), ServerFault]
    assert states(path) == ["answered", "answered", "failed", "failed for now"]
    journal = Journal(path, retry_failed=retry_failed)
    rows, server = await run_job(documents, journal, server=failing(), client=ALONE)
    assert sorted(sent_prompts(server)) == (["Say: b", "Say: d"] if retry_failed else ["Say: d"])
    kept = {row.document: row for row in rows if row.error}
    assert set(kept) == (set() if retry_failed else {"b"})
    if kept:
        assert type(kept["b"].error) is BadRequest and kept["b"].error.status == 400 and kept["b"].reused
    assert states(path) == ["answered"] * (4 if retry_failed else 3) + ["failed"] * (not retry_failed)
    rows, server = await run_job(documents, path, server=failing(), client=ALONE)
    assert server.sent == [] and len([row for row in rows if row.error]) == (not retry_failed)


async def test_rows_that_fail_before_the_first_answer_are_written_with_it(path):
    server = failing("Say: a", "Say: b")
    async with make_client(server, limit=1, **ALONE) as client:
        rows = client.stream_map(["a", "b", "c"], "Say: {}", journal=path, ordered=True)
        assert isinstance((await anext(rows)).error, BadRequest) and look(path) == []
        assert len([row async for row in rows]) == 2
    assert states(path) == ["answered", "failed", "failed"]
    again, silent = await run_job(["a", "b", "c"], path, client=ALONE)
    assert all(row.reused for row in again) and silent.sent == []


async def test_a_wrong_key_fails_no_row_for_good(path):
    rows, _ = await run_job(["a", "b"], path, server=failing("Say: b", status=401), client=ALONE, ordered=True)
    assert isinstance(rows[1].error, AuthenticationFailed) and states(path) == ["answered", "failed for now"]
    rows, server = await run_job(["a", "b"], path, client=ALONE)
    assert [row.error for row in rows] == [None, None] and sent_prompts(server) == ["Say: b"]


async def test_a_row_cut_short_by_the_clients_end_is_not_written_down(path):
    server = ScriptedTransport()
    async with make_client(server, limit=1) as client:
        rows = client.stream_map(texts(8), "Say: {}", journal=path, look_ahead=2)
        assert (await anext(rows)).error is None
        server.held = True
        async with anyio.create_task_group() as group:
            group.start_soon(client.aclose)
            ended = []
            with pytest.raises(ClientClosed):
                async for row in rows:
                    ended.append(row)
    assert ClientClosed in {type(row.error) for row in ended} and set(states(path)) == {"answered"}


async def test_batch_map_keeps_and_resumes(path):
    async with make_client(failing("Say: text 3"), **ALONE) as client:
        with pytest.raises(BatchMapFailed) as failed:
            await client.batch_map(texts(10), "Say: {}", journal=path)
    assert sum(isinstance(each, BadRequest) for each in failed.value.results) == 1
    server = ScriptedTransport()
    async with make_client(server) as client:
        results = await client.batch_map(texts(10), "Say: {}", journal=Journal(path, retry_failed=True))
        assert client.statistics().reused == 9
    assert [each.text for each in results] == [answer_to(f"Say: {text}") for text in texts(10)]
    assert sent_prompts(server) == ["Say: text 3"]


async def test_own_ids_are_beside(path):
    documents = [{"id": "first", "a": 1}, {"id": 2, "a": 2}, {"id": "half \ud800", "a": 3}, {"a": 4}]
    await run_job(documents, path, prompt="Say: {a}")
    assert {record.get("id") for record in look(path)} == {"first", "2", "half ?", None}


async def test_progress_counts_what_was_committed_and_ends_nothing(path, caplog):
    told = []

    def progress(now):
        told.append(now)
        raise ValueError("the user's")

    server = ScriptedTransport()
    async with make_client(server, limit=4) as client:
        rows = client.stream_map(texts(60), "Say: {}", journal=path, progress=progress)
        first = await anext(rows)
        await anyio.sleep(0.6)
        async for _ in rows:
            pass
    assert first and 3 <= len(told) <= 6
    last = told[-1]
    assert (last.read, last.answered, last.failed, last.reused) == (60, 60, 0, 0)
    assert last.completion_tokens == 120 and last.limit == 4 and last.seconds > 0.5
    assert caplog.text.count("progress failed") == 1
    told.clear()
    await run_job(
        [*texts(60), {"x": 1}],
        path,
        progress=told.append,
        prompt="Say: {}",
    )
    last = told[-1]
    assert (last.read, last.answered, last.failed, last.reused) == (61, 0, 1, 60)


async def test_a_map_counts_its_rows_and_their_tokens_once(path):
    counted = []
    for _ in range(2):
        async with make_client(failing("Say: b"), **ALONE) as client:
            rows = client.stream_map(["a", "b", "c"], "Say: {}", journal=path)
            async for _row in rows:
                pass
            counted.append(map_of(rows).counts)
    tokens = {"prompt_tokens": 12, "completion_tokens": 4}
    health = {**no_answers(), "truncated": 2}
    assert counted[0] == Counts(read=3, answered=2, failed=1, health=health, **tokens)
    reused = {f"reused_{name}": number for name, number in tokens.items()}
    assert counted[1] == Counts(read=3, reused=3, reused_failed=1, health=health, **reused)


async def test_a_map_that_is_dropped_or_cancelled_commits_what_has_ended_and_frees_the_journal(path):
    server = ScriptedTransport()
    async with make_client(server, limit=4) as client:
        async for _row in client.stream_map(texts(100), "Say: {}", journal=path, look_ahead=24):
            break
        gc.collect()
        server.held = True
        with anyio.fail_after(10):
            while True:
                try:
                    with anyio.move_on_after(0.1):
                        async for _row in client.stream_map(
                            [*texts(100), "more"], "Say: {}", journal=path, ordered=True
                        ):
                            pass
                    break
                except JournalInUse:
                    # A thread may be committing still.
                    await anyio.sleep(0.01)
        server.release()
        rows = [row async for row in client.stream_map(texts(100), "Say: {}", journal=path)]
    assert answers(rows).keys() == set(range(100))
    assert any(row.reused for row in rows)


# Groups of rows, in virtual time ------------------------------------------------------------------------------------


@pytest.fixture
def groups(path, monkeypatch):
    """How many lines each write and each synced group has; the first is the job's. Others' threads may still write."""
    put, sync, writes, sizes = HeldJournal.put, HeldJournal.sync, [], []

    def writing(self, lines):
        writes.extend([len(lines)] if self.path == path else [])
        return put(self, lines)

    def syncing(self):
        sizes.extend([sum(writes) - sum(sizes)] if self.path == path else [])
        sync(self)

    monkeypatch.setattr(HeldJournal, "put", writing)
    monkeypatch.setattr(HeldJournal, "sync", syncing)
    return writes, sizes


def after(**seconds):
    """A server that takes so long for each document; requests hold one prompt each."""

    def reply(sent):
        return Reply(chunks=[seconds[sent.prompts[0].removeprefix("Say: ")], *echo(sent).chunks])

    return ScriptedTransport(*[reply] * len(seconds))


def test_rows_are_written_as_they_end_and_synced_together_within_0_2_s(path, groups):
    server = after(a=0.0, b=0.15, c=0.25, d=0.4)
    clocks.run(lambda: run_job(["a", "b", "c", "d"], path, server=server, client=ALONE))
    assert groups == ([1, 1, 1, 1, 1], [1, 2, 2])


def test_a_group_has_1024_rows_at_most(path, groups):
    clocks.run(lambda: run_job(texts(2100), path, look_ahead=40_000))
    assert groups[1] == [1, 1024, 1024, 52]


def test_no_document_is_read_while_eight_groups_wait_for_a_slow_disk(path, monkeypatch):
    may_write, sync, read = threading.Event(), HeldJournal.sync, []

    def slow(self):
        # The job itself is written before a document is read.
        assert not read or may_write.wait(20)
        sync(self)

    monkeypatch.setattr(HeldJournal, "sync", slow)

    async def main():
        begun = anyio.Event()

        async def source():
            for text in texts(40):
                read.append(text)
                begun.set()
                yield text
                # Each row is a group of its own.
                await anyio.sleep(0.5)

        async with make_client(ScriptedTransport(), limit=16) as client, anyio.create_task_group() as group:
            group.start_soon(anext, client.stream_map(source(), "Say: {}", journal=path))
            await begun.wait()
            await anyio.sleep(30)
            may_write.set()
            group.cancel_scope.cancel()

    clocks.run(main)
    assert len(read) in (8, 9)


def test_8192_failures_before_the_first_answer_are_kept(path):
    class City(BaseModel):
        city: str

    def reply(sent):
        said = ['{"city": "Rome"}' if prompt == "good" else "no" for prompt in sent.prompts]
        choices = [{"index": place, "text": text, "finish_reason": "stop"} for place, text in enumerate(said)]
        return Reply(chunks=[json.dumps({"choices": choices}).encode()])

    documents, server = ["bad"] * 8300 + ["good"], ScriptedTransport(*[reply] * 100)
    client = {"limit": 256, "batching": Batching(max_size=256)}

    async def main():
        async with make_client(server, **client) as made:
            rows = made.stream_map(documents, "{}", journal=path, response_model=City, max_tokens=3)
            return [row async for row in rows]

    assert len(clocks.run(main)) == 8301
    assert len(look(path)) == 8192 + 1


async def test_nothing_secret_is_written(path):
    """Canaries: a key, a header, a query of the address."""
    server = failing("Say: a")
    options = {"model": "m", "api_key": "CANARY-key", "headers": {"x-secret": "CANARY-header"}, **ALONE}
    options |= {"probe": False, "http": lambda url, headers: server}
    async with BatchClient("http://scripted/v1?k=CANARY-query", **options) as client:
        async for _row in client.stream_map(["a", "b"], "Say: {}", journal=path):
            for file in path.parent.iterdir():
                assert b"CANARY" not in file.read_bytes()
                assert stat.S_IMODE(file.stat().st_mode) == 0o600, file
    assert len(look(path)) == 2
    assert b"CANARY" not in path.read_bytes()


async def test_wrong_arguments_are_refused_at_once():
    async with make_client(ScriptedTransport()) as client:
        for arguments, field in [
            ({"journal": ""}, "journal"),
            ({"journal": b"j"}, "journal"),
            ({"journal": "a\0b"}, "journal"),
            ({"progress": 3}, "progress"),
        ]:
            with pytest.raises(ConfigError) as refused:
                client.stream_map(["a"], "{}", **arguments)
            assert refused.value.field == field
    for arguments, field in [
        ({"path": 3}, "journal"),
        ({"resume": "yes"}, "resume"),
        ({"retry_failed": "all"}, "retry_failed"),
        ({"dedupe": 1}, "dedupe"),
        ({"settings": 3}, "settings"),
        ({"settings": {"f": print}}, "settings"),
        ({"settings": {"x": float("nan")}}, "settings"),
    ]:
        with pytest.raises(ConfigError) as refused:
            Journal(**{"path": "j", **arguments})
        assert refused.value.field == field


def test_the_sync_client_keeps_and_resumes(path):
    told = []
    with EmbeddedServer(profile="instant", model="m") as server:
        with SyncBatchClient(server.base_url, model="m") as client:
            for row in client.stream_map(texts(300), "Say: {}", journal=path, max_tokens=4):
                if row.index > 100:
                    break
            gc.collect()
            first = client.batch_map(texts(300), "Say: {}", journal=path, progress=told.append, max_tokens=4)
            assert told[-1].reused > 0 and told[-1].reused + told[-1].answered == 300
            again = list(client.stream_map(texts(300), "Say: {}", journal=path, ordered=True, max_tokens=4))
            assert all(row.reused for row in again)
            assert [row.answer.text for row in again] == [answer.text for answer in first]
            assert client.statistics().reused >= 300


@pytest.mark.parametrize("call", ["embed", "classify", "chat"])
def test_every_call_has_its_answer_back(path, call):
    with EmbeddedServer(profile="instant", model="m") as server, SyncBatchClient(server.base_url, model="m") as client:
        first = client.batch_map(texts(20), "{}", call=call, journal=path)
        again = client.batch_map(texts(20), "{}", call=call, journal=path)
        assert again == first and client.statistics().reused == 20


def test_a_journal_needs_no_sqlite_before_it_is_opened():
    program = "import sys, batchclient; batchclient.Journal('j'); sys.exit('sqlite3' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False, timeout=60).returncode == 0


def test_a_loop_that_ended_leaves_the_journal_to_the_next(path):
    kept = []

    async def leave():
        client = make_client(ScriptedTransport(), limit=4)
        rows = client.stream_map(texts(100), "Say: {}", journal=path, look_ahead=24)
        kept.append(rows)
        await anext(rows)

    asyncio.run(leave())
    kept.clear()
    gc.collect()
    rows, _ = asyncio.run(run_job(texts(100), path))
    assert answers(rows).keys() == set(range(100))


async def test_a_row_that_was_asked_again_is_written_once_and_parsed_again(path):
    class Place(BaseModel):
        city: str

    def saying(name):
        body = b'{"choices": [{"index": 0, "text": "{\\"%s\\": \\"Rome\\"}", "finish_reason": "stop"}]}' % name
        return Reply(chunks=[body])

    server = ScriptedTransport(saying(b"town"), saying(b"city"))
    arguments = {"client": ALONE, "response_model": Place, "repair": Repair(invalid=1), "max_tokens": 3}
    first, _ = await run_job(["x"], path, server=server, **arguments)
    assert first[0].answer.choices[0].parsed == Place(city="Rome")
    assert [(record["state"], record["attempts"]) for record in look(path)] == [("answered", 2)]
    again, silent = await run_job(["x"], path, **arguments)
    assert (again[0].answer.parsed, again[0].attempts, silent.sent) == (Place(city="Rome"), 2, [])


async def test_the_servers_models_are_in_the_keys_of_the_rows(path):
    async def reused(*servers):
        transports = {server if isinstance(server, str) else server.url: ScriptedTransport(echo) for server in servers}
        http = sending_of(None, transport=lambda url, headers: transports[url])
        async with BatchClient(list(servers), model="mine", http=http, from_environment=False) as client:
            await client.batch_map(texts(2), "{}", max_tokens=2, journal=path)
            return client.statistics().reused

    own, hosted = "http://own/v1", Server("http://hosted/v1", model="hosted")
    assert await reused(own, hosted) == 0
    assert await reused(hosted, own) == 2
    with pytest.raises(ConfigError, match="model"):
        await reused(own, Server("http://hosted/v1", model="other"))
