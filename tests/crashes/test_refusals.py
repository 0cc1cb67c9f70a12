"""What a job cannot go on with is refused by name; nothing is sent, and no file changes."""

import errno
import sqlite3

import pytest
from tests.crashes import calls
from tests.crashes.jobs import plain_lines
from tests.crashes.states import HELD, ROWS, stopped


@pytest.fixture
def job(copy_of):
    job = copy_of(stopped)
    change("SELECT 1 FROM row")(job)
    assert {path.name for path in job.place.glob("journal.sqlite-*")} == set(), "all is in the file"
    return job


def files(job):
    """The files of a job but locks, which name the last who came; of the journal, its rows."""
    found = {path.name: path.read_bytes() for path in job.folder.rglob("*") if path.is_file()}
    left_out = (".lock", "-shm", "-wal", "journal.sqlite")
    return {name: data for name, data in found.items() if not name.endswith(left_out)} | {"rows": rows_of(job)}


def rows_of(job):
    path = job.place / "journal.sqlite"
    if not path.exists():
        return None
    connection = sqlite3.connect(path)
    try:
        facts = "SELECT * FROM meta WHERE name IN ('config', 'model', 'output') ORDER BY name"
        return [connection.execute(each).fetchall() for each in ("SELECT * FROM row ORDER BY seq", facts)]
    except sqlite3.DatabaseError:
        return path.read_bytes()
    finally:
        connection.close()


def change(statement):
    def changed(job):
        connection = sqlite3.connect(job.place / "journal.sqlite")
        connection.execute(statement)
        connection.commit()
        connection.close()

    return changed


def damage_header(job):
    path = job.place / "journal.sqlite"
    path.write_bytes(b"\0" * 100 + path.read_bytes()[100:])


def cut_output(job):
    data = job.out.read_bytes()
    job.out.write_bytes(data[: len(data) // 2])


def change_output(job):
    job.out.write_bytes(job.out.read_bytes().replace(b"<text 10>", b"<text 1o>"))


def leave_resume_out(job):
    job.without = ("--resume",)


def nothing(job):
    pass


@pytest.mark.parametrize(
    ("damage", "options", "words"),
    [
        (damage_header, [], ["journal.sqlite", "damaged"]),
        (change("PRAGMA user_version = 9"), [], ["journal.sqlite", "version 9"]),
        (cut_output, [], ["out.jsonl", "job publish"]),
        (change_output, [], ["out.jsonl", "job publish"]),
        (nothing, ["--prompt", "Say {text}"], ["template", f"{ROWS - 1} rows", "--accept-changed"]),
        (nothing, ["--max-tokens", "5"], ["parameters", f"{ROWS - 1} rows", "--accept-changed"]),
        (leave_resume_out, [], ["out.jsonl.job", f"{ROWS - 1} answers", "--resume"]),
        (nothing, ["--overwrite"], ["--resume", "--overwrite"]),
    ],
    ids=["header", "version", "shorter", "changed", "template", "parameters", "no-resume", "overwrite"],
)
def test_refused_and_as_it_was(job, damage, options, words):
    damage(job)
    before = files(job)
    command = job.run(*options)
    assert command.status == 2, command.said
    assert command.said.count("\n") == 1 and all(word in command.said for word in words), command.said
    assert not job.server.run.came, "nothing is sent"
    assert files(job) == before, "no file changes"


def test_a_damaged_row_that_was_written_runs_again_alone_and_is_counted(job):
    text = "CAST(body AS TEXT)"
    other = f"CAST(replace({text}, '<text 7>', '<text 8>') AS BLOB)"
    change(f"UPDATE row SET body = {other} WHERE instr({text}, '<text 7>')")(job)
    command = job.run()
    assert command.status == 0, command.said
    assert job.server.run.came == {"text 7": 1, f"text {HELD}": 1}
    assert "1 row" in command.said and "damaged" in command.said
    job.check_whole()
    assert not job.run().status and not job.server.run.came


def test_what_stands_behind_the_recorded_end_is_cut(job):
    """A kill leaves rows, or half a row, that no commit covers."""
    with job.out.open("ab") as out:
        out.write(b'{"id": 1, "text": "text 1", "completion": "<text 1>"}\n{"id": 1, "te')
    assert job.run().status == 0
    job.check_whole()


def test_a_second_command_is_refused_by_the_name_of_the_first(make_job, server):
    server.held = ("text 3",)
    job = make_job(plain_lines(ROWS))
    first = job.start()
    server.wait_for(lambda run: "text 3" in run.came)
    second = job.start_beside()
    assert second.wait() == 2, second.said
    assert f"pid {first.pid}" in second.said
    server.release()
    assert first.wait() == 0, first.said
    job.check_whole()
    assert set(server.run.came.values()) == {1}


@pytest.mark.parametrize("lock_error", [errno.ENOLCK, -1], ids=["ENOLCK", "locks nothing"])
def test_a_place_without_locks_is_refused(planned, make_job, lock_error):
    job = make_job(plain_lines(ROWS))
    command = job.run(plan=calls.Plan(str(job.folder), lock_error=lock_error))
    assert command.status == 2, command.said
    assert "locks" in command.said and "--journal" in command.said
    assert not job.server.run.came and files(job) == {"rows": None}
