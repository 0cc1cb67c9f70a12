"""The wall clock goes back an hour at each look: no row and no time that is told depends on it."""

from tests.crashes import calls
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
    [told] = watch.kept.notes["outputs"].values()
    assert told["seconds"] >= 0
