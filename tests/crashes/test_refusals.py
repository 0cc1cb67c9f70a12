"""What a job cannot go on with is refused by name; nothing is sent, and nothing changes."""

import errno
import sqlite3

import pytest
from tests.crashes import calls
from tests.crashes.forms import wait_until
from tests.crashes.jobs import plain_lines
from tests.crashes.watch import Watch

ROWS = 40


def make_done(make_job, server):
    """A job that is done."""
    job = make_job(plain_lines(ROWS))
    assert job.run().status == 0
    job.check_whole()
    return job


def make_stopped(make_job, server):
    """A job that was killed when all rows but the last were written, and their end recorded."""
    server.held = (f"text {ROWS - 1}",)
    job = make_job(plain_lines(ROWS), "--max-batch-size", "1", "--concurrency", "64")
    command = job.start()
    wait_until(
        lambda: len(job.whole_rows()) == ROWS - 1 and job.seen().written_bytes == job.out.stat().st_size, command
    )
    command.kill()
    server.release()
    job.check_kept()
    return job


@pytest.fixture
def job(copy_of):
    return copy_of(make_done)


@pytest.fixture
def stopped(copy_of):
    return copy_of(make_stopped)


def files(job):
    """The files of a job but locks, which name the last who came, and what SQLite makes to read."""
    found = {path: path.read_bytes() for path in job.folder.rglob("*") if path.is_file()}
    return {path: data for path, data in found.items() if data and not path.name.endswith((".lock", "-shm"))}


def refused(job, *more, plan=None):
    """Run the command; return what it says against it."""
    before = files(job)
    command = job.run(*more, plan=plan)
    assert command.status == 2, command.said
    assert not job.server.run.came, "nothing is sent"
    assert "Traceback" not in command.said
    assert files(job) == before, "nothing is changed"
    return command.said


def change(job, statement):
    connection = sqlite3.connect(job.place / "journal.sqlite")
    connection.execute(statement)
    connection.commit()
    connection.close()


# The journal ---------------------------------------------------------------------------------------------------------


def test_a_damaged_row_runs_again_alone_and_is_counted(job):
    change(job, "UPDATE row SET body = replace(CAST(body AS TEXT), 'text 7>', 'text 8>') WHERE seq = 8")
    command = job.run()
    assert command.status == 0, command.said
    assert dict(job.server.run.came) == {"text 7": 1}
    assert "1 row" in command.said and "damaged" in command.said
    job.check_whole()
    assert Watch(job).finish() == 0


def test_a_damaged_header_is_refused_by_name(job):
    path = job.place / "journal.sqlite"
    path.write_bytes(b"\0" * 100 + path.read_bytes()[100:])
    said = refused(job)
    assert str(path) in said and "damaged" in said


def test_a_journal_of_a_newer_version_is_refused_by_name(job):
    change(job, "PRAGMA user_version = 9")
    assert "version 9" in refused(job)


# The output ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["shorter", "changed"])
def test_an_output_that_is_not_what_was_written_is_refused(stopped, how):
    data = stopped.out.read_bytes()
    middle = data.index(b"<text 20>")
    stopped.out.write_bytes(data[:middle] if how == "shorter" else data.replace(b"<text 20>", b"<text 2o>"))
    said = refused(stopped)
    assert "job publish" in said and str(stopped.out) in said


def test_an_output_that_is_gone_is_written_anew_from_the_journal(stopped):
    stopped.out.unlink()
    assert stopped.run().status == 0
    assert stopped.server.run.came.keys() == {f"text {ROWS - 1}"}
    stopped.check_whole()


def test_what_stands_behind_the_recorded_end_is_cut(stopped):
    """A kill leaves rows, or half a row, that no commit covers."""
    with stopped.out.open("ab") as out:
        out.write(b'{"id": 1, "text": "te')
    assert stopped.run().status == 0
    stopped.check_whole()


# The command ---------------------------------------------------------------------------------------------------------


def test_a_changed_template_is_refused_until_it_is_accepted(job):
    said = refused(job, "--prompt", "Say {text}")
    assert f"{ROWS}" in said and "--accept-changed" in said
    accepted = job.run("--prompt", "Say {text}", "--accept-changed")
    assert accepted.status == 0, accepted.said
    assert job.server.run.came.keys() == {f"Say text {number}" for number in range(ROWS)}
    assert [row["completion"] for row in job.whole_rows()] == [f"<Say text {number}>" for number in range(ROWS)]


def test_changed_parameters_are_refused(job):
    assert f"{ROWS}" in refused(job, "--max-tokens", "5")


def test_an_existing_job_without_resume_is_refused(job):
    job.without = ("--resume",)
    said = refused(job)
    assert "--resume" in said


def test_resume_with_overwrite_is_refused(job):
    said = refused(job, "--overwrite")
    assert "--overwrite" in said and "--resume" in said


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


# The place -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("lock_error", "words"), [(errno.ENOLCK, "has no locks"), (-1, "keeps no locks")])
def test_a_place_without_locks_is_refused(planned, make_job, lock_error, words):
    job = make_job(plain_lines(ROWS))
    command = job.run(plan=calls.Plan(str(job.folder), lock_error=lock_error))
    assert command.status == 2, command.said
    assert "lock" in command.said
    assert not job.server.run.came
