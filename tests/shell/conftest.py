"""Tests of the shell run on asyncio and on trio, in virtual time, against a scripted server.

They are started here rather than by anyio's plugin, which runs trio as a guest of another loop: a client that hangs
there takes the whole run with it.
"""

import asyncio
import inspect

import anyio
import pytest
import trio
import trio.testing

from tests import bounds
from tests.shell.clocks import WatchedLoop

ON_TRIO = {"test_cancellation", "test_complete", "test_lifecycle", "test_maps", "test_stream"}
"""Files whose tests run on trio in every run; the others only in the long one."""
LONGEST_COMPUTING_S = 30.0
LONGEST_WAITING_S = 45.0
LONGEST_VIRTUAL_S = 1e6
"""What hangs in virtual time is there at once; this end also cancels what a client holds."""


def pytest_generate_tests(metafunc):
    if inspect.iscoroutinefunction(metafunc.function):
        metafunc.fixturenames.append("library")
        long = () if metafunc.module.__name__.rpartition(".")[2] in ON_TRIO else pytest.mark.long
        on_trio = pytest.param("trio", marks=long)
        metafunc.parametrize("library", getattr(metafunc.module, "LIBRARIES", ("asyncio", on_trio)))


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters}

    async def in_time():
        with anyio.fail_after(LONGEST_VIRTUAL_S):
            await pyfuncitem.obj(**arguments)

    if pyfuncitem.callspec.params["library"] == "trio":
        trio.run(in_time, clock=trio.testing.MockClock(autojump_threshold=0))
    else:
        unseen = []
        with asyncio.Runner(loop_factory=WatchedLoop) as runner:
            # A task or a callback that fails unseen is a failure.
            runner.get_loop().set_exception_handler(lambda loop, context: unseen.append(context))
            runner.run(in_time())
        assert unseen == []
    return True


@pytest.fixture(autouse=True)
def bounded():
    """Fail a test that never comes back to its event loop: one that computes for ever, or one that waits in real time."""
    with bounds.bounded(LONGEST_COMPUTING_S, LONGEST_WAITING_S):
        yield
