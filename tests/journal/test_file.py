"""The journal's file by itself: keys enter their table many at a time, and are found before."""

import os
import signal
import sqlite3

import pytest
from tests.journal.jobs import look

from batchclient.journal.file import JournalFile
from batchclient.journal.records import record_of
from batchclient.types import Choice, Completion

LIBRARIES = ("asyncio",)


def record(number, text=None):
    answer = Completion((Choice(0, text or f"answer {number:02d} " * 100, "stop"),))
    # As hashes do, the keys come in another order than the rows.
    return record_of((number * 7919 % 1000).to_bytes(16, "big"), 0, None, answer, None, 1)


def pairs_of(numbers):
    return [record(number)[:2] for number in numbers]


def texts_of(file, numbers):
    """The answers' bodies, each held against its key."""
    found = file.look_up(pairs_of(numbers))
    pairs = zip(numbers, pairs_of(numbers), strict=True)
    return {number: found[pair][3] for number, pair in pairs if found.get(pair) is not None}


def write_and_die(path, groups, keys_at_once):
    """Commit groups of ten rows in a process that ends without closing."""
    child = os.fork()
    if child == 0:
        file = JournalFile(path, keys_at_once=keys_at_once)
        for group in range(groups):
            file.commit([record(number) for number in range(group * 10, group * 10 + 10)])
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)


@pytest.fixture
def killed(path):
    path.touch()
    write_and_die(path, 5, 20)
    return path


def test_keys_enter_their_table_many_at_a_time(killed):
    assert look(killed, "SELECT value FROM meta WHERE name = 'keys_entered'") == [(40,)]
    assert look(killed, "SELECT count(*) FROM keys") == [(40,)]


@pytest.mark.parametrize("read_only", [False, True])
def test_every_row_of_a_killed_job_is_found(killed, read_only):
    before = killed.read_bytes()
    file = JournalFile(killed, read_only=read_only)
    assert texts_of(file, range(60)) == {number: record(number).body for number in range(50)}
    assert (file.count(), file.has_rows()) == (50, True)
    file.close()
    assert (killed.read_bytes() == before) == read_only
    assert look(killed, "SELECT count(*) FROM keys") == [(40 if read_only else 50,)]


def test_a_row_that_is_written_again_keeps_its_place(killed):
    file = JournalFile(killed, keys_at_once=20)
    file.commit([record(number, f"anew {number}") for number in (3, 45, 70)])
    file.close()
    file = JournalFile(killed)
    bodies = texts_of(file, (3, 45, 70, 44))
    file.close()
    assert [b"anew" in bodies[number] for number in (3, 45, 70, 44)] == [True, True, True, False]
    assert look(killed, "SELECT count(*), max(seq), count(DISTINCT key) FROM row") == [(51, 51, 51)]
    (seq,) = look(killed, f"SELECT seq FROM row WHERE key = x'{record(45).key.hex()}'")
    assert seq == (46,)


def test_a_commit_waits_for_the_disk_unless_normal_was_asked_for(path, monkeypatch):
    connections, connect = [], sqlite3.connect
    monkeypatch.setattr(
        sqlite3, "connect", lambda *args, **more: connections.append(connect(*args, **more)) or connections[-1]
    )
    path.touch()
    for sync, level in (("full", 2), ("normal", 1)):
        file = JournalFile(path, sync)
        assert connections[-1].execute("PRAGMA synchronous").fetchone() == (level,)
        file.close()


@pytest.mark.parametrize("read_only", [False, True])
def test_a_damaged_page_among_the_last_rows_costs_its_own_rows_alone(killed, read_only):
    connection = sqlite3.connect(killed)
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    data = bytearray(killed.read_bytes())
    page = data.index(b"answer 43") // 4096 * 4096
    lost = [number for number in range(50) if b"answer %02d" % number in data[page : page + 4096]]
    assert 40 < min(lost) and max(lost) < 49
    data[page : page + 4096] = bytes(4096)
    killed.write_bytes(data)
    file = JournalFile(killed, read_only=read_only)
    found = texts_of(file, range(50))
    file.close()
    assert found == {number: record(number).body for number in range(50) if number not in lost}
