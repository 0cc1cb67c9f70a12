"""A kill, half of a write or an error at each system call that writes beside the output.

A job of 30 rows makes some two hundred such calls, from the making of its files to its manifest.
SLOW=1 takes each of them in each way. The short form takes a few, other ones in each way.
"""

import errno

import pytest
from tests.crashes import calls
from tests.crashes.forms import IS_LONG, long_form
from tests.crashes.jobs import line_of, plain_lines
from tests.crashes.states import stopped
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
NOT_TO_BE_TRUSTED = [("fsync", "out.jsonl"), ("fsync", "out.jsonl.part")]
"""After a sync that failed, Linux may drop what was written, and report success the next time.

The journal has syncs without a row of their own: when its keys are sorted, and at its end.
"""
KILLS = ("before", "after", "half")


class Scenario:
    """A job that begins again and again in one state.

    Args:
        state: of ``states``.
        spoil: what befalls its files, if anything.
        begin: runs the command, from watch and plan.
    """

    def __init__(self, state, spoil, begin):
        self._state = state
        self._spoil = spoil
        self._begin = begin
        self.job = state.original()
        self._log = self.job.folder.with_suffix(".log")

    @property
    def points(self):
        """Calls of each way, in the short form."""
        return 2 if self._spoil is None else 1

    @property
    def publishes(self):
        return self._begin is Watch.publish

    def undisturbed(self):
        """The calls of a run from that state that nothing befalls."""
        if self._begin not in self._state.notes:
            _, command, made = self.run()
            # Rows that the journal does not have are left out of what is published.
            assert command.status in ((0, 1) if self.publishes else (0,)), command.said
            self._state.notes[self._begin] = made
        return self._state.notes[self._begin]

    def run(self, **fields):
        """Run the job from that state, under a plan; return watch, ended command and calls."""
        self._state.restore(self.job)
        if self._spoil is not None:
            self._spoil(self.job)
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


def failed(make_job, server):
    """The job is done, and some rows failed for now: the output is written anew."""
    lines = plain_lines(30)
    lines[11:14] = [line_of({"id": number, "text": f"once {number}"}) for number in range(11, 14)]
    job = make_job(lines, *OPTIONS, "--max-batch-size", "1")
    assert job.run().status == 1
    return job


def finished(make_job, server):
    """The job is done, its rows in the order of their answers: published, they are in the input's."""
    server.held = ("text 3",)
    job = make_job(plain_lines(10), "--max-batch-size", "1", "--concurrency", "20", "--unordered")
    command = job.start()
    server.wait_for(lambda run: len(run.answered) == 9)
    server.release()
    assert command.wait() == 0
    return job


def tear(job):
    """A row was being written when the kill came."""
    with job.out.open("ab") as out:
        out.write(b'{"id": 15, "te')


def cut(job):
    """Somebody has cut the output: it is to be published anew."""
    job.out.write_bytes(job.out.read_bytes()[:80])


CASES = {
    "new": (new, None, Watch.run),
    "stopped": (stopped, tear, Watch.run),
    "failed": (failed, None, Watch.run),
    "published": (stopped, cut, Watch.publish),
    "published anew": (finished, None, Watch.publish),
}
"""How the job is made, what befalls it then, and which command it is that meets a call."""


@pytest.fixture
def scenario(request, planned, states, server):
    make, spoil, begin = CASES[request.param]
    return Scenario(states.get(make), spoil, begin)


@pytest.mark.parametrize("scenario", ["new"], indirect=True)
def test_the_calls_of_a_job_are_met(scenario):
    """Calls of Python and of SQLite count, on the output, the journal and the files beside them."""
    met = {(entry.call, entry.file) for entry in scenario.undisturbed()}
    files = {file for _, file in met}
    assert {"out.jsonl", "journal.sqlite", "journal.sqlite-wal"} <= files
    assert any(file.startswith("job.json") for file in files) and any(file.startswith("done.json") for file in files)
    assert ("pwrite64", "journal.sqlite-wal") in met and ("fdatasync", "journal.sqlite-wal") in met
    assert ("write", "out.jsonl") in met and ("fsync", "out.jsonl") in met


def each_way_of_each_case():
    """The short form has every other one: each case in some ways, each way in some cases."""
    for number, case in enumerate(CASES):
        for way, (how, error) in enumerate(SHORT):
            marks = [long_form] if (number + way) % 2 else []
            yield pytest.param(case, how, error, marks=marks, id=f"{case}-{errno.errorcode.get(error, how)}")


@pytest.mark.parametrize(("scenario", "how", "error"), [*each_way_of_each_case()], indirect=["scenario"])
def test_at_each_call(scenario, how, error):
    met, problems = 0, []
    for point in points_among(scenario.undisturbed(), how, error, scenario.points):
        try:
            met += meet(scenario, how, error, point)
        except AssertionError as problem:
            problems.append(f"{how} {scenario.calls()[-1]}: {problem}")
    assert met > 0
    assert not problems, "\n\n".join([f"at {len(problems)} of {met} calls", *problems])


def meet(scenario, how, error, point):
    """Let one call meet its fate, and the job go on; return whether there was such a call."""
    watch, command, made = scenario.run(how=how, error=error, **point)
    if not any(entry.met for entry in made):
        # This time the job made fewer calls.
        return False
    call = scenario.calls()[-1]
    if how in KILLS:
        assert command.status == -9, command.said
    elif error == errno.EIO and (call.call, call.file) in NOT_TO_BE_TRUSTED:
        assert command.status == 4, command.said
    elif command.status:
        is_partial = scenario.publishes and "left out: " in command.said
        assert command.status in (1, 2, 4) and ("Error" in command.said or is_partial), command.said
    elif not scenario.publishes:
        watch.job.check_whole()
    if scenario.publishes:
        ended = watch.publish()
        assert ended.status in (0, 1), f"{command.said}; then {ended.said}"
    ended = watch.run()
    assert ended.status == 0, f"{command.said}; then {ended.said}"
    watch.job.check_whole()
    assert watch.check_manifest()["read"] == len(watch.job.lines)
    return True


def points_among(made, how, error, most):
    """Plans for the calls to meet, of those made by a job that nothing befell."""
    if IS_LONG:
        return [{"first": number, "last": number} for number in range(1, len(made) + 5)]
    of_each_file = {}
    for entry in made:
        if entry.call.removesuffix("64") in SHORT[how, error]:
            of_each_file.setdefault((entry.call, entry.file), []).append(entry)
    # Those of the output first: tests/journal has the journal's.
    files = sorted(of_each_file, key=lambda key: not key[1].startswith("out.jsonl"))
    return [plan_for(of_each_file[key][len(of_each_file[key]) // 2], made) for key in files[:most]]


def plan_for(entry, made):
    """A plan for a call by its number among its kind on its file, which hardly ever differs."""
    kind = calls.kind_of(entry.call)
    alike = [each.number for each in made if each.file == entry.file and calls.kind_of(each.call) == kind]
    number = alike.index(entry.number) + 1
    return {"name": entry.file, "kinds": kind, "first": number, "last": number}
