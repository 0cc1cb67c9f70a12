"""The rules that a job is held against after each of its processes.

1, ``OUT`` is as it was, or each row of the input is in it once. 2, what was committed is kept. 3, what
is sent again was in flight or not committed yet. 4, the output has only answers that the journal has.
7, at last nothing is left to do, and nothing but ``OUT``, its second file and its journal is there.

The short form of these tests is for each change; ``SLOW=1`` runs the long one.
"""

import os
import time

import pytest

__all__ = ["IS_LONG", "Watch", "long_form", "wait_until"]

IS_LONG = bool(os.environ.get("SLOW"))
long_form = pytest.mark.skipif(not IS_LONG, reason="SLOW=1")

MOST_RUNS = 10


class Watch:
    """Runs a job's processes, one after the other, and checks after each.

    ``ordered``: rows are in the order of the input. ``begins_anew``: the job has another journal than before.
    """

    def __init__(self, job, *, ordered=True, begins_anew=False):
        self.job = job
        self.kept = job.kept()
        self.out = bytes_of(job.out)
        self.ordered = ordered
        self.begins_anew = begins_anew

    def run(self, *more, plan=None, kill_after_s=None):
        """Let a process run, for so long if it is to be killed; return the ended command."""
        command = self.job.start(*more, plan=plan)
        if kill_after_s is None:
            command.wait()
        else:
            time.sleep(kill_after_s)
            command.kill()
        self.check(command)
        return command

    def check(self, command):
        """Hold a process that has just ended against the rules."""
        job, run = self.job, self.job.server.run
        assert "Traceback" not in command.said, command.said
        before, self.kept = self.kept, job.check_kept()
        was, self.out = self.out, bytes_of(job.out)
        if self.out != was:
            job.check_whole(ordered=self.ordered, is_last=False)
        if self.begins_anew:
            return
        assert before.answers <= self.kept.answers and before.failed <= self.kept.failed, "rule 2"
        wanted = job.wanted()
        for prompt, count in run.came.items():
            committed = before.answers_of(prompt) + before.failed_of(prompt)
            assert committed < wanted[prompt], f"rule 3: {prompt} was committed, and sent {count} times more"

    def finish(self, *more):
        """Run the job until nothing is left to try, and check the output; return the last status."""
        for _ in range(MOST_RUNS):
            ended = self.run(*more)
            assert ended.status in (0, 1), ended.said
            if "nothing to do" in ended.said:
                break
        else:
            # Rows that failed for now are answered by then; no others are sent again.
            raise AssertionError(f"rule 7: the last of {MOST_RUNS} runs sent {self.job.server.run.came}")
        assert not self.job.server.run.came
        self.job.check_whole(ordered=self.ordered)
        assert {path.name for path in self.job.folder.iterdir()} == self.job.files
        return ended.status


def bytes_of(path):
    return path.read_bytes() if path.exists() else None


def wait_until(condition, command):
    """Look again and again, while the command is under way; the test itself has an end."""
    while not condition():
        assert command.is_under_way, command.said
        time.sleep(0.005)
