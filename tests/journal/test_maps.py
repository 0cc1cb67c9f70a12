"""Maps with a journal: what is handed out is on the disk, and a later run takes it from there."""

import asyncio
import gc
import os
import stat
import subprocess
import sys
import threading

import anyio
import pytest
from pydantic import BaseModel
from tests.journal.jobs import answers, look, run_job, sent_prompts, texts
from tests.shell.scripted import Reply, ScriptedTransport, answer_to, echo, error, make_client

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
    ServerFault,
    SyncBatchClient,
)
from batchclient.journal.file import JournalFile
from batchclient.simulator.app import EmbeddedServer

ALONE = {"batching": Batching(max_size=1), "retry": Backoff(max_attempts=1)}


class Place(BaseModel):
    city: str


def failing(*bad, status=400):
    """A server that refuses some prompts; requests hold one prompt each."""

    class Server(ScriptedTransport):
        async def send(self, request, timeouts):
            self.script = [lambda sent: error(status) if sent.prompts[0] in bad else echo(sent)]
            return await super().send(request, timeouts)

    return Server()


@pytest.mark.parametrize("ordered", [False, True])
async def test_a_finished_job_is_read_back_and_nothing_is_sent(path, ordered):
    first, server = await run_job(texts(300), path, ordered=ordered)
    assert answers(first).keys() == set(range(300)) and not any(row.reused for row in first)
    again, silent = await run_job(texts(300), path, resume=True, ordered=ordered)
    assert silent.sent == []
    assert all(row.reused and row.attempts == 1 for row in again)
    assert answers(again) == answers(first)
    assert {row.id for row in again} == {row.id for row in first}
    if ordered:
        assert [row.index for row in again] == list(range(300))


async def test_a_row_is_handed_out_after_its_commit(path):
    handed_out = 0
    async with make_client(ScriptedTransport(), limit=4) as client:
        async for _ in client.stream_map(texts(60), "{}", journal=Journal(path, commit_rows=7), look_ahead=20):
            handed_out += 1
            assert look(path)[0][0] >= handed_out


async def test_a_job_that_was_left_goes_on_where_it_was(path):
    seen = []
    async with make_client(ScriptedTransport(), limit=4) as client:
        rows = client.stream_map(texts(200), "Say: {}", journal=Journal(path, commit_rows=8), look_ahead=32)
        async for row in rows:
            seen.append(f"Say: {row.document}")
            if len(seen) == 50:
                break
        await rows.aclose()
    kept = look(path)[0][0]
    assert 50 <= kept <= 200
    again, server = await run_job(texts(200), path, resume=True)
    assert len(sent_prompts(server)) == 200 - kept == sum(not row.reused for row in again)
    assert not set(seen) & set(sent_prompts(server))
    assert answers(again).keys() == set(range(200))


async def test_added_and_reordered_rows_cost_the_added_ones(path):
    await run_job(texts(100), path)
    documents = [*reversed(texts(100)), "another", *texts(3)]
    again, server = await run_job(documents, path, resume=True)
    assert sorted(sent_prompts(server)) == sorted(["Say: another", *(f"Say: {text}" for text in texts(3))])
    assert len(answers(again)) == 104


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
    again, silent = await run_job(documents, path, resume=True, ordered=True)
    assert [row.answer.text for row in again] == given and silent.sent == []
    # More repeats than before: the rest is new.
    more, server = await run_job([*documents, "a", "a"], path, resume=True, ordered=True)
    assert [row.answer.text for row in more[:100]] == given and sent_prompts(server) == ["Say: a"] * 2


async def test_a_moved_server_and_another_key_change_nothing(path):
    await run_job(texts(20), path, client={"api_key": "k1"})
    server = ScriptedTransport()
    moved = BatchClient(
        "http://moved/v1",
        model="m",
        api_key="k2",
        transport=lambda url, headers: server,
        server_metrics=False,
        detect=False,
    )
    async with moved as client:
        rows = [row async for row in client.stream_map(texts(20), "Say: {}", journal=path, resume=True)]
    assert all(row.reused for row in rows) and server.sent == []


@pytest.mark.parametrize(
    "changed",
    [{"prompt": "Tell: {}"}, {"max_tokens": 3}, {"model": "another"}],
    ids=lambda changed: next(iter(changed)),
)
async def test_another_template_or_parameter_is_refused_with_the_number_of_rows(path, changed):
    await run_job(texts(30), path)
    server = ScriptedTransport()
    with pytest.raises(ConfigError, match=r"up to 30 rows would run again; accept_changed=True runs them") as refused:
        await run_job(texts(30), path, resume=True, server=server, **changed)
    assert refused.value.field == "accept_changed" and server.sent == []
    rows, server = await run_job(texts(30), path, resume=True, accept_changed=True, **changed)
    assert not any(row.reused for row in rows) and len(sent_prompts(server)) == 30
    # It is the job's own from now on.
    rows, server = await run_job(texts(30), path, resume=True, **changed)
    assert all(row.reused for row in rows) and server.sent == []


async def test_another_prompt_function_is_noticed_by_the_rows(path):
    await run_job(texts(30), path, prompt=lambda text: f"Say: {text}")
    rows, server = await run_job(texts(30), path, prompt=lambda text: "Say: " + text, resume=True)
    assert all(row.reused for row in rows) and server.sent == []
    with pytest.raises(ConfigError, match="none of the first 30 rows"):
        await run_job(texts(30), path, prompt=lambda text: f"Tell: {text}", resume=True, server=server)
    assert server.sent == []
    rows, _ = await run_job(
        texts(30), path, prompt=lambda text: f"Tell: {text}", resume=True, accept_changed=True, server=server
    )
    assert len(sent_prompts(server)) == 30


async def test_a_journal_with_rows_is_refused_without_resume(path):
    await run_job(texts(7), path)
    server = ScriptedTransport()
    with pytest.raises(ConfigError, match=r"has 7 rows of a job begun 20\d\d-.* resume=True"):
        await run_job(texts(7), path, server=server)
    assert server.sent == []
    assert look(path) == [(7,)]


async def test_resume_begins_where_there_is_no_job(path):
    rows, _ = await run_job(texts(7), path, resume=True)
    assert len(rows) == 7
    path.with_name("empty").touch()
    rows, _ = await run_job(texts(7), path.with_name("empty"))
    assert len(rows) == 7


@pytest.mark.parametrize(("retry_failed", "again"), [("transient", {"b"}), ("none", set()), ("all", {"a", "b"})])
async def test_which_failed_rows_run_again(path, retry_failed, again):
    documents = ["a", "b", "c"]
    await run_job(documents, path, server=failing("Say: a"), client=ALONE)
    assert look(path, "SELECT state, count(*) FROM row GROUP BY state") == [(1, 2), (2, 1)]
    first, _ = await run_job(
        documents, path.with_name("other"), server=failing("Say: a", "Say: b", status=503), client=ALONE
    )
    assert {type(row.error) for row in first} == {ServerFault, type(None)}
    os.rename(path.with_name("other"), path)
    with_both = failing("Say: a")
    await run_job(documents, path, resume=True, server=with_both, client=ALONE)
    assert sorted(sent_prompts(with_both)) == ["Say: a", "Say: b"], "transient is what runs again by default"
    assert look(path, "SELECT state, count(*) FROM row GROUP BY state") == [(1, 2), (2, 1)]
    await run_job(["d"], path, resume=True, server=failing("Say: d", status=503), client=ALONE)
    rows, server = await run_job(
        [*documents, "d"], path, resume=True, retry_failed=retry_failed, server=failing(), client=ALONE
    )
    expected = {"transient": ["Say: d"], "none": [], "all": ["Say: a", "Say: d"]}[retry_failed]
    assert sorted(sent_prompts(server)) == expected
    kept = {row.document: row for row in rows if row.error}
    assert set(kept) == {"transient": {"a"}, "none": {"a", "d"}, "all": set()}[retry_failed]
    if "a" in kept:
        assert type(kept["a"].error) is BadRequest and kept["a"].error.status == 400 and kept["a"].reused


async def test_a_wrong_key_fails_no_row_for_good(path):
    rows, _ = await run_job(["a"], path, server=failing("Say: a", status=401), client=ALONE)
    assert isinstance(rows[0].error, AuthenticationFailed)
    rows, _ = await run_job(["a"], path, resume=True)
    assert rows[0].error is None


async def test_a_row_cut_short_by_the_clients_end_is_not_written_down(path):
    server = ScriptedTransport(held=True)
    async with make_client(server, limit=4) as client:
        rows = client.stream_map(texts(8), "Say: {}", journal=path)
        async with anyio.create_task_group() as group:

            async def close():
                await server.arrived(1)
                await client.aclose()

            group.start_soon(close)
            row = await anext(rows)
        assert isinstance(row.error, ClientClosed)
        await rows.aclose()
    assert look(path) == [(0,)]


async def test_batch_map_keeps_and_resumes(path):
    async with make_client(failing("Say: text 3"), **ALONE) as client:
        with pytest.raises(BatchMapFailed) as failed:
            await client.batch_map(texts(10), "Say: {}", journal=path)
    assert sum(isinstance(each, BadRequest) for each in failed.value.results) == 1
    server = ScriptedTransport()
    async with make_client(server) as client:
        results = await client.batch_map(texts(10), "Say: {}", journal=path, resume=True, retry_failed="all")
        assert client.statistics().reused == 9
    assert [each.text for each in results] == [answer_to(f"Say: {text}") for text in texts(10)]
    assert sent_prompts(server) == ["Say: text 3"]


async def test_async_documents(path):
    async def source():
        for text in texts(700):
            await anyio.lowlevel.checkpoint()
            yield text

    first, _ = await run_job(source(), Journal(path, commit_rows=100))
    again, server = await run_job(source(), path, resume=True, look_ahead=50)
    assert answers(first) == answers(again) and server.sent == []


async def test_answers_of_a_model_are_parsed_again(path):
    def placed(sent):
        body = b'{"choices": [{"index": 0, "text": "{\\"city\\": \\"Rome\\"}", "finish_reason": "stop"}]}'
        return Reply(chunks=[body])

    server = ScriptedTransport(placed, placed)
    arguments = {"client": ALONE, "response_model": Place, "max_tokens": 3}
    first, _ = await run_job(["x"], path, server=server, **arguments)
    again, silent = await run_job(["x"], path, resume=True, **arguments)
    assert first[0].answer.choices[0].parsed == again[0].answer.choices[0].parsed == Place(city="Rome")
    assert silent.sent == []


async def test_what_cannot_be_a_request_is_no_row_of_the_journal(path):
    rows, _ = await run_job([{"a": "1"}, {"b": "2"}], path, prompt="Say: {a}")
    assert [type(row.error) for row in sorted(rows, key=lambda row: row.index)] == [type(None), ConfigError]
    assert look(path) == [(1,)]


async def test_own_ids_are_beside(path):
    documents = [{"id": "first", "a": 1}, {"id": 2, "a": 2}, {"id": "half \ud800", "a": 3}, {"a": 4}]
    await run_job(documents, path, prompt="Say: {a}")
    assert {name for (name,) in look(path, "SELECT id FROM row")} == {"first", "2", "half ?", None}


async def test_answers_are_taken_from_other_jobs(path):
    other = path.with_name("other")
    await run_job(texts(20), other)
    before = other.read_bytes()
    rows, server = await run_job(texts(25), Journal(path, reuse=[other]))
    assert sorted(sent_prompts(server)) == sorted(f"Say: {text}" for text in texts(25)[20:])
    assert sum(row.reused for row in rows) == 20 and len(answers(rows)) == 25
    assert other.read_bytes() == before
    other.unlink()
    rows, server = await run_job(texts(25), path, resume=True)
    assert all(row.reused for row in rows) and server.sent == [], "what was taken is the job's own"


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
        resume=True,
        progress=told.append,
        prompt=lambda d: f"Say: {d}" if isinstance(d, str) else d["y"],
        accept_changed=True,
    )
    last = told[-1]
    assert (last.read, last.answered, last.failed, last.reused) == (61, 0, 1, 60)


async def test_progress_without_a_journal():
    told = []
    async with make_client(ScriptedTransport()) as client:
        await client.batch_map(texts(5), "Say: {}", progress=told.append)
    assert [now.answered for now in told] == [5]


async def test_a_dropped_map_commits_what_has_ended_and_frees_the_journal(path):
    async with make_client(ScriptedTransport(), limit=4) as client:
        async for _row in client.stream_map(texts(100), "Say: {}", journal=Journal(path, commit_rows=8), look_ahead=24):
            break
        gc.collect()
        rows = [row async for row in client.stream_map(texts(100), "Say: {}", journal=path, resume=True)]
    assert answers(rows).keys() == set(range(100))
    assert any(row.reused for row in rows)


async def test_a_cancelled_map_frees_the_journal(path):
    server = ScriptedTransport(held=True)
    async with make_client(server, limit=4) as client:
        with anyio.move_on_after(0.1):
            async for _row in client.stream_map(texts(100), "Say: {}", journal=path):
                pass
        server.release()
        rows = [row async for row in client.stream_map(texts(100), "Say: {}", journal=path, resume=True)]
    assert len(rows) == 100


async def test_two_maps_of_one_client_cannot_share_a_journal(path):
    server = ScriptedTransport(held=True)
    async with make_client(server) as client:
        first = client.stream_map(texts(3), "Say: {}", journal=path)
        await first.begin()
        with pytest.raises(ConfigError, match=f"is in use by pid {os.getpid()} on .* since 20"):
            await client.batch_map(texts(3), "Say: {}", journal=path)
        server.release()
        assert len([row async for row in first]) == 3


async def test_the_documents_are_not_read_while_eight_groups_wait(path, monkeypatch):
    may_write = threading.Event()
    commit = JournalFile.commit
    monkeypatch.setattr(JournalFile, "commit", lambda self, records: may_write.wait(20) and commit(self, records))
    read = []

    def source():
        for text in texts(3000):
            read.append(text)
            yield text

    async with make_client(ScriptedTransport(), limit=16) as client:
        rows = client.stream_map(source(), "Say: {}", journal=Journal(path, commit_rows=10, commit_s=0.01))
        async with anyio.create_task_group() as group:
            taken = []

            async def take():
                async for row in rows:
                    taken.append(row)

            group.start_soon(take)
            await anyio.sleep(0.5)
            held_at = len(read)
            assert not taken and held_at <= 1024 + 20
            may_write.set()
        assert len(taken) == 3000


async def test_nothing_secret_is_written(path):
    """Canaries: a key, a header, a user in the address; in the file, its WAL, the lock."""
    server = failing("Say: a")
    arguments = {"api_key": "CANARY-key", "headers": {"x-secret": "CANARY-header"}, **ALONE}
    defaults = {"model": "m", "server_metrics": False, "detect": False}
    async with BatchClient(
        "http://scripted/v1?k=CANARY-query",
        transport=lambda url, headers: server,
        **{**defaults, **arguments},
    ) as client:
        rows = client.stream_map(["a", "b"], "Say: {}", journal=path)
        async for _row in rows:
            for file in path.parent.iterdir():
                assert b"CANARY" not in file.read_bytes()
                assert stat.S_IMODE(file.stat().st_mode) == 0o600, file
    assert look(path) == [(2,)]
    assert b"CANARY" not in path.read_bytes()


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"resume": True}, "resume"),
        ({"accept_changed": True}, "accept_changed"),
        ({"journal": "j", "resume": "yes"}, "resume"),
        ({"journal": "j", "retry_failed": "some"}, "retry_failed"),
        ({"journal": ""}, "journal"),
        ({"journal": 3}, "journal"),
        ({"journal": b"j"}, "journal"),
        ({"journal": "a\0b"}, "journal"),
        ({"progress": 3}, "progress"),
    ],
    ids=str,
)
async def test_wrong_arguments_are_refused_at_once(arguments, field):
    async with make_client(ScriptedTransport()) as client:
        with pytest.raises(ConfigError) as refused:
            client.stream_map(["a"], "{}", **arguments)
    assert refused.value.field == field


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"sync": "off"}, "sync"),
        ({"commit_rows": 0}, "commit_rows"),
        ({"commit_rows": True}, "commit_rows"),
        ({"commit_rows": 5000}, "commit_rows"),
        ({"commit_s": -1}, "commit_s"),
        ({"commit_s": float("nan")}, "commit_s"),
        ({"disk_patience_s": "1"}, "disk_patience_s"),
        ({"reuse": "j"}, "reuse"),
        ({"reuse": [3]}, "reuse"),
    ],
    ids=str,
)
def test_wrong_arguments_of_a_journal_are_refused(arguments, field):
    with pytest.raises(ConfigError) as refused:
        Journal("j", **arguments)
    assert refused.value.field == field


def test_the_sync_client_keeps_and_resumes(path):
    told = []
    with EmbeddedServer(profile="instant", model="m") as server:
        with SyncBatchClient(server.base_url, model="m") as client:
            for row in client.stream_map(texts(300), "Say: {}", journal=Journal(path, commit_rows=50), max_tokens=4):
                if row.index > 100:
                    break
            gc.collect()
            first = client.batch_map(
                texts(300), "Say: {}", journal=path, resume=True, progress=told.append, max_tokens=4
            )
            assert told[-1].reused > 0 and told[-1].reused + told[-1].answered == 300
            again = list(client.stream_map(texts(300), lambda text: f"Say: {text}", journal=path, resume=True,
                                           accept_changed=True, ordered=True, max_tokens=4))  # fmt: skip
            assert all(row.reused for row in again)
            assert [row.answer.text for row in again] == [answer.text for answer in first]
            assert client.statistics().reused >= 300


@pytest.mark.parametrize("call", ["embed", "classify", "chat"])
def test_every_call_has_its_answer_back(path, call):
    with EmbeddedServer(profile="instant", model="m") as server, SyncBatchClient(server.base_url, model="m") as client:
        first = client.batch_map(texts(20), "{}", call=call, journal=path)
        again = client.batch_map(texts(20), "{}", call=call, journal=path, resume=True)
        assert again == first and client.statistics().reused == 20


def test_a_journal_needs_no_sqlite_before_it_is_opened():
    program = "import sys, batchclient; batchclient.Journal('j'); sys.exit('sqlite3' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False, timeout=60).returncode == 0


def test_a_loop_that_ended_leaves_the_journal_to_the_next(path):
    kept = []

    async def leave():
        client = make_client(ScriptedTransport(), limit=4)
        rows = client.stream_map(texts(100), "Say: {}", journal=Journal(path, commit_rows=8), look_ahead=24)
        kept.append(rows)
        await anext(rows)

    asyncio.run(leave())
    kept.clear()
    gc.collect()
    rows, _ = asyncio.run(run_job(texts(100), path, resume=True))
    assert answers(rows).keys() == set(range(100))


async def test_a_forked_child_leaves_the_parents_journal_alone(path):
    async with make_client(ScriptedTransport(), limit=4) as client:
        rows = client.stream_map(texts(60), "Say: {}", journal=Journal(path, commit_rows=8), look_ahead=24)
        taken = [await anext(rows)]
        child = os.fork()
        if child == 0:
            try:
                del rows, client
                gc.collect()
            finally:
                os._exit(0)
        with anyio.fail_after(20):
            while os.waitpid(child, os.WNOHANG)[0] == 0:
                await anyio.sleep(0.01)
        taken += [row async for row in rows]
    assert answers(taken).keys() == set(range(60)) and look(path) == [(60,)]


async def test_a_client_that_ends_first_leaves_a_whole_journal(path):
    """Answers taken from another job may come when the client has ended: on trio nothing can be started then."""
    other = path.with_name("other")
    await run_job(texts(40), other)
    async with make_client(ScriptedTransport(held=True), limit=4) as client:
        rows = client.stream_map(texts(60), "Say: {}", journal=Journal(path, reuse=[other], commit_s=5), look_ahead=60)
        await rows.begin()
        async with anyio.create_task_group() as group:
            group.start_soon(client.aclose)
            taken = []
            with pytest.raises(ClientClosed):
                async for row in rows:
                    taken.append(row)
    assert all(row.error is None or isinstance(row.error, ClientClosed) for row in taken)
    rows, _ = await run_job(texts(60), path, resume=True)
    assert answers(rows).keys() == set(range(60))


async def test_a_row_that_was_asked_again_is_written_once(path):
    def saying(name):
        body = b'{"choices": [{"index": 0, "text": "{\\"%s\\": \\"Rome\\"}", "finish_reason": "stop"}]}' % name
        return Reply(chunks=[body])

    server = ScriptedTransport(saying(b"town"), saying(b"city"))
    arguments = {"client": ALONE, "response_model": Place, "retry_invalid": 1, "max_tokens": 3}
    await run_job(["x"], path, server=server, **arguments)
    assert look(path, "SELECT state, attempts FROM row") == [(1, 2)]
    again, silent = await run_job(["x"], path, resume=True, **arguments)
    assert (again[0].answer.parsed, again[0].attempts, silent.sent) == (Place(city="Rome"), 2, [])
