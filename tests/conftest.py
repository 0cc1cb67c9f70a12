"""What all folders share: coroutines as tests, how long a test may take, Ctrl-C, certificates.

Hypothesis' profile ``ci`` is the same in every run; ``HYPOTHESIS_PROFILE=explore`` looks for longer, at random.
"""

import asyncio
import contextlib
import functools
import gc
import inspect
import os
import signal
import ssl
import sys
from pathlib import Path

import anyio
import pytest
from hypothesis import settings

from batchclient.testing import VirtualLoop
from tests import bounds
from tests.promises.table import promises

# No deadline: the machines are shared and noisy, and a slow example says nothing about the code.
settings.register_profile("ci", derandomize=True, deadline=None, database=None, print_blob=True)
settings.register_profile("explore", max_examples=3000, deadline=None, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

# Images of containers forbid it, and then each process of the suite, of its tests too, compiles all that it imports.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell that starts the suite in the background has it ignored. Processes inherit that, and the tests of Ctrl-C would wait for ever.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def certificates_read_once():
    """An HTTP client of httpx reads the machine's certificates when it is made: most of the time of a test that makes two."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ssl, "create_default_context", functools.cache(ssl.create_default_context))
        yield


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """What is imported and collected lives as long as the run: looking for garbage in it takes a third of that time, and 0.3 s later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()


# Coroutines as tests, and bounds -----------------------------------------------------------------------------------------------

SLOW = bool(os.environ.get("SLOW"))
"""The long forms take minutes."""
BOUNDS_S = {
    # What hangs in virtual time is there at once.
    "shell": (30.0, 45.0),
    "journal": (60.0, 1200.0 if SLOW else 90.0),
    "telemetry": (60.0, 90.0),
    "crashes": (120.0, 1800.0 if SLOW else 60.0),
    "integrations": (15.0, 120.0),
}
"""By folder: how long a test may compute, and wait in real time."""
SOCKETS = ("transport", "faults", "drop_in", "redis", "proxies")
SOCKETS_S = 15.0
"""There, or a module's own LONGEST_S; none of them waits for a clock."""
LIBRARIES = {
    "shell": ("asyncio", pytest.param("trio", marks=pytest.mark.long)),
    "journal": ("asyncio", "trio"),
    "telemetry": ("asyncio",),
}
"""By folder, or a module's own: each coroutine runs on each. Elsewhere it runs on asyncio."""
VIRTUAL = ("bench", "testing")
"""There a coroutine runs in virtual time."""
OTHERS_OWN = ("simulator",)
"""There anyio's plugin runs them."""
ON_TRIO = {"test_cancellation", "test_complete", "test_lifecycle", "test_maps", "test_stream"}
"""Files of the shell that run on trio in every run; the others only in the long one."""
LONGEST_VIRTUAL_S = 1e6
LONGEST_S = {"journal": 60.0, "telemetry": 30.0}
"""These ends also cancel what a client holds."""


def folder_of(path):
    return path.relative_to(Path(__file__).parent).parts[0]


@pytest.fixture(autouse=True)
def bounded(request):
    """Fail a test that never comes back."""
    folder = folder_of(request.path)
    limits = BOUNDS_S.get(folder)
    if folder in SOCKETS:
        limits = 2 * (getattr(request.module, "LONGEST_S", SOCKETS_S),)
    with bounds.bounded(*limits) if limits else contextlib.nullcontext():
        yield


def pytest_generate_tests(metafunc):
    libraries = LIBRARIES.get(folder_of(metafunc.definition.path))
    if libraries and inspect.iscoroutinefunction(metafunc.function):
        if metafunc.definition.path.stem in ON_TRIO:
            libraries = ("asyncio", "trio")
        metafunc.fixturenames.append("library")
        metafunc.parametrize("library", getattr(metafunc.module, "LIBRARIES", libraries))


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    """Not by anyio's plugin, which runs trio as a guest of another loop: a client that hangs there takes the whole run with it."""
    folder = folder_of(pyfuncitem.path)
    if not inspect.iscoroutinefunction(pyfuncitem.obj) or folder in OTHERS_OWN:
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters}
    if folder not in LIBRARIES:
        with asyncio.Runner(loop_factory=VirtualLoop if folder in VIRTUAL else None) as runner:
            runner.run(pyfuncitem.obj(**arguments))
        return True

    async def in_time():
        with anyio.fail_after(LONGEST_S.get(folder, LONGEST_VIRTUAL_S)):
            await pyfuncitem.obj(**arguments)

    library = pyfuncitem.callspec.params["library"]
    if folder == "shell":
        run_virtually(in_time, library)
    else:
        anyio.run(in_time, backend=library)
    return True


def run_virtually(main, library):
    """In virtual time, on either library."""
    if library == "trio":
        import trio
        import trio.testing

        trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
        return
    from tests.shell.clocks import WatchedLoop

    unseen = []
    with asyncio.Runner(loop_factory=WatchedLoop) as runner:
        # A task or a callback that fails unseen is a failure.
        runner.get_loop().set_exception_handler(lambda loop, context: unseen.append(context))
        runner.run(main())
    assert unseen == []


def pytest_terminal_summary(terminalreporter):
    """The last screen names the promises whose tests failed."""
    nodes = [report.nodeid for report in terminalreporter.stats.get("failed", ())]
    failed = {*nodes, *(node.partition("[")[0] for node in nodes)}
    broken = [promise.says for promise in promises() if promise.node in failed] if failed else []
    if broken:
        terminalreporter.section("broken promises")
        for promise in broken:
            terminalreporter.line(promise)
