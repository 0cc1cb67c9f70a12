"""SIGKILL at random times, until the job is done. SLOW=1: 200 kills of jobs of 2,000 rows."""

from random import Random

import pytest
from tests.crashes.forms import IS_LONG, long_form, wait_until
from tests.crashes.jobs import lines_of, plain_lines
from tests.crashes.watch import Watch

KILLS, ROWS, LONGEST_S = (100, 2000, 1.5) if IS_LONG else (4, 200, 0.35)
OPTIONS = ("--max-batch-size", "4", "--concurrency", "16")


@pytest.mark.parametrize("order", [[], ["--unordered"]], ids=["ordered", "unordered"])
def test_kills_at_random_times(make_job, server, order):
    server.pause_s = 0.005
    random = Random(f"{order}")
    kills = 0
    while kills < KILLS:
        job = make_job(lines_of(ROWS, seed=kills), *OPTIONS, *order)
        watch = Watch(job, ordered=not order)
        while kills < KILLS and watch.run(kill_after_s=random.uniform(0.05, LONGEST_S)).status < 0:
            kills += 1
        assert watch.finish() == 1, "some rows failed for good"


@long_form
def test_what_changes_between_kills(make_job, server):
    """The order of the output and of the input, and the rows: each run may be another in all."""
    server.pause_s = 0.005
    random = Random(11)
    for number in range(KILLS // 2):
        lines = lines_of(ROWS, seed=number)
        job = make_job(lines, *OPTIONS)
        watch = Watch(job, ordered=False)
        for _ in range(3):
            watch.run(*random.choice([[], ["--unordered"]]), kill_after_s=random.uniform(0.1, LONGEST_S))
            job.give(changed(lines, random))
        watch.finish()


def changed(lines, random):
    """The lines from some place on in a new order, and some without a repeat left out."""
    start = random.randrange(len(lines))
    rest = random.sample(lines[start:], len(lines) - start)
    left_out = {line.prompt for line in rest if random.random() < 0.2 and "again" not in (line.prompt or "again")}
    # An unusable line is named by its number, which changes.
    return [line for line in lines[:start] + rest if line.prompt is not None and line.prompt not in left_out]


def test_a_kill_costs_what_is_in_flight(make_job, server):
    """Most rows are answered, committed and in the output; three have no answer when the kill comes."""
    server.held = ("text 7",)
    job = make_job(plain_lines(72), "--max-batch-size", "1", "--concurrency", "80")
    in_flight = {line.prompt for line in job.lines if "text 7" in line.prompt}
    command = job.start()
    server.wait_for(lambda run: len(run.came) == 72 and len(run.answered) == 69)
    wait_until(lambda: job.kept().answers.total() == 69, command)
    command.kill()
    assert server.run.in_flight == in_flight
    job.check_kept()
    server.release()
    assert job.run().status == 0
    assert sorted(server.run.came.elements()) == sorted(in_flight)
    job.check_whole()
