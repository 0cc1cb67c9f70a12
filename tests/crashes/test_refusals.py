"""A job that another process has, on this machine or another one."""

import errno

import pytest
from tests.crashes import calls
from tests.crashes.jobs import plain_lines
from tests.crashes.states import ROWS
from tests.crashes.watch import Watch, wait_until


@pytest.mark.parametrize("lock_error", [None, -1], ids=["locks", "locks nothing"])
def test_a_second_command_is_refused_by_the_name_of_the_first(planned, make_job, server, lock_error):
    server.held = ("text 3",)
    job = make_job(plain_lines(ROWS), "--max-batch-size", "1")
    plan = None if lock_error is None else calls.Plan(str(job.folder), lock_error=lock_error)
    first = job.start(plan=plan, host="" if plan is None else "a")
    server.wait_for(lambda run: "text 3" in run.came)
    second = job.start_beside(plan=plan, host="" if plan is None else "b")
    assert second.wait() == 2, second.said
    assert f"pid {first.pid}" in second.said
    server.release()
    assert first.wait() == 0, first.said
    job.check_whole()
    assert set(server.run.came.values()) == {1}


@pytest.mark.parametrize("lock_error", [errno.ENOLCK, -1], ids=["ENOLCK", "locks nothing"])
def test_a_job_goes_on_from_another_machine(planned, make_job, server, lock_error):
    """The first machine is killed there, and a second one goes on once the lease stands still."""
    server.held = ("text 13",)
    job = make_job(plain_lines(ROWS), "--max-batch-size", "1", "--concurrency", "40")
    watch, plan = Watch(job), calls.Plan(str(job.folder), lock_error=lock_error)
    first = job.start(plan=plan, host="a")
    wait_until(lambda: job.kept().answers.total() == ROWS - 1, first)
    first.kill()
    watch.check(first)
    server.release()
    second = job.start(plan=plan, host="b")
    assert second.wait() == 0, second.said
    assert server.run.came == {"text 13": 1}
    watch.check(second)
    job.check_whole()
    assert {path.name for path in job.folder.iterdir()} == {"out.jsonl", "out.jsonl.journal"}


def test_of_two_machines_one_ends_where_the_first_only_slept(planned, make_job, server):
    """The first one is stopped for longer than its lease, and wakes up when the second has the job."""
    server.pause_s = 0.05
    job = make_job(plain_lines(ROWS * 4), "--max-batch-size", "1", "--concurrency", "4")
    plan = calls.Plan(str(job.folder), lock_error=-1)
    first = job.start(plan=plan, host="a")
    wait_until(lambda: job.kept().answers.total() >= ROWS, first)
    first.stop()
    second = job.start_beside(plan=plan, host="b")
    wait_until(lambda: "another" in second.said or len(job.whole_rows()) or not second.is_under_way, second)
    first.go_on()
    assert {first.wait(), second.wait()} & {2, 4} and 0 in (first.status, second.status), first.said + second.said
    job.check_whole()
    assert Watch(job).finish() == 0
