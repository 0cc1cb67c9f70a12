"""Jobs in states that take a second to reach: each is made once, and every test has a copy."""

import shutil

from tests.crashes.jobs import Job, plain_lines
from tests.crashes.watch import wait_until

__all__ = ["HELD", "ROWS", "State", "States", "stopped"]

ROWS, HELD = 30, 15
"""Of ``stopped``: the rows, and the one that had no answer."""


def stopped(make_job, server):
    """A job that was killed: half of its rows are beside the output, and all but one in the journal."""
    server.held = (f"text {HELD}",)
    job = make_job(plain_lines(ROWS), "--max-batch-size", "1", "--concurrency", "40")
    command = job.start()
    wait_until(lambda: job.kept().answers.total() == ROWS - 1 and len(job.whole_rows(job.part)) == HELD, command)
    command.kill()
    server.release()
    assert job.check_kept().answers.total() == ROWS - 1 and not job.out.exists()
    return job


class State:
    """A job that has ended or was killed, its files, and what its server had refused by then; notes are the tests' own."""

    def __init__(self, job, folder):
        self._made = job
        self._saved = folder
        self._met = set(job.server.met)
        self.notes = {}
        shutil.copytree(job.folder, folder, symlinks=True)

    def original(self):
        """The job itself, in its own place, with the files of the beginning."""
        self._made.server.met |= self._met
        self.restore(self._made)
        return self._made

    def job(self, folder):
        """A copy of the job, in a new folder."""
        made, server = self._made, self._made.server
        server.met |= self._met
        job = Job(folder, server, made.commands, made.lines, *made.options)
        self.restore(job)
        return job

    def restore(self, job):
        """Give a job the files of the beginning."""
        shutil.rmtree(job.folder)
        shutil.copytree(self._saved, job.folder, symlinks=True)


class States:
    """The states made so far, whose files are in a folder."""

    def __init__(self, folder, server, commands):
        self._folder = folder
        self._server = server
        self._commands = commands
        self._states = {}

    def get(self, make):
        """The state that a function makes of ``(make_job, server)``."""
        if make not in self._states:
            place = self._folder / f"{make.__module__}.{make.__name__}"
            place.mkdir()
            job = make(
                lambda lines, *options: Job(place / "job", self._server, self._commands, lines, *options), self._server
            )
            self._states[make] = State(job, place / "saved")
            self._server.reset()
        return self._states[make]
