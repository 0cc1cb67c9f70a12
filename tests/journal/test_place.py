"""The journal's place: what is there and is no journal, who else has it, and disks that are full or fail."""

import errno
import os
import subprocess
import sys
import threading

import pytest
from tests.journal.jobs import answers, look, run_job, texts
from tests.shell.scripted import ScriptedTransport, make_client, settle

from batchclient import ConfigError, Journal, JournalFailed
from batchclient.journal import held
from batchclient.journal.held import HeldJournal, JournalInUse
from batchclient.journal.lines import line_of

LIBRARIES = ("asyncio",)
JOB = {"call": "complete"}


def refused_at(path):
    with pytest.raises(ConfigError) as refused:
        HeldJournal.open(path, wait=lambda seconds: True)
    assert refused.value.field == "journal"
    return str(refused.value)


def test_what_is_no_file_is_told_as_what_it_is(path):
    target = path.with_name("target")
    target.write_text("mine")
    path.symlink_to(target)
    assert refused_at(path) == f"journal: {path}: it is a link; give the file itself"
    path.unlink()
    path.symlink_to(path.with_name("nothing"))
    assert "is a link" in refused_at(path)
    path.unlink()
    path.mkdir()
    assert refused_at(path) == f"journal: {path}: Is a directory"
    path.rmdir()
    os.mkfifo(path)
    assert refused_at(path) == f"journal: {path} is no regular file"
    path.unlink()
    assert "No such file or directory" in refused_at(path / "no" / "such")
    assert "Not a directory" in refused_at(target / "j")
    assert target.read_text() == "mine" and [each.name for each in path.parent.iterdir()] == ["target"]


def test_a_place_that_may_not_be_written_is_told(path, monkeypatch):
    open_ = os.open

    def refusing(name, flags, *rest):
        if flags & os.O_CREAT:
            raise OSError(code, os.strerror(code), str(name))
        return open_(name, flags, *rest)

    monkeypatch.setattr(os, "open", refusing)
    for code, told in [(errno.EACCES, "Permission denied"), (errno.EROFS, "Read-only file system")]:
        assert told in refused_at(path)
    code = errno.ENOSPC
    with pytest.raises(OSError, match="No space left"):
        HeldJournal.open(path)


def test_the_name_of_another_programs_file_is_not_touched(path):
    """``journal="poetry"`` beside ``poetry.lock``."""
    for name in ("poetry.lock", "poetry.part", "poetry.new"):
        path.with_name(name).write_text("mine")
    journal = HeldJournal.open(path.with_name("poetry"))
    journal.begin(JOB)
    journal.close()
    assert {path.with_name(name).read_text() for name in ("poetry.lock", "poetry.part", "poetry.new")} == {"mine"}


def test_a_second_process_is_refused_by_the_name_of_the_first(path):
    journal = HeldJournal.open(path)
    journal.begin(JOB)
    program = "import sys; from batchclient.journal.held import HeldJournal; HeldJournal.open(sys.argv[1])"
    done = subprocess.run(
        [sys.executable, "-c", program, path], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 1 and f"is in use by {journal.lease.lease.name}" in done.stderr
    looked_into = HeldJournal.look_into(path)
    assert journal.holder == looked_into.holder == journal.lease.lease.name
    looked_into.close()
    journal.close()
    assert subprocess.run([sys.executable, "-c", program, path], check=False, timeout=60).returncode == 0


def test_a_forked_child_neither_keeps_nor_ends_its_parents_journal(path):
    journal = HeldJournal.open(path)
    journal.begin(JOB)
    mine, its = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            journal.close()
            os.read(mine, 1)
        finally:
            os._exit(0)
    journal.append([line_of({"key": "0" * 32, "n": 0})])
    journal.close()
    HeldJournal.open(path).close()
    os.write(its, b"x")
    os.waitpid(child, 0)


def test_nothing_is_written_before_the_job_begins(path):
    journal = HeldJournal.open(path)
    assert journal.job is None and path.stat().st_size == 0
    journal.close()
    journal = HeldJournal.open(path)
    journal.begin({"call": "complete", "settings": {"prompt": "a", "system": "s"}})
    journal.note("outputs", {"a": 1})
    journal.note("outputs", {"a": 2})
    assert journal.differences({"settings": {"prompt": "a"}, "call": "chat"}) == ["system", "call"]
    journal.close()
    journal = HeldJournal.open(path)
    # Without a record it takes another job, and keeps its notes.
    journal.begin({"call": "chat", "settings": {}})
    journal.append([line_of({"key": f"{1:032x}", "n": 7})])
    journal.close()
    journal = HeldJournal.open(path)
    assert (journal.job, journal.notes, journal.rows) == ({"call": "chat", "settings": {}}, {"outputs": {"a": 2}}, 1)
    assert [record["n"] for record in journal.records()] == [7]
    with pytest.raises(ConfigError, match=r"of another job: call; its 1 rows stay as they are"):
        journal.begin({"call": "embed"})
    journal.close()
    path.unlink()
    journal = HeldJournal.open(path)
    journal.begin(JOB)
    with pytest.raises(ConfigError, match="of another job: call"):
        journal.begin({"call": "embed"})  # It may have records by now.
    journal.close()
    assert [each.name for each in path.parent.iterdir()] == ["journal"]


async def test_an_open_journal_is_closed_by_who_opened_it(path):
    journal = HeldJournal.open(Journal(path, settings={"prompt": "p"}))
    await run_job(texts(30), journal)
    with pytest.raises(JournalInUse):
        HeldJournal.open(path)
    journal.note("finished", 1)
    journal.close()
    rows, server = await run_job(texts(30), Journal(path, settings={"prompt": "p"}))
    assert all(row.reused for row in rows) and server.sent == []


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
async def test_a_full_disk_ends_the_map_and_loses_nothing(path, monkeypatch, code):
    write, calls = os.write, []

    def full(file, data):
        calls.append(len(data))
        if len(calls) < 20:
            return write(file, data)
        if len(calls) == 20:
            return write(file, data[: len(data) // 2])
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(held.os, "write", full)
    seen = []
    async with make_client(ScriptedTransport(), limit=4) as client:
        rows = client.stream_map(texts(500), "Say: {}", journal=path, look_ahead=40)
        with pytest.raises(JournalFailed, match=f"failed: {os.strerror(code)}; what was handed out is in it") as failed:
            async for row in rows:
                seen.append(row)
    kept = len(look(path))
    assert failed.value.retryable and 0 < len(seen) <= kept
    monkeypatch.undo()
    again, server = await run_job(texts(500), path)
    assert sum(row.reused for row in again) == kept and answers(again).keys() == set(range(500))


def test_a_disk_that_is_full_at_the_opening_leaves_no_lease(path, monkeypatch):
    def full(file, data, place):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        with pytest.raises(OSError, match="No space left"):
            HeldJournal.open(path)
    HeldJournal.open(path, wait=lambda seconds: True).close()


async def test_a_map_that_another_thread_drops_writes_each_row_once(path):
    """A finalizer runs anywhere: in the middle of the loop's own writing, too."""
    for _ in range(10):
        async with make_client(ScriptedTransport(), limit=4) as client:
            held = [client.stream_map(texts(100), "Say: {}", journal=path, look_ahead=24)]
            await anext(held[0])
            dropping = threading.Thread(target=held.clear)
            dropping.start()
            await settle(3)
            dropping.join()
    lines = path.read_bytes().splitlines()
    assert len(lines) == len(look(path)) + 1 > 1


async def test_a_failed_fsync_ends_the_map_at_once(path, monkeypatch):
    calls = []

    def failing(file):
        calls.append(file)
        if len(calls) > 4:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(held.os, "fsync", failing)
    journal = HeldJournal.open(path)
    with pytest.raises(JournalFailed, match="Input/output error"):
        await run_job(texts(200), journal, look_ahead=30)
    monkeypatch.undo()
    with pytest.raises(OSError, match="Input/output error"):
        journal.append([line_of({"key": "0" * 32, "n": 0})])
    journal.close()
    again, _ = await run_job(texts(200), path)
    assert answers(again).keys() == set(range(200))


async def test_a_journal_that_is_removed_during_the_run_ends_the_map(path):
    async with make_client(ScriptedTransport(), limit=4) as client:
        rows = client.stream_map(texts(500), "Say: {}", journal=path, look_ahead=40)
        await anext(rows)
        path.unlink()
        with pytest.raises(JournalFailed, match="its file was removed"):
            async for _ in rows:
                pass
    assert not path.exists()


async def test_a_fault_of_the_thread_ends_the_map(path, monkeypatch):
    monkeypatch.setattr(HeldJournal, "append", lambda self, lines: 1 / 0)
    with pytest.raises(JournalFailed, match=r"failed: ZeroDivisionError"):
        await run_job(texts(60), path)


async def test_a_client_that_is_closed_ends_the_writers_of_its_maps(path):
    client = make_client(ScriptedTransport(), limit=4)
    rows = client.stream_map(texts(500), "Say: {}", journal=path, look_ahead=40)
    first = await anext(rows)
    await client.aclose()
    # The map is still there, and its journal is free.
    again, _ = await run_job(texts(500), path)
    assert first.index in {row.index for row in again if row.reused}
    await rows.aclose()
