"""SIGKILL at random times, until the job is done: SLOW=1 is 200 kills of jobs of 2,000 rows. Also what a job takes and tells after kills."""

from collections import Counter
from random import Random

import pytest
from tests.crashes import calls
from tests.crashes.jobs import Line, line_of, lines_of, plain_lines
from tests.crashes.watch import IS_LONG, Watch, long_form, wait_until

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


def repeats():
    """Each of three prompts in twelve rows, every other without an id."""
    return [
        line_of({"id": f"row {n}"} | {"text": f"again {n % 3}"} if n % 2 else {"text": f"again {n % 3}"})
        for n in range(36)
    ]


def test_each_repeat_has_its_own_answer_and_is_kept_by_its_occurrence(make_job, server):
    server.pause_s = 0.05
    job = make_job(repeats(), "--max-batch-size", "1", "--concurrency", "2")
    command = job.start()
    wait_until(lambda: len(job.whole_rows(job.part)) >= 12, command)
    assert command.kill() == -9
    kept = job.check_kept()
    assert 12 <= kept.answers.total() < 36
    assert job.run().status == 0
    wanted = Counter({f"again {n}": 12 - kept.answers_of(f"again {n}") for n in range(3)})
    assert server.run.came == wanted
    job.check_whole()


@long_form
def test_memory_does_not_grow_with_the_rows(make_job):
    peaks_kb = []
    for count in (20_000, 120_000):
        job = make_job([Line(b'{"id": %d, "text": "%d"}' % (n, n), {}, str(n)) for n in range(count)])
        peaks_kb.append([job.run().peak_kb, job.run().peak_kb])
        assert len(job.whole_rows()) == count
    (new, again), (new_of_many, again_of_many) = peaks_kb
    assert new_of_many < new + 20_000 and again_of_many < again + 20_000, peaks_kb


def test_a_clock_that_goes_back(planned, make_job, server):
    """The wall clock goes back an hour at each look: no row and no time that is told depends on it."""
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
