"""The rows that a resumed job sends, and the memory that a job takes."""

from collections import Counter

from tests.crashes.forms import long_form, wait_until
from tests.crashes.jobs import Line, line_of, plain_lines
from tests.crashes.server import account_server


def killed(job, answered):
    """Start the job; kill it when it has written so many rows."""
    command = job.start()
    wait_until(lambda: len(job.whole_rows(job.part)) >= answered, command)
    assert command.kill() == -9


# Repeats -------------------------------------------------------------------------------------------------------------


def repeats():
    """Each of three prompts in twelve rows, every other without an id."""
    return [
        line_of({"id": f"row {n}"} | {"text": f"again {n % 3}"} if n % 2 else {"text": f"again {n % 3}"})
        for n in range(36)
    ]


def test_each_repeat_has_its_own_answer_and_is_kept_by_its_occurrence(make_job, server):
    server.pause_s = 0.02
    job = make_job(repeats(), "--max-batch-size", "1", "--concurrency", "2")
    killed(job, 12)
    kept = job.check_kept()
    assert 12 <= kept.answers.total() < 36
    assert job.run().status == 0
    wanted = Counter({f"again {n}": 12 - kept.answers_of(f"again {n}") for n in range(3)})
    assert server.run.came == wanted
    job.check_whole()


# Other inputs --------------------------------------------------------------------------------------------------------


def test_a_reordered_input_is_written_in_its_new_order_and_sends_nothing_twice(make_job, server):
    lines = plain_lines(60)
    server.pause_s = 0.02
    job = make_job(lines, "--max-batch-size", "2", "--concurrency", "4")
    killed(job, 20)
    kept = job.kept().answers
    job.give(lines[::-1])
    assert job.run().status == 0
    assert not {prompt for prompt in server.came if kept[f"<{prompt}>"] and server.came[prompt] > 1}
    job.check_whole()


@long_form
def test_a_moved_server_changes_nothing(make_job, server):
    job = make_job(plain_lines(60), "--max-batch-size", "2", "--concurrency", "4")
    server.pause_s = 0.02
    killed(job, 20)
    kept = job.kept().answers
    with account_server() as other:
        job.server = other
        assert job.run("--header", "x-region: b").status == 0
        assert other.run.came.keys() == {line.prompt for line in job.lines if not kept[f"<{line.prompt}>"]}
        job.check_whole()


# Memory --------------------------------------------------------------------------------------------------------------


@long_form
def test_memory_does_not_grow_with_the_rows(make_job):
    peaks_kb = []
    for count in (20_000, 120_000):
        job = make_job([Line(b'{"id": %d, "text": "%d"}' % (n, n), {}, str(n)) for n in range(count)])
        peaks_kb.append([job.run().peak_kb, job.run().peak_kb])
        assert len(job.whole_rows()) == count
    (new, again), (new_of_many, again_of_many) = peaks_kb
    assert new_of_many < new + 20_000 and again_of_many < again + 20_000, peaks_kb
