"""A disk that is full, or fails to sync: the command ends with 4, and the same command goes on. SLOW=1: at every write."""

import errno

import pytest
from tests.crashes import calls
from tests.crashes.jobs import plain_lines
from tests.crashes.watch import Watch, long_form

ROWS = 200
OPTIONS = ("--max-batch-size", "5", "--concurrency", "10")
JOURNAL, PART = "out.jsonl.journal", "out.jsonl.*.part"


@pytest.fixture
def make_watch(planned, make_job, server):
    # Long enough for several commits.
    server.pause_s = 0.1
    return lambda: Watch(make_job(plain_lines(ROWS), *OPTIONS))


def run(watch, **fields):
    """Run the job under a plan; return the command, and whether a call met with something."""
    log = watch.job.folder.with_suffix(".log")
    log.unlink(missing_ok=True)
    command = watch.run(plan=calls.Plan(str(watch.job.folder), log=str(log), **fields))
    return command, any(entry.met for entry in calls.entries(log))


@pytest.mark.parametrize(("name", "first"), [(JOURNAL, 4), (PART, 2)])
def test_a_full_disk_ends_the_job_with_4_and_keeps_what_it_has(make_watch, name, first):
    watch = make_watch()
    command, _ = run(watch, kinds=calls.WRITE, name=name, first=first, last=calls.FOR_EVER, how="full")
    assert command.status == 4, command.said
    assert "No space left on device" in command.said
    kept = watch.kept.total
    assert 0 < kept and (kept < ROWS or name == PART)
    assert watch.finish() == 0
    assert len(watch.job.server.came) == ROWS


@pytest.mark.parametrize("name", [JOURNAL, PART])
def test_a_sync_that_fails_once_ends_the_job_with_4(make_watch, name):
    """After a sync that failed, Linux may drop what was written, and report success the next time."""
    watch = make_watch()
    failing = {"first": 1 + (name == JOURNAL), "how": "error", "error": errno.EIO}
    command, _ = run(watch, kinds=calls.SYNC, name=name, last=failing["first"], **failing)
    assert command.status == 4, command.said
    assert watch.finish() == 0


@long_form
@pytest.mark.parametrize("name", [JOURNAL, PART])
def test_at_every_write(make_watch, name):
    for point in range(1, 1000):
        watch = make_watch()
        command, met = run(watch, kinds=calls.WRITE, name=name, first=point, last=calls.FOR_EVER, how="full")
        if not met:
            assert point > 2
            break
        assert command.status in (2, 4), command.said
        assert watch.finish() == 0
