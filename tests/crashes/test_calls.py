"""A kill, half of a write or an error at each system call that writes beside the output.

A job of 30 rows makes some forty such calls, from the making of its journal to the renaming of its output.
SLOW=1 takes each of them in each way. The short form takes a few, other ones in each way.
"""

import errno
import re
from fnmatch import fnmatch

import pytest
from tests.crashes import calls
from tests.crashes.commands import ALONE
from tests.crashes.jobs import line_of, plain_lines
from tests.crashes.states import stopped
from tests.crashes.watch import IS_LONG, Watch, long_form

OPTIONS = ("--max-batch-size", "5", "--concurrency", "10")
SHORT = {
    ("before", 0): ("rename", "open"),
    ("after", 0): ("fsync", "unlink", "symlink"),
    ("half", 0): ("write",),
    ("error", errno.ENOSPC): ("open", "write"),
    ("error", errno.EIO): ("fsync",),
}
"""The ways, each with the calls of its short form."""
KILLS = ("before", "after", "half")
TOKEN = re.compile("[0-9a-f]{16}")


class Scenario:
    """A job that begins again and again in one state; the options are those of the command that meets a call."""

    def __init__(self, state, options):
        self._state = state
        self.options = options
        self.job = state.original()
        # A lease that is torn, or another machine's, is watched for a while, which is short there.
        self.job.host = ALONE
        self._log = self.job.folder.with_suffix(".log")

    def undisturbed(self):
        """The calls of a run from that state that nothing befalls."""
        if self.options not in self._state.notes:
            _, command, made = self.run()
            assert command.status == 0, command.said
            self._state.notes[self.options] = made
        return self._state.notes[self.options]

    def run(self, **fields):
        """Run the job from that state, under a plan; return watch, ended command and calls."""
        self._state.restore(self.job)
        self._log.unlink(missing_ok=True)
        watch = Watch(self.job, begins_anew="--new" in self.options)
        command = watch.run(*self.options, plan=calls.Plan(str(self.job.folder), log=str(self._log), **fields))
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
    # One by one: three in a row would be a server that is full.
    for number in (11, 17, 23):
        lines[number] = line_of({"id": number, "text": f"later {number}"})
    job = make_job(lines, *OPTIONS, "--max-batch-size", "1")
    assert job.run().status == 1
    return job


def finished(make_job, server):
    """The job is done; then it begins anew, with other parameters."""
    job = make_job(plain_lines(30), *OPTIONS)
    assert job.run().status == 0
    return job


CASES = {
    "new": (new, ()),
    "stopped": (stopped, ()),
    "failed": (failed, ()),
    "anew": (finished, ("--new", "--param", "seed=1")),
}
"""How the job is made, and the options of the command that meets a call."""


@pytest.fixture
def scenario(request, planned, states):
    make, options = CASES[request.param]
    return Scenario(states.get(make), options)


@pytest.mark.parametrize("scenario", ["stopped"], indirect=True)
def test_the_calls_of_a_takeover_are_met(scenario):
    """The killed job was on another machine: who goes on copies its journal."""
    met = {(entry.call.removesuffix("64"), TOKEN.sub("*", entry.file)) for entry in scenario.undisturbed()}
    assert {("rename", "out.jsonl.journal"), ("rename", "out.jsonl")} <= met


@pytest.mark.parametrize("scenario", ["new"], indirect=True)
def test_the_calls_of_a_job_are_met(scenario):
    """Calls on the output, the journal, the lease and the files beside them count."""
    met = {(entry.call.removesuffix("64"), TOKEN.sub("*", entry.file)) for entry in scenario.undisturbed()}
    journal, rows = "out.jsonl.journal", "out.jsonl.*.part"
    assert {("open", journal), ("write", journal), ("fsync", journal), ("open", rows), ("write", rows)} <= met
    assert {("fsync", rows), ("symlink", "out.jsonl.part"), ("rename", "out.jsonl")} <= met
    assert {("unlink", "out.jsonl.part"), ("unlink", f"{journal}.lease")} <= met


def each_way_of_each_case():
    """The short form has every other one: each case in some ways, each way in some cases."""
    for number, case in enumerate(CASES):
        for way, (how, error) in enumerate(SHORT):
            marks = [long_form] if (number + way) % 2 else []
            yield pytest.param(case, how, error, marks=marks, id=f"{case}-{errno.errorcode.get(error, how)}")


@pytest.mark.parametrize(("scenario", "how", "error"), [*each_way_of_each_case()], indirect=["scenario"])
def test_at_each_call(scenario, how, error):
    met, problems = 0, []
    for point in points_among(scenario.undisturbed(), how, error):
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
    if how in KILLS:
        assert command.status == -9, command.said
    elif command.status:
        assert command.status in (2, 4) and "Error" in command.said, command.said
    else:
        watch.job.check_whole()
    ended = watch.run(*scenario.options)
    assert ended.status == 0, f"{command.said}; then {ended.said}"
    watch.job.check_whole()
    before = {path.name for path in watch.job.folder.iterdir()}
    # A lease that could not be removed goes with the next command.
    assert before <= {"out.jsonl", "out.jsonl.journal"}, before
    return True


def points_among(made, how, error):
    """Plans for the calls to meet, of those made by a job that nothing befell."""
    if IS_LONG:
        return [{"first": number, "last": number} for number in range(1, len(made) + 5)]
    of_each_file = {}
    for entry in made:
        if entry.call.removesuffix("64") in SHORT[how, error]:
            of_each_file.setdefault((entry.call, TOKEN.sub("*", entry.file)), []).append(entry)
    return [plan_for(each[len(each) // 2], made) for each in of_each_file.values()]


def plan_for(entry, made):
    """A plan for a call by its number among its kind on its file, which hardly ever differs."""
    kind, name = calls.kind_of(entry.call), TOKEN.sub("*", entry.file)
    alike = [each.number for each in made if fnmatch(each.file, name) and calls.kind_of(each.call) == kind]
    number = alike.index(entry.number) + 1
    return {"name": name, "kinds": kind, "first": number, "last": number}
