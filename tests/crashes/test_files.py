"""The files of a job: who may read them, what they never hold, and what of them may get lost."""

import stat

import pytest
from tests.crashes.forms import long_form
from tests.crashes.states import KEY, ROWS, SECRET, stopped
from tests.crashes.watch import Watch


@pytest.fixture
def job(copy_of):
    return copy_of(stopped)


def test_no_file_shows_an_answer_to_others_or_a_key_to_anybody(job):
    for _ in range(2):
        files = [path for path in job.place.rglob("*") if path.is_file()]
        assert {"job.json", "journal.sqlite"} <= {path.name for path in files}
        assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}
        assert stat.S_IMODE(job.place.stat().st_mode) == 0o700
        held = b"".join(path.read_bytes() for path in [*files, job.out])
        assert b"text 7" in held and KEY.encode() not in held and SECRET.encode() not in held
        assert job.run().status == 0
    assert job.manifest.exists()


@pytest.mark.parametrize(
    "lost",
    ["journal.sqlite-shm", *(pytest.param(name, marks=long_form) for name in ("journal.sqlite.lock", "job.json"))],
)
def test_a_file_that_holds_no_answer_may_get_lost(job, lost):
    """The end of a machine leaves ``-shm`` out; the other two are made again."""
    kept = job.kept()
    (job.place / lost).unlink()
    assert job.run().status == 0
    assert job.server.run.came.total() == ROWS - kept.total
    job.check_whole()


def test_a_job_goes_on_from_a_copy_of_its_files(job):
    # This one is a copy.
    kept = job.kept()
    assert job.run().status == 0
    assert job.server.run.came.total() == ROWS - kept.total
    assert Watch(job).finish() == 0
