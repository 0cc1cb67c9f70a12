"""Real sockets and mocked httpx: each test has a few seconds, or its module's own LONGEST_S, and none of them waits for a clock."""

import asyncio
import inspect
import signal

import pytest

LONGEST_S = 15.0


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters}
    asyncio.run(pyfuncitem.obj(**arguments))
    return True


@pytest.fixture(autouse=True)
def bounded(request):
    longest_s = getattr(request.module, "LONGEST_S", LONGEST_S)

    def stop(number, frame):
        pytest.fail(f"the test ran for {longest_s:g} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, longest_s, 1.0)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


two_backends = pytest.mark.parametrize("backend", ["httpx", "aiohttp"])
"""For tests that take long: httpx2 does there as httpx does."""


@pytest.fixture(params=["httpx", "httpx2", "aiohttp"])
def backend(request):
    return request.param
