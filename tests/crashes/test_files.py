"""The files of a job: who may read them, what they never hold, and what of them may get lost."""

import stat

import pytest
from tests.crashes.forms import long_form, wait_until
from tests.crashes.jobs import plain_lines
from tests.crashes.watch import Watch

KEY, SECRET = "canary-key-6f1d", "canary-header-93ab"


def make_stopped(make_job, server):
    """A job that was killed after some commits."""
    server.pause_s = 0.02
    job = make_job(plain_lines(60), "--max-batch-size", "1", "--concurrency", "1")
    job.options += ("--api-key", KEY, "--header", f"x-team: {SECRET}")
    command = job.start()
    wait_until(lambda: job.seen().written_bytes, command)
    command.kill()
    job.check_kept()
    return job


@pytest.fixture
def stopped(copy_of):
    return copy_of(make_stopped)


def test_no_file_shows_an_answer_to_others_or_a_key_to_anybody(stopped):
    for _ in range(2):
        files = [path for path in stopped.place.rglob("*") if path.is_file()]
        assert {"job.json", "journal.sqlite"} <= {path.name for path in files}
        assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}
        assert stat.S_IMODE(stopped.place.stat().st_mode) == 0o700
        held = b"".join(path.read_bytes() for path in [*files, stopped.out])
        assert b"text 7" in held and KEY.encode() not in held and SECRET.encode() not in held
        assert stopped.run().status == 0
    assert stopped.manifest.exists()


@pytest.mark.parametrize(
    "lost",
    ["journal.sqlite-shm", *(pytest.param(name, marks=long_form) for name in ("journal.sqlite.lock", "job.json"))],
)
def test_a_file_that_holds_no_answer_may_get_lost(stopped, lost):
    """The end of a machine leaves ``-shm`` out; the other two are made again."""
    kept = stopped.kept()
    (stopped.place / lost).unlink()
    assert stopped.run().status == 0
    assert stopped.server.run.came.total() == 60 - kept.total
    stopped.check_whole()


def test_a_job_goes_on_from_a_copy_of_its_files(stopped):
    # This one is a copy.
    kept = stopped.kept()
    assert stopped.run().status == 0
    assert stopped.server.run.came.total() == 60 - kept.total
    assert Watch(stopped).finish() == 0
