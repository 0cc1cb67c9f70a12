"""The files of a job: who may read them, what they never hold, and what of them may get lost."""

import shutil
import stat

import pytest
from tests.crashes.forms import wait_until
from tests.crashes.jobs import plain_lines
from tests.crashes.watch import Watch

KEY, SECRET = "canary-key-6f1d", "canary-header-93ab"


@pytest.fixture
def stopped(make_job, server):
    """A job that was killed after some commits."""
    server.pause_s = 0.02
    job = make_job(plain_lines(60), "--max-batch-size", "1", "--concurrency", "1")
    job.options += ("--api-key", KEY, "--header", f"x-team: {SECRET}")
    command = job.start()
    wait_until(lambda: job.kept().written_bytes, command)
    command.kill()
    job.check_kept()
    return job


def test_all_but_the_output_is_readable_for_the_owner_alone(stopped):
    for _ in range(2):
        files = [path for path in stopped.place.rglob("*") if path.is_file()]
        assert {"job.json", "journal.sqlite"} <= {path.name for path in files}
        assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}
        assert stat.S_IMODE(stopped.place.stat().st_mode) == 0o700
        assert stopped.run().status == 0
    assert stopped.manifest.exists()


def test_no_file_holds_the_key_or_a_header(stopped):
    for _ in range(2):
        held = b"".join(path.read_bytes() for path in stopped.folder.rglob("*") if path.is_file())
        assert b"text 7" in held
        for secret in (KEY, SECRET):
            assert secret.encode() not in held
        assert stopped.run().status == 0


@pytest.mark.parametrize("lost", ["journal.sqlite-shm", "journal.sqlite.lock", "job.json"])
def test_a_file_that_holds_no_answer_may_get_lost(stopped, lost):
    """The end of a machine leaves ``-shm`` out; the other two are made again."""
    kept = stopped.kept()
    (stopped.place / lost).unlink()
    assert stopped.run().status == 0
    assert stopped.server.run.came.total() == 60 - kept.total
    stopped.check_whole()


def test_a_job_goes_on_from_a_copy_of_its_files(stopped):
    copy = stopped.folder.with_name("copy")
    shutil.copytree(stopped.folder, copy)
    shutil.rmtree(stopped.folder)
    shutil.copytree(copy, stopped.folder)
    kept = stopped.kept()
    assert stopped.run().status == 0
    assert stopped.server.run.came.total() == 60 - kept.total
    assert Watch(stopped).finish() == 0
