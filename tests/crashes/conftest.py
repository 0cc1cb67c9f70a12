"""Commands that end in the middle: their server, their starter, and the library of their calls."""

import pytest
from tests.crashes import calls
from tests.crashes.commands import Commands
from tests.crashes.jobs import Job
from tests.crashes.server import account_server
from tests.crashes.states import States


@pytest.fixture(scope="session")
def library(tmp_path_factory):
    return calls.build(tmp_path_factory.mktemp("calls"))


@pytest.fixture(scope="session")
def starter(library):
    """Starts commands; one for all tests, since it takes a second to begin."""
    commands = Commands(library)
    yield commands
    commands.end()


@pytest.fixture
def commands(starter):
    yield starter
    starter.kill_all()


@pytest.fixture
def planned(commands):
    """The same, for tests that need the system calls of a process."""
    if not commands.has_library:
        pytest.skip("tests/crashes/calls.c needs Linux and a C compiler: cc, gcc or clang")
    return commands


@pytest.fixture(scope="session")
def running_server():
    with account_server() as running:
        yield running


@pytest.fixture
def server(running_server):
    running_server.reset()
    yield running_server
    running_server.release()


@pytest.fixture(scope="session")
def states(tmp_path_factory, running_server, starter):
    return States(tmp_path_factory.mktemp("states"), running_server, starter)


@pytest.fixture
def make_job(tmp_path, server, commands):
    """A job in a new folder, from its lines."""
    made = []

    def make(lines, *options, kind=Job):
        made.append(kind(tmp_path / f"job-{len(made)}", server, commands, lines, *options))
        return made[-1]

    return make
