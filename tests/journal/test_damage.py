"""Damaged files: what was handed out stays right or runs again; what cannot be read is refused. SLOW=1 for the long form."""

import os
import shutil
import sqlite3
from random import Random

import anyio
import pytest
from tests.journal.jobs import answers, look, run_job, sent_prompts, texts
from tests.shell.scripted import ScriptedTransport, make_client

from batchclient import ConfigError, Journal, JournalFailed

LIBRARIES = ("asyncio",)
IS_LONG = bool(os.environ.get("SLOW"))
ROWS = 120


def resumed(path, count=ROWS, **arguments):
    return anyio.run(lambda: run_job(texts(count), path, resume=True, **arguments))


@pytest.fixture
def job(path):
    """A finished journal without a WAL."""
    anyio.run(lambda: run_job(texts(ROWS), path))
    assert not path.with_name(path.name + "-wal").exists()
    return path


@pytest.fixture(scope="module")
def torn(tmp_path_factory):
    """A journal as a power cut leaves it: the file, and a WAL of many commits."""
    folder = tmp_path_factory.mktemp("torn")
    path = folder / "journal.sqlite"

    async def stop_in_the_middle():
        async with make_client(ScriptedTransport(), limit=8) as client:
            async for row in client.stream_map(
                texts(ROWS), "Say: {}", journal=Journal(path, commit_rows=5), look_ahead=20
            ):
                if row.index == ROWS - 1:
                    break
                if row.index % 10 == 0:
                    for each in folder.glob("journal.sqlite*"):
                        shutil.copy(each, folder / each.name.replace("journal", "copy"))

    anyio.run(stop_in_the_middle)
    return folder / "copy.sqlite"


def _cut(data, at, random):
    return data[:at]


def _flip(data, at, random):
    return data[:at] + bytes([data[at] ^ (1 << random.randrange(8))]) + data[at + 1 :]


def _zero(data, at, random):
    end = min(len(data), at + random.choice((512, 4096)))
    return data[:at] + bytes(end - at) + data[end:]


@pytest.mark.parametrize("damage", [_cut, _flip, _zero])
def test_a_damaged_wal_loses_its_end_and_nothing_else(torn, tmp_path, damage):
    wal = (torn.with_name(torn.name + "-wal")).read_bytes()
    assert len(wal) > 50_000
    random = Random(7)
    kept = []
    for number in range(40 if IS_LONG else 8):
        path = tmp_path / f"{number}.sqlite"
        shutil.copy(torn, path)
        at = random.randrange(len(wal))
        path.with_name(path.name + "-wal").write_bytes(damage(wal, at, random))
        rows, server = resumed(path)
        assert answers(rows).keys() == set(range(ROWS))
        kept.append(sum(row.reused for row in rows))
        assert len(sent_prompts(server)) == ROWS - kept[-1]
        assert look(path) == [(ROWS,)]
    assert max(kept) > 0, "a prefix of whole commits"


def test_one_flipped_bit_never_makes_a_wrong_answer(job, tmp_path):
    data = job.read_bytes()
    random = Random(11)
    outcomes = {"right": 0, "again": 0, "refused": 0}
    for number in range(200 if IS_LONG else 40):
        path = tmp_path / f"{number}.sqlite"
        path.write_bytes(_flip(data, random.randrange(len(data)), random))
        try:
            rows, server = resumed(path)
        except (ConfigError, JournalFailed):
            outcomes["refused"] += 1
            continue
        # ``answers`` holds each answer against its document.
        assert answers(rows).keys() == set(range(ROWS)) and not any(row.error for row in rows)
        outcomes["again" if server.sent else "right"] += 1
    assert outcomes["again"] > 0 and sum(outcomes.values()) == number + 1


def test_a_damaged_row_runs_again_alone_and_is_counted(job, caplog):
    _change(job, "UPDATE row SET body = replace(CAST(body AS TEXT), 'text 7|', 'text 8|') WHERE seq = 8")
    told = []
    rows, server = resumed(job, progress=told.append)
    assert len(sent_prompts(server)) == 1 and answers(rows).keys() == set(range(ROWS))
    assert told[-1].damaged == 1 and (told[-1].reused, told[-1].answered) == (ROWS - 1, 1)
    assert f"1 rows of the journal {job} were damaged, and ran again" in caplog.text
    rows, server = resumed(job)
    assert server.sent == [], "its new record is whole"


@pytest.mark.parametrize(
    "change",
    [
        "state = 2",
        "attempts = 3",
        "crc = crc + 1",
        "error = 'x'",
        "body = NULL",
        "body = 3",
        "body = CAST(body AS TEXT)",
        "body = zeroblob(40)",
        "state = 'x'",
        "state = 7",
    ],
)
def test_any_changed_column_is_noticed(job, change):
    _change(job, f"UPDATE row SET {change} WHERE seq = 8")
    rows, server = resumed(job)
    harmless = change in ("error = 'x'",)
    assert len(sent_prompts(server)) == (0 if harmless else 1)
    assert answers(rows).keys() == set(range(ROWS)) and not any(row.error for row in rows)


def _change(path, statement):
    connection = sqlite3.connect(path)
    connection.execute(statement)
    connection.commit()
    connection.close()


@pytest.mark.parametrize(
    "header",
    [b"", b"SQLite format 4\0", b"\0" * 100, b"SQLite format 3\0" + b"\xff" * 84],
    ids=["rows", "4", "0", "ff"],
)
def test_a_damaged_header_is_refused_and_nothing_is_changed(job, header):
    damaged = header + job.read_bytes()[len(header) :] if header else b"id,text\n1,a\n" * 400
    job.write_bytes(damaged)
    with pytest.raises(ConfigError, match="is damaged, or is no journal"):
        resumed(job)
    assert job.read_bytes() == damaged


def test_a_journal_of_a_newer_version_is_refused_by_name(job):
    _change(job, "PRAGMA user_version = 3")
    with pytest.raises(
        ConfigError, match=r"a journal of version 3, made by a newer batchclient; this one reads version 1"
    ):
        resumed(job)


def test_another_database_is_refused(path):
    _change(path, "CREATE TABLE mine(a)")
    before = path.read_bytes()
    with pytest.raises(ConfigError, match="an SQLite file, but no journal"):
        resumed(path)
    assert path.read_bytes() == before


def test_a_damaged_index_page_costs_rows_and_no_answer(job):
    """The pages of the index are overwritten: rows are not found, or not writable, and nothing is wrong."""
    connection = sqlite3.connect(job)
    (root,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'keys'").fetchone()
    connection.close()
    data = bytearray(job.read_bytes())
    data[(root - 1) * 4096 : root * 4096] = bytes(4096)
    job.write_bytes(data)
    with pytest.raises(JournalFailed, match="malformed"):
        resumed(job)
