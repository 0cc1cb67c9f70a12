"""Disks that are full, fail to sync, or come back."""

import sqlite3
import subprocess
import sys

import anyio
import pytest
from tests.journal.jobs import answers, look, run_job, sent_prompts, texts
from tests.shell.scripted import ScriptedTransport, make_client

from batchclient import Journal, JournalFailed
from batchclient.journal import writer
from batchclient.journal.file import JournalFile

FULL = (sqlite3.SQLITE_FULL, "database or disk is full")
FSYNC = (sqlite3.SQLITE_IOERR_FSYNC, "disk I/O error")


def error_of(code, words):
    error = sqlite3.OperationalError(words)
    error.sqlite_errorcode = code
    return error


@pytest.fixture
def refused(monkeypatch):
    """Commits fail as told: by their number, from 0."""
    commit = JournalFile.commit
    tried = []
    plan = {}

    def failing(self, records):
        number = len(tried)
        tried.append(number)
        error = plan.get(number, plan.get("from") if number >= plan.get("first", 0) else None)
        if error is not None:
            raise error_of(*error)
        commit(self, records)

    monkeypatch.setattr(JournalFile, "commit", failing)
    monkeypatch.setattr(writer.Writer.__init__, "__defaults__", (0.02,))
    plan["tried"] = tried
    return plan


@pytest.mark.parametrize("at", range(6))
async def test_a_commit_that_is_refused_is_tried_again(path, refused, at, caplog):
    refused[at] = FULL
    rows, server = await run_job(texts(60), Journal(path, commit_rows=10), look_ahead=30)
    assert answers(rows).keys() == set(range(60)) and look(path) == [(60,)]
    assert len(sent_prompts(server)) == 60
    if at < 5:
        assert "cannot be written (database or disk is full): no further rows are read" in caplog.text
        assert "can be written again" in caplog.text


async def test_a_disk_that_stays_full_ends_the_map_and_loses_nothing(path, refused):
    refused.update({"first": 2, "from": FULL})
    seen, read = [], []

    def source():
        for text in texts(500):
            read.append(text)
            yield text

    server = ScriptedTransport()
    async with make_client(server, limit=4) as client:
        journal = Journal(path, commit_rows=10, disk_patience_s=0.3)
        rows = client.stream_map(source(), "Say: {}", journal=journal, look_ahead=40)
        with pytest.raises(JournalFailed, match=r"could not be written for 0 s \(database or disk is full\)") as failed:
            async for row in rows:
                seen.append(row)
    assert failed.value.retryable
    assert len(seen) == look(path)[0][0] == 20
    assert len(read) <= len(seen) + 40 + 10, "no new rows are read"
    assert 5 < len(refused["tried"]) < 30
    refused.clear()
    refused["first"] = 0
    again, server = await run_job(texts(500), path, resume=True)
    assert sum(row.reused for row in again) == 20 and answers(again).keys() == set(range(500))


async def test_a_failed_fsync_ends_the_map_at_once(path, refused):
    refused[1] = FSYNC
    with pytest.raises(JournalFailed, match="the disk failed to keep what was written"):
        await run_job(texts(60), Journal(path, commit_rows=10), look_ahead=30)
    assert len(refused["tried"]) == 2 and look(path) == [(10,)]
    again, _ = await run_job(texts(60), path, resume=True)
    assert answers(again).keys() == set(range(60))


async def test_closing_waits_for_no_disk(path, refused):
    refused["from"] = FULL
    async with make_client(ScriptedTransport(), limit=4) as client:
        rows = client.stream_map(texts(60), "Say: {}", journal=Journal(path, commit_rows=10), look_ahead=30)
        with anyio.move_on_after(0.2):
            await anext(rows)
        with anyio.fail_after(5):
            await rows.aclose()
    assert look(path) == [(0,)]


async def test_a_fault_of_the_thread_ends_the_map(path, monkeypatch):
    monkeypatch.setattr(JournalFile, "commit", lambda self, records: 1 / 0)
    with pytest.raises(JournalFailed, match=r"failed \(ZeroDivisionError\)"):
        await run_job(texts(60), path)


PROGRAM = """
import asyncio, resource, signal, sys
from tests.journal.jobs import texts
from tests.shell.scripted import ScriptedTransport, make_client
from batchclient import Journal, JournalFailed

async def main(path, most):
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    async with make_client(ScriptedTransport(), limit=8) as client:
        journal = Journal(path, commit_rows=16, disk_patience_s=0.05)
        rows = client.stream_map(texts(600), "Say: {}", journal=journal, resume=True, look_ahead=64)
        await rows.begin()
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
        try:
            async for row in rows:
                print(row.index, flush=True)
        except JournalFailed as error:
            sys.exit(f"{error}")

asyncio.run(main(sys.argv[1], int(sys.argv[2])))
"""


def test_a_real_limit_of_the_file_loses_nothing_that_was_handed_out(path):
    """The operating system refuses to let any file grow further, as a full disk or a quota does."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, path, "120000"], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 1 and "rows handed out before are in it" in done.stderr, done.stderr
    handed_out = {int(line) for line in done.stdout.split()}
    assert 0 < len(handed_out) < 600

    async def resume():
        rows, _ = await run_job(texts(600), path, resume=True)
        return rows

    rows = anyio.run(resume)
    assert answers(rows).keys() == set(range(600))
    assert handed_out <= {row.index for row in rows if row.reused}
