"""A disk that is full, for a while or for long, or fails to sync. SLOW=1: at every write."""

import errno

import pytest
from tests.crashes import calls
from tests.crashes.forms import long_form, wait_until
from tests.crashes.jobs import plain_lines
from tests.crashes.watch import Watch

ROWS = 200
OPTIONS = ("--max-batch-size", "5", "--concurrency", "10")


@pytest.fixture
def watch(planned, make_job, server):
    # Long enough for several commits.
    server.pause_s = 0.02
    return Watch(make_job(plain_lines(ROWS), *OPTIONS))


def plan(job, **fields):
    return calls.Plan(str(job.folder), log=str(job.folder.with_suffix(".log")), **fields)


def log_of(job):
    return calls.entries(job.folder.with_suffix(".log"))


def begun(watch):
    """Kill the job in its middle: what follows is about rows, not about the making of files."""
    server = watch.job.server
    command = watch.job.start()
    server.wait_for(lambda run: len(run.answered) >= 20)
    wait_until(watch.job.whole_rows, command)
    command.kill()
    watch.check(command)
    return watch


@long_form
def test_space_that_is_freed_lets_the_job_go_on(watch):
    """The journal's commit is refused at first, then the output's write."""
    begun(watch)
    ended = watch.run(plan=plan(watch.job, kinds=calls.WRITE, name="journal.sqlite-wal", first=2, last=3, how="full"))
    assert ended.status == 0, ended.said
    assert "cannot be written" in ended.said and "can be written again" in ended.said
    assert watch.finish() == 0


@long_form
def test_an_output_that_finds_no_space_goes_on_when_there_is_some(watch):
    begun(watch)
    ended = watch.run(plan=plan(watch.job, kinds=calls.WRITE, name="out.jsonl", first=1, last=2, how="full"))
    assert ended.status == 0, ended.said
    assert watch.finish() == 0


@long_form
@pytest.mark.parametrize(("name", "first"), [("journal.sqlite-wal", 3), ("out.jsonl", 1)])
def test_a_disk_that_stays_full_ends_the_job_with_4(watch, name, first):
    begun(watch)
    before = watch.kept.total
    full = plan(watch.job, kinds=calls.WRITE, name=name, first=first, last=calls.FOR_EVER, how="full")
    ended = watch.run("--disk-patience", "0", plan=full)
    assert ended.status == 4, ended.said
    assert "No space left on device" in ended.said or "full" in ended.said
    assert watch.kept.total >= before
    assert watch.finish() == 0


@long_form
def test_a_mark_that_finds_no_space_for_a_moment_stops_no_row(planned, make_job):
    """The journal has more rows than are read ahead: no commit of a row tells of space again."""
    job = make_job(plain_lines(6000))
    assert job.run().status == 0
    job.out.unlink()
    writes = {"kinds": calls.WRITE, "name": "journal.sqlite-wal"}
    job.run(plan=plan(job))
    made = [(entry.call, entry.file) for entry in log_of(job)]
    job.folder.with_suffix(".log").unlink()
    before = made[: made.index(("open64", "out.jsonl"))].count(("pwrite64", "journal.sqlite-wal"))
    job.out.unlink()
    watch = Watch(job)
    ended = watch.run(plan=plan(job, **writes, first=before + 1, last=before + 1, how="error"))
    assert ended.status == 0, ended.said
    assert "cannot be written" in ended.said and "can be written again" in ended.said
    assert not job.server.run.came
    assert watch.finish() == 0


def test_a_new_job_on_a_disk_that_fills_up_keeps_what_it_has(planned, make_job, server):
    """The journal is made, and has a commit of rows, before there is no space any more."""
    server.pause_s = 0.05
    watch = Watch(make_job(plain_lines(100), *OPTIONS))
    full = plan(watch.job, kinds=calls.WRITE, name="journal.sqlite-wal", first=36, last=calls.FOR_EVER, how="full")
    ended = watch.run("--disk-patience", "0", plan=full)
    assert ended.status == 4, ended.said
    assert 0 < watch.kept.total < 100
    server.pause_s = 0.0
    assert watch.finish() == 0


@pytest.mark.parametrize("name", [pytest.param("journal.sqlite-wal", marks=long_form), "out.jsonl"])
def test_a_sync_that_fails_once_ends_the_job_with_4(watch, name):
    begun(watch)
    failing = plan(watch.job, kinds=calls.SYNC, name=name, first=1, last=1, how="error", error=errno.EIO)
    ended = watch.run(plan=failing)
    assert ended.status == 4, ended.said
    assert watch.finish() == 0


@long_form
@pytest.mark.parametrize("name", ["journal.sqlite-wal", "out.jsonl"])
@pytest.mark.parametrize("patience", ["0", "600"])
def test_at_every_write(planned, make_job, server, name, patience):
    # The rows of each commit are one write of the output.
    server.pause_s = 0.05
    for point in range(1, 1000):
        watch = Watch(make_job(plain_lines(ROWS), *OPTIONS, "--disk-patience", patience))
        last = point + 3 if patience != "0" else calls.FOR_EVER
        ended = watch.run(plan=plan(watch.job, kinds=calls.WRITE, name=name, first=point, last=last, how="full"))
        if not any(entry.met for entry in log_of(watch.job)):
            assert point > 3
            break
        assert ended.status in (0, 2, 4), ended.said
        assert watch.finish() == 0
