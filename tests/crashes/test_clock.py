"""The wall clock goes back an hour at each look: no row and no time that is told depends on it."""

import json

from tests.crashes import calls
from tests.crashes.forms import long_form
from tests.crashes.jobs import lines_of
from tests.crashes.watch import Watch

OPTIONS = ("--max-batch-size", "4", "--concurrency", "16")


def test_a_clock_that_goes_back(planned, make_job, server):
    server.pause_s = 0.02
    lines = lines_of(120, seed=5)
    watch = Watch(make_job(lines, *OPTIONS))
    back = calls.Plan(str(watch.job.folder), step_s=3600)
    for rows in (40, 30):
        command = watch.job.start(plan=back)
        server.wait_for(lambda run, rows=rows: len(run.answered) >= rows)
        assert command.kill() == -9
        watch.check(command)
    ended = watch.run(plan=back)
    assert ended.status == 1 and " in -" not in ended.said, ended.said
    assert watch.finish() == 1
    seconds = [value for name, value in walk(json.loads(watch.job.manifest.read_text())) if name.endswith("_s")]
    assert all(value >= 0 for value in seconds)


@long_form
def test_a_patience_ends_though_the_clock_goes_back(planned, make_job):
    job = make_job(lines_of(60, seed=5), *OPTIONS, "--disk-patience", "0.5")
    full = {"kinds": calls.WRITE, "name": "journal.sqlite-wal", "first": 40, "last": calls.FOR_EVER, "how": "full"}
    ended = job.run(plan=calls.Plan(str(job.folder), step_s=3600, **full))
    assert ended.status == 4, ended.said
    assert "for -" not in ended.said


def walk(value, name=""):
    """The names and values of a JSON object, however deep."""
    if isinstance(value, dict):
        for key, each in value.items():
            yield from walk(each, key)
    elif isinstance(value, list):
        for each in value:
            yield from walk(each, name)
    else:
        yield name, value
