"""A kill, half of a write or an error at each system call that writes beside the output.

A job of 30 rows makes some two hundred such calls, from the making of its files to its manifest.
SLOW=1 takes each of them in each way. The short form takes a few, other ones in each way.
"""

import errno

import pytest
from tests.crashes import calls
from tests.crashes.forms import IS_LONG, wait_until
from tests.crashes.jobs import line_of, plain_lines
from tests.crashes.watch import Watch

OPTIONS = ("--max-batch-size", "5", "--concurrency", "10", "--disk-patience", "0")
SHORT = {
    ("before", 0): ("rename",),
    ("after", 0): ("fsync", "unlink"),
    ("half", 0): ("write", "pwrite"),
    ("error", errno.ENOSPC): ("open", "write", "mkdir"),
    ("error", errno.EIO): ("fsync", "fdatasync", "ftruncate"),
}
"""The ways, each with the calls of its short form."""
NOT_TO_BE_TRUSTED = [("fsync", "out.jsonl"), ("fsync", "out.jsonl.part"), ("fdatasync", "journal.sqlite-wal")]
"""After a sync that failed, Linux may drop what was written, and report success the next time."""
KILLS = ("before", "after", "half")
POINTS = 3
"""Of each way in each scenario, in the short form."""


class Scenario:
    """A job that begins again and again in one state.

    Args:
        state: of ``states``.
        begin: runs the command, from watch and plan.
    """

    def __init__(self, state, begin):
        self._state = state
        self._begin = begin
        self.job = state.original()
        self._log = self.job.folder.with_suffix(".log")

    @property
    def publishes(self):
        return self._begin is Watch.publish

    def undisturbed(self):
        """The calls of a run from that state that nothing befalls."""
        if "calls" not in self._state.notes:
            watch, command, made = self.run()
            assert command.status == 0, command.said
            self._state.notes["calls"] = made
        return self._state.notes["calls"]

    def run(self, **fields):
        """Run the job from that state, under a plan; return watch, ended command and calls."""
        self._state.restore(self.job)
        self._log.unlink(missing_ok=True)
        watch = Watch(self.job)
        command = self._begin(watch, plan=calls.Plan(str(self.job.folder), log=str(self._log), **fields))
        return watch, command, self.calls()

    def calls(self):
        """The calls of the last run under a plan, up to the one that met with something."""
        entries = calls.entries(self._log)
        met = [number for number, entry in enumerate(entries) if entry.met]
        return entries[: met[0] + 1] if met else entries


def new(make_job, server):
    """Nothing is there."""
    return make_job(plain_lines(30), *OPTIONS)


def stopped(make_job, server):
    """The job was killed in its middle, while a row was written."""
    server.held = ("text 2",)
    job = make_job(plain_lines(30), *OPTIONS, "--max-batch-size", "1", "--concurrency", "40")
    command = job.start()
    wait_until(lambda: job.seen().written_bytes, command)
    command.kill()
    with job.out.open("ab") as out:
        out.write(b'{"id": 2, "te')
    server.release()
    return job


def failed(make_job, server):
    """The job is done, and some rows failed for now: the output is written anew."""
    lines = plain_lines(30)
    lines[11:14] = [line_of({"id": number, "text": f"once {number}"}) for number in range(11, 14)]
    job = make_job(lines, *OPTIONS, "--max-batch-size", "1")
    assert job.run().status == 1
    return job


def cut(make_job, server):
    """The job was killed in its middle, and somebody has cut the output: it is published anew."""
    job = stopped(make_job, server)
    job.out.write_bytes(job.out.read_bytes()[:80])
    return job


@pytest.fixture
def scenario(request, planned, states, server):
    begin = Watch.publish if request.param is cut else Watch.run
    return Scenario(states.get(request.param), begin)


def of_each(*states):
    return pytest.mark.parametrize("scenario", states, indirect=True, ids=[state.__name__ for state in states])


@of_each(new)
def test_the_calls_of_a_job_are_met(scenario):
    """Calls of Python and of SQLite count, on the output, the journal and the files beside them."""
    met = {(entry.call, entry.file) for entry in scenario.undisturbed()}
    files = {file for _, file in met}
    assert {"out.jsonl", "journal.sqlite", "journal.sqlite-wal"} <= files
    assert any(file.startswith("job.json") for file in files) and any(file.startswith("done.json") for file in files)
    assert ("pwrite64", "journal.sqlite-wal") in met and ("fdatasync", "journal.sqlite-wal") in met
    assert ("write", "out.jsonl") in met and ("fsync", "out.jsonl") in met


@of_each(new, stopped, failed, cut)
@pytest.mark.parametrize(("how", "error"), SHORT, ids=["before", "after", "half", "ENOSPC", "EIO"])
def test_at_each_call(scenario, how, error):
    met, problems = 0, []
    for point in points_among(scenario.undisturbed(), how, error):
        try:
            met += meet(scenario, point, how, error)
        except AssertionError as problem:
            problems.append(f"{how} {scenario.calls()[-1]}: {problem}")
    assert met > 0
    assert not problems, "\n\n".join([f"at {len(problems)} of {met} calls", *problems])


def meet(scenario, point, how, error):
    """Let one call meet its fate, and the job go on; return whether there was such a call."""
    watch, command, made = scenario.run(first=point, last=point, how=how, error=error)
    if not any(entry.met for entry in made):
        # This time the job made fewer calls.
        return False
    call = scenario.calls()[-1]
    if how in KILLS:
        assert command.status == -9, command.said
    elif error == errno.EIO and (call.call, call.file) in NOT_TO_BE_TRUSTED:
        assert command.status == 4, command.said
    elif command.status:
        assert command.status in (1, 2, 4) and "Error" in command.said, command.said
    elif scenario.publishes:
        assert watch.job.whole_rows()
    else:
        watch.job.check_whole()
    if scenario.publishes:
        ended = watch.publish()
        assert ended.status == 0, f"{command.said}; then {ended.said}"
    ended = watch.run()
    assert ended.status == 0, f"{command.said}; then {ended.said}"
    watch.job.check_whole()
    assert watch.check_manifest()["read"] == len(watch.job.lines)
    return True


def points_among(made, how, error):
    """The numbers of calls to meet, of those made by a job that nothing befell."""
    if IS_LONG:
        return range(1, len(made) + 5)
    of_each_file = {}
    for entry in made:
        if entry.call.removesuffix("64") in SHORT[how, error]:
            of_each_file.setdefault((entry.call, entry.file), []).append(entry.number)
    middles = [numbers[len(numbers) // 2] for numbers in of_each_file.values()]
    return middles[:: -(-len(middles) // POINTS)]
