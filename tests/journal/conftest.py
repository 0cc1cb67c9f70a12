"""Tests of journals run on asyncio and on trio, in real time: the journal has a thread of its own."""

import inspect
import os

import anyio
import pytest
from tests import bounds

LONGEST_S = 60.0


def pytest_generate_tests(metafunc):
    if inspect.iscoroutinefunction(metafunc.function):
        metafunc.fixturenames.append("library")
        metafunc.parametrize("library", getattr(metafunc.module, "LIBRARIES", ("asyncio", "trio")))


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters}

    async def in_time():
        with anyio.fail_after(LONGEST_S):
            await pyfuncitem.obj(**arguments)

    anyio.run(in_time, backend=pyfuncitem.callspec.params["library"])
    return True


@pytest.fixture(autouse=True)
def bounded():
    """Fail a test that never comes back."""
    # The long forms take minutes.
    with bounds.bounded(60.0, 1200.0 if os.environ.get("SLOW") else 90.0):
        yield


@pytest.fixture
def path(tmp_path):
    return tmp_path / "journal.sqlite"
